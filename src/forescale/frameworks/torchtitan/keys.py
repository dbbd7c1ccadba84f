"""Fields of torchtitan's job configurations by dotted key (`training.seq_len`), adapters, sizes of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError, SpecError, UnknownKeyError
from forescale.frameworks.adapters import lora_words, targets_of
from forescale.frameworks.huggingface import read_huggingface
from forescale.frameworks.huggingface.writer import config_of
from forescale.frameworks.python.module import Class, Function, Module
from forescale.frameworks.python.values import Call, Opaque
from forescale.frameworks.reading import packaged
from forescale.frameworks.settings import Settings
from forescale.frameworks.torchtitan.rope import rope_config, weight_config
from forescale.graph.counts import count_parameters
from forescale.spec.model import Model
from forescale.spec.workload import ALL_LINEAR, LoraTarget, Trainable
from forescale.struct import Struct

CONVERTER: Final = "LoRAConverter"
RANK: Final = 8
_ENDS: Final[Mapping[str, tuple[LoraTarget, ...]]] = {
    "wo": ("o_proj",),
    "w1": ("gate_proj",),
    "w3": ("up_proj",),
    "w2": ("down_proj",),
}
PLACES: Final[Mapping[str, tuple[LoraTarget, ...]]] = {
    "wq": ("q_proj",),
    "wkv": ("k_proj", "v_proj"),
    **_ENDS,
}
LATENT_PLACES: Final[Mapping[str, tuple[LoraTarget, ...]]] = {
    "wq_a": ("q_proj",),
    "wq_b": ("q_proj",),
    "wkv_a": ("k_proj", "v_proj"),
    "wkv_b": ("k_proj", "v_proj"),
    **PLACES,
}
"""Our targets by torchtitan's modules, and by those of latent attention."""
FUSED: Final[Mapping[str, tuple[LoraTarget, ...]]] = {"wqkv": ("qkv_proj",)}
"""Of models that are built with fuse_qkv, as no flavor is."""
BESIDE: Final = frozenset(("lm_head", "gate"))
"""Linear layers whose adapters are not counted: the head, and the router of experts."""


def read_adapters(settings: Settings, model: Model) -> dict[str, Any]:
    """Return the adapters that the converter adds, in the words of a plan; experts in one tensor have none."""
    if "lora.rank" not in settings:
        return {}
    named = settings.words("lora.target_modules")
    every = settings.get("lora.target_modules") is None
    beside = BESIDE if model.is_moe else BESIDE - {"gate"}
    for name in sorted(beside if every else beside & set(named)):
        settings.note(f"not expressed: adapters at {name}")
    targets = targets_of(
        [name for name in named if name not in BESIDE], settings.refuse, {**LATENT_PLACES, **FUSED}
    )
    return lora_words(
        settings.size("lora.rank"),
        ALL_LINEAR if every else targets,
        experts="none" if model.is_moe else "own",
    )


def converter(trainable: Trainable, model: Model) -> list[str]:
    """Return the converter that adds adapters where torchtitan has the places; none where nothing has low rank."""
    if not trainable.lora_rank:
        return []
    latent = model.has_latent
    unfused, places = set(trainable.unfused), LATENT_PLACES if latent else PLACES
    named = [name for name, ours in places.items() if unfused & set(ours) and not (latent and name == "wkv")]
    return [f"{CONVERTER}.Config(rank={trainable.lora_rank}, target_modules={named!r})"]


PARTS: Final = ("training", "parallelism", "compile", "debug")
RECOMPUTE: Final = "activation_checkpoint"
AC_MODES: Final = {
    "FullAC.Config": "full",
    "SelectiveAC.Config": "selective",
    "MemoryBudgetAC.Config": "memory_budget",
}
NOTHING: Final = "none"
"""What stands for Python's None where it says something else than a key that is not given."""
NEEDED: Final = (
    *(f"{part}." for part in PARTS),
    "model.flavor",
    "model.num_mtp_layers",
    "model.moe_comm_backend",
)
"""Keys, or starts of them, whose values must be plain."""
IMAGES: Final = ("flux",)
"""Models that are no language models."""
RL: Final = "Controller.Config"
"""What a configuration of torchtitan's reinforcement learning is."""


