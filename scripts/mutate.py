"""Try deliberate errors in formulas against the tests, and list those that no test notices.

    python scripts/mutate.py map                       which test runs which line, and for how long (once, slow)
    python scripts/mutate.py run --number 1000         the first thousand mutants, in a fixed random order
    python scripts/mutate.py run --only cost/roofline  those of some files

A mutant is one change of one expression: a term or factor left out, an operator turned, a boundary moved, a
number raised. It replaces the code of the live function in a forked child of one pytest process that has
collected everything, so a mutant costs the tests that run its line and nothing else. Tests go from short to
long until one fails. What survives is written to `.mutation/survivors.jsonl`; docs/mutation.md says of each why
nothing is wrong with that. By hand, not part of continuous integration.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import dataclasses
import functools
import gc
import json
import os
import random
import resource
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TextIO

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "forescale"
STATE = ROOT / ".mutation"
FORMULAS = (
    "graph",
    "cost",
    "memory",
    "time",
    "evaluate",
    "projection",
    "schedule",
    "goodput",
    "whole_run",
    "search/bound",
)
"""Where the formulas are: what the paths of mutated files begin with."""
LEFT_OUT = ("tests/fuzz",)
"""Tests that take too long per mutant, or start processes that a mutant does not reach."""
EXAMPLES = 20
"""Most examples of a property test per mutant."""
SWAPS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
CALLS = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "ceil": "floor",
    "floor": "ceil",
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change: the `variant`-th of the `node`-th expression of a function."""

    path: str
    function: str
    line: int
    node: int
    variant: int
    before: str
    after: str


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what an expression may be turned into."""
    yield from _operators(node)
    match node:
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
            if value > 1:
                yield ast.Constant(value * 2)
        case ast.Call(ast.Name(name), arguments, keywords) if name in CALLS:
            yield ast.Call(ast.Name(CALLS[name], ast.Load()), arguments, keywords)
        case ast.Call(ast.Attribute(module, name), arguments, keywords) if name in CALLS:
            yield ast.Call(ast.Attribute(module, CALLS[name], ast.Load()), arguments, keywords)
        case ast.IfExp(test, body, other):
            yield ast.IfExp(test, other, body)


def _operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp(left, op, right) if not _text(left) and not _text(right):
            for swap in SWAPS.get(type(op), ()):
                yield ast.BinOp(left, swap(), right)
            if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                yield left
            if isinstance(op, ast.Add | ast.Mult):
                yield right
        case ast.Compare(left, [op], [right]):
            for swap in SWAPS.get(type(op), ()):
                yield ast.Compare(left, [swap()], [right])
        case ast.BoolOp(op, values):
            yield ast.BoolOp(SWAPS[type(op)][0](), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.AugAssign(target, op, value) if type(op) in SWAPS:
            yield ast.AugAssign(target, SWAPS[type(op)][0](), value)


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield each function and method of a module with its qualified name; nested ones belong to theirs."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    yield f"{node.name}.{item.name}", item


def expressions(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield where each expression that can be changed hangs: parent, field, index, node; messages are left alone."""
    waiting: list[ast.AST] = [function]
    while waiting:
        parent = waiting.pop(0)
        for field, value in ast.iter_fields(parent):
            if field in {"decorator_list", "args", "returns", "annotation"} and not isinstance(
                parent, ast.Call
            ):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.Slice) or not isinstance(
                    child, ast.AST
                ):
                    continue
                waiting.append(child)
                yield parent, field, index, child


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    where = str(path.relative_to(SOURCE))
    for name, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
        for number, (_, _, _, node) in enumerate(expressions(function)):
            for variant, changed in enumerate(variants(node)):
                yield Mutant(
                    path=where,
                    function=name,
                    line=node.lineno,  # type: ignore[attr-defined]
                    node=number,
                    variant=variant,
                    before=ast.unparse(node),
                    after=ast.unparse(ast.fix_missing_locations(copy.deepcopy(changed))),
                )


def all_mutants(only: str | None) -> list[Mutant]:
    """Return the mutants of the formulas in their fixed random order."""
    starts = (only,) if only else FORMULAS
    paths = [p for p in sorted(SOURCE.rglob("*.py")) if str(p.relative_to(SOURCE)).startswith(starts)]
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    random.Random(2026).shuffle(mutants)  # noqa: S311 (an order, not a secret)
    return mutants


