"""What torchtitan's files may hold, and the fields of a job configuration in Python under the keys that TOML has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from forescale.errors import ReaderError, UnknownKeyError
from forescale.frameworks.reading import packaged
from forescale.frameworks.settings import Settings
from forescale.frameworks.torchtitan.adapters import CONVERTER, RANK
from forescale.frameworks.torchtitan.job import Call, Opaque

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


def check_language(name: object, where: str, line: int) -> None:
    """Refuse a model that is no language model.

    Raises
    ------
    ReaderError
        If it makes images.
    """
    if name in IMAGES:
        raise ReaderError(
            where, f"line {line}: the model {name} makes images; only language models are projected"
        )


def flavors() -> Any:  # noqa: ANN401 (JSON)
    """Return what torchtitan's names of models mean."""
    return packaged("torchtitan", "models")


def job_settings(job: Call, path: Path, *, strict: bool) -> tuple[Settings, tuple[str, ...], Call | None]:
    """Return a job configuration's fields under the keys that TOML has for them, those that are unknown, and its model.

    The model is there where its sizes are written out, not a flavor's.

    Raises
    ------
    UnknownKeyError
        If a class of torchtitan does not have a field, unless `strict` is off.
    ReaderError
        If a value that is needed is none that can be read.
    """
    if job.name == RL:
        raise ReaderError(
            path, f"line {job.line}: reinforcement learning is not projected; only training alone is"
        )
    found = _Fields(path, strict=strict)
    found.take_all("", job)
    for part in PARTS:
        if isinstance(inside := found.values.pop(part, None), Call):
            found.take_all(part, inside)
    found.take_recompute()
    found.take_model()
    check_language(found.values.get("model.name"), str(path), found.lines.get("model.name", job.line))
    if "hf_model" in found.values:
        found.take("hf_transformers.model", found.values.pop("hf_model"), found.lines["hf_model"])
    values = {key: found.plain(key) for key in found.values}
    return Settings(values, str(path), lines=found.lines), tuple(found.unknown), found.model


class _Fields:
    """Values by key, the line of each, and fields that no class has."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self.path, self.strict = path, strict
        self.values: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.unknown: list[str] = []
        self.model: Call | None = None
        """A model of sizes of its own."""

    def take(self, key: str, value: object, line: int) -> None:
        """Keep one value."""
        self.values[key], self.lines[key] = value, line

    def take_all(self, part: str, call: Call) -> None:
        """Keep the fields of a configuration, under the name of its part."""
        for name, value in call.fields.items():
            if self.has(call, name):
                self.take(f"{part}.{name}" if part else name, value, call.lines.get(name, call.line))

    def has(self, call: Call, name: str) -> bool:
        """Return whether a class has a field; classes that are not known have any."""
        known = keys()["python"].get(call.name)
        if known is None or name in known:
            return True
        if self.strict:
            line = call.lines.get(name, call.line)
            raise UnknownKeyError(name, f"{self.path}, line {line}, {call.name}", known)
        self.unknown.append(name)
        return False

    def take_recompute(self) -> None:
        """Keep the class of activation checkpointing as its mode."""
        given = self.values.pop(RECOMPUTE, "")
        line = self.lines.get(RECOMPUTE, 1)
        if isinstance(given, Call):
            self.take(f"{RECOMPUTE}.mode", AC_MODES.get(given.name, given.name), line)
            self.take_all(RECOMPUTE, given)
        elif given is None:
            self.take(f"{RECOMPUTE}.mode", "none", line)

    def take_model(self) -> None:
        """Keep what model_registry was called with, and by which model's module."""
        spec = self.values.pop("model_spec", None)
        if spec is None:
            return
        line = self.lines["model_spec"]
        if not isinstance(spec, Call) or not spec.name.endswith("model_registry"):
            problem = f"line {line}: model_spec is not what a model_registry of torchtitan returns"
            raise ReaderError(self.path, problem)
        if spec.args:
            spec.fields.setdefault("flavor", spec.args[0])
        self.take("model.name", spec.origin.rpartition(".")[2], spec.line)
        own = spec.fields.pop("model", None)
        if isinstance(own, Call):
            self.model = own
            spec.fields["converters"] = own.fields.pop("converters", None)
        self.take_all("model", spec)
        converters = self.values.pop("model.converters", None)
        if isinstance(converters, list):
            self.take_converters([each for each in converters if isinstance(each, Call)], spec.line)

    def take_converters(self, converters: list[Call], line: int) -> None:
        """Keep which converters change the model, and what of them changes a step."""
        for converter in converters:
            kept = CONVERTER_KEYS
            if converter.name.startswith(CONVERTER):
                kept = LORA_KEYS
                converter.fields.setdefault("rank", RANK)
            for name, value in converter.fields.items():
                if self.has(converter, name) and name in kept and value is not None:
                    self.take(kept[name], value, converter.lines.get(name, line))
        if converters:
            self.take("model.converters", [converter.name for converter in converters], line)

    def plain(self, key: str) -> object:
        """Return a value as it stands, that of a configuration by the names of its classes."""
        value = self.values[key]
        if isinstance(value, Call):
            return " ".join(
                [value.name, *(each.name for each in value.fields.values() if isinstance(each, Call))]
            )
        if not isinstance(value, Opaque):
            return NOTHING if value is None and key.endswith("load_balancer") else value
        if key.startswith(NEEDED):
            raise ReaderError(self.path, f"{key} (line {value.line}) is no plain value: {value.text}")
        return value.text


CONVERTER_KEYS: Final = {
    "recipe_name": "quantize.linear.float8.recipe_name",
    "filter_fqns": "quantize.linear.float8.filter_fqns",
    "fqns": "model.fqns",
}
"""Fields of converters by the key they are kept under."""
LORA_KEYS: Final = {"rank": "lora.rank", "target_modules": "lora.target_modules"}
