"""Pipeline schedules that really run, on torch.distributed, with input and weight gradients apart.

`PipelineStep` is what a training loop calls; `launch` starts ranks on this machine; `extend` is for attention under
schedules that cut sequences; `linear`, `grouped_linear` and `embedding` are for modules that multiply by their
parameters themselves. Needs the extra `bench` (torch).
"""

from forescale.runtime.channels import RunError
from forescale.runtime.gradients import embedding, grouped_linear, linear
from forescale.runtime.huggingface import huggingface_stage, huggingface_ties
from forescale.runtime.launch import launch
from forescale.runtime.pieces import extend, offset
from forescale.runtime.step import PipelineStep, as_stage
from forescale.schedule.measured import Pass

__all__ = [
    "Pass",
    "PipelineStep",
    "RunError",
    "as_stage",
    "embedding",
    "extend",
    "grouped_linear",
    "huggingface_stage",
    "huggingface_ties",
    "launch",
    "linear",
    "offset",
]
