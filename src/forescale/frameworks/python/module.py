"""Files of Python: their functions, classes, constants and imports, and the files that these lie in."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from forescale.errors import ReaderError, SpecError, cannot_parse, shown, too_large
from forescale.files import exists, is_file, is_folder, read_text
from forescale.frameworks.budget import Budget
from forescale.frameworks.python.values import LONGEST, MISSING, Call, Opaque, Stopped, size_of

DEPTH: Final = 40
"""Functions that may call each other, and modules that may import from each other."""
STEPS: Final = 400_000
"""Expressions that are looked at."""
ABOVE: Final = 4
"""Folders from a file upwards that a module with dots may lie in where no checkout (.git) says which."""
ENTRIES: Final = 2_000_000
"""Entries of lists and tables that are gone through in all."""
LARGEST: Final = 2**20
"""Characters of a file."""


class Hooks(Protocol):
    """What a reader knows of a framework's own functions and classes."""

    @property
    def package(self) -> str:
        """Dotted name of the package whose files are followed."""

    @property
    def closed(self) -> Collection[str]:
        """Names that are not followed."""

    def call(self, call: Call, owner: object) -> Any:  # noqa: ANN401
        """Return what a call makes, given its name and words as they are written; MISSING where it is followed.

        `owner` is what stands before the name's last dot; of a name without dots it is what that stands for.
        """

    def default(self, owner: Call, name: str) -> Any:  # noqa: ANN401
        """Return what a field is that nothing sets; MISSING where that is not known."""


class World:
    """All that is read for one file: its modules, and what is in doubt at the moment."""

    def __init__(
        self,
        hooks: Hooks,
        frame: Callable[[Module, dict[str, Any], Mapping[str, Any]], Any],
        folders: Sequence[Path] = (),
    ) -> None:
        self.hooks, self.frame, self.folders = hooks, frame, folders
        self.modules: dict[Path, Module] = {}
        self.doubt: Opaque | None = None
        """The condition, not known, of the lines that are read."""
        self.unread: dict[str, str] = {}
        """Functions that are not read and were given a configuration, with the place of the first call."""
        self.absent: dict[str, str] = {}
        """Functions that are not read, with the module that they are imported from, by the place of the call."""
        self.argv: list[str] | None = None
        """Words of the command that starts the program."""
        self.followed: set[ast.AST] = set()
        """Functions that were called."""
        self.ran: set[ast.AST] = set()
        """Lines that run for certain, and constants that are taken."""
        self.doubted: set[ast.AST] = set()
        """Lines that run under a condition that is not known."""
        self.skipped: set[ast.AST] = set()
        """Lines that a condition which is known leaves out."""
        self.outside: Collection[str] = ()
        """Packages that are not followed, wherever their files lie."""
        self.opens_classes = False
        """Whether methods of classes that can be read are followed."""
        self.loops: list[tuple[ast.stmt, int | None]] = []
        """Loops around the lines that run, each with the turns that one run of its lines stands for."""
        self.branches: list[tuple[ast.If, bool]] = []
        """Conditions that are not known around the lines that run, each with whether it is taken as met."""
        self.depth = 0
        self.steps, self.entries = Budget(STEPS, "steps"), Budget(ENTRIES, "entries of lists")

    @property
    def turns_once(self) -> bool:
        """Whether the lines that run are those of a loop which is run once for all its turns."""
        return bool(self.loops) and self.loops[-1][1] != 1

    def module(self, path: Path) -> Module:
        """Return a file, parsed once."""
        if path not in self.modules:
            self.modules[path] = Module(path, self)
        return self.modules[path]

    def skip(self, lines: Sequence[ast.stmt]) -> None:
        """Take lines as left out, unless a condition that is not known leads there."""
        if self.doubt is None:
            self.skipped.update(lines)

    def step(self, place: str) -> None:
        """Count a step.

        Raises
        ------
        ReaderError
            If there are more than a configuration has.
        """
        try:
            self.steps.spend()
        except SpecError as error:
            raise ReaderError(place, error) from error

    def copying(self, entries: int, place: str) -> None:
        """Count entries that are copied or gone through.

        Raises
        ------
        ReaderError
            If there are more in all than a configuration has.
        """
        try:
            self.entries.spend(entries)
        except SpecError as error:
            raise ReaderError(place, error) from error

    def measured(self, value: Any, place: str) -> Any:  # noqa: ANN401
        """Return a value, whose entries are counted; MISSING where it has more than any list of a configuration."""
        size = size_of(value)
        self.copying(min(size, LONGEST), place)
        return MISSING if size > LONGEST else value


