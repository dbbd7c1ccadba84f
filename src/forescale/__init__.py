"""Forescale: project memory and step time of a training run, and find its best layout, before running it.

```python
import forescale as fs

found = fs.search("llama-3.1-70b", "h100-sxm", devices=256, seq_len=8192, global_batch_size=1024)
```

Everything named here is loaded when it is first used. docs/api.md describes it.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType

from forescale.version import __version__

TYPE_CHECKING = False
"""As in `typing`, which is not loaded for it: type checkers read what follows."""
if TYPE_CHECKING:
    from forescale.api import compare, load_cluster, load_model, pipeline, sweep, trace, write_trace
    from forescale.catalogue.clusters import cluster_names
    from forescale.catalogue.frameworks import framework_names, load_framework
    from forescale.catalogue.models import model_names
    from forescale.cost.select import Costs
    from forescale.errors import ForescaleError
    from forescale.face import (
        advise,
        ask,
        ask_search,
        check,
        diagnose,
        explain,
        export,
        fit,
        memory,
        project,
        run,
        search,
        watch,
    )  # fmt: skip
    from forescale.io.question import read_question, write_question
    from forescale.presets import preset_names
    from forescale.projection.estimate import Estimate
    from forescale.projection.result import Projection
    from forescale.question import Question
    from forescale.search import SearchResult
    from forescale.spec import Cluster, Layout, Model, Overlap, Precision, Recompute, Space, Workload

_HOMES = {
    "forescale.api": ("compare", "load_cluster", "load_model", "pipeline", "sweep", "trace", "write_trace"),
    "forescale.catalogue.clusters": ("cluster_names",),
    "forescale.catalogue.frameworks": ("framework_names", "load_framework"),
    "forescale.catalogue.models": ("model_names",),
    "forescale.cost.select": ("Costs",),
    "forescale.errors": ("ForescaleError",),
    "forescale.face": (
        "advise", "ask", "ask_search", "check", "diagnose", "explain", "export", "fit", "memory", "project",
        "run", "search", "watch",
    ),
    "forescale.io.question": ("read_question", "write_question"),
    "forescale.presets": ("preset_names",),
    "forescale.projection.estimate": ("Estimate",),
    "forescale.projection.result": ("Projection",),
    "forescale.question": ("Question",),
    "forescale.search": ("SearchResult",),
    "forescale.spec": (
        "Cluster", "Model", "Overlap", "Precision", "Recompute", "Space", "Layout", "Workload",
    ),
}  # fmt: skip
_RENAMED = {"Strategy": "Layout"}
"""Former names, which work in 0.1 with a warning."""
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Cluster", "Costs", "Estimate", "ForescaleError", "Layout", "Model", "Overlap", "Precision",
    "Projection", "Question", "Recompute", "SearchResult", "Space", "Workload", "__version__", "advise", "ask",
    "ask_search", "check", "cluster_names", "compare", "diagnose", "explain", "export", "fit",
    "framework_names", "load_cluster", "load_framework", "load_model", "memory", "model_names", "pipeline",
    "preset_names", "project", "read_question", "run", "search", "sweep", "trace", "watch",
    "write_question", "write_trace",
]  # fmt: skip


def _loaded(name: str) -> object:
    """Return what a name means, from its module; from then on it is an attribute like others."""
    if name in _RENAMED:
        message = f"forescale.{name} is now forescale.{_RENAMED[name]}; the old name is removed in 0.2"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[__name__], _RENAMED[name])
    if name not in _HOME:
        message = f"module 'forescale' has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    result = getattr(import_module(_HOME[name]), name)
    globals()[name] = result
    return result


if not TYPE_CHECKING:  # a type checker would take any attribute for one that may be there
    __getattr__ = _loaded


def __dir__() -> list[str]:
    return __all__


class _Face(ModuleType):
    """The module itself: importing a package such as `forescale.search` leaves the function of that name in place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
