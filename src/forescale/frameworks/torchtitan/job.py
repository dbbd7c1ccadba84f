"""Job configurations in Python, read as syntax: what a function that returns a `Trainer.Config` puts into it.

Nothing is imported or run. Functions of the file are followed (`frameworks/python`), and those of torchtitan's own
files that lie above it; whatever is no plain value only matters where it is needed.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from forescale import wording
from forescale.errors import ReaderError, UnknownNameError
from forescale.frameworks.python.builtin import copied
from forescale.frameworks.python.module import Class, Module, World
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import MISSING, Call, Opaque, Stopped
from forescale.frameworks.reading import Options
from forescale.frameworks.torchtitan.keys import BUILDERS, MTP_BUILDER, REGISTRY

SECTIONS: Final = {
    "training": "TrainingConfig",
    "parallelism": "ParallelismConfig",
    "compile": "CompileConfig",
    "debug": "DebugConfig",
}
"""Parts of a job configuration that are read, by their classes."""
DEFAULTS: Final = {("CompileConfig", "enable"): False, ("CompileConfig", "components"): ["model", "loss"]}
"""What functions look at of parts that were not set."""
SAME: Final = "to_graph_trainer_config"
"""A function that returns the configuration it is given, for what is read of it."""
FILES: Final = "config_registry"
"""Name of torchtitan's files of job configurations."""


class Torchtitan:
    """What is known of torchtitan's own functions and classes."""

    package: Final = "torchtitan"
    closed: Final = frozenset((REGISTRY, MTP_BUILDER, *(item.name for item in BUILDERS)))

    def call(self, call: Call, owner: object) -> Any:  # noqa: ANN401
        """Return a configuration by its class, a model with a converter, or what a function was called with."""
        head, _, last = call.name.rpartition(".")
        if head and last in ("build", "convert") and isinstance(owner, Call):
            return _converted(owner, call.args)
        if last == SAME:
            result = next((arg for arg in call.args if isinstance(arg, Call)), None)
            return MISSING if result is None else _over(result, call)
        if isinstance(owner, Module) and last in self.closed:
            path = owner.path
            inside = path.parent.name if path.stem == "__init__" else path.stem
            return replace(call, name=f"{inside}.{last}", known=False)
        if isinstance(owner, Class) and head and last[:1].isupper():
            return replace(call, name=f"{owner.node.name}.{last}")
        return self.brought(call, owner) if isinstance(owner, Opaque) else MISSING

    def brought(self, call: Call, owner: Opaque) -> Any:  # noqa: ANN401
        """Return what is made by a name whose file does not lie here."""
        head, _, last = call.name.rpartition(".")
        module, local = (f"{owner.origin}.{owner.text}", last) if head else (owner.origin, owner.text)
        outer = module.rpartition(".")[2]
        if local[:1].isupper():
            return replace(call, name=f"{outer}.{local}" if head and outer[:1].isupper() else local)
        if not owner.origin:
            return MISSING
        if module.endswith(FILES):
            name = f"function {call.name} of {module.replace('.', '/')}.py in a folder above it"
            raise ReaderError(call.place, wording.not_found(name))
        ours = local == REGISTRY or owner.origin.split(".")[0] == self.package
        return replace(call, name=f"{module}.{local}", known=False) if ours else MISSING

    def default(self, owner: Call, name: str) -> Any:  # noqa: ANN401
        """Return a part that nothing set, as its own default, or what is known of such a part."""
        if name in SECTIONS:
            owner.fields[name] = Call(SECTIONS[name], owner.place)
            return owner.fields[name]
        return copied(DEFAULTS.get((owner.name, name), MISSING))


def _over(result: Call, call: Call) -> Call:
    """Return a configuration with the words of a call over it."""
    fields, places = {**result.fields, **call.fields}, {**result.places, **call.places}
    return replace(result, fields=fields, places=places)


def _converted(owner: Call, args: Sequence[Any]) -> Call:
    """Return a model with one more converter, or what stands before a method that builds it."""
    model = args[0] if args else None
    if not isinstance(model, Call):
        return owner
    return replace(model, fields={**model.fields, "converters": [*model.fields.get("converters", ()), owner]})


def read_job(path: Path, options: Options) -> Call:
    """Return the job configuration in a file: the one that the variable `config` names, or the only one.

    Raises
    ------
    ReaderError
        If the file is no Python, or holds none, or several and none is wanted, or stops where it is followed.
    UnknownNameError
        If it does not hold the one that is wanted.
    """
    module, config = _module(path, options.folders), options.variables.get("config")
    names = [name for name, node in module.functions.items() if _is_job(node)]
    if config is not None and config not in names:
        raise UnknownNameError(f"job configuration of {path}", config, names)
    if not names:
        raise ReaderError(path, wording.incomplete("function that returns a Trainer.Config"))
    if config is None and len(names) > 1:
        several = f"{len(names)} job configurations"
        raise ReaderError(path, wording.choose_one(several, ", ".join(names), "--var config=NAME"))
    name = config or names[0]
    result = _found(module, ast.parse(f"{name}()", mode="eval").body)
    if result is None or not result.known:
        needed = wording.needs_running("the configuration", f"what {name} returns")
        raise ReaderError(module.place(module.functions[name]), needed)
    return result


def _found(module: Module, node: ast.expr) -> Call | None:
    """Return the configuration that an expression makes; None if it makes none that can be read."""
    try:
        result = Frame(module, {}).value(node)
    except Stopped as stopped:
        violation = f"the configuration stops here: {stopped.kind} {stopped.text}".rstrip()
        raise ReaderError(stopped.place, violation) from stopped
    except RecursionError as error:
        reason = "it calls itself, or nests deeper than a configuration does"
        raise ReaderError(module.path, wording.circular("calls", reason)) from error
    return result if isinstance(result, Call) else None


def _module(path: Path, folders: Sequence[Path] = ()) -> Module:
    try:
        return World(Torchtitan(), Frame, folders).module(path)
    except ReaderError as error:
        wrong = error.__cause__
        if not isinstance(wrong, SyntaxError):
            raise
        reason = f"{wrong.msg} at line {wrong.lineno}"
        raise ReaderError(path, wording.cannot_parse("Python", reason)) from wrong


def _is_job(node: ast.FunctionDef) -> bool:
    """Whether a function without arguments says that it returns a configuration of a trainer."""
    endswith = node.returns is not None and ast.unparse(node.returns).endswith("Config")
    return endswith and not node.name.startswith("_") and not node.args.args