def apply(mutant: Mutant) -> bool:
    """Put a mutant into the running process; False where its function is not to be found alive."""
    path = SOURCE / mutant.path
    tree = ast.parse(path.read_text(encoding="utf-8"))
    function = dict(functions(tree))[mutant.function]
    parent, field, index, node = list(expressions(function))[mutant.node]
    changed = ast.copy_location(list(variants(node))[mutant.variant], node)
    if index is None:
        setattr(parent, field, changed)
    else:
        getattr(parent, field)[index] = changed
    code = _code_of(compile(ast.fix_missing_locations(tree), str(path), "exec"), mutant.function)
    gc.unfreeze()  # tests/conftest.py freezes what they load, which gc would not list
    alive = [
        item
        for item in gc.get_objects()
        if type(item) is FunctionType  # isinstance would ask objects that answer with warnings
        and item.__code__.co_filename == str(path)
        and item.__code__.co_qualname == mutant.function
    ]
    for item in alive:
        item.__code__ = code
    return bool(alive)


def forget() -> None:
    """Empty what functions keep of earlier calls (`@cache`): each test computes anew what it asks for."""
    for module in [module for name, module in sys.modules.items() if name.startswith("forescale")]:
        for item in vars(module).values():
            for kept in (item, *(vars(item).values() if isinstance(item, type) else ())):
                if isinstance(kept, functools._lru_cache_wrapper):  # noqa: SLF001 (the type has no other name)
                    kept.cache_clear()


def _code_of(code: CodeType, name: str) -> CodeType:
    for part in name.split("."):
        code = next(item for item in code.co_consts if isinstance(item, CodeType) and item.co_name == part)
    return code


class Shortened:
    """A pytest plugin under which property tests try few examples: a mutant meets many tests."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Cut the number of examples of every property test."""
        import hypothesis

        for item in items:
            function = getattr(item, "obj", None)
            settings = getattr(function, "_hypothesis_internal_use_settings", None)
            if function is not None and settings is not None:
                fewer = hypothesis.settings(settings, max_examples=min(settings.max_examples, EXAMPLES))
                getattr(function, "__func__", function)._hypothesis_internal_use_settings = fewer  # noqa: SLF001


