"""Job configurations in Python, read as syntax: what a function that returns a `Trainer.Config` puts into it.

Nothing is imported or run. Functions of the file are followed, and those of torchtitan's own files that lie above it;
whatever is no plain value becomes an `Opaque`, which only matters where it is needed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from forescale.errors import ReaderError, UnknownNameError, shown
from forescale.files import read_text

DEPTH: Final = 20
"""Functions that may call each other."""
LARGEST: Final = 2**53
"""Numbers that arithmetic goes on with."""
ROOT: Final = "torchtitan"
CONFIG: Final = ".Config"
_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


@dataclass(slots=True, eq=False)
class Opaque:
    """A value that only running the file would show."""

    text: str
    line: int


@dataclass(slots=True, eq=False)
class Call:
    """What a class or a function of torchtitan was called with: a configuration."""

    name: str
    """Its name as it is written, such as Trainer.Config."""
    origin: str
    """The module that it is imported from; empty where it is not."""
    line: int
    args: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    """Keywords, and attributes that were set later."""
    lines: dict[str, int] = field(default_factory=dict)
    """The line of each field."""


def read_job(path: Path, wanted: str | None) -> Call:
    """Return the job configuration in a file: the one that is `wanted`, or the only one.

    Raises
    ------
    ReaderError
        If the file is no Python, or holds none, or several and none is wanted.
    UnknownNameError
        If it does not hold the one that is wanted.
    """
    module = _Module(path, {})
    names = module.jobs()
    if wanted is not None and wanted not in names:
        raise UnknownNameError(f"job configuration of {path}", wanted, names)
    if not names:
        raise ReaderError(path, "it has no function that returns a Trainer.Config")
    if wanted is None and len(names) > 1:
        problem = (
            f"it holds {len(names)} job configurations; say which with --var config=NAME: {', '.join(names)}"
        )
        raise ReaderError(path, problem)
    name = wanted or names[0]
    found = module.result(name, [], {}, DEPTH)
    if not isinstance(found, Call):
        line = module.functions[name].lineno
        raise ReaderError(path, f"line {line}: what {name} returns cannot be read without running it")
    return found


def read_flavor(path: Path, flavor: str) -> Call | None:
    """Return what a file of one's own puts under a flavor's name into a table of models (0.2); None if it does not."""
    module = _Module(path, {})
    for node in _parsed(path).body:
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=key))], value=value) if (
                key == flavor
            ):
                found = _Run(module, {}, DEPTH).value(value)
                return found if isinstance(found, Call) else None
            case _:
                pass
    return None


class _Module:
    """One file: its functions, imports and constants."""

    def __init__(self, path: Path, known: dict[Path, _Module]) -> None:
        self.path, self.known = path, known
        known[path] = self
        tree = _parsed(path)
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.imports = _imports(tree, path)
        self.constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def jobs(self) -> tuple[str, ...]:
        """Return the functions without arguments that say they return a configuration of a trainer."""
        return tuple(
            name
            for name, node in self.functions.items()
            if node.returns is not None and not name.startswith("_") and not node.args.args
            if ast.unparse(node.returns).endswith("Config")
        )

    def result(self, name: str, args: list[Any], keywords: Mapping[str, Any], depth: int) -> Any:  # noqa: ANN401
        """Return what a function of this file returns."""
        node = self.functions[name]
        if depth == 0:
            return Opaque(name, node.lineno)
        given = [*node.args.args, *node.args.kwonlyargs]
        scope: dict[str, Any] = {argument.arg: Opaque(argument.arg, node.lineno) for argument in given}
        run = _Run(self, scope, depth - 1)
        late = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
        for argument, default in zip(reversed(given), reversed(late), strict=False):
            scope[argument.arg] = run.value(default)
        scope |= dict(zip((argument.arg for argument in given), args, strict=False)) | dict(keywords)
        return run.body(node.body)

    def elsewhere(self, module: str) -> _Module | None:
        """Return the file of a module of torchtitan, where it lies above this one."""
        for above in self.path.absolute().parents:
            if above.name == ROOT:
                path = above.parent / Path(*module.split(".")).with_suffix(".py")
                if path.is_file():
                    return self.known.get(path) or _Module(path, self.known)
        return None


class _Run:
    """One call of a function: its names, and what its lines make of them."""

    def __init__(self, module: _Module, scope: dict[str, Any], depth: int) -> None:
        self.module, self.scope, self.depth = module, scope, depth

    def body(self, lines: list[ast.stmt]) -> Any:  # noqa: ANN401
        """Run the lines of a function up to its return."""
        for line in lines:
            match line:
                case ast.Return(value=value):
                    return None if value is None else self.value(value)
                case ast.Assign(targets=targets, value=value):
                    found = self.value(value)
                    for target in targets:
                        self.assign(target, found)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self.assign(target, self.value(value))
                case ast.Expr(value=ast.Call() as call):
                    self.value(call)
                case ast.Import() | ast.ImportFrom():
                    self.module.imports |= _imports(line, self.module.path)
                case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.AugAssign():
                    self.forget(line)
                case _:
                    pass
        return None

    def forget(self, line: ast.stmt) -> None:
        """Take names and attributes that a branch or a loop may set as unknown."""
        for node in ast.walk(line):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                self.assign(node, Opaque(ast.unparse(node), node.lineno))

    def assign(self, target: ast.expr, value: Any) -> None:  # noqa: ANN401
        """Set a name, or a field of a configuration."""
        match target:
            case ast.Name(id=name):
                self.scope[name] = value
            case ast.Attribute(value=owner, attr=name):
                found = self.value(owner)
                if isinstance(found, Call):
                    found.fields[name], found.lines[name] = value, target.lineno
            case _:
                pass

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401, PLR0911 (one case per kind of expression)
        """Return what an expression stands for."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.named(name, node)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.value(item) for item in items]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                found = self.value(inner)
                return -found if _is_number(found) else _opaque(node)
            case ast.BinOp(left=left, op=op, right=right):
                return _computed(op, self.value(left), self.value(right), node)
            case ast.BoolOp(op=op, values=values):
                return _joined(op, [self.value(value) for value in values], node)
            case ast.Compare(left=left, ops=[ast.In()], comparators=[right]):
                item, among = self.value(left), self.value(right)
                return item in among if isinstance(among, list) else _opaque(node)
            case ast.Attribute(value=owner, attr=name):
                return self.attribute(self.value(owner), name, node)
            case ast.Call():
                return self.call(node)
            case _:
                return _opaque(node)

    def named(self, name: str, node: ast.expr) -> Any:  # noqa: ANN401
        """Return what a name stands for: of this function, or a constant of the file."""
        if name in self.scope:
            return self.scope[name]
        constant = self.module.constants.get(name)
        if constant is None or self.depth == 0:
            return _opaque(node)
        return _Run(self.module, {}, self.depth - 1).value(constant)

    def attribute(self, owner: Any, name: str, node: ast.expr) -> Any:  # noqa: ANN401
        """Return a field of a configuration; one that was not set is made, as its own default."""
        if not isinstance(owner, Call):
            return _opaque(node)
        if name not in owner.fields and name in SECTIONS:
            owner.fields[name] = Call(SECTIONS[name], ROOT, node.lineno)
        if name not in owner.fields and (owner.name, name) in DEFAULTS:
            return DEFAULTS[owner.name, name]
        return owner.fields.get(name, _opaque(node))

    def call(self, node: ast.Call) -> Any:  # noqa: ANN401
        """Return what a call makes: a configuration, or what a function that can be read returns."""
        name = ast.unparse(node.func)
        args = [self.value(arg) for arg in node.args]
        words = {word.arg: word for word in node.keywords if word.arg is not None}
        keywords = {key: self.value(word.value) for key, word in words.items()}
        lines = {key: word.value.lineno for key, word in words.items()}
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("build", "convert"):
            return _converted(self.value(node.func.value), args)
        if name in SAME:
            found = next((arg for arg in args if isinstance(arg, Call)), None)
            if found is None:
                return _opaque(node)
            return replace(found, fields={**found.fields, **keywords}, lines={**found.lines, **lines})
        if name in self.module.functions and name not in self.scope:
            return self.module.result(name, args, keywords, self.depth)
        if name.endswith(".append") and isinstance(node.func, ast.Attribute) and args:
            listed = self.value(node.func.value)
            return listed.append(args[0]) if isinstance(listed, list) else None
        origin, own = self.module.imports.get(name.split(".")[0], ("", name))
        there = self.module.elsewhere(origin) if origin.startswith(ROOT) else None
        if there is not None and own in there.functions and not own.startswith("model_registry"):
            return there.result(own, args, keywords, self.depth)
        if there is None and origin.endswith("config_registry"):
            problem = (
                f"line {node.lineno}: {name} is in {origin.replace('.', '/')}.py, which does not lie above it"
            )
            raise ReaderError(self.module.path, problem)
        head, _, rest = name.rpartition(".")
        if head and rest.islower() and origin:
            return Call(rest, f"{origin}.{own}", node.lineno, args, keywords, lines)
        return Call(name if head else own, origin, node.lineno, args, keywords, lines)