def keys() -> Any:  # noqa: ANN401 (JSON)
    """Return what torchtitan's files may hold."""
    return packaged("torchtitan")


def check_language(name: object, place: str) -> None:
    """Refuse a model that is no language model.

    Raises
    ------
    ReaderError
        If it makes images.
    """
    if name in IMAGES:
        raise ReaderError(place, wording.not_expressed(f"the model {name}, which makes images,", ""))


def flavors() -> Any:  # noqa: ANN401 (JSON)
    """Return what torchtitan's names of models mean."""
    return packaged("torchtitan", "models")


def job_settings(job: Call, path: Path, *, strict: bool) -> tuple[Settings, tuple[str, ...], Call | None]:
    """Return a job configuration's fields by dotted key, those that are unknown, and its model.

    The model is there where its sizes are written out, not a flavor's.

    Raises
    ------
    UnknownKeyError
        If a class of torchtitan does not have a field, unless `strict` is off.
    ReaderError
        If a value that is needed is none that can be read.
    """
    if job.name == RL:
        raise ReaderError(job.place, wording.not_expressed("reinforcement learning", ""))
    result = _Fields(path, strict=strict)
    result.take_all("", job)
    for part in PARTS:
        if isinstance(inside := result.values.pop(part, None), Call):
            result.take_all(part, inside)
    result.take_recompute()
    result.take_model()
    check_language(result.values.get("model.name"), result.places.get("model.name", job.place))
    if "hf_model" in result.values:
        result.take("hf_transformers.model", result.values.pop("hf_model"), result.places["hf_model"])
    values = {key: result.plain(key) for key in result.values}
    lines = {key: _line(place, path) for key, place in result.places.items()}
    return Settings(values, str(path), lines=lines), tuple(result.unknown), result.model


def _line(place: str, path: Path) -> int | str:
    """Return the line of a place in a file; of one in another file all of it."""
    file, _, line = place.rpartition(", line ")
    return int(line) if file == str(path) else place


