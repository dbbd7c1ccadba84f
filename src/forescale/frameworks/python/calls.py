"""Calls followed: functions and classes that can be read, Python's own, and what a reader knows of its framework's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol

from forescale.frameworks.python import tensors
from forescale.frameworks.python.builtin import BUILTINS, TYPES, built_in, copied, listed, method
from forescale.frameworks.python.module import DEPTH, Class, Function, Module, World, source_of, text_of
from forescale.frameworks.python.values import MISSING, Call, Opaque, Stopped, known

COPIES: Final = ("copy.deepcopy", "copy.copy", "deepcopy", "copy")
PARTIALS: Final = ("partial", "functools.partial")
CASTS: Final = ("cast", "typing.cast")
REPLACES: Final = ("replace", "dataclasses.replace")
UNREAD: Final = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig", "RewardConfig")
"""Classes whose fields are not read, and which come before those of a class that builds on one."""
FILLS: Final = ("append", "extend", "insert", "update", "remove", "clear", "pop", "setdefault")
"""Methods that change a list or a table."""
STARTS: Final = ("pretrain", "finetune", "print")
"""Functions that start a run: what they do with a configuration is no part of it."""


class Frame(Protocol):
    """The names of one function, and what its expressions stand for (`run.Frame`)."""

    module: Module
    world: World
    scope: dict[str, Any]
    result: Any
    yielded: Any
    ended: bool

    def body(self, lines: Sequence[ast.stmt]) -> str | None:
        """Run lines."""

    def value(self, node: ast.expr) -> Any:  # noqa: ANN401
        """Return what an expression stands for."""

    def open_up(self, value: list[Any] | dict[Any, Any], node: ast.expr) -> None:
        """Take all entries of a list or a table as unknown."""

    def items(self, nodes: Sequence[ast.expr]) -> Iterator[Any]:
        """Yield the values of a list."""

    def table(self, keys: Sequence[ast.expr | None], values: Sequence[ast.expr]) -> dict[Any, Any]:
        """Return a table."""

    def attribute(self, owner: Any, name: str, node: ast.expr) -> Any:  # noqa: ANN401
        """Return a field or a part."""

    def field(self, owner: Call, name: str) -> Any:  # noqa: ANN401
        """Return a field or its default."""

    def kept(self, before: Any, value: Any) -> Any:  # noqa: ANN401
        """Return what a field is after it was set."""


class Caller:
    """One call within a frame."""

    def __init__(self, frame: Frame, node: ast.Call) -> None:
        self.frame, self.node, self.world = frame, node, frame.world
        self.place = frame.module.place(node)
        self.name = source_of(node.func)
        self.args = list(frame.items(node.args))
        self.words = frame.table(
            [None if word.arg is None else ast.Constant(word.arg) for word in node.keywords],
            [word.value for word in node.keywords],
        )
        unpacked = (word.value for word in node.keywords if word.arg is None)
        self.open = next(
            (text_of(value) for value in unpacked if not isinstance(frame.value(value), dict)), ""
        )
        self.places = dict.fromkeys(self.words, self.place)
        self.places |= {word.arg: frame.module.place(word.value) for word in node.keywords if word.arg}

    def value(self) -> Any:  # noqa: ANN401, PLR0911 (one case per kind of call)
        """Return what the call makes."""
        func = self.node.func
        owner = self.frame.value(func.value if isinstance(func, ast.Attribute) else func)
        name = self.name
        if isinstance(func, ast.Name) and isinstance(owner, Opaque) and owner.origin:
            name = owner.text  # as it is called where it is imported from
        question = Call(name, self.place, self.args, dict(self.words), dict(self.places), open=self.open)
        question.origin = owner.origin if isinstance(owner, Opaque) else ""
        made = self.world.hooks.call(question, owner)
        made = tensors.made(question, owner) if made is MISSING else made
        if made is not MISSING:
            return made
        if isinstance(func, ast.Attribute) and not isinstance(
            owner, Module | Opaque | Call | Function | Class
        ):
            return self.method(func, owner)
        target = self.target(func, owner)
        if isinstance(target, Function):
            return self.run(target, [*target.args, *self.args], {**target.words, **self.words})
        if isinstance(target, Class):
            return self.build(target, question)
        if self.name in COPIES and self.args:
            return copied(self.args[0])
        if self.name in CASTS and len(self.args) > 1:
            return self.args[1]
        if self.name in PARTIALS and self.args and isinstance(arg := self.args[0], Function):
            args = (*arg.args, *self.args[1:])
            return Function(arg.module, arg.node, arg.scope, args, {**arg.words, **self.words})
        if self.name in REPLACES and self.args and isinstance(self.args[0], Call):
            result = copied(self.args[0])
            result.fields |= self.words
            result.places |= self.places
            return result
        if len(self.args) >= SPECIAL.get(self.name, len(self.args) + 1):
            return getattr(self, f"_{self.name}")()
        if self.name in BUILTINS or self.name in ("any", "all"):
            return built_in(self.name, self.args, self.words)
        return self.unread(target, question)

    def method(self, func: ast.Attribute, owner: Any) -> Any:  # noqa: ANN401
        """Return what a method of a text, a list or a table makes; what may change that is not known then."""
        changed = next(iter(self.args), self.words)
        if func.attr not in FILLS or not isinstance(owner, list | dict):
            return method(owner, func.attr, self.args, self.words)
        if func.attr == "update" and isinstance(owner, dict) and isinstance(changed, dict):
            for name, value in {**changed, **self.words}.items():
                owner[name] = self.frame.kept(owner.get(name, MISSING), value)
            return None
        is_open = func.attr in ("update", "extend") and listed(changed) is None
        if is_open or (self.world.doubt is not None and func.attr != "pop"):
            return self.frame.open_up(owner, func.value)
        return method(owner, func.attr, self.args, self.words)

    def target(self, func: ast.expr, owner: Any) -> Any:  # noqa: ANN401
        """Return what is called."""
        if isinstance(func, ast.Attribute):
            if isinstance(owner, Call):
                field = owner.fields.get(func.attr, MISSING)
                return method_of(self.world, owner, func.attr) if field is MISSING else field
            if isinstance(owner, Class):
                return method_of(self.world, owner, func.attr)
            return self.frame.attribute(owner, func.attr, func) if isinstance(owner, Module) else MISSING
        return owner

    def unread(self, target: Any, question: Call) -> Call:  # noqa: ANN401
        """Return what a function or class that is not read makes: of a class its fields, of a function nothing.

        What is set of a configuration later counts for the `question` that made it as well.
        """
        last = self.name.rpartition(".")[2]
        if last[:1].isupper():
            return Call(last, self.place, self.args, question.fields, question.places)
        named = isinstance(target, Opaque) and self.name.isidentifier() and last not in STARTS
        if named and any(isinstance(arg, Call) for arg in (*self.args, *self.words.values())):
            self.world.unread.setdefault(last, self.place)
        if isinstance(target, Opaque) and target.origin:
            self.world.absent.setdefault(self.place, f"{last} of {target.origin}")
        return Call(text_of(self.node), self.place, self.args, known=False)

    def run(self, function: Function, args: list[Any], values: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return what a function returns."""
        if self.world.depth >= DEPTH:
            return MISSING
        node, doubt = function.node, self.world.doubt
        self.world.followed.add(node)
        inner = self.world.frame(function.module, {}, function.scope)
        inner.scope |= self.bound(inner, node.args, args, values)
        self.world.depth += 1
        try:
            if isinstance(node, ast.Lambda):
                return inner.value(node.body)
            word = inner.body(node.body)
        finally:
            self.world.doubt = doubt
            self.world.depth -= 1
        if inner.yielded is not None:
            return tensors.stream(inner.yielded, self.place)
        if word is None and inner.ended and inner.result is not None:
            return MISSING
        return inner.result

    def bound(
        self, inner: Frame, values: ast.arguments, args: list[Any], parts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a function's names at its start."""
        names = [posonlyarg.arg for posonlyarg in (*values.posonlyargs, *values.args)]
        alone = [kwonlyarg.arg for kwonlyarg in values.kwonlyargs]
        late = zip(names[len(names) - len(values.defaults) :], values.defaults, strict=True)
        usual = [*late, *((name, node) for name, node in zip(alone, values.kw_defaults, strict=True) if node)]
        scope: dict[str, Any] = {name: Opaque(name, self.place) for name in (*names, *alone)}
        scope |= dict(zip(names, args, strict=False))
        explicit = {name: value for name, value in parts.items() if name in scope}
        scope |= {
            name: inner.value(node)
            for name, node in usual
            if name not in explicit and name not in names[: len(args)]
        }
        scope |= explicit
        if values.vararg is not None:
            scope[values.vararg.arg] = tuple(args[len(names) :])
        if values.kwarg is not None:
            scope[values.kwarg.arg] = {name: value for name, value in parts.items() if name not in explicit}
        return scope

    def build(self, kind: Class, question: Call | None = None) -> Call:
        """Return a configuration of a class, with the defaults of its fields, which its `question` has too."""
        kinds: dict[str, None] = {}
        defaults = self.fields_of(kind, kinds)
        starts = method_of(self.world, kind, "__init__")
        inherits = starts is not MISSING or any(
            name.endswith(UNREAD) for name in kinds if name != kind.node.name
        )
        fields = ({} if inherits else dict(zip(defaults, self.args, strict=False))) | self.words
        if starts is not MISSING and tuple(kinds) == (kind.node.name,):  # it says itself what its fields are
            fields = {}
        usual = {name: value for name, value in defaults.items() if value is not MISSING}
        places = dict.fromkeys(fields, self.place) | self.places
        made = Call(kind.node.name, self.place, self.args, fields, places, usual, tuple(kinds), of=kind)
        if question is not None:
            question.fields, question.places, question.defaults = made.fields, made.places, usual
            question.kinds = made.kinds
        args, words = (self.args, self.words) if starts is not MISSING else ([], {})
        first = method_of(self.world, made, "__post_init__" if starts is MISSING else "__init__")
        if isinstance(first, Function):
            with suppress(Stopped):
                self.run(first, [*first.args, *args], words)
        return made

    def fields_of(self, kind: Class, kinds: dict[str, None], depth: int = 0) -> dict[str, Any]:
        """Return the fields of a class and of those it builds on, with their defaults; `kinds` are told the names."""
        kinds[kind.node.name] = None
        self.world.copying(len(kind.node.body), self.place)
        inner, result = self.world.frame(kind.module, {}, {}), dict[str, Any]()
        for base in kind.node.bases:
            above = inner.value(base)
            if (
                isinstance(above, Class) and above.node is kind.node
            ):  # of the same name, which it takes from another
                above = kind.module.outer(above.node.name)
            if isinstance(above, Class) and depth < DEPTH:
                result |= self.fields_of(above, kinds, depth + 1)
            elif isinstance(above, Opaque):
                name = above.text.rpartition(".")[2]
                kinds[f"{above.origin}.{name}" if name in kinds else name] = None
        for line in kind.node.body:
            match line:
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    result[name] = MISSING if value is None else self.default(inner, value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    result[name] = self.default(inner, value)
                case _:
                    pass
        return result

    @staticmethod
    def default(inner: Frame, node: ast.expr) -> Any:  # noqa: ANN401
        """Return the default of a field."""
        if not isinstance(node, ast.Call) or source_of(node.func).rpartition(".")[2] not in (
            "field",
            "Field",
        ):
            return inner.value(node)
        keywords = {word.arg: word.value for word in node.keywords}
        if "default" in keywords:
            return inner.value(keywords["default"])
        if "default_factory" not in keywords:
            first = inner.value(node.args[0]) if node.args else ...  # of pydantic
            return MISSING if first is ... else first
        return inner.value(
            ast.copy_location(ast.Call(func=keywords["default_factory"], args=[], keywords=[]), node)
        )

    def _super(self) -> Any:  # noqa: ANN401
        """Return an object as one of the first class above that of the method which can be read."""
        around = {**getattr(self.frame, "around", {}), **self.frame.scope}
        owner, kind = around.get(SELF), around.get(OWN)
        if not isinstance(owner, Call) or not isinstance(kind, Class):
            return MISSING
        above = list(islice(lineage(self.world, kind), 1, 2))
        if not above:
            return MISSING
        return Call(
            owner.name, owner.place, owner.args, owner.fields, owner.places, owner.defaults, of=above[0]
        )

    def _hasattr(self) -> Any:  # noqa: ANN401
        owner, name = self.args[:2]
        if not isinstance(owner, Call) or not isinstance(name, str):
            return MISSING
        result = self.frame.field(owner, name)
        return MISSING if result is MISSING or (isinstance(result, Call) and result.idle) else True

    def _getattr(self) -> Any:  # noqa: ANN401
        owner, name, *usual = self.args
        if isinstance(owner, Opaque) and isinstance(name, str):
            return self.frame.attribute(owner, name, self.node)
        if not isinstance(owner, Call) or not isinstance(name, str):
            return MISSING
        result = self.frame.field(owner, name)
        if result is MISSING and not usual:
            return self.frame.attribute(owner, name, self.node)
        return result

    def _setattr(self) -> None:
        owner, name, value = self.args[:3]
        if isinstance(owner, Call) and isinstance(name, str):
            owner.fields[name] = self.frame.kept(owner.fields.get(name, MISSING), value)
            owner.places[name] = self.place
        elif isinstance(owner, Call) and self.world.opens_classes:  # any of its fields
            owner.fields |= dict.fromkeys(
                (*owner.defaults, *owner.fields), Opaque("what setattr sets", self.place)
            )

    def _isinstance(self) -> Any:  # noqa: ANN401
        value = self.args[0]
        kinds = " ".join(map(source_of, self.node.args[1:]))
        names = [item.rpartition(".")[2] for item in re.findall(r"[\w.]+", kinds)]
        if isinstance(value, Opaque) and value.origin and all(name in TYPES for name in names):
            return False
        if not known(value) or isinstance(value, Function | Class):
            return MISSING
        if not isinstance(value, Call):
            return any(isinstance(value, TYPES[name]) for name in names if name in TYPES)
        if value.name in names or set(value.kinds) & set(names):
            return True
        return False if value.kinds or all(name in TYPES for name in names) else MISSING


def lineage(world: World, kind: Class, depth: int = 0) -> Iterator[Class]:
    """Yield a class, and those that it builds on and that can be read."""
    yield kind
    for base in kind.node.bases if depth < DEPTH else ():
        above = world.frame(kind.module, {}, {}).value(base)
        if isinstance(above, Class):
            yield from lineage(world, above, depth + 1)


def method_of(world: World, owner: Call | Class, name: str) -> Any:  # noqa: ANN401
    """Return a method of an object or a class, with what it is bound to; MISSING where none can be read."""
    kind = owner if isinstance(owner, Class) else owner.of
    for above in lineage(world, kind) if world.opens_classes and kind is not None else ():
        for line in above.node.body:
            if isinstance(line, ast.FunctionDef) and line.name == name:
                words = set(map(source_of, line.decorator_list))
                itself = (owner,) * (owner is not kind)
                first = () if "staticmethod" in words else (kind,) if "classmethod" in words else itself
                return Function(above.module, line, {OWN: above, SELF: owner}, first)
    return MISSING


def turn_of(frame: Frame, over: object) -> Any:  # noqa: ANN401
    """Return what a loop over a value that is not known is given in each turn; MISSING where that is not either."""
    method = method_of(frame.world, over, "__iter__") if isinstance(over, Call) else MISSING
    if isinstance(method, Function):
        node = ast.copy_location(ast.Call(ast.Name("iter", ast.Load()), [], []), method.node)
        over = Caller(frame, node).run(method, list(method.args), {})
    return tensors.item_of(over, str(frame.module.path))


def part_of(frame: Frame, owner: Call | Class, name: str, node: ast.expr) -> Any:  # noqa: ANN401
    """Return a property or a method of an object, or a field of a class; MISSING where it has none that can be read."""
    method = method_of(frame.world, owner, name)
    caller = Caller(frame, ast.copy_location(ast.Call(node, [], []), node))
    if isinstance(method, Function) and isinstance(method.node, ast.FunctionDef):
        is_asked = any("property" in source_of(item) for item in method.node.decorator_list)
        return caller.run(method, list(method.args), {}) if is_asked else method
    if not isinstance(owner, Class) or not frame.world.opens_classes:
        return MISSING
    kinds: dict[str, None] = {}
    fields = caller.fields_of(owner, kinds)
    return MISSING if any(kind.endswith("Enum") for kind in kinds) else fields.get(name, MISSING)


OWN, SELF = "__class__", "__self__"
"""Names around a method: its class, and the object that it is called on."""
SPECIAL: Final = {"super": 0, "hasattr": 2, "getattr": 2, "setattr": 3, "isinstance": 2}
"""Functions of Python on fields and kinds, and the arguments that they need."""