def _converted(owner: Any, args: list[Any]) -> Any:  # noqa: ANN401
    """Return a model with one more converter, or what stands before a method that builds it."""
    if args and isinstance(args[0], Call) and isinstance(owner, Call):
        model = args[0]
        return replace(
            model, fields={**model.fields, "converters": [*model.fields.get("converters", ()), owner]}
        )
    return owner


SECTIONS: Final = {
    "training": "TrainingConfig",
    "parallelism": "ParallelismConfig",
    "compile": "CompileConfig",
    "debug": "DebugConfig",
}
"""Parts of a job configuration that are read, by their classes."""
DEFAULTS: Final = {("CompileConfig", "enable"): False, ("CompileConfig", "components"): ["model", "loss"]}
"""What functions look at of parts that were not set."""
SAME: Final = ("to_graph_trainer_config", "cast", "replace", "dataclasses.replace")
"""Functions that return the configuration they are given, for what is read of it."""


def _parsed(path: Path) -> ast.Module:
    text = read_text(path)
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ReaderError(path, f"it is not valid Python: {error.msg} at line {error.lineno}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ReaderError(path, "it is not valid Python") from error


def _imports(tree: ast.AST, path: Path) -> dict[str, tuple[str, str]]:
    """Return, by the name in the file, the module and the name there of all that is imported at the top of `tree`."""
    nodes = tree.body if isinstance(tree, ast.Module) else [tree]
    found: dict[str, tuple[str, str]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                parts = path.absolute().parts[: -node.level]
                start = len(parts) - 1 - parts[::-1].index(ROOT) if ROOT in parts else len(parts) - 1
                module = ".".join([*parts[start:], *([module] if module else [])])
            found |= {name.asname or name.name: (module, name.name) for name in node.names}
    return found


def _opaque(node: ast.expr) -> Opaque:
    return Opaque(shown(ast.unparse(node)).strip("'\""), node.lineno)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _computed(op: ast.operator, left: Any, right: Any, node: ast.expr) -> Any:  # noqa: ANN401
    """Return a sum, a product or the like of two numbers, or two lists joined."""
    if isinstance(left, list) and isinstance(right, list) and isinstance(op, ast.Add):
        return left + right
    known = _ARITHMETIC.get(type(op))
    if known is None or not (_is_number(left) and _is_number(right)):
        return _opaque(node)
    try:
        return known(left, right)
    except ZeroDivisionError:
        return _opaque(node)


def _joined(op: ast.boolop, values: list[Any], node: ast.expr) -> Any:  # noqa: ANN401
    """Return values under `and` or `or`."""
    if any(isinstance(value, Opaque) for value in values):
        return _opaque(node)
    for value in values[:-1]:
        if bool(value) is isinstance(op, ast.Or):
            return value
    return values[-1]
