"""nanotron's YAML: model, layout and batch in one file; devices are the product of its degrees.

Keys are those of its dataclasses, and those that releases before had; others are reported, as forks add them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from forescale import wording
from forescale.errors import ReaderError, UnknownKeyError
from forescale.files import read_text
from forescale.frameworks.detect import Signed
from forescale.frameworks.megatron.forks import misspelt
from forescale.frameworks.nanotron.model import CONFIG, family_of, read_model
from forescale.frameworks.reading import Options, ParsedFile, explicit_fields, flat, packaged, unknown_of
from forescale.frameworks.settings import Settings, errors_of
from forescale.positions import keys_of_yaml
from forescale.spec.context import CONTEXT_KINDS, ContextKind
from forescale.spec.kinds import framework_names
from forescale.spec.layout import Kernels, Layout, Recompute
from forescale.spec.optimizers import OPTIMIZERS, OptimizerName
from forescale.spec.workload import StorageType
from forescale.syntax import parse_mapping, parse_yaml
from forescale.units import counted

Keys: TypeAlias = Mapping[str, Any]

_ITEM = re.compile(r"\.\d+(?=\.|$)")
LEFT = (
    "software", "kernels", "overlap", "flash_attention", "allocator", "graphs", "dispatcher", "stage_layers",
    "offload", "routing", "axis_order", "placement", "reshard",
)  # fmt: skip
"""What a configuration says nothing of."""
STORAGE: Mapping[str, StorageType] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
OPTIMIZER_NAMES: Mapping[str, OptimizerName] = framework_names(OPTIMIZERS.values(), "nanotron")
ENGINES: Mapping[str, str | None] = {"1f1b": None, "afab": "gpipe"}
"""Pipeline engines by our schedule's name: all forward, then all backward, is what nanotron takes unless told."""
CONTEXT: Mapping[str, ContextKind] = framework_names(CONTEXT_KINDS.values(), "nanotron")
"""Implementations of attention by their kind of context parallelism; all others are projected as a ring."""
ATTENTION: Final = (
    *("flash_attention_2", "flex_attention", "sdpa", "ring_flash_triton", "ring"),
    "llama3_ring_attention",
)
"""Kinds of attention (nn/attention.py, ALL_ATTENTION_FUNCTIONS); it stops at others."""
OVER: Mapping[str, str] = {
    "tp": "parallelism.tp",
    "pp": "parallelism.pp",
    "cp": "parallelism.context_parallel_size",
    "ep": "parallelism.expert_parallel_size",
    "micro_batch_size": "tokens.micro_batch_size",
    "seq_len": "tokens.sequence_length",
}
"""Keys that words of a plan go over."""
NOT_EXPRESSED: Mapping[str, str] = {
    f"{CONFIG}_use_doc_masking": "documents do not see each other; without --document-len they do",
    f"{CONFIG}flex_attention_mask": "a mask of flex_attention; taken as causal",
    f"{CONFIG}z_loss_enabled": "the square of the loss's normaliser",
}
"""Keys that change figures a little and have no word here."""


@cache
def known_keys() -> Keys:
    """Return nanotron's keys as data: what each takes, those of model configurations, and those of earlier releases."""
    return MappingProxyType(packaged("nanotron"))