class _Fields:
    """Values by key, the place of each, and fields that no class has."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self.strict, self.start = strict, f"{path}, line 1"
        self.values: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        self.unknown: list[str] = []
        self.model: Call | None = None
        """A model of sizes of its own."""

    def take(self, key: str, value: object, place: str) -> None:
        """Keep one value."""
        self.values[key], self.places[key] = value, place

    def take_all(self, part: str, call: Call) -> None:
        """Keep the fields of a configuration, under the name of its part."""
        for name, value in call.fields.items():
            unset = isinstance(value, Call) and not value.known and name not in call.places
            if not unset and self.has(call, name):
                self.take(f"{part}.{name}" if part else name, value, call.places.get(name, call.place))

    def has(self, call: Call, name: str) -> bool:
        """Return whether a class has a field; classes that are not known have any."""
        known = keys()["python"].get(call.name)
        if known is None or name in known:
            return True
        if self.strict:
            raise UnknownKeyError(name, f"{call.places.get(name, call.place)}, {call.name}", known)
        self.unknown.append(name)
        return False

    def take_recompute(self) -> None:
        """Keep the class of activation checkpointing as its mode."""
        value = self.values.pop(RECOMPUTE, "")
        place = self.places.get(RECOMPUTE, self.start)
        if isinstance(value, Call):
            self.take(f"{RECOMPUTE}.mode", AC_MODES.get(value.name, value.name), place)
            self.take_all(RECOMPUTE, value)
        elif value is None:
            self.take(f"{RECOMPUTE}.mode", "none", place)

    def take_model(self) -> None:
        """Keep what model_registry was called with, and by which model's module."""
        spec = self.values.pop("model_spec", None)
        if spec is None:
            return
        if not isinstance(spec, Call) or not spec.name.endswith(f".{REGISTRY}"):
            allowed = f"what a {REGISTRY} of torchtitan returns"
            raise ReaderError(self.places["model_spec"], wording.wrong_type("model_spec", ..., allowed))
        if spec.args:
            spec.fields.setdefault("flavor", spec.args[0])
        self.take("model.name", spec.name.split(".")[-2], spec.place)
        model = spec.fields.pop("model", None)
        if isinstance(model, Call) and (model.known or "model" in spec.places):
            self.model = model
            spec.fields["converters"] = model.fields.pop("converters", None)
        self.take_all("model", spec)
        converters = self.values.pop("model.converters", None)
        if isinstance(converters, list | tuple):
            self.take_converters([item for item in converters if isinstance(item, Call)], spec.place)

    def take_converters(self, converters: list[Call], place: str) -> None:
        """Keep which converters change the model, and what of them changes a step."""
        for converter in converters:
            kept = CONVERTER_KEYS
            if converter.name.startswith(CONVERTER):
                kept = LORA_KEYS
                converter.fields.setdefault("rank", RANK)
            for name, value in converter.fields.items():
                if self.has(converter, name) and name in kept and value is not None:
                    self.take(kept[name], value, converter.places.get(name, place))
        if converters:
            self.take("model.converters", [converter.name for converter in converters], place)

    def plain(self, key: str) -> object:
        """Return a value as it stands, that of a configuration by the names of its classes."""
        value = self.values[key]
        if isinstance(value, list | tuple):
            return [list(item) if isinstance(item, tuple) else item for item in value]
        if isinstance(value, Call):
            inside = (item.name for item in value.fields.values() if isinstance(item, Call))
            text = " ".join([value.name, *inside])
            if value.known:
                return text
            value = Opaque(text, value.place)
        if isinstance(value, Function | Class | Module | dict | set | range):
            kind = type(value).__name__.lower()
            value = Opaque(getattr(getattr(value, "node", None), "name", f"a {kind}"), self.places[key])
        if not isinstance(value, Opaque):
            return NOTHING if value is None and key.endswith("load_balancer") else value
        if key.startswith(NEEDED):
            place = value.place if ", line " in value.place else self.places[key]
            file, _, line = place.rpartition(", line ")
            raise ReaderError(file, wording.wrong_type(f"{key} (line {line})", value.text, "a plain value"))
        return value.text


CONVERTER_KEYS: Final = {
    "recipe_name": "quantize.linear.float8.recipe_name",
    "filter_fqns": "quantize.linear.float8.filter_fqns",
    "fqns": "model.fqns",
}
"""Fields of converters by the key they are kept under."""
LORA_KEYS: Final = {"rank": "lora.rank", "target_modules": "lora.target_modules"}


FACTS: Final = packaged("torchtitan", "builders")
KEYS: Final[Mapping[str, str]] = FACTS["keys"]
"""torchtitan's words by Hugging Face's keys."""


class Builder(Struct, frozen=True, kw_only=True):
    """A function of torchtitan 0.3 that makes the layers of a model of any size."""

    name: str
    module: str
    """torchtitan's model whose code trains it."""
    types: Sequence[str]
    """Architectures that it can build."""
    words: Sequence[str]
    model: str
    """Class of the whole model."""


REGISTRY: Final = "model_registry"
"""Name of the functions that give a model by its flavor."""
MTP_BUILDER: Final = "_build_mtp_layers"
BUILDERS: Final = tuple(Builder(**row) for row in FACTS["builders"])
SCORES: Final = {"deepseek_v2": "softmax", "deepseek_v3": "sigmoid"}
"""How routers score experts: DeepSeek-V3's keep a bias per expert beside it."""


