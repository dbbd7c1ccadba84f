"""Flags of Megatron-LM's forks and earlier releases, by what each does to memory and time (forks.json)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from msgspec import field

from forescale.errors import ReaderError, not_expressed
from forescale.frameworks.reading import packaged
from forescale.limits import whole_of
from forescale.struct import Struct

DEEPSPEED: Final = "megatron-deepspeed"
"""The fork whose states are sharded by DeepSpeed."""
ALIKE: Final = 0.7
"""Similarity of two words from which one is taken for the other, misspelt."""
SHORTEST: Final = 4
"""Letters of the shortest word that may be misspelt."""


class Fork(Struct, frozen=True, kw_only=True):
    """A fork, or releases, with flags of its own."""

    name: str
    title: str
    framework: str = "megatron-core"
    hallmarks: frozenset[str] = frozenset()
    """Flags that tell it from others."""
    none: frozenset[str] = frozenset()
    """Flags without effect on memory or time."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """What each of the other flags does."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of Megatron-LM's settings that the fork sets where a command does not."""

    def has(self, flag: str) -> bool:
        """Return whether a flag is the fork's own, or one of Megatron-LM that it takes in another way."""
        return _dashed(flag) in self.none or _dashed(flag) in self.flags


class Effects(Struct, frozen=True):
    """What became of the flags that Megatron-LM does not have."""

    none: list[str] = field(default_factory=list)
    memory: dict[str, str] = field(default_factory=dict)
    """Flags that change memory in a way that is not modelled, and how."""
    time: dict[str, str] = field(default_factory=dict)
    """Flags that change time in a way that is not modelled, and how."""
    unknown: list[str] = field(default_factory=list)

    def notes(self, fork: Fork | None) -> Iterable[str]:
        """Yield notes about flags that change nothing."""
        title = "a fork" if fork is None else fork.title
        if self.none:
            yield f"flags of {title} without effect on memory or time: {', '.join(dict.fromkeys(self.none))}"

    def warnings(self) -> Iterable[str]:
        """Yield what may change the projection and is not modelled."""
        for what, flags in (("memory", self.memory), ("step time", self.time)):
            if flags:
                named = "; ".join(f"{flag} ({how})" for flag, how in flags.items())
                yield f"not modelled, may change {what}: {named}"
        if self.unknown:
            yield f"not known, may change memory or step time: {', '.join(dict.fromkeys(self.unknown))}"


@cache
def forks() -> tuple[Fork, ...]:
    """Return all forks, each with its table of flags."""
    return tuple(
        Fork(
            name=name,
            title=row["title"],
            framework=row.get("framework", "megatron-core"),
            hallmarks=frozenset(f"--{key.replace('_', '-')}" for key in row["hallmarks"]),
            none=frozenset(map(_dashed, row["none"])),
            flags=MappingProxyType({_dashed(flag): effect for flag, effect in row["flags"].items()}),
            defaults=MappingProxyType(row.get("defaults", {})),
        )
        for name, row in packaged("megatron", "forks")["forks"].items()
    )


def _dashed(flag: str) -> str:
    return flag.replace("_", "-")


def fork_of(flags: Iterable[str]) -> Fork | None:
    """Return the fork whose flags a command has; None if it has none of any."""
    named = {_dashed(flag) for flag in flags}
    fork = max(forks(), key=lambda item: len(item.hallmarks & named))
    return fork if fork.hallmarks & named else None


def idle_program(program: str) -> str | None:
    """Return what a program does that trains nothing; None if it may train."""
    name = "/".join(program.lower().split("/")[-3:])
    table = packaged("megatron", "forks")["programs"]
    trains = name.rpartition("/")[2].startswith(("pretrain", "train", "finetune", "posttrain", "sft"))
    return None if trains else next((what for word, what in table.items() if word in name), None)


def misspelt(flag: str, known: Collection[str]) -> bool:
    """Return whether an unknown flag or key is a known one with a letter or two wrong, rather than one of a fork."""
    near = get_close_matches(flag, known, 1, 0.85)
    if not near:
        return False
    local, other = (name.lstrip("-").replace("_", "-").split("-") for name in (flag, near[0]))
    if "".join(local) == "".join(other):
        return True
    pairs = [pair for pair in zip(local, other, strict=False) if pair[0] != pair[1]]
    if len(local) != len(other) or len(pairs) != 1:
        return False
    (one, two), *_ = pairs
    plural = one.rstrip("s") == two.rstrip("s")
    usual = one in _words(tuple(sorted(known)))
    long = min(len(one), len(two)) >= SHORTEST
    return plural or (long and not usual and SequenceMatcher(None, one, two).ratio() >= ALIKE)


