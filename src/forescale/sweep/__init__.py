"""Sweeps: full searches over cluster, device and workload parameters, on all cores or on a Ray cluster.

```python
from forescale.sweep import Local, read_sweep, run

result = run(read_sweep("sweep.toml"), executor=Local(jobs=4), output="sweep-out")
result.best()["step_time_s"]
```

Run it below `if __name__ == "__main__":`, as everything that starts processes.
"""

from forescale.sweep.definition import Sweep
from forescale.sweep.executors import Executor, Local, Ray, run
from forescale.sweep.reading import build_sweep, read_sweep
from forescale.sweep.result import SweepResult

__all__ = ["Executor", "Local", "Ray", "Sweep", "SweepResult", "build_sweep", "read_sweep", "run"]
