"""The model that a recipe trains: built by its name on Hugging Face, with what the recipe changes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ForescaleError, ReaderError
from forescale.frameworks.bridge.fields import ContainerSettings
from forescale.frameworks.bridge.recipe import BUILT, FACTS, sizes_of
from forescale.frameworks.megatron.model import read_model, refuse_inexpressible
from forescale.frameworks.megatron.rope import ROPE_KEYS, read_rope
from forescale.frameworks.megatron.write_layout import model_settings
from forescale.frameworks.python.values import Call
from forescale.frameworks.settings import Settings
from forescale.spec.model import Model

TEXT: Final = frozenset(("GPTModelProvider", "HybridModelProvider", "GPTModelConfig", "HybridModelConfig"))
"""Classes that models of text build on."""
PLAIN: Final = TEXT | {"MLAModelProvider", "MambaModelProvider"}
"""Those whose fields say all of the model."""
TOWERS: Final = ("vision", "audio", "sound", "thinker")
"""How fields of towers start."""
ROPE: Final = (*ROPE_KEYS, "layernorm_epsilon")
"""Keys that change what is trained, in ways that any model takes."""
INERT: Final[list[str]] = FACTS["positions"]
"""Keys of a model's description that change none of its sizes."""


def named_model(container_settings: ContainerSettings, settings: Settings) -> Model | None:
    """Return the model that AutoBridge builds by its name; None where fields describe it, alone or as changed."""
    part = container_settings.part("model")
    if part is not None:
        _check_kind(part)
        if part.kinds and part.name not in PLAIN:
            settings.note(f"the model is a {part.name}; it is read by its fields, as a plain transformer")
    _check_base(container_settings, settings)
    if part is None or part.name != BUILT:
        _lay_vocabulary(container_settings, settings, None)
        return None
    name = part.args[0] if part.args else None
    if not isinstance(name, str):
        text = getattr(name, "text", None) or getattr(name, "name", "nothing")
        raise ReaderError(part.place, wording.needs_running("the model", f"the name {text}"))
    try:
        model = container_settings.hooks.model(part.args)
    except ForescaleError as error:
        fix = "set its sizes in cfg.model"
        raise ReaderError(part.place, wording.unknown_name("model", name, (), f"{error}", fix)) from error
    if model is None:
        return None
    refuse_inexpressible(settings)
    _lay_vocabulary(container_settings, settings, model)
    return _changed(container_settings, settings, model)


def _check_base(container_settings: ContainerSettings, settings: Settings) -> None:
    """Refuse a recipe over one that is not read, where it does not describe the model itself."""
    part, base = container_settings.part("model"), container_settings.container
    known = part is not None and (part.known or "hidden_size" in settings)
    missing = (
        container_settings.hooks.world.absent.get(base.place) if container_settings.hooks.world else None
    )
    if part is not None and not known and "(" in part.name:
        name = "the model"
        fix = "set its sizes in cfg.model"
        raise ReaderError(part.place, wording.needs_running(name, f"what {part.name[:60]} returns", fix))
    if not known and missing and not base.known:
        fix = "name the checkout of Megatron-Bridge with --primus-presets-dir DIR, or set cfg.model"
        raise ReaderError(base.place, wording.not_found(f"recipe {missing}, which builds the model,", fix))


def _check_kind(part: Call) -> None:
    """Refuse classes of models that are no language models, or have a tower that their fields do not describe."""
    if part.kinds and not set(part.kinds) & TEXT:
        fix = f"{' and '.join(sorted(TEXT))} are"
        raise ReaderError(part.place, wording.not_expressed("a model", part.name, fix))
    seen = next((name for name in (*part.fields, *part.defaults) if name.startswith(TOWERS)), None)
    if part.name != BUILT and part.kinds and seen is not None:
        violation = (
            f"the model is a {part.name}, whose tower ({seen}) its fields do not describe; models with towers are read "
            f"where {BUILT} builds them by a name of the catalogue"
        )
        raise ReaderError(part.place, violation)


def _lay_vocabulary(container_settings: ContainerSettings, settings: Settings, model: Model | None) -> None:
    """Lay the tokenizer's vocabulary where it goes over the model's (training/setup.py)."""
    part = container_settings.part("tokenizer")
    if part is None:
        return
    defaults = {**part.defaults, **part.fields}
    for key in ("tokenizer_model", "tokenizer_type"):
        if isinstance(named := defaults.get(key), str) and model is None:
            settings.set(key, named)
    size, forced = defaults.get("vocab_size"), defaults.get("use_tokenizer_vocab_size") is True
    vocab_size = settings.get("vocab_size") or (model.vocab_size if model else None)
    if isinstance(size, int) and (vocab_size is None or (forced and vocab_size != size)):
        instead = (
            ""
            if vocab_size is None
            else f", not the model's {vocab_size:,}: tokenizer.use_tokenizer_vocab_size"
        )
        where = part.places.get("vocab_size", part.place)
        settings.note(f"the vocabulary is the tokenizer's, {size:,} ({where}){instead}")
        settings.set("vocab_size", size)


def _changed(container_settings: ContainerSettings, settings: Settings, model: Model) -> Model | None:
    """Return a model as the recipe changes it; None where the settings describe it as well."""
    part = container_settings.part("model")
    base, named = sizes_of(model), model
    keys = {container_settings.key("model", name): (name, value) for name, value in base.items()}
    changed: dict[str, tuple[str, Any]] = {}
    for key, (name, value) in keys.items():
        now = settings.get(key) if key else value
        if key and key not in INERT and now != _settled(container_settings, name, value):
            changed[key] = (name, now)
    if "vocab_size" in changed:
        changed.pop("vocab_size")
        model = replace(model, vocab_size=settings.size("vocab_size", model.vocab_size))
    if part is not None and "mtp_num_layers" in part.fields:
        changed.pop("mtp_num_layers", None)
        model = replace(model, num_mtp_layers=settings.count("mtp_num_layers", 0))
    if turned := [key for key in ROPE if changed.pop(key, None)]:
        model = _turned(model, settings, turned)
    if not changed:
        return model
    if _describes(named):
        return None
    key, (name, now) = next(iter(changed.items()))
    place = part.places.get(name, part.place) if part is not None else settings.where
    fix = "set all sizes in cfg.model, or give a model file of its own"
    raise ReaderError(f"{place}, model.{name}", wording.conflicts([f"{now!r}", model.name], fix=fix))


def _turned(model: Model, settings: Settings, keys: Sequence[str]) -> Model:
    """Return a model with the norms or, in all layers that have any, the rotary positions of settings."""
    eps = settings.number("layernorm_epsilon") or model.norm_eps
    if list(keys) == ["layernorm_epsilon"]:
        return replace(model, norm_eps=eps)
    rope = read_rope(settings)

    kinds = {
        layer: replace(layer, attention=layer.attention and layer.attention.with_rope(rope))
        for layer in model.layer_kinds
    }
    return replace(model, norm_eps=eps, layers=tuple(kinds[layer] for layer in model.layers))


def _settled(container_settings: ContainerSettings, name: str, value: object) -> object:
    """Return a field's value as settings have it."""
    return not value if f"model.{name}" in container_settings.opposite else value


def _describes(model: Model) -> bool:
    """Whether a model's settings describe it to the last size."""
    values = Settings(model_settings(model, seq_len=model.max_seq_len or 1), model.source)
    try:
        again = read_model(values, name=model.name)
    except ForescaleError:
        return False
    return replace(again, source=model.source, max_seq_len=model.max_seq_len) == model