class NanotronReader(Signed):
    """The YAML configuration of nanotron."""

    name: Final = "nanotron"
    title: Final = "nanotron configuration in YAML"
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the configuration at `path` says."""
        text = read_text(path)
        content = parse_mapping(text, path, parse_yaml)
        settings, unknown, family = _settings(content, keys_of_yaml(text), path, strict=options.strict)
        settings.override(options.over, OVER)
        with errors_of(path):
            model = read_model(settings, family, path.stem)
            layout = _strategy(settings, options)
            workload = _workload(settings, layout)
        return ParsedFile(
            format=self.name,
            model=model,
            framework=self.name,
            layout_fields=_layout_fields(layout),
            workload_fields=workload,
            num_devices=layout.num_devices if options.layout else options.num_devices,
            **settings.accounted(unknown),
        )


def _settings(
    content: Keys, where_of: tuple[tuple[str, int], ...], path: Path, *, strict: bool
) -> tuple[Settings, tuple[str, ...], str]:
    """Return the values by dotted key, the keys that nanotron does not have, and the class of the model."""
    config = (
        (content.get("model") or {}).get("model_config") if isinstance(content.get("model"), dict) else None
    )
    model = content.get("model")
    near = get_close_matches("model_config", map(str, model), 1) if isinstance(model, dict) else []
    if near not in ([], ["model_config"]):
        line = dict(where_of).get(f"model.{near[0]}")
        raise UnknownKeyError(near[0], f"{path}, line {line}" if line else str(path), ["model_config"])
    if not isinstance(config, dict):
        allowed = "a table that describes the model"
        raise ReaderError(path, wording.wrong_type("model.model_config", ..., allowed))
    family, table = family_of(config), known_keys()
    earlier = table["earlier"]["keys"]
    known = {*table["keys"], *earlier, *(f"{CONFIG}{key}" for key in table["models"][family])}
    lines = {_ITEM.sub("[]", key): line for key, line in where_of}
    given = dict.fromkeys(_flat_keys(content))
    unknown = tuple(key for key in given if not _is_known(key, known))
    unknown_of(unknown, known, path, lines, strict=strict)
    wrong = [key for key in unknown[:LOOKED_AT] if _is_misspelt(key, known, given)]
    unknown_of(wrong, known, path, lines, strict=True)
    values = {key: value for key, value in flat(content) if key not in unknown}
    if any(key.startswith(EXPERTS) for key in values):
        values[EXPERTS] = True
    settings = Settings(values, str(path), lines=lines)
    if topmost := [key for key in unknown if key.rpartition(".")[0] not in unknown]:
        settings.warnings.append(f"not known, may change memory or step time: {', '.join(topmost)}")
    for key, count in Counter(key for key, _ in where_of).items():
        if count > 1:
            settings.note(f"{settings.spell(key)} is given {count} times; as in nanotron the last counts")
    for key, what in {**earlier, **NOT_EXPRESSED}.items():
        model = any(name == key or name.startswith(f"{key}.") for name in values if values[name])
        if what and model:
            settings.note(f"not expressed: {settings.spell(key)} ({what})")
    return settings, unknown, family


def _is_known(key: str, known: set[str]) -> bool:
    """Return whether nanotron has a key; what lies inside one of its free tables is not looked at."""
    parts = key.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts)))
    return key in known or any(name in known_keys()["free"] for name in above)


def _is_misspelt(key: str, known: set[str], given: Collection[str]) -> bool:
    """Return whether an unknown key is nearly one of its section, above all one that is not given."""
    section, dot, name = key.rpartition(".")
    names = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == section]
    absent = [other for other in names if f"{section}{dot}{other}" not in given]
    return misspelt(name, names) or bool(get_close_matches(name, absent, 1, NEARLY))


NEARLY: Final = 0.8
"""Similarity of a key and one that is not given from which it is taken for that one, misspelt."""
LOOKED_AT: Final = 100
"""Unknown keys that are compared with those that are known."""
EXPERTS = f"{CONFIG}moe_config"


def _flat_keys(content: Any, before: str = "") -> Iterator[str]:  # noqa: ANN401 (YAML)
    for key, value in content.items():
        path = f"{before}{key}"
        yield path
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from _flat_keys(item, f"{path}[]." if isinstance(value, list) else f"{path}.")


def _strategy(settings: Settings, options: Options) -> Layout:
    tp, pp, cp = (settings.degree(f"parallelism.{name}") for name in ("tp", "pp", "context_parallel_size"))
    dp, ep = settings.degree("parallelism.dp"), settings.degree("parallelism.expert_parallel_size")
    _check_heads(settings, tp)
    if ep > 1:
        settings.note(
            f"{settings.spell('parallelism.expert_parallel_size')} {ep}: experts are taken as split over tp x cp x dp; "
            "nanotron since 2025 builds no groups of several expert-parallel ranks"
        )
    implementation = settings.one_of(f"{CONFIG}_attn_implementation", ATTENTION[0], ATTENTION)
    return Layout(
        tp=tp,
        sp=tp > 1 and settings.choice("parallelism.tp_mode", "ALL_REDUCE", MODES) == "sp",
        cp=cp,
        cp_kind=_context(settings, cp, implementation),
        cp_balanced=False,
        pp=pp,
        schedule=settings.choice("parallelism.pp_engine", "afab", ENGINES) if pp > 1 else None,
        ep=ep,
        dp_shard=_data_parallel(settings, options, dp, tp * pp * cp),
        zero=_zero(settings),
        micro_batch_size=settings.size("tokens.micro_batch_size"),
        recompute=_recompute(settings),
        kernels=Kernels(
            hides_input_sums=settings.flag("parallelism.tp_linear_async_communication"),
            regathers_inputs=settings.flag("parallelism.tp_recompute_allgather", default=True),
        ),
    )


def _context(settings: Settings, cp: int, implementation: str) -> ContextKind:
    """Return how ranks meet the keys of others; nanotron's packed attention does so in one way only."""
    kind = CONTEXT.get(implementation, "ring")
    if cp > 1 and kind == "ring":
        settings.note(
            f"{settings.spell('parallelism.context_parallel_size')} {cp} without _attn_implementation "
            "llama3_ring_attention, which alone sees the keys of other ranks, is projected as a ring"
        )
    return kind