@cache
def _words(flags: tuple[str, ...]) -> frozenset[str]:
    return frozenset(word for flag in flags for word in flag.lstrip("-").replace("_", "-").split("-"))


def translate(
    fork: Fork | None, pairs: Sequence[tuple[str, object]], values: dict[str, Any], where: str
) -> tuple[Effects, dict[str, str]]:
    """Set what the flags of forks mean in Megatron-LM's own settings.

    Parameters
    ----------
    fork
        The fork whose meaning of a flag comes first.
    pairs
        Flags that Megatron-LM does not have, with their values.
    values
        Settings by Megatron-LM's keys, which change.
    where
        Origin of the flags, for messages.

    Returns
    -------
    Effects of the flags that are no settings, and the flag of each setting that one makes.
    """
    tables = sorted(forks(), key=lambda item: item is not fork)
    effects, spelling, rules = Effects(), dict[str, str](), []
    for flag, value in pairs:
        dashed = _dashed(flag)
        table = next((item for item in tables if item.has(flag)), None)
        if table is None or dashed in table.none:
            plain = table is not None or dashed.startswith(tuple(packaged("megatron", "forks")["prefixes"]))
            (effects.none if plain else effects.unknown).append(flag)
            continue
        argument = value[0] if isinstance(value, list) and len(value) == 1 else value
        row = table.flags[dashed]
        if isinstance(row, dict) and next(iter(row), "").startswith("$"):
            row = row.get(f"${argument}", ["time", f"{flag} {argument} is not known"])
        if isinstance(row, str):
            rules.append((row, argument, flag))
        elif isinstance(row, list):
            not_modelled(effects, row, flag, where)
        else:
            _set(values, {key: argument if item == "$" else item for key, item in row.items()})
            spelling |= dict.fromkeys(row, flag)
    _set(values, {} if fork is None else fork.defaults)
    for key, names in packaged("megatron", "forks")["values"].items() if fork is not None else ():
        word = str(values.get(key)).lower()
        row = names.get(word, {})
        values |= {name: value for name, value in row.items() if not name.startswith("$")}
        for name, lost in (("$memory", effects.memory), ("$time", effects.time)):
            if name in row:
                lost[f"--{key.replace('_', '-')} {word}"] = row[name]
    for rule, argument, flag in rules:
        made = RULES[rule](values, str(argument))
        effects.memory.update({flag: made.pop("$memory")} if "$memory" in made else {})
        _set(values, made, over=True)
        spelling |= {key: flag for key in made if key not in spelling}
    return effects, spelling


def _set(values: dict[str, Any], settings: Mapping[str, Any], *, over: bool = False) -> None:
    for key, value in settings.items():
        if over or value is None or values.get(key) is None:
            values[key] = value


def not_modelled(effects: Effects, row: Sequence[str], flag: str, where: str) -> None:
    """Add what a flag or program changes that is not modelled to `effects`, or refuse it."""
    kind, what, *size = row
    if kind == "refuse":
        raise ReaderError(where, not_expressed(flag, f"({what})"))
    how = f"{what}: {size[0]}" if size else what
    (effects.memory if kind == "memory" else effects.time)[flag] = how


def _count(values: Mapping[str, Any], key: str, usual: int = 0) -> int:
    return whole_of(str(values.get(key, usual)).replace("_", "")) or usual


def _shared_experts(values: Mapping[str, Any], text: str) -> dict[str, Any]:
    width = _count(values, "moe_ffn_hidden_size", _count(values, "ffn_hidden_size"))
    return {"moe_shared_expert_intermediate_size": (whole_of(text) or 0) * width or None}


def _dense_first(values: Mapping[str, Any], text: str) -> dict[str, Any]:
    layers, dense = _count(values, "num_layers"), whole_of(text) or 0
    every = whole_of(str(values.get("moe_layer_freq") or 1).removeprefix("-"))
    if every is None:
        return {}
    return {"moe_layer_freq": [int(at >= dense and at % every == 0) for at in range(layers)]}