class Mapper(Shortened):
    """A pytest plugin that notes which test runs which line, and how long it takes."""

    def __init__(self) -> None:
        import coverage

        self.coverage = coverage.Coverage(data_file=None, source=[str(SOURCE)])
        self.seconds: dict[str, float] = {}
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test under its own name."""
        forget()
        self.coverage.switch_context(item.nodeid)
        start = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - start
        return result

    def pytest_sessionfinish(self) -> None:
        """Write the map."""
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {
            str(Path(file).relative_to(SOURCE)): {
                str(line): [c for c in contexts if c]
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        STATE.mkdir(exist_ok=True)
        known = known_map()
        names = list(dict.fromkeys((*known["seconds"], *self.seconds)))
        numbers = {name: index for index, name in enumerate(names)}
        packed: dict[str, dict[str, list[int]]] = known["lines"]
        for file, tests in lines.items():
            rows = packed.setdefault(file, {})
            for line, contexts in tests.items():
                seen = (numbers[name] for name in contexts if name in numbers)
                rows[line] = sorted({*rows.get(line, ()), *seen})
        seconds = known["seconds"] | self.seconds
        (STATE / "map.json").write_text(json.dumps({"seconds": seconds, "lines": packed}), encoding="utf-8")


def known_map() -> dict[str, Any]:
    """Return what earlier maps noted: seconds by test, and by file and line the numbers of tests; a map adds to it."""
    path = STATE / "map.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"seconds": {}, "lines": {}}


class Runner(Shortened):
    """A pytest plugin that collects once and tries each mutant in a forked child."""

    def __init__(self, chosen: list[Mutant], *, jobs: int, budget: float, output: Path) -> None:
        known = known_map()
        self.seconds, self.lines = known["seconds"], known["lines"]
        self.names = list(self.seconds)
        self.chosen, self.jobs, self.budget, self.output = chosen, jobs, budget, output
        self.outcomes = dict.fromkeys(("killed", "survived", "not run by any test", "not alive"), 0)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try all mutants; the session itself runs no test."""
        items = {item.nodeid: item for item in session.items}
        running: dict[int, tuple[Mutant, int]] = {}
        with self.output.open("w", encoding="utf-8") as file:
            for done, mutant in enumerate(self.chosen, 1):
                tests = self._tests(mutant, items)
                if not tests:
                    self._note(file, mutant, "not run by any test", 0)
                    continue
                running[_fork(session, mutant, tests, 3 * self.budget + 30)] = (mutant, len(tests))
                while len(running) >= self.jobs or (running and done == len(self.chosen)):
                    child, status = os.wait()
                    self._settle(file, *running.pop(child), status)
                if done % 20 == 0:
                    sys.stderr.write(f"{done}/{len(self.chosen)} {self.outcomes}\n")
            while running:
                child, status = os.wait()
                self._settle(file, *running.pop(child), status)
        sys.stderr.write(f"{self.outcomes}\n")
        return True

    def _tests(self, mutant: Mutant, items: dict[str, pytest.Item]) -> list[pytest.Item]:
        """Return the tests that run the mutant's line, short ones first, as many as the budget allows."""
        covering = (
            self.names[number] for number in self.lines.get(mutant.path, {}).get(str(mutant.line), ())
        )
        selected: list[pytest.Item] = []
        spent = 0.0
        for name in sorted(covering, key=self.seconds.__getitem__):
            spent += self.seconds[name]
            if name in items and (spent <= self.budget or not selected):
                selected.append(items[name])
        return selected

    def _settle(self, file: TextIO, mutant: Mutant, tests: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code == 4:
            msg = f"trying {mutant} failed"
            raise RuntimeError(msg)
        self._note(file, mutant, {0: "survived", 3: "not alive"}.get(code, "killed"), tests)

    def _note(self, file: TextIO, mutant: Mutant, outcome: str, tests: int) -> None:
        self.outcomes[outcome] += 1
        if outcome != "killed":
            row = {"outcome": outcome, "tests": tests} | dataclasses.asdict(mutant)
            file.write(json.dumps(row) + "\n")
            file.flush()


def _fork(session: pytest.Session, mutant: Mutant, tests: list[pytest.Item], limit: float) -> int:
    """Start a child that runs `tests` under `mutant`: exit 0 survived, 1 killed, 3 not alive, a signal if endless.

    Whatever else ends it is a defect of this script, exit 4.
    """
    child = os.fork()
    if child:
        return child
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    code = 4
    with contextlib.suppress(BaseException):
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        code = _outcome(session, mutant, tests)
    os._exit(code)


def _outcome(session: pytest.Session, mutant: Mutant, tests: list[pytest.Item]) -> int:
    if not apply(mutant):
        return 3
    forget()
    for item, following in zip(tests, [*tests[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def main() -> int:
    """Make the map or try mutants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("map", "run", "count"))
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--only", help="files whose path in src/forescale begins so")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests per mutant")
    parser.add_argument("--again", type=Path, help="a file of survivors: try those only")
    parser.add_argument("--output", type=Path, default=STATE / "survivors.jsonl")
    options, rest = parser.parse_known_args()
    ignored = [f"--ignore={ROOT / name}" for name in LEFT_OUT]
    arguments = [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:benchmark",
        "--rootdir",
        str(ROOT),
        *ignored,
        *rest,
    ]
    if options.what == "map":
        return int(pytest.main(arguments, plugins=[Mapper()]))
    if options.again:
        rows = [json.loads(line) for line in options.again.read_text(encoding="utf-8").splitlines()]
        mutants = [Mutant(**{f.name: row[f.name] for f in dataclasses.fields(Mutant)}) for row in rows]
    else:
        mutants = all_mutants(options.only)
    sys.stderr.write(f"{len(mutants):,} mutants\n")
    if options.what == "count":
        return 0
    runner = Runner(
        mutants[: options.number], jobs=options.jobs, budget=options.budget, output=options.output
    )
    return int(pytest.main([*arguments, "-s", "-x"], plugins=[runner]))


if __name__ == "__main__":
    sys.exit(main())