class Sized(Struct, frozen=True, kw_only=True):
    """A model as a builder is told it."""

    builder: Builder
    config: Mapping[str, Any]
    """Hugging Face's keys."""

    @property
    def kind(self) -> str:
        """The architecture."""
        return str(self.config["model_type"])

    @property
    def routed(self) -> bool:
        """Whether there are experts."""
        return "num_experts_per_tok" in self.config

    def words(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the sizes under torchtitan's words, those that the model does not have left out."""
        config = dict(self.config)
        config["num_experts"] = next((config[key] for key in COUNTS if key in config), None)
        result = {name: config.get(KEYS[name]) for name in names}
        if "q_lora_rank" in result:
            result["q_lora_rank"] = result["q_lora_rank"] or 0
        return {name: value for name, value in result.items() if value is not None}


COUNTS: Final = ("num_experts", "n_routed_experts", "num_local_experts")


def flavor_of(model: Model) -> tuple[str, str] | None:
    """Return the module and the flavor of this model in torchtitan's registries; None if it has none."""
    known = flavors()
    for module in known["registered"]:
        for flavor, means in known["flavors"][module].items():
            if isinstance(means, list) and means == [model.name, _trained(model)]:
                return module, flavor
    return None


def sized(model: Model) -> Sized:
    """Return how torchtitan builds a model that is not in its registries.

    Raises
    ------
    SpecError
        If none of its builders makes such a model.
    """
    plain = replace(model, num_mtp_layers=0)
    builders = {kind: builder for builder in BUILDERS for kind in builder.types}
    if plain.layer_kinds and model.norm == "rms" and not model.learned_positions:
        try:
            config = config_of(plain, builders)
        except SpecError as error:
            raise wording.unsupported_by("torchtitan", f"the parts of {model.name}") from error
        result = Sized(builder=builders[config["model_type"]], config=config)
        if model.is_moe or result.builder.module != "deepseek_v3":
            return result
        raise wording.unsupported_by("torchtitan", f"latent attention without experts, as in {model.name}")
    raise wording.unsupported_by("torchtitan", f"the parts of {model.name}: its norms or positions differ")


def model_of_sizes(call: Call, name: str) -> Model:
    """Return the model that a configuration with built layers describes."""
    fields = dict(call.fields)
    builder = call.name
    predicting = fields.pop("mtp_layers", None)
    for part in list(fields.values()):
        if isinstance(part, Call) and part.name.endswith("_layers"):
            fields |= part.fields
            builder = part.name.rpartition(".")[2]
    config = {KEYS[word]: value for word, value in fields.items() if word in KEYS}
    config["model_type"] = _kind(builder, fields)
    config |= {**rope_config(_module(builder), fields), **weight_config(fields)}
    config["q_lora_rank"] = config.get("q_lora_rank") or None
    config["n_routed_experts"] = config["num_local_experts"] = config.get("num_experts")
    line = call.place.rpartition(", ")[2]
    model = read_huggingface(config, name=name, where=f"{line}: {call.name}").model
    depth = predicting.fields.get("num_mtp_layers", 0) if isinstance(predicting, Call) else 0
    return replace(model, num_mtp_layers=depth)


def _module(builder: str) -> str:
    """Return the module of a builder; empty if it is not known."""
    return next((item.module for item in BUILDERS if item.name == builder), "")


def _kind(builder: str, fields: Mapping[str, Any]) -> str:
    """Return the architecture that a builder makes of its arguments."""
    kinds = {item.name: item.types[0] for item in BUILDERS}
    if builder not in kinds:
        raise wording.not_expressed("a model built by", builder, f"{', '.join(kinds)} are")
    softmax = kinds[builder] == "deepseek_v3" and fields.get("router_score_func") != "sigmoid"
    return "deepseek_v2" if softmax else kinds[builder]


def _trained(model: Model) -> int:
    return count_parameters(replace(model, num_mtp_layers=0)).total
