"""The lines of a function followed: what its names and the fields of its configurations are at its end."""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

from forescale.frameworks.python import nodes
from forescale.frameworks.python.builtin import listed, path_part
from forescale.frameworks.python.calls import Caller, part_of, turn_of
from forescale.frameworks.python.module import Class, Function, Module, imported, source_of, text_of
from forescale.frameworks.python.tensors import cut, gathered, item_of, shape
from forescale.frameworks.python.values import (
    LONGEST,
    MISSING,
    Call,
    Opaque,
    Stopped,
    Table,
    Tensor,
    checked,
    compared,
    computed,
    known,
    same,
    truth,
)

RETURN, BREAK, CONTINUE = "return", "break", "continue"
FILLS = ("append", "add", "extend", "insert", "update", "remove", "discard", "pop", "clear")
"""Methods that change a list, a set or a table."""
ENVIRONMENT: Final = "os.environ"
CONFIGURES = "hydra.main"
"""A decorator that gives a function its configuration."""


class Frame:
    """One call of a function, or the lines of a file: its names, and what its lines make of them."""

    def __init__(
        self, module: Module, scope: dict[str, Any], around: Mapping[str, Any] | None = None
    ) -> None:
        self.module, self.world, self.scope, self.around = module, module.world, scope, around or {}
        self.of_file: set[str] = set()
        """Names that stand for those of the file (`global`)."""
        self.result: Any = None
        self.yielded: Any = None
        self.ended = False

    def body(self, lines: Sequence[ast.stmt]) -> str | None:
        """Run lines; the word of one that ends them early, else None."""
        for at, line in enumerate(lines):
            self.world.step(self.module.place(line))
            (self.world.ran if self.world.doubt is None else self.world.doubted).add(line)
            if (word := self.line(line)) is not None:
                self.world.skip(lines[at + 1 :])
                return word
        return None

    def line(self, line: ast.stmt) -> str | None:
        """Run a line by the method of its kind; lines that set nothing have none."""
        run: Callable[[ast.stmt], str | None] | None = getattr(self, f"_{type(line).__name__.lower()}", None)
        return None if run is None else run(line)

    def _return(self, line: ast.Return) -> str:
        return self.back(None if line.value is None else self.value(line.value))

    def _assign(self, line: ast.Assign) -> None:
        result = self.value(line.value)
        for target in line.targets:
            self.assign(target, result)

    def _annassign(self, line: ast.AnnAssign) -> None:
        if line.value is not None:
            self.assign(line.target, self.value(line.value))

    def _augassign(self, line: ast.AugAssign) -> None:
        before = self.value(nodes.loaded(line.target))
        self.assign(line.target, self.made(computed(line.op, before, self.value(line.value)), line))

    def _expr(self, line: ast.Expr) -> None:
        if not isinstance(line.value, ast.Constant):
            self.value(line.value)

    def _with(self, line: ast.With) -> str | None:
        for item in line.items:
            value = self.value(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        return self.body(line.body)

    def _functiondef(self, line: ast.FunctionDef) -> None:
        calls = (item for item in line.decorator_list if isinstance(item, ast.Call))
        given = tuple(self.value(item) for item in calls if source_of(item.func) == CONFIGURES)
        given = tuple(item for item in given if isinstance(item, Table))
        self.scope[line.name] = Function(self.module, line, self.names(line), given)

    def _classdef(self, line: ast.ClassDef) -> None:
        self.scope[line.name] = Class(self.module, line)

    def _global(self, line: ast.Global) -> None:
        self.of_file.update(line.names)

    def _importfrom(self, line: ast.Import | ast.ImportFrom) -> None:
        names, _ = imported(line)
        self.scope |= {name: self.module.bring(*item, name) for name, item in names.items()}

    _import = _importfrom

    def _break(self, _: ast.Break) -> str:
        return BREAK

    def _continue(self, _: ast.Continue) -> str:
        return CONTINUE

    def back(self, value: Any) -> str:  # noqa: ANN401
        """Return a value; of several that may be returned none is known."""
        doubt = self.world.doubt
        if self.ended and not same(self.result, value):
            value = self.doubted(doubt)
        self.result = value
        self.ended = doubt is not None
        return RETURN

    def doubted(self, doubt: Opaque | None) -> Opaque:
        """Return what stands for a value that depends on a condition."""
        text, place = (doubt.text, doubt.place) if doubt else ("what is not read", str(self.module.path))
        return Opaque(f"what depends on {text}", place)

    def _raise(self, line: ast.Raise) -> str:
        """Raise what the file raises, unless a line above may have returned."""
        if self.ended:
            return RETURN
        cause = line.exc
        name = source_of(cause.func if isinstance(cause, ast.Call) else cause) if cause else "an error"
        value = self.value(cause.args[0]) if isinstance(cause, ast.Call) and cause.args else ""
        raise Stopped(self.module.place(line), name, value if isinstance(value, str) else "")

    def _if(self, node: ast.If) -> str | None:
        """Run what a condition chooses; where it is not known both, and what they set is in doubt.

        What a program checks of its arguments, which are not all known, is taken as met.
        """
        test = self.value(node.test)
        selected = truth(test)
        if selected is not None:
            lines = node.body if selected else node.orelse
            self.world.skip(node.orelse if selected else node.body)
            checks = self.world.opens_classes and bool(lines) and isinstance(lines[-1], ast.Raise)
            return None if checks and not nodes.EXITS.match(source_of(lines[-1])) else self.body(lines)
        before = self.world.doubt
        self.world.doubt = self.condition(node.test, test)
        parts = [self.branch(node, lines) for lines in (node.body, node.orelse)]
        turns = set(parts) - {None}
        if not turns or (turns <= {BREAK, CONTINUE} and self.world.turns_once and not self.world.doubt.every):
            self.world.doubt = before  # lines below run in the turns that come to them
        return parts[0] if parts[0] is not None and parts[0] == parts[1] else None

    def branch(self, node: ast.If, lines: Sequence[ast.stmt]) -> str | None:
        """Run the lines of one branch of a condition that is not known."""
        self.world.branches.append((node, lines is node.body))
        try:
            return self.body(lines)
        except Stopped:
            return None
        finally:
            self.world.branches.pop()

    def condition(self, test: ast.expr, value: object = None) -> Opaque:
        """Return the condition, not known, under which lines run: the first, and how often any of them is met."""
        before, every = self.world.doubt, getattr(value, "every", 0)
        if before is not None and not every:
            return before
        outer = before or Opaque(text_of(test), self.module.place(test))
        return Opaque(outer.text, outer.place, every=every)

    def _match(self, node: ast.Match) -> str | None:
        """Run the case that a value chooses, as a chain of conditions."""
        chain: list[ast.stmt] = []
        for case in reversed(node.cases):
            test = nodes.tested(node.subject, case.pattern)
            test = test if case.guard is None else ast.BoolOp(ast.And(), [test, case.guard])
            chain = [ast.copy_location(ast.If(ast.copy_location(test, node.subject), case.body, chain), node)]
        return self.body(chain)

    def _for(self, node: ast.For) -> str | None:
        """Run a loop over what is known."""
        over = self.value(node.iter)
        items = listed(over)
        is_long = self.world.opens_classes and isinstance(over, range) and len(over) > nodes.TURNS
        if items is None or is_long:
            self._while(node, over)
            return None
        for item in items:
            self.assign(node.target, item)
            with self.turning(node, 1):
                word = self.body(node.body)
            if word == RETURN:
                return word
            if word == BREAK:
                return None
        self.world.skip(() if items else node.body)
        return self.body(node.orelse)

    def _try(self, node: ast.Try) -> str | None:
        """Run lines, and where they raise those that deal with it."""
        try:
            word = self.body(node.body) or self.body(node.orelse)
            self.world.skip([line for handler in node.handlers for line in handler.body])
        except Stopped as stopped:
            named = ((source_of(handler.type) if handler.type else "", handler) for handler in node.handlers)
            handler = next(
                (item for name, item in named if not name or stopped.kind in name or "Exception" in name),
                None,
            )
            if handler is None:
                raise
            word = self.body(handler.body)
        return self.body(node.finalbody) or word

    @contextmanager
    def turning(self, line: ast.stmt, turns: int | None) -> Iterator[None]:
        """Take lines as those of a loop, run once for a number of turns; None where that is not known."""
        self.world.loops.append((line, turns))
        doubt = self.world.doubt
        try:
            yield
        finally:
            self.world.loops.pop()
            self.world.doubt = self.world.doubt if self.ended else doubt

    def _while(self, line: ast.While | ast.For, over: object = None) -> None:
        """Run a loop over what is not known once; names and fields that it sets are not known before and after."""
        self.forget(line)
        if not self.world.opens_classes:
            return
        if isinstance(line, ast.For) and (item := turn_of(self, over)) is not MISSING:
            self.assign(line.target, item)
        with suppress(Stopped), self.turning(line, len(over) if isinstance(over, range) else None):
            if self.body(line.body) == RETURN:
                self.ended = True
        self.forget(line)

    def forget(self, line: ast.stmt) -> None:
        """Take names and fields that lines may set as unknown."""
        for node in ast.walk(line):
            self.world.step(self.module.place(line))
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                self.assign(node, Opaque(text_of(node), self.module.place(node)))
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute() as owner, attr=name)):
                    if name in FILLS and self.world.opens_classes and known(self.value(owner)):
                        self.assign(owner, Opaque(text_of(owner), self.module.place(node)))

    def assign(self, target: ast.expr, value: Any) -> None:  # noqa: ANN401
        """Set a name, a field of a configuration, or an entry of a list or table."""
        match target:
            case ast.Name(id=name):
                scope = self.module.names if name in self.of_file else self.scope
                scope[name] = self.kept(scope.get(name, MISSING), value)
            case ast.Attribute(value=owner, attr=name):
                result = self.owner(owner)
                if isinstance(result, Call):
                    if self.world.opens_classes and isinstance(value, Call) and value.idle:
                        value = Opaque(value.name, value.place)  # its default is past
                    before = result.fields.get(name, result.defaults.get(name, MISSING))
                    result.fields[name] = self.kept(before, value)
                    result.places[name] = self.module.place(target)
                elif isinstance(result, Table):
                    result[name] = self.kept(result.get(name, MISSING), value)
            case ast.Subscript():
                self.enter(target, value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                items = listed(value)
                if items is None or len(items) != len(parts):
                    shared = value if isinstance(value, Tensor) and value.is_batch else None
                    items = [shared or Opaque(text_of(part), self.module.place(part)) for part in parts]
                for part, item in zip(parts, items, strict=True):
                    self.assign(part, item)
            case _:
                pass

    def enter(self, target: ast.Subscript, value: Any) -> None:  # noqa: ANN401
        """Set an entry of a list or a table; where it is not known which, all are unknown."""
        result, at = self.value(target.value), self.value(target.slice)
        if isinstance(result, dict) and nodes.is_key(at):
            result[at] = self.kept(result.get(at, MISSING), value)
        elif isinstance(result, list) and isinstance(at, int) and -len(result) <= at < len(result):
            result[at] = self.kept(result[at], value)
        elif isinstance(result, list | dict) and not known(at):
            self.open_up(result, target.value)

    def open_up(self, value: list[Any] | dict[Any, Any], node: ast.expr) -> None:
        """Take all entries of a list or a table, and the name or field that it has, as unknown."""
        unknown = Opaque(f"what is set in {text_of(node)}", self.module.place(node))
        if isinstance(value, dict):
            value |= dict.fromkeys(value, unknown)
        else:
            value.append(unknown)
        if isinstance(node, ast.Name | ast.Attribute):
            self.assign(node, unknown)

    def owner(self, node: ast.expr) -> Any:  # noqa: ANN401
        """Return the configuration that a field is set of; one that nothing made is made."""
        if isinstance(node, ast.Attribute):
            return self.attribute(self.owner(node.value), node.attr, node)
        result = self.value(node)
        if not isinstance(node, ast.Name):
            return result
        if isinstance(result, Opaque) and not result.origin and node.id not in self.module.imports:
            result = self.scope[node.id] = Call(node.id, result.place, known=False)
        return result

    def kept(self, before: Any, value: Any) -> Any:  # noqa: ANN401
        """Return what a name or a field is after it was set."""
        if self.world.doubt is None or same(self.world.measured(before, self.world.doubt.place), value):
            return value
        return self.doubted(self.world.doubt)

    def made(self, value: Any, node: ast.AST) -> Any:  # noqa: ANN401
        """Return a value; what stands for one where there is none."""
        if value is MISSING:
            text = text_of(node) if isinstance(node, ast.expr) else source_of(node)[:60]
            return Opaque(text, self.module.place(node))
        return value

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401
        """Return what an expression stands for, by the method of its kind."""
        self.world.step(self.module.place(node))
        run: Callable[[ast.expr], Any] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        result = MISSING if run is None else run(node)
        if isinstance(result, list | tuple | dict | set):
            result = self.world.measured(result, self.module.place(node))
        return self.made(result, node)

    def _constant(self, node: ast.Constant) -> Any:  # noqa: ANN401
        return checked(node.value)

    def _name(self, node: ast.Name) -> Any:  # noqa: ANN401
        return self.named(node.id, node)

    def _attribute(self, node: ast.Attribute) -> Any:  # noqa: ANN401
        return self.attribute(self.value(node.value), node.attr, node)

    def _call(self, node: ast.Call) -> Any:  # noqa: ANN401
        return Caller(self, node).value()

    def _list(self, node: ast.List) -> list[Any]:
        return list(self.items(node.elts))

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self.items(node.elts))

    def _set(self, node: ast.Set) -> Any:  # noqa: ANN401
        return nodes.set_of(self.items(node.elts))

    def _dict(self, node: ast.Dict) -> dict[Any, Any]:
        return self.table(node.keys, node.values)

    def _binop(self, node: ast.BinOp) -> Any:  # noqa: ANN401
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Mod) and type(right) is int and not known(left):
            return Opaque(text_of(node), self.module.place(node), every=abs(right))
        return computed(node.op, left, right)

    def _unaryop(self, node: ast.UnaryOp) -> Any:  # noqa: ANN401
        operand = self.value(node.operand)
        return operand if getattr(operand, "every", 0) else nodes.signed(node.op, operand)

    def _ifexp(self, node: ast.IfExp) -> Any:  # noqa: ANN401
        selected = truth(self.value(node.test))
        if selected is not None:
            return self.value(node.body if selected else node.orelse)
        with self.doubting(node.test):
            left, right = self.value(node.body), self.value(node.orelse)
        return left if same(left, right) else MISSING

    @contextmanager
    def doubting(self, test: ast.expr) -> Iterator[None]:
        """Take what is evaluated inside as under a condition that is not known."""
        before = self.world.doubt
        self.world.doubt = self.condition(test)
        try:
            yield
        finally:
            self.world.doubt = before

    def _lambda(self, node: ast.Lambda) -> Function:
        return Function(self.module, node, self.names(node))

    def names(self, node: ast.AST) -> Mapping[str, Any]:
        """Return all names of a frame, as they are at any time, which stand around a function that is made there."""
        self.world.copying(1, self.module.place(node))
        return ChainMap(self.scope, self.around)  # type: ignore[arg-type]

    def _namedexpr(self, node: ast.NamedExpr) -> Any:  # noqa: ANN401
        result = self.value(node.value)
        self.assign(node.target, result)
        return result

    def named(self, name: str, node: ast.expr) -> Any:  # noqa: ANN401
        """Return what a name stands for: of this function, around it, of the file, or of Python."""
        for names in (self.scope, self.around):
            if name in names:
                return names[name]
        lookup = self.module.lookup(name)
        if lookup is MISSING:
            return Opaque(name, self.module.place(node))
        return lookup

    def attribute(self, owner: Any, name: str, node: ast.expr) -> Any:  # noqa: ANN401
        """Return a field of a configuration, or a name of a module; a field that nothing set is a part of its own."""
        if isinstance(owner, Module):
            return owner.lookup(name)
        if isinstance(owner, Table):
            return owner if name == "__dict__" else owner.get(name, MISSING)
        if isinstance(owner, str):
            return path_part(owner, name)
        if isinstance(owner, Class):
            return part_of(self, owner, name, node)
        if isinstance(owner, Opaque):
            return self.unread(owner, name, node)
        if not isinstance(owner, Call):
            return MISSING
        if name == "__dict__":
            return owner.table()
        result = self.field(owner, name)
        if result is MISSING and owner.of is not None:
            result = part_of(self, owner, name, node)
        if result is MISSING:
            result = owner.fields[name] = Call(text_of(node), self.module.place(node), known=False)
        return result

    def unread(self, owner: Opaque, name: str, node: ast.expr) -> Any:  # noqa: ANN401
        """Return a name of what is not read: words of the command, a member of an enumeration, or a name with dots."""
        if isinstance(owner, Tensor) and (owner.is_batch or name == "shape"):
            return shape(owner, self.module.place(node)) if name == "shape" else owner
        if name == "argv" and owner.text == "sys" and self.world.argv is not None:
            return list(self.world.argv)
        if name == "name" and owner.origin and "." in owner.text:
            return owner.text.rpartition(".")[2]
        return Opaque(f"{owner.text}.{name}", self.module.place(node), owner.origin)

    def field(self, owner: Call, name: str) -> Any:  # noqa: ANN401
        """Return what a field is, or its default; MISSING where neither is known."""
        result = owner.fields.get(name, MISSING)
        if result is MISSING or (isinstance(result, Call) and result.idle):
            usual = owner.defaults.get(name, MISSING)
            usual = self.world.hooks.default(owner, name) if usual is MISSING else usual
            if usual is not MISSING:
                return usual
        return result

    def items(self, nodes: Sequence[ast.expr]) -> Iterator[Any]:
        """Yield the values of a list, those of lists within it that are unpacked included."""
        for node in nodes:
            if not isinstance(node, ast.Starred):
                yield self.value(node)
                continue
            result = self.value(node.value)
            inside = listed(result)
            yield from [self.made(MISSING, node)] if inside is None else inside

    def table(self, keys: Sequence[ast.expr | None], values: Sequence[ast.expr]) -> dict[Any, Any]:
        """Return a table; tables that are merged into it must be known."""
        result: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            raw = self.value(value)
            if key is None:
                result |= raw if isinstance(raw, dict) else {}
            elif nodes.is_key(name := self.value(key)):
                result[name] = raw
        return result

    def _boolop(self, node: ast.BoolOp) -> Any:  # noqa: ANN401
        """Return what stands before an `and` or an `or` that settles it, else the last."""
        settles, doubt, every = isinstance(node.op, ast.Or), False, None
        for item in node.values:
            with self.doubting(node) if doubt else nullcontext():
                result = self.value(item)
            selected = truth(result)
            if selected is settles and not doubt:
                return result
            if selected is settles:
                return settles
            doubt = doubt or selected is None
            every = result if getattr(result, "every", 0) and every is None else every
        return (every or MISSING) if doubt else result

    def _compare(self, node: ast.Compare) -> Any:  # noqa: ANN401
        """Return whether a chain of comparisons holds."""
        left = self.value(node.left)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator)
            if getattr(left, "every", 0) and isinstance(op, ast.Eq | ast.NotEq):
                return left
            if isinstance(op, ast.In | ast.NotIn) and getattr(right, "text", "") == ENVIRONMENT:
                made = self.variable(left, right, node)
                return made if made is MISSING else (made is None) is isinstance(op, ast.NotIn)
            result = compared(op, left, right)
            if result is MISSING or not result:
                return result
            left = right
        return True

    def _subscript(self, node: ast.Subscript) -> Any:  # noqa: ANN401
        """Return an entry of a list or a table, or a member of a kind that is not read, by its name."""
        owner, key = self.value(node.value), self.part(node.slice)
        is_open = isinstance(owner, Opaque) or (isinstance(owner, Call) and not owner.known)
        if is_open and (isinstance(owner, Tensor) or not isinstance(key, str)):
            inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return cut(owner, [self.width(at) for at in inside], self.module.place(node))
        if isinstance(owner, Opaque) and isinstance(key, str):
            if owner.text == ENVIRONMENT and (made := self.variable(key, owner, node)) not in (MISSING, None):
                return made
            return self.attribute(owner, key, node)
        return nodes.entry(owner, key)

    def variable(self, name: object, owner: Opaque, node: ast.expr) -> Any:  # noqa: ANN401
        """Return a variable of the environment; None of one that is not set, MISSING where that is not known."""
        asked = Call(f"{ENVIRONMENT}.get", self.module.place(node), [name], origin=owner.origin)
        return self.world.hooks.call(asked, owner)

    def part(self, key: ast.expr) -> Any:  # noqa: ANN401
        """Return the place of an entry, or of several."""
        if isinstance(key, ast.Slice):
            ends = [None if end is None else self.value(end) for end in (key.lower, key.upper, key.step)]
            return slice(*ends) if all(end is None or isinstance(end, int) for end in ends) else MISSING
        return self.value(key)

    def width(self, key: ast.expr) -> Any:  # noqa: ANN401
        """Return the ends of a slice, or how many entries it has where they differ by a number; None of an entry."""
        if not isinstance(key, ast.Slice):
            return None
        ends = self.part(key)
        if ends is not MISSING or key.lower is None or key.upper is None:
            return ends
        return nodes.distance(key.lower, key.upper, self.value)

    def _yield(self, node: ast.Yield) -> None:
        """Keep what a generator yields first."""
        if node.value is not None and (result := self.value(node.value)) is not None:
            self.yielded = result if self.yielded is None else self.yielded

    def _joinedstr(self, node: ast.JoinedStr) -> Any:  # noqa: ANN401
        """Return a text with values put in."""
        result = ""
        for part in node.values:
            value = self.value(part.value) if isinstance(part, ast.FormattedValue) else self.value(part)
            if not isinstance(value, str | int | float | bool | None):
                return MISSING
            result += str(value)
        return result[:LONGEST]

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp) -> Any:  # noqa: ANN401
        return self.each(node.generators, lambda inner: inner.value(node.elt))

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp) -> Any:  # noqa: ANN401
        result = self.each(node.generators, lambda inner: inner.value(node.elt))
        return nodes.set_of(result) if isinstance(result, list) else result

    def _dictcomp(self, node: ast.DictComp) -> Any:  # noqa: ANN401
        result = self.each(node.generators, lambda inner: (inner.value(node.key), inner.value(node.value)))
        if not isinstance(result, list) or not all(isinstance(key, str | int) for key, _ in result):
            return result
        return dict(result)

    def each(self, loops: Sequence[ast.comprehension], made: Callable[[Frame], Any]) -> Any:  # noqa: ANN401
        """Return what is made of each turn of loops over what is known; MISSING where that is not known."""
        self.world.copying(len(self.scope), self.module.place(loops[0].iter))
        inner = Frame(self.module, dict(self.scope), self.around)
        values, unknown, place = list[Any](), list[Any](), self.module.place(loops[0].iter)

        def fill(left: Sequence[ast.comprehension]) -> bool:
            if not left:
                values.append(made(inner))
                return True
            over = inner.value(left[0].iter)
            items = listed(over)
            if items is None and (item := item_of(over, place)) is not MISSING:
                unknown.append(over)
                items = [item]
            if items is None:
                return False
            for item in items:
                inner.assign(left[0].target, item)
                kept = [truth(inner.value(test)) for test in left[0].ifs]
                if None in kept or (all(kept) and not fill(left[1:])):
                    return False
            return True

        if not fill(loops):
            return MISSING
        return gathered(unknown[0], next(iter(values), None), place) if unknown else values
