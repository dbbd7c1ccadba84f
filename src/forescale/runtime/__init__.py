"""Pipeline schedules that really run, on torch.distributed, with input and weight gradients apart.

`PipelineStep` is what a training loop calls; `launch` starts ranks on this machine; `extend` is for attention under
schedules that cut sequences; `linear`, `grouped_linear` and `embedding` are for modules that multiply by their
parameters themselves. Needs the extra `bench` (torch).
"""

from forescale.runtime.errors import RunError
from forescale.runtime.gradients import embedding, grouped_linear, linear
from forescale.runtime.launch import launch
from forescale.runtime.pieces import extend, offset
from forescale.runtime.step import PipelineStep
from forescale.schedule.measured import Pass

__all__ = [
    "Pass",
    "PipelineStep",
    "RunError",
    "embedding",
    "extend",
    "grouped_linear",
    "launch",
    "linear",
    "offset",
]