MODES: Mapping[str, str] = {
    word: kind
    for name, kind in (("REDUCE_SCATTER", "sp"), ("ALL_REDUCE", "tp"))
    for word in (name, name.lower())
}


def _check_heads(settings: Settings, tp: int) -> None:
    """Refuse what nanotron refuses: a tensor-parallel rank without a key/value head of its own."""
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = settings.count(f"{CONFIG}{name}")
        if heads and heads % tp:
            terms = settings.spell("parallelism.tp")
            settings.refuse_key(wording.not_divisible, f"{CONFIG}{name}", heads, tp, terms)


def _data_parallel(settings: Settings, options: Options, dp: int, inner: int) -> int:
    """Return data parallel: that of the file, or what the devices that the caller gives leave."""
    devices = options.num_devices if options.layout else None
    if devices is None and options.layout:
        degrees = ("dp", "pp", "tp", "context_parallel_size")
        keys = [f"parallelism.{name}" for name in degrees if f"parallelism.{name}" in settings]
        settings.note_devices(dp * inner, *keys)
    if devices is None or devices == dp * inner:
        return dp
    if devices % inner:
        settings.refuse(wording.not_divisible("the number of devices", devices, inner, "tp x cp x pp"))
    settings.note(
        f"{settings.spell('parallelism.dp')} {dp} would need {counted(dp * inner, 'device')}; "
        f"on {devices} it is {devices // inner}"
    )
    return devices // inner


def _zero(settings: Settings) -> int:
    stage = settings.count("optimizer.zero_stage", 0)
    if stage > 1:
        settings.note(f"{settings.spell('optimizer.zero_stage')} {stage} is taken as 1, as nanotron takes it")
    return min(stage, 1)


def _recompute(settings: Settings) -> Recompute:
    """Return what is made again; `recompute_granularity` is what releases before 2024's end had."""
    older = settings.choice("parallelism.recompute_granularity", "none", GRANULARITIES)
    whole = settings.flag("parallelism.recompute_layer") or older == "full"
    if older == "selective":
        return Recompute(granularity="selective", modules=("core_attn",))
    return Recompute(granularity="full") if whole else Recompute()


GRANULARITIES: Mapping[str, str] = {
    word: name for name in ("none", "selective", "full") for word in (name, name.upper())
}


def _layout_fields(layout: Layout) -> dict[str, Any]:
    """Return the explicit fields of the layout; of kernels those of tensor parallelism."""
    names = ("hides_input_sums", "regathers_inputs") if layout.tp > 1 else ()
    alone = () if layout.cp > 1 else ("cp_kind", "cp_balanced")
    return explicit_fields(layout, left=(*LEFT, *alone), tables={"kernels": names})


def _workload(settings: Settings, layout: Layout) -> dict[str, Any]:
    batch = layout.dp * layout.micro_batch_size * settings.size("tokens.batch_accumulation_per_replica")
    length, steps = settings.size("tokens.sequence_length"), settings.count("tokens.train_steps")
    _check_stages(settings, length)
    named = settings.text("optimizer.optimizer_factory.name", "adamW").lower()
    if named not in OPTIMIZER_NAMES:
        name = settings.spell("optimizer.optimizer_factory.name")
        settings.refuse(wording.not_one_of(name, named, ("adamW", "sgd")))
    return {
        "seq_len": length,
        "global_batch_size": batch,
        "tokens": float(steps * batch * length) if steps else None,
        "optimizer": OPTIMIZER_NAMES[named],
        "precision": _types(settings),
    }


def _check_stages(settings: Settings, length: int) -> None:
    """Note the stages of training whose sequences have another length."""
    stages = settings.get("data_stages")
    if not isinstance(stages or [], list):
        settings.refuse_key(wording.wrong_type, "data_stages", stages, "a list of stages")
    lengths = [stage.get("sequence_length") for stage in stages or () if isinstance(stage, dict)]  # type: ignore[attr-defined]
    others = sorted({str(other) for other in lengths if other not in (None, length)})
    if others:
        settings.note(
            f"stages of training with sequences of {', '.join(others)} are not projected, only {length}"
        )


def _types(settings: Settings) -> dict[str, Any]:
    """Return the data types; without sums in fp32 the optimizer updates the weights themselves (helpers.py)."""
    kind: StorageType = settings.choice("model.dtype", "bfloat16", STORAGE)
    if kind == "fp32" or settings.flag("optimizer.accumulate_grad_in_fp32"):
        return {"compute": kind, "gradients": "fp32"}
    return {"compute": kind, "gradients": kind, "master": "none", "moments": kind}
