"""The fields of a container as Megatron's settings: what one section says over another, and how values are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from forescale import wording
from forescale.errors import ReaderError, UnknownKeyError, refuse_misspelt, shown
from forescale.frameworks.bridge.recipe import FACTS, OTHERS, SECTIONS, Bridge
from forescale.frameworks.megatron.arguments import ALLOCATOR, known_keys
from forescale.frameworks.megatron.reader import SIZES
from forescale.frameworks.megatron.run import LAYERS_IN_BF16
from forescale.frameworks.python.values import Call, Opaque, known
from forescale.frameworks.settings import Settings, Unread
from forescale.limits import LAYERS

TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "uint8": "fp8"}
IGNORED: Final[list[str]] = FACTS["ignored"]
"""Fields of these sections that say nothing more of memory or time."""
NOTED: Final[Mapping[str, str]] = FACTS["noted"]
"""Fields that change memory or time in ways that have no word here."""
NARROW: Final = ("disable_parameter_transpose_cache",)
"""Those of them that count only where products are in 8 bits or fewer."""
ORDER: Final = (
    "dist",
    "checkpoint",
    "train",
    "model",
    "dataset",
    "optimizer",
    "ddp",
    "mixed_precision",
    "comm_overlap",
)
"""Sections; what a later one says goes over what those before it say."""
LENGTHS = ("dataset.seq_length", "dataset.sequence_length", "model.seq_length")
"""Fields that must agree on the tokens of a sequence (megatron/bridge/training/config.py, ConfigContainer.validate)."""
OVERLAP, PRECISION = "comm_overlap", "mixed_precision"
EITHER: Final = ("use_distributed_optimizer", "overlap_param_gather", "use_megatron_fsdp")
"""Keys of two sections that hold where one of them says so (config.py, the distributed optimizer's two settings)."""
WRITTEN: Final = ("dataset", "checkpoint")
"""Sections whose classes have fields of their own, none of which matter but the ones that are read."""
IDLE: Final = {
    "fp8_recipe": "fp8",
    **dict.fromkeys(LAYERS_IN_BF16, "first_last_layers_bf16"),
    "data_parallel_sharding_strategy": "use_megatron_fsdp",
}
"""Keys that count only beside another."""
LETTERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Layers of a list of stages as a layout's text has them."""
LAYOUT = "pipeline_model_parallel_layout"
_ENUM = re.compile(r"(?:[\w.]*\.)?(?:[A-Z]\w*|torch)\.(\w+)|torch\.[\w.]*\.(\w+)")


class ContainerSettings:
    """Megatron's settings as a container says them."""

    def __init__(self, container: Call, hooks: Bridge, path: Path) -> None:
        self.container, self.hooks, self.path = container, hooks, path
        self.values: dict[str, object] = {}
        self.spelling: dict[str, str] = {}
        self.unknown: dict[str, str] = {}
        self.noted: dict[str, str] = {}
        self.lengths: dict[str, tuple[object, str]] = {}
        self.opposite = {field: key for key, field in FACTS["inverted"].items()}
        self.named = {field: key for key, field in FACTS["keys"].items()} | FACTS["also"]
        self.named |= dict.fromkeys(LENGTHS, "seq_length") | {
            f"{OVERLAP}.{key}": key for key in FACTS[OVERLAP]
        }

    def part(self, section: str) -> Call | None:
        """Return a section of the container; None where it is left out."""
        precision = self.container.fields.get(section, self.container.defaults.get(section))
        if section == PRECISION and isinstance(precision, str):
            precision = self.hooks.precision(precision, self.place(section))
        if isinstance(precision, Opaque):
            raise ReaderError(precision.place, wording.needs_running(section, precision.text))
        return precision if isinstance(precision, Call) else None

    def place(self, section: str) -> str:
        """Return where a section was set."""
        return self.container.places.get(section, str(self.path))

    def take(self, section: str) -> None:
        """Take the fields of a section."""
        part = self.part(section)
        if part is None:
            return
        names = {name for name in part.defaults if self.counts(section, name)}
        usual = {name: part.defaults[name] for name in names if known(part.defaults[name])}
        usual = {name: value for name, value in usual.items() if f"{section}.{name}" not in LENGTHS}
        for name, value in {**usual, **part.fields}.items():
            if name in part.defaults and self.key(section, name) is None and name not in NOTED:
                continue
            if name in part.places or not (isinstance(value, Call) and value.idle):
                self.field(section, name, value, part.places.get(name, part.place))

    def counts(self, section: str, name: str) -> bool:
        """Whether the default of a field is taken: of models that of every key, of other sections what is read."""
        field = f"{section}.{name}"
        return (
            name in NOTED
            or (section == "model" and self.key(section, name) is not None)
            or field in self.named
        )

    def key(self, section: str, name: str) -> str | None:
        """Return Megatron's key that a field sets; None where it sets none."""
        field = f"{section}.{name}"
        text: str | None = self.named.get(field) or self.opposite.get(field)
        if text is not None:
            return text
        return name if section not in WRITTEN and name in known_keys() and name not in IGNORED else None

    def field(self, section: str, name: str, value: object, place: str) -> None:
        """Take a field."""
        field, key = f"{section}.{name}", self.key(section, name)
        if name in NOTED:
            self.noted[name] = field if value not in (None, False, "none", []) else ""
            return
        if key is None:
            if section not in WRITTEN and name not in IGNORED and not name.startswith("_"):
                self.unknown.setdefault(field, place)
            return
        try:
            plain = self.plain(value, f"{place}, {field}")
        except ReaderError as error:
            plain = Unread(str(error.path), error.problem)
        if plain is None and section == OVERLAP:
            return
        if field in LENGTHS and not isinstance(plain, Unread):
            self.lengths[field] = (plain, place)
        if key in EITHER and section != OVERLAP:
            plain = plain or self.values.get(key)
        self.values[key] = not plain if field in self.opposite else plain
        self.spelling[key] = field

    def plain(self, value: object, where: str) -> Any:  # noqa: ANN401
        """Return a value as Megatron's settings have it."""
        match value:
            case Opaque(text=text):
                if (fullmatch := _ENUM.fullmatch(text)) is not None:
                    last = fullmatch[1] or fullmatch[2]
                    return TYPES.get(last, last)
                raise ReaderError(where, wording.wrong_type("it", text, "a plain value"))
            case Call() | list() | tuple() | str() | int() | float() | None:
                pass
            case _:
                raise ReaderError(where, wording.wrong_type("it", value, "a plain value"))
        if isinstance(value, Call):
            raise ReaderError(where, wording.wrong_type("it", value.name[:60], "a plain value"))
        if isinstance(value, list | tuple):
            return type(value)(self.plain(item, where) for item in value)
        return value

    def settings(self, *, strict: bool, explicit_length: bool = False) -> tuple[Settings, list[str]]:
        """Return the settings of all sections, and the fields that no section has; the caller may tell the length."""
        for section in ORDER:
            self.take(section)
        if not explicit_length:
            self._check_lengths()
        if strict:
            self._check_names()
        for key in SIZES:
            if isinstance(unread := self.values.get(key), Unread):
                raise ReaderError(unread.where, unread.problem)
        if not self.values:
            raise ReaderError(
                self.path, wording.incomplete("field of a ConfigContainer (cfg.model.num_layers = 32)")
            )
        self._overlapped()
        self._tidied()
        settings = Settings(self.values, str(self.path), self.spelling)
        for name, field in self.noted.items():
            if field and (name not in NARROW or self.values.get("fp8") or self.values.get("fp4")):
                settings.note(f"not expressed: {field} ({NOTED[name]})")
        return settings, [field.split(".")[1] for field in self.unknown]

    def _check_lengths(self) -> None:
        for field in LENGTHS[:2]:
            if field in self.lengths and LENGTHS[2] in self.lengths:
                (there, _), (here, place) = self.lengths[field], self.lengths[LENGTHS[2]]
                if there != here:
                    text = f"{LENGTHS[2]} {here} and {field} {there} must be the same"
                    raise ReaderError(
                        place, f"{text}: Megatron-Bridge refuses to start; say which with --seq-len"
                    )

    def _check_names(self) -> None:
        """Refuse sections and fields that there are not."""
        allowed = (*SECTIONS, *OTHERS)
        for section, value in self.container.fields.items():
            idle = isinstance(value, Call) and value.idle and section not in self.container.places
            if section not in allowed and not section.startswith("_") and not idle:
                place = self.container.places.get(section, getattr(value, "place", str(self.path)))
                raise UnknownKeyError(section, place, allowed)
        for section in WRITTEN:
            part = self.part(section)
            if part is not None:
                near = [field.split(".")[1] for field in self.named if field.startswith(f"{section}.")]
                for name in part.fields:
                    refuse_misspelt([name], near, f"{part.places.get(name, part.place)}, {section}")
        for field, place in self.unknown.items():
            section, _, bare = field.partition(".")
            near = [
                name.split(".")[1] for name in (*self.named, *self.opposite) if name.startswith(f"{section}.")
            ]
            raise UnknownKeyError(bare, f"{place}, {section}", near)

    def _overlapped(self) -> None:
        """Lay what CommOverlapConfig does by itself where it is asked for (comm_overlap.py)."""
        part = self.part(OVERLAP)
        if part is None or not part.known:
            return
        names = {name for name, value in {**part.defaults, **part.fields}.items() if value is not None}
        if self.values.get("use_distributed_optimizer"):
            for key in ("overlap_grad_reduce", "overlap_param_gather"):
                if key not in names:
                    self.values[key] = True
        for key in ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "overlap_p2p_comm"):
            if key not in names:
                self.values.pop(key, None)
        if not self.values.get("sequence_parallel") and self.values.get("tp_comm_overlap"):
            self.values["tp_comm_overlap"] = False

    def _tidied(self) -> None:
        """Say in Megatron's way what a container says in its own."""
        values = self.values
        if "num_query_groups" in values:
            values["group_query_attention"] = values["num_query_groups"] is not None
        if values.get("bf16") and "accumulate_allreduce_grads_in_fp32" in values:
            values["grad_reduce_in_bf16"] = not values["accumulate_allreduce_grads_in_fp32"]
        if isinstance(stages := values.get(LAYOUT), list | tuple):
            values[LAYOUT] = layout_of(stages, lambda violation: self._refuse(LAYOUT, violation))
        virtual = "num_virtual_stages_per_pipeline_rank"
        if values.get(LAYOUT) and values.get(virtual):
            values["virtual_pipeline_model_parallel_size"] = values.pop(virtual)
            self.spelling["virtual_pipeline_model_parallel_size"] = self.spelling.pop(virtual)
        for key in LAYERS_IN_BF16:  # of MixedPrecisionConfig, unlike Megatron-LM's
            values.setdefault(key, 0)
        for key, needed in IDLE.items():  # every base recipe sets them
            if not values.get(needed):
                values.pop(key, None)
        if (around := self._said("interleaved_attn_pattern")) and "window_attn_skip_freq" not in values:
            values["window_attn_skip_freq"] = sum(around) if around[1:] == (1,) else None
        pattern, ahead = values.get("hybrid_layer_pattern"), values.get("mtp_hybrid_override_pattern")
        count = values.get("mtp_num_layers")
        if (
            isinstance(pattern, str)
            and isinstance(ahead, str)
            and isinstance(count, int)
            and "/" not in pattern
        ):
            values["hybrid_layer_pattern"] = pattern + f"/{ahead}" * min(count, int(LAYERS.le))
        environment = self.container.fields.get("env_vars")
        if isinstance(environment, Mapping) and (
            message := next((environment[name] for name in ALLOCATOR if environment.get(name)), None)
        ):
            values[ALLOCATOR[0]] = str(message)

    def _said(self, name: str) -> tuple[int, ...]:
        """Return the whole numbers of a field of the model that Megatron-LM has no key for."""
        part = self.part("model")
        result = None if part is None else part.fields.get(name, part.defaults.get(name))
        whole = isinstance(result, list | tuple) and all(type(item) is int for item in result)
        return tuple(result) if whole and result is not None else ()

    def _refuse(self, key: str, violation: str) -> NoReturn:
        field = self.spelling[key]
        part = self.part(field.partition(".")[0])
        place = part.places.get(key, part.place) if part is not None else str(self.path)
        raise ReaderError(f"{place}, {field}", violation)


def layout_of(stages: list[Any] | tuple[Any, ...], refuse: Any) -> str:  # noqa: ANN401
    """Return a list of stages as the text that --pipeline-model-parallel-layout takes."""
    result = []
    for stage in stages:
        names = stage if isinstance(stage, list | tuple) else [stage]
        wrong = next((name for name in names if not isinstance(name, str) or name not in LETTERS), None)
        if wrong is not None:
            refuse(f"a stage has {shown(wrong)}; {', '.join(LETTERS)} can be expressed")
        result.append("".join(LETTERS[name] for name in names))
    return "|".join(result)
