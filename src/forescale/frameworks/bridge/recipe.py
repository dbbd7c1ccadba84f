"""The container that one recipe of a file makes: its functions followed, what Megatron-Bridge itself does known."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError, UnknownNameError
from forescale.frameworks.megatron.write_layout import model_settings
from forescale.frameworks.python.module import Module, World
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import MISSING, Call, Opaque, Stopped
from forescale.frameworks.reading import Options, packaged
from forescale.limits import whole_of
from forescale.spec.model import Model

FACTS: Final = packaged("bridge")
SECTIONS: Final[list[str]] = FACTS["sections"]
OTHERS: Final[list[str]] = FACTS["others"]
"""The container's other sections, which say nothing of these settings."""
CONTAINER, BUILT, READ, TOKENIZER = "ConfigContainer", "AutoBridge", "AutoConfig", "AutoTokenizer"
MODELS: Final = ("Provider", "ModelConfig")
"""Endings of the names of classes of models."""
USUAL: Final[Mapping[str, Any]] = FACTS["defaults"]
"""Defaults of a model's fields, for what recipes look at without setting it."""
PRECISIONS: Final[Mapping[str, Mapping[str, Any]]] = FACTS["precisions"]
MIXED = "megatron.bridge.training.mixed_precision"
ANSWERS: Final[Mapping[str, Any]] = FACTS["answers"]
"""What functions that look at the machine return where there is no accelerator."""
_DEVICES = re.compile(r"_(\d{1,7})gpu(?=_|$)")
ENDING = "_config"
"""Of the names of functions that return a recipe."""


class Bridge:
    """What is known of Megatron-Bridge's own functions."""

    package: Final = "megatron.bridge"
    closed: Final = frozenset((BUILT,))

    def __init__(
        self, model_of: Callable[[str], Model] | None, vocabulary_of: Callable[[str], int | None]
    ) -> None:
        self._model_of, self._vocabulary_of = model_of, vocabulary_of
        self.world: World | None = None
        self.num_devices: int | None = None
        """Devices that the recipe's name says."""
        self.recipe = ""
        """The recipe's name."""
        self.module: Module | None = None

    def call(self, call: Call, owner: object) -> Any:  # noqa: ANN401
        """Return a model built by its name, a precision by its name, or what a machine without accelerators says."""
        name, args, place = call.name, call.args, call.place
        last = name.rpartition(".")[2]
        value = args or list(call.fields.values())[:1]
        if last in ("from_hf_pretrained", "from_hf_config") and f"{BUILT}." in name:
            return Call(BUILT, place, _named(value))
        if last == "from_pretrained" and f"{READ}." in name:
            result = Call(READ, place, value)
            result.fields["text_config"] = Call(READ, place, [*value, "text"])
            return result
        if last == "from_pretrained" and f"{TOKENIZER}." in name:
            return Call(TOKENIZER, place, value)
        if name == "len" and value and isinstance(value[0], Call) and value[0].name == TOKENIZER:
            size = self._vocabulary_of(str(value[0].args[0])) if value[0].args else None
            return MISSING if size is None else size
        if isinstance(owner, Call) and owner.name == BUILT:
            text = ["text"] * (last == "to_text_provider")
            named = [*owner.args, *text]
            return Call(BUILT, place, named, dict(owner.fields), dict(owner.places), self._sizes(named))
        if last == "get_mixed_precision_config" and args:
            return self.precision(args[0], place)
        if last in PRECISIONS and not args and self._mixed() is None:
            return self.precision(last, place)
        return ANSWERS.get(name, MISSING)

    def default(self, owner: Call, name: str) -> Any:  # noqa: ANN401
        """Return a field's default by the section that has it."""
        is_model = owner.name == BUILT or owner.name.endswith(MODELS)
        return USUAL.get(name, MISSING) if is_model else MISSING

    def precision(self, value: object, place: str) -> object:
        """Return the fields of a precision that is given by its name, as the checkout has them if there is one."""
        name = value.replace("-", "_") if isinstance(value, str) else ""
        if not name:
            return value
        there = self._mixed()
        if there is not None and name in there.functions:
            call = ast.parse(f"{name}()", mode="eval").body
            assert isinstance(call, ast.Call)
            return Frame(there, {}).value(call)
        if name not in PRECISIONS:
            raise ReaderError(place, wording.not_one_of("mixed_precision", value, ", ".join(PRECISIONS)))
        return Call("MixedPrecisionConfig", place, fields=dict(PRECISIONS[name]))

    def _mixed(self) -> Module | None:
        """Return the checkout's file of precisions."""
        return self.module.beside(MIXED, 0) if self.module is not None else None

    def model(self, args: list[Any]) -> Model | None:
        """Return the catalogue's model of a name on Hugging Face; None where no catalogue is asked."""
        named = args[0] if args else None
        model = self._model_of(named) if isinstance(named, str) and self._model_of is not None else None
        return replace(model, vision=None) if model is not None and "text" in args[1:] else model

    def _sizes(self, args: list[Any]) -> dict[str, Any]:
        """Return the fields of a model that is built by its name."""
        try:
            model = self.model(args)
        except UnknownNameError:
            model = None
        return {} if model is None else sizes_of(model) | FACTS["built"]


def _named(values: list[Any]) -> list[Any]:
    """Return the name that a model is built by: that of a configuration on Hugging Face that nothing changes."""
    config = values[0] if values else None
    if not isinstance(config, Call) or config.name != READ:
        return values
    changed = next((name for name in config.fields if name not in ("architectures", "text_config")), None)
    return (
        config.args
        if changed is None
        else [Opaque(f"a configuration whose {changed} is changed", config.place)]
    )