def _idle_layers(values: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the layers of each stage without those that do nothing, whose places count in the even split."""
    layers, pp = _count(values, "num_layers"), _count(values, "pipeline_model_parallel_size", 1)
    idle = {whole_of(word) for word in text.replace(",", " ").split()}
    per_chunk = _count(values, "num_layers_per_virtual_pipeline_stage", max(layers // pp, 1))
    counts = [
        sum(at not in idle for at in range(start, start + per_chunk)) for start in range(0, layers, per_chunk)
    ]
    fields: dict[str, Any] = {"num_layers": sum(counts)}
    if pp > 1:
        fields["decoder_pipeline_manual_split_list"] = counts
    if len(counts) > pp > 1:
        fields["num_layers_per_virtual_pipeline_stage"] = None
        fields["num_virtual_stages_per_pipeline_rank"] = len(counts) // pp
    return fields


def _hybrid_context(values: Mapping[str, Any], text: str) -> dict[str, Any]:  # noqa: ARG001  (as all rules)
    inner, cp = _count(values, "ulysses_degree", 1), _count(values, "context_parallel_size", 1)
    return {
        "cp_comm_type": "a2a+p2p",
        "hierarchical_context_parallel_sizes": [str(inner), str(cp // max(inner, 1))],
    }


def _expert_interval(values: Mapping[str, Any], text: str) -> dict[str, Any]:
    every = whole_of(text) or 1
    return {"moe_layer_freq": [int((at + 1) % every == 0) for at in range(_count(values, "num_layers"))]}


def _residual_experts(values: Mapping[str, Any], text: str) -> dict[str, Any]:  # noqa: ARG001  (as all rules)
    width = _count(values, "ffn_hidden_size", 4 * _count(values, "hidden_size"))
    return {"moe_shared_expert_intermediate_size": width}


EP, ETP, TP = "expert_model_parallel_size", "expert_tensor_parallel_size", "tensor_model_parallel_size"


def _experts_over_tp(values: Mapping[str, Any], text: str) -> dict[str, Any]:  # noqa: ARG001  (as all rules)
    """Return the degrees of whole experts on tp x ep ranks (MindSpeed); open ones stay so."""
    ranks = _ranks_of_experts(values)
    return {ETP: 1, **({EP: ranks} if ranks else {})}


def _experts_split_over_ep(values: Mapping[str, Any], text: str) -> dict[str, Any]:  # noqa: ARG001  (as all rules)
    """Return the degrees of experts that are all split over tp x ep ranks (Megatron-Core 0.8)."""
    ranks = _ranks_of_experts(values)
    return {EP: 1, ETP: ranks} if ranks else {}


def _ranks_of_experts(values: Mapping[str, Any]) -> int | None:
    ep, tp = (whole_of(str(values.get(key, 1))) for key in (EP, TP))
    return ep * tp if ep and tp else None


def _layers_of_rank(values: Mapping[str, Any], text: str) -> dict[str, Any]:  # noqa: ARG001  (as all rules)
    """Return the recomputed layers of each chunk; those of a rank go round its chunks (MindSpeed, should_recompute)."""
    layers, pp = _count(values, "num_layers"), _count(values, "pipeline_model_parallel_size", 1)
    per_rank, wanted = layers // pp, _count(values, "recompute_num_layers")
    chunks = max(1, per_rank // _count(values, "num_layers_per_virtual_pipeline_stage", max(1, per_rank)))
    whole = -(-wanted // chunks)
    left = whole * chunks - wanted
    lost = f"{min(wanted, per_rank)} of the {per_rank} layers of a rank are recomputed, {left} more are projected so"
    return {"recompute_num_layers": whole or None, **({"$memory": lost} if left else {})}


def _sparse_indexer(values: Mapping[str, Any], text: str) -> dict[str, Any]:  # noqa: ARG001  (as all rules)
    """Return sparse attention with the sizes that MindSpeed-LLM takes where none is given (dsa_indexer_feature.py)."""
    usual = {"dsa_indexer_n_heads": 64, "dsa_indexer_head_dim": 128, "dsa_indexer_topk": 2048}
    made = {key: size for key, size in usual.items() if values.get(key) is None}
    return {"experimental_attention_variant": "dsa", **made}


RULES: Mapping[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "shared experts": _shared_experts,
    "dense first": _dense_first,
    "idle layers": _idle_layers,
    "hybrid context": _hybrid_context,
    "expert interval": _expert_interval,
    "residual experts": _residual_experts,
    "layers of a rank": _layers_of_rank,
    "experts over tp": _experts_over_tp,
    "experts split over ep": _experts_split_over_ep,
    "sparse indexer": _sparse_indexer,
}
"""Rules by name: settings that follow from a value and from other settings."""