class Module:
    """One file."""

    def __init__(self, path: Path, world: World) -> None:
        self.path, self.world = path, world
        is_blank = bool(world.modules) and is_file(path) and not path.stat().st_size
        self.tree = ast.Module([], []) if is_blank else parsed(path)
        self.found: dict[tuple[str, int], Path | None] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.constants: dict[str, ast.expr] = {}
        self.imports: dict[str, tuple[str, str, int]] = {}
        self.stars: list[tuple[str, int]] = []
        self.made: dict[str, Call] = {}
        self.names: dict[str, Any] = {}
        """Names of the file that lines which were followed set."""
        self.is_main = False
        """Whether it is the program, and no file that another one takes from."""
        self.is_run = False
        """Whether these lines were followed."""
        for node in _top(self.tree.body):
            self._take(node)

    def _take(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef(name=name):
                self.functions[name] = node
            case ast.ClassDef(name=name):
                self.classes[name] = node
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.constants |= _constants(target, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.constants[name] = value
            case ast.Import() | ast.ImportFrom():
                names, star = imported(node)
                self.imports |= names
                self.stars += star
            case _:
                pass

    def place(self, node: ast.AST) -> str:
        """Return file and line, for messages."""
        return f"{self.path}, line {getattr(node, 'lineno', 0)}"

    def lookup(self, name: str) -> Any:  # noqa: ANN401
        """Return what a name of the file stands for; MISSING where it has none."""
        self.world.step(str(self.path))
        if name == "__file__":
            return str(self.path)
        if self.world.opens_classes and not self.is_run:
            self.run()
        if name in self.names:
            return self.names[name]
        if name in self.functions:
            return Function(self, self.functions[name])
        if name in self.classes:
            return Class(self, self.classes[name])
        if name in self.imports:
            return self.bring(*self.imports[name], name)
        if self.world.depth >= DEPTH:
            return MISSING
        self.world.depth += 1
        try:
            if name in self.constants:
                return self._constant(name)
            brings = (self.bring(module, name, level, "") for module, level in self.stars)
            return next((item for item in brings if not isinstance(item, Opaque)), MISSING)
        finally:
            self.world.depth -= 1

    def run(self) -> None:
        """Follow the lines of a file that another one takes a name from, as its import does."""
        self.is_run = True
        self.names["__name__"] = self.path.stem
        frame = self.world.frame(self, self.names, {})
        doubt, self.world.doubt = self.world.doubt, None
        for line in self.tree.body:
            with suppress(Stopped):
                frame.body([line])
        self.world.doubt = doubt

    def _constant(self, name: str) -> Any:  # noqa: ANN401
        """Return what a name stands for; an object of a class that is followed is made once."""
        if name in self.made:
            return self.made[name]
        self.world.ran.add(self.constants[name])
        result = self.world.frame(self, {}, {}).value(self.constants[name])
        if isinstance(result, Call) and result.of is not None and self.world.doubt is None:
            self.made[name] = result
        return result

    def outer(self, name: str) -> Any:  # noqa: ANN401
        """Return what a name that the file imports stands for, whatever the file makes of it; MISSING of others."""
        return self.bring(*self.imports[name], name) if name in self.imports else MISSING

    def bring(self, module: str, name: str, level: int, alias: str) -> Any:  # noqa: ANN401
        """Return what is imported: `name` of a module, or the module where there is no name."""
        is_outside = not level and module.partition(".")[0] in self.world.outside
        if self.world.depth < DEPTH and name not in self.world.hooks.closed and not is_outside:
            self.world.depth += 1
            try:
                there = self.beside(module, level)
                lookup = there.lookup(name) if there is not None and name else there
                if lookup is not None and lookup is not MISSING:
                    return lookup
                inside = self.beside(f"{module}.{name}" if module else name, level) if name else None
                if inside is not None:
                    return inside
            finally:
                self.world.depth -= 1
        return Opaque(name or alias, f"{self.path}", self.absolute(module, level))

    def absolute(self, module: str, level: int) -> str:
        """Return a module's dotted name; of one with dots before it by the folders that this file lies in."""
        if not level:
            return module
        parts, root = self.path.absolute().parts[:-level], self.world.hooks.package.split(".")[0]
        inside = [at for at, part in enumerate(parts) if part == root]
        return ".".join([*parts[(inside or [len(parts) - 1])[-1] :], *([module] if module else [])])

    def beside(self, module: str, level: int) -> Module | None:
        """Return the file of a module: of the framework's checkout that this one lies in, or beside this one."""
        if (module, level) not in self.found:
            self.found[module, level] = self._file(module, level)
        path = self.found[module, level]
        return self.world.module(path) if path is not None else None

    def _file(self, module: str, level: int) -> Path | None:
        parts = [part for part in module.split(".") if part]
        for root in self._roots(parts, level):
            folder = root.joinpath(*parts)
            for path in (
                (folder.with_suffix(".py"), folder / "__init__.py") if parts else (root / "__init__.py",)
            ):
                if is_file(path):
                    return path
        return None

    def _roots(self, parts: Sequence[str], level: int) -> Iterator[Path]:
        """Yield the folders that a module's first part may lie in, nearest first."""
        here = self.path.absolute().parent
        every, package = (here, *here.parents), self.world.hooks.package.split(".")
        top = next((at for at, above in enumerate(every) if exists(above / ".git")), None)
        near = every[: (ABOVE if len(parts) > 1 else 1) if top is None else top + 1]
        roots = [
            root
            for above in (*(every if top is None else near), *self.world.folders)
            for root in (above, above / "src")
        ]
        around = [root for root in roots if is_folder(root.joinpath(*package))]
        if level:
            there = every[min(level, len(every)) - 1]
            last = every[0 if top is None else top]
            inside = any(
                there.is_relative_to(joinpath)
                for joinpath in (last, *(root.joinpath(*package) for root in around))
            )
            yield from [there] * inside
        else:
            apart = (root for above in near for root in (above, above / "src"))
            yield from around if list(parts[: len(package)]) == package else apart


@dataclass(slots=True, eq=False)
class Function:
    """A function that can be read."""

    module: Module
    node: ast.FunctionDef | ast.Lambda
    scope: Mapping[str, Any] = field(default_factory=dict)
    """Names around it."""
    args: tuple[Any, ...] = ()
    """What functools.partial gave it already."""
    words: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Class:
    """A class that can be read: its fields and their defaults."""

    module: Module
    node: ast.ClassDef


def parsed(path: Path) -> ast.Module:
    """Return the syntax of a file.

    Raises
    ------
    ReaderError
        If it is not valid Python.
    """
    text = read_text(path)
    if len(text) > LARGEST:
        raise ReaderError(path, too_large("it", "", f"{LARGEST / 2**20:g} MiB for a configuration in Python"))
    try:
        return ast.parse(text)
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        release = ".".join(map(str, sys.version_info[:2]))
        later = f"; Forescale runs on Python {release} and reads no newer syntax" * ("f-string" in error.msg)
        raise ReaderError(f"{path}{line}", cannot_parse("Python", f"{error.msg}{later}")) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ReaderError(path, cannot_parse("Python")) from error


def imported(
    node: ast.Import | ast.ImportFrom,
) -> tuple[dict[str, tuple[str, str, int]], list[tuple[str, int]]]:
    """Return modules, names there and levels by the names here; and modules of which all names are taken."""
    if isinstance(node, ast.Import):
        pairs = ((name.asname or name.name.split(".")[0], name) for name in node.names)
        return {
            name: (item.name if item.asname else item.name.split(".")[0], "", 0) for name, item in pairs
        }, []
    module = node.module or ""
    names = {
        name.asname or name.name: (module, name.name, node.level) for name in node.names if name.name != "*"
    }
    return names, [(module, node.level)] * any(name.name == "*" for name in node.names)


def source_of(node: ast.AST) -> str:
    """Return the source of a node, which is written once however often it is evaluated."""
    kept: str | None = getattr(node, "forescale_source", None)
    if kept is None:
        try:
            kept = ast.unparse(node)
        except (
            ValueError,
            RecursionError,
        ):  # a number of thousands of digits, or nested too deep to be written
            kept = "an expression too long to show"
        node.forescale_source = kept  # type: ignore[attr-defined]
    return kept


def text_of(node: ast.expr) -> str:
    """Return an expression as a message shows it."""
    return shown(source_of(node)).strip("'\"")


def _constants(target: ast.expr, value: ast.expr) -> dict[str, ast.expr]:
    """Return the expressions of names that a line sets."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        pairs = zip(target.elts, value.elts, strict=True)
        return {name: constant for one, other in pairs for name, constant in _constants(one, other).items()}
    return {target.id: value} if isinstance(target, ast.Name) else {}


def _top(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the lines of a file, those under conditions and attempts included."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from _top(node.body)
            continue
        yield node