def sizes_of(model: Model) -> dict[str, Any]:
    """Return a model as the fields of a provider."""
    fields, opposite = FACTS["keys"], FACTS["inverted"]
    values: dict[str, Any] = {}
    for key, value in model_settings(model, seq_len=model.max_seq_len or 1).items():
        if key in opposite:
            values[opposite[key].partition(".")[2]] = not value
        elif value is not None:
            values[fields.get(key, key).partition(".")[2] or key] = value
    return values


def run(path: Path, options: Options) -> tuple[Call, Bridge]:
    """Return the container of the recipe that is wanted, or of the only one, and what is known of what made it.

    Raises
    ------
    ReaderError
        If there are several recipes and none is wanted, or the recipe stops.
    UnknownNameError
        If there is none of that name.
    """
    hooks = Bridge(options.model_of, options.vocabulary_of)
    world = World(hooks, Frame, options.folders)
    module = world.module(path)
    hooks.world, hooks.module = world, module
    name = _wanted(module, options.variables.get("config"))
    hooks.recipe = name or ""
    if (counted := _DEVICES.search(hooks.recipe)) is not None:
        hooks.num_devices = whole_of(counted[1]) or None
    try:
        frame = _framed(module, name)
    except Stopped as stopped:
        raise ReaderError(
            stopped.place, f"the recipe stops here: {stopped.kind} {stopped.text}".rstrip()
        ) from stopped
    except RecursionError as error:
        raise ReaderError(
            path, wording.circular("calls", "it calls itself, or nests deeper than a recipe does")
        ) from error
    return _container(frame, path), hooks


def _wanted(module: Module, text: str | None) -> str | None:
    """Return the recipe that is meant; None where lines outside functions make it."""
    functions = module.functions.items()
    made = [name for name, node in functions if _makes(node) and not _needs(node)]
    names = [name for name in made if not name.startswith("_")] or made
    names = names or [name for name, node in functions if _fills(node)]
    if not names:
        names = [name for name in module.imports if name.endswith(ENDING) and not name.startswith("_")]
    if text is not None and text not in names:
        raise UnknownNameError(f"recipe of {module.path}", text, names)
    if text is None and len(names) > 1:
        line = getattr(module.functions.get(names[0]), "lineno", 1)
        key = f"{len(names)} recipes"
        fix = "--var config=NAME"
        raise ReaderError(f"{module.path}, line {line}", wording.choose_one(key, ", ".join(names), fix))
    return text or (names[0] if names else None)


def _makes(node: ast.FunctionDef) -> bool:
    """Whether a function makes a recipe: it is called one, says so, or sets fields of a container."""
    message = node.returns is not None and CONTAINER in ast.unparse(node.returns)
    return message or node.name.endswith(ENDING) or _fills(node)


def _fills(node: ast.FunctionDef) -> bool:
    """Whether a function sets fields of a container."""
    return any(isinstance(item, ast.Attribute) and _is_field(item) for item in ast.walk(node))


def _needs(node: ast.FunctionDef) -> int:
    """Return how many arguments a function cannot do without."""
    args = node.args
    return len(args.posonlyargs) + len(args.args) - len(args.defaults) + args.kw_defaults.count(None)


def _is_field(node: ast.Attribute) -> bool:
    names = ast.unparse(node).split(".")
    return isinstance(node.ctx, ast.Store) and len(names) > 1 and names[1] in (*SECTIONS, *OTHERS)


def _framed(module: Module, name: str | None) -> Frame:
    """Return a recipe's frame at its end."""
    frame = Frame(module, {"__name__": "__main__"} if name is None else {})
    if name is None:
        frame.body(module.tree.body)
    elif (node := module.functions.get(name)) is None:
        call = ast.parse(f"{name}()", mode="eval").body
        frame.result = frame.value(call)
    else:
        posonlyargs = [*node.args.posonlyargs, *node.args.args]
        frame.scope |= {item.arg: Call(item.arg, module.place(node), known=False) for item in posonlyargs}
        late = [
            *zip(posonlyargs[len(posonlyargs) - len(node.args.defaults) :], node.args.defaults, strict=True)
        ]
        late += [
            (kwonlyarg, value)
            for kwonlyarg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if value
        ]
        frame.scope |= {item.arg: frame.value(value) for item, value in late}
        for rest, empty in ((node.args.kwarg, {}), (node.args.vararg, ())):
            frame.scope |= {rest.arg: empty} if rest is not None else {}
        frame.body(node.body)
    return frame


def _container(frame: Frame, path: Path) -> Call:
    """Return the container that a recipe returns, or the one that it fills."""
    result = frame.result
    if isinstance(result, Call):
        return result
    if isinstance(result, Opaque):
        raise ReaderError(result.place, wording.needs_running("the recipe", result.text))
    every = [*_containers(frame)]
    if not every:
        raise ReaderError(path, wording.incomplete("field of a ConfigContainer (cfg.model.num_layers = 32)"))
    return every[-1]


def _containers(frame: Frame) -> Iterator[Call]:
    sections = {*SECTIONS, *OTHERS}
    for name, value in frame.scope.items():
        if isinstance(value, Call) and value.fields and (sections & value.fields.keys() or name == "cfg"):
            yield value


def unread_of(hooks: Bridge) -> Iterator[str]:
    """Yield a note on each function that is not read and was given the recipe or a part of it."""
    for name, place in (hooks.world.unread if hooks.world else {}).items():
        yield f"what {name} does ({place}) is not read: the file that it is in does not lie beside the recipe's"
