"""Places of a program that decide a fact of its training, and that were not followed for certain."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from forescale.frameworks.python.module import Module, World, source_of
from forescale.frameworks.python.values import Call
from forescale.frameworks.trainers.calls import DECIDES, KEYS
from forescale.struct import Struct

FIELDS: Final = KEYS - {"max_length"}
"""Fields that decide a fact where a line sets them; tokenizers and generation have a `max_length` of their own."""
SHOWN: Final = 6
"""Places that a warning names."""
MAKES: Final = re.compile(
    r"(?i)(?!(?:save|log|print|eval|test|merge|push|plot|format|tokenize)_)\w*"
    r"(?:lora|peft|adapter|quant|4bit|8bit|fsdp|deepspeed|shard|checkpointing|model|train|args|arguments|config|accelerator|freeze)\w*"
)
"""Functions and classes that may decide a fact, by their names."""
LIBRARIES: Final = sys.stdlib_module_names | {
    "torch", "transformers", "trl", "peft", "datasets", "accelerate", "unsloth", "bitsandbytes",
    "deepspeed", "lightning", "pytorch_lightning", "numpy", "pandas", "wandb", "tqdm", "hydra", "omegaconf",
    "yaml", "huggingface_hub", "evaluate", "sklearn", "dotenv", "rich", "click", "typer", "fire", "loguru",
    "mlflow", "safetensors", "tokenizers", "modelscope", "swanlab", "ray", "jinja2", "requests", "pydantic",
    "unsloth_zoo", "vllm", "absl", "ml_collections", "simple_parsing", "jsonargparse", "matplotlib",
    "sentence_transformers", "boto3", "sagemaker", "google", "kagglehub", "setproctitle", "colorama",
    "psutil", "GPUtil", "neptune",
}  # fmt: skip
"""Packages whose functions and classes decide nothing but by the calls that are known."""
Names: TypeAlias = set[tuple[Module | None, str]]
"""Names of a file with it; of others and of objects without."""
Routine: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


PASSES: Final = re.compile(r"(?:self\.)?\w*(?:model|teacher|student|critic|network)\w*(?:\.forward)?")
"""Calls that run a model."""


class Line(Struct, frozen=True):
    """A statement, and the function and the class that it stands in."""

    node: ast.stmt
    module: Module
    routine: Routine | None = None
    owner: ast.ClassDef | None = None
    is_out: bool = False
    """Whether a condition that is known leaves it out, or what it stands in."""


def unfollowed(world: World) -> tuple[list[str], list[str]]:
    """Return the places that decide a fact and are not followed, and those under conditions that are not known."""
    lines = [
        line
        for module in world.modules.values()
        for child in module.tree.body
        for line in _lines(Line(child, module), world)
    ]
    met = [line for line in lines if line.node in world.ran or _taken(line.node) in world.ran]
    doubted = [line for line in lines if line.node in world.doubted and line.node not in world.ran]
    left = [line for line in lines if not line.is_out and line.node not in world.doubted and line not in met]
    missed: list[Line] = []
    names, mentioned = _names([*met, *doubted]), _names(lines)
    while new := [line for line in left if _is_reached(line, names, mentioned, world)]:
        missed += new
        names |= _names(new)
        left = [line for line in left if line not in new]
    return _sites(missed), _sites(doubted)


def unknown(calls: Iterable[Call]) -> list[str]:
    """Return the calls of functions and classes of modules that are not at hand and may decide a fact."""
    found = dict[str, None]()
    for call in calls:
        name, root = call.name.rpartition(".")[2], call.origin.partition(".")[0]
        if root and root not in LIBRARIES and MAKES.fullmatch(name):
            found[f"{name} of {call.origin} ({place_of(call.place)})"] = None
    return list(found)


def doubtful(calls: Iterable[Call]) -> list[str]:
    """Return the calls that decide a fact and are made under a condition that is not known, in a line that runs too."""
    made = (call for call in calls if not call.known and DECIDES.search(call.name))
    return [f"{call.name.rpartition('.')[2]} ({place_of(call.place)})" for call in made]


def place_of(place: str) -> str:
    """Return the name of a file and the line, as a warning shows them."""
    file, _, line = place.partition(", line ")
    return f"{Path(file).name}:{line}".rstrip(":")


def shown(sites: list[str]) -> str:
    """Return places as a warning lists them."""
    more = len(sites) - SHOWN
    return ", ".join(sites[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _lines(line: Line, world: World) -> Iterator[Line]:
    """Yield a statement and those inside it."""
    node = line.node
    is_out = line.is_out or (node in world.skipped and node not in world.ran and node not in world.doubted)
    yield Line(node, line.module, line.routine, line.owner, is_out)
    routine = node if isinstance(node, Routine) else line.routine
    owner = node if isinstance(node, ast.ClassDef) else line.owner
    starts = isinstance(node, ast.If) and "__name__" in source_of(node.test)
    is_out |= starts and node not in world.ran  # of a module that another one takes
    for child in _inside(node):
        yield from _lines(Line(child, line.module, routine, owner, is_out), world)


def _inside(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of the blocks of a statement."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.excepthandler | ast.match_case):
            yield from _inside(child)


def _own(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the syntax of a statement without that of its blocks."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from ast.walk(child)


def _taken(node: ast.stmt) -> ast.expr | None:
    """Return what a constant of a file stands for."""
    return node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None


def _names(lines: Iterable[Line]) -> Names:
    """Return the names that lines use: those of their file with it, of others and of objects without."""
    found: Names = set()
    for line, node in ((each, inner) for each in lines for inner in _own(each.node)):
        if isinstance(node, ast.Name):
            _, name, _ = line.module.imports.get(node.id, ("", "", 0))
            found.add((None, name) if name else (line.module, node.id))
        elif isinstance(node, ast.alias) and line.routine is not None:
            found.add((None, node.name))  # taken where it is used
        elif isinstance(node, ast.Attribute):
            found.add((None, f".{node.attr}"))
            if isinstance(node.value, ast.Name) and node.value.id in line.module.imports:
                found.add((None, node.attr))
    return found


def _is_reached(line: Line, names: Names, mentioned: Names, world: World) -> bool:
    """Whether a line that was not followed may run, by the names that lines use which may; or nothing names it at all.

    Of `mentioned` names, those of a program's own file are all that it may call: what else it has may be called by
    others. Methods of a class that builds on one of a library may be called by that.
    """
    routine, owner = line.routine, line.owner
    if routine is None:
        return owner is None and (
            line.module.is_main or not isinstance(line.node, ast.Assign | ast.AnnAssign)
        )
    if routine in world.followed:
        return True  # an error ended it

    def is_used(*wanted: tuple[Module | None, str]) -> bool:
        return not names.isdisjoint(wanted) or (line.module.is_main and mentioned.isdisjoint(wanted))

    if owner is None or routine not in owner.body:
        return is_used((line.module, routine.name), (None, routine.name))
    is_called = routine.name.startswith("__") or bool(owner.bases) or is_used((None, f".{routine.name}"))
    return is_called and is_used((line.module, owner.name), (None, owner.name))


def _sites(lines: Iterable[Line]) -> list[str]:
    """Return the places in lines that decide a fact, each with its name."""
    found = dict[str, None]()
    for line in lines:
        is_model = line.routine is not None and line.routine.name == "forward"
        for name, at in () if is_model else _named(line.node):
            found[f"{name} ({Path(line.module.path).name}:{at})"] = None
    return list(found)


def _named(node: ast.stmt) -> Iterator[tuple[str, int]]:
    """Yield what a statement calls or sets that decides a fact, with its line."""
    for inner in _own(node):
        match inner:
            case ast.Call(func=func) if DECIDES.search(source_of(func)):
                yield source_of(func).rpartition(".")[2], inner.lineno
            case ast.Attribute(ast.Name("self")):
                pass
            case ast.Attribute(attr=name, ctx=ast.Store()) if name in FIELDS:
                yield name, inner.lineno
            case ast.Subscript(slice=ast.Constant(value=str() as name), ctx=ast.Store()) if name in FIELDS:
                yield name, inner.lineno
            case _:
                pass


def own_losses(calls: Iterable[Call], world: World) -> Iterator[str]:
    """Yield the warnings of trainers whose loss of their own runs another model, or the same one again."""
    made = {name for call in calls for name in call.kinds}
    lines = (line for module in world.modules.values() for line in ast.walk(module.tree))
    for kind in (line for line in lines if isinstance(line, ast.ClassDef) and line.name in made):
        losses = [line for line in kind.body if getattr(line, "name", "") == "compute_loss"]
        inner = [node.func for loss in losses for node in ast.walk(loss) if isinstance(node, ast.Call)]
        passes = [name for name in map(source_of, inner) if PASSES.fullmatch(name)]
        if len(passes) > 1 or any(name not in ("model", "self.model") for name in passes):
            listed = ", ".join(dict.fromkeys(passes))
            yield f"compute_loss of {kind.name} runs {listed}: one pass of one model is projected"
