"""What makes a layout legal: one set of predicates for arrays (mask) and for people (sentence)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, lcm, prod
from typing import Any

from forescale.arrays import np
from forescale.errors import SpecError, illegal_layout, not_a_factor, not_divisible
from forescale.numeric import Numeric, divisors, maximum, minimum, truth
from forescale.spec.cluster import Cluster
from forescale.spec.context import CONTEXT_KINDS, ContextKind, ContextParallel, halves_evenly, inner_ranks
from forescale.spec.groups import groups_fit, violation
from forescale.spec.layout import Layout, Share, expert_shards, state_shards
from forescale.spec.model import Model, MoeFfn
from forescale.spec.proposal import (
    Constraint,
    Degrees,
    Mask,
    Proposal,
    Values,
    errors_of,
    masks_of,
    refused_by,
    violated,
)
from forescale.spec.summa import SUMMA_NEIGHBOURS, ffn_widths, inner_widths, panels_fit, summa_refusal
from forescale.spec.traced_constraints import TRACED_CONSTRAINTS
from forescale.spec.vision_constraints import VISION_CONSTRAINTS
from forescale.spec.workload import (
    ALL_LINEAR,
    FROZEN_PARTS,
    RECURRENT,
    FrozenPart,
    LoraTarget,
    Workload,
    num_microbatches,
)
from forescale.units import counted


def _divides(part: Numeric, whole: Numeric) -> Values:
    return whole % part == 0


def exchanged_heads_divide(model: Model, tp: Values, cp: Values, kind: ContextKind, inner: Values) -> Values:
    """Return where heads divide by tp and the ranks that exchange them: all of cp, or `inner` of halves."""
    ranks = minimum(cp, inner) if CONTEXT_KINDS[kind].halves else cp
    return _all([_divides(tp * ranks, heads) for heads, _ in _heads(model)]) | (ranks == 1)


def exchanges_whole_keys(q: Proposal) -> Values:
    """Return where ranks that exchange heads divide the key/value heads of a tensor-parallel rank, without repeats."""
    d, kind = q.degrees, _context(q)
    if kind.exchanges is None:
        return d.cp >= 1
    ranks = minimum(d.cp, _inner(q)) if kind.halves else d.cp
    return _all([_divides(ranks, maximum(kv // d.tp, 1)) for _, kv in _heads(q.model)]) | (ranks == 1)


PROJECTED_KEYS: tuple[LoraTarget, ...] = ("k_proj", "v_proj", "qkv_proj")
"""Targets of adapters that lie beside the projections of keys and values."""


def picks_keys(model: Model) -> bool:
    """Return whether attention of a layer reads keys that an indexer picks."""
    return any(attention.picks_keys for attention in model.attentions)


def sees_picked(model: Model, cp: Values, kind: ContextKind) -> Values:
    """Return where every rank has the keys that may be picked: all of them, gathered."""
    return (cp == 1) | (CONTEXT_KINDS[kind].gathers or not picks_keys(model))


def _context(q: Proposal) -> ContextParallel:
    return CONTEXT_KINDS[q.degrees.cp_kind]


def _inner(q: Proposal) -> Values:
    d = q.degrees
    return inner_ranks(cp=d.cp, tp=d.tp, wanted=d.cp_inner, domain=q.cluster.domain)


def _heads(model: Model) -> list[tuple[int, int]]:
    return list(dict.fromkeys(attention.heads for attention in model.attentions))


def _all(masks: list[Values]) -> Values:
    result: Values = True
    for mask in masks:
        result = result & mask
    return result


def _dp(d: Degrees) -> Values:
    return d.dp_replicate * d.dp_shard


def _stage_devices(d: Degrees) -> Values:
    return d.tp * d.cp * _dp(d)


def _moe(q: Proposal) -> MoeFfn:
    moe = q.model.moe
    assert moe is not None
    return moe


def _folded(q: Proposal) -> Any:  # noqa: ANN401 (a number, or an array of candidates)
    """Return the devices that experts are folded over."""
    return q.degrees.tp * q.degrees.cp * q.degrees.dp_shard


def _unfolded(q: Proposal) -> str:
    """Describe expert degrees that do not divide the devices that they are folded over."""
    folded, ep, etp = _folded(q), q.degrees.ep, q.degrees.etp
    fitting = [part for part in divisors(_fewest_experts(q)) if part <= ep and folded % (part * etp) == 0]
    fix = f"; the largest ep below is {fitting[-1]}" if fitting else ""
    return f"tp × cp × dp_shard = {counted(folded, 'device')} must be a multiple of ep {ep} × etp {etp}{fix}"


def _fewest_experts(q: Proposal) -> int:
    """Return the experts of a layer; of layers with other numbers, what divides all of them."""
    return gcd(*(kind.ffn.num_experts for kind in q.model.layer_kinds if isinstance(kind.ffn, MoeFfn)))


def _microbatches(q: Proposal) -> Values:
    return num_microbatches(
        global_batch_size=q.workload.global_batch_size,
        dp=_dp(q.degrees),
        micro_batch_size=q.degrees.micro_batch_size,
    )


def _summa(
    name: str,
    holds: Callable[[Proposal], Any],
    message: Callable[[Proposal], str],
    *,
    choices: tuple[str, ...] = (),
    applies: Callable[[Proposal], bool] = lambda _: True,
) -> Constraint:
    """Return a condition on layouts by SUMMA alone."""
    return Constraint(
        name=f"summa: {name}",
        choices=("tp_kind", *choices),
        holds=holds,
        message=message,
        applies=lambda q: q.degrees.tp_kind == "summa" and applies(q),
    )


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        name="devices",
        holds=lambda q: _stage_devices(q.degrees) * q.degrees.pp == q.cluster.num_devices,
        message=lambda q: (
            f"tp {q.degrees.tp} × cp {q.degrees.cp} × pp {q.degrees.pp} × dp {_dp(q.degrees)} = "
            f"{_stage_devices(q.degrees) * q.degrees.pp} devices, but the cluster has {q.cluster.num_devices}"
        ),
    ),
    Constraint(
        name="heads over tp",
        key="tp",
        holds=lambda q: _all([_divides(q.degrees.tp, heads) for heads, _ in _heads(q.model)]),
        message=lambda q: not_a_factor(
            "tp", q.degrees.tp, _heads(q.model)[0][0], f"the attention heads of {q.model.name}"
        ),
    ),
    Constraint(
        name="key/value heads over tp",
        key="tp",
        holds=lambda q: _all(
            [_divides(q.degrees.tp, kv) | _divides(kv, q.degrees.tp) for _, kv in _heads(q.model)]
        ),
        message=lambda q: (
            f"tp {q.degrees.tp} and the {_heads(q.model)[0][1]} key/value heads of {q.model.name} "
            "do not divide each other"
        ),
    ),
    Constraint(
        name="feed-forward over tp",
        key="tp",
        holds=lambda q: _all([_divides(q.degrees.tp, width) for width in ffn_widths(q.model)]),
        message=lambda q: not_a_factor(
            "tp", q.degrees.tp, ffn_widths(q.model), f"the feed-forward sizes of {q.model.name}"
        ),
    ),
    Constraint(
        name="experts over ep",
        key="ep",
        holds=lambda q: _divides(q.degrees.ep, _fewest_experts(q)),
        message=lambda q: not_a_factor(
            "ep", q.degrees.ep, _fewest_experts(q), f"the experts of {q.model.name}"
        ),
        applies=lambda q: q.model.is_moe,
    ),
    Constraint(
        name="expert width over etp",
        key="etp",
        holds=lambda q: _divides(q.degrees.etp, _moe(q).ffn_hidden_size),
        message=lambda q: not_a_factor(
            "etp", q.degrees.etp, _moe(q).ffn_hidden_size, f"the expert size of {q.model.name}"
        ),
        applies=lambda q: q.model.is_moe,
    ),
    Constraint(
        name="ep × etp over the stage",
        key="ep",
        holds=lambda q: _divides(q.degrees.ep * q.degrees.etp, _folded(q)),
        message=_unfolded,
        applies=lambda q: q.model.is_moe,
    ),
    Constraint(
        name="ep without experts",
        key="ep",
        holds=lambda q: (q.degrees.ep == 1) & (q.degrees.etp == 1),
        message=lambda q: (
            f"{q.model.name} has no experts: ep {q.degrees.ep} and etp {q.degrees.etp} must be 1"
        ),
        applies=lambda q: not q.model.is_moe and not q.model.traces,
    ),
    Constraint(
        name="layers over pp × vpp",
        key="pp",
        holds=lambda q: q.degrees.pp * q.degrees.vpp <= _most_stages(q.model, q.degrees.vpp),
        message=lambda q: (
            f"pp {q.degrees.pp} × vpp {q.degrees.vpp} needs about as many layers; {q.model.name} has "
            f"{q.model.num_layers}"
        ),
    ),
    Constraint(
        name="vpp needs pp",
        key="vpp",
        holds=lambda q: (q.degrees.vpp == 1) | (q.degrees.pp > 1),
        message=lambda q: f"vpp {q.degrees.vpp} needs pp > 1; pp is {q.degrees.pp}",
    ),
    Constraint(
        name="sequence over cp × tp",
        key="seq_len",
        holds=lambda q: _divides(_sequence_parts(q), q.workload.seq_len),
        message=lambda q: not_divisible(
            "seq_len",
            q.workload.seq_len,
            int(_sequence_parts(q)),
            f"cp {q.degrees.cp} (× 2 in zig-zag) × tp {q.degrees.tp} (under sp)",
        ),
    ),
    Constraint(
        name="heads over tp × cp",
        key="cp",
        choices=("cp_kind",),
        holds=lambda q: exchanged_heads_divide(
            q.model, q.degrees.tp, q.degrees.cp, q.degrees.cp_kind, _inner(q)
        ),
        message=lambda q: (
            f"{q.degrees.cp_kind} exchanges whole heads: tp {q.degrees.tp} × cp {q.degrees.cp} does not divide the "
            f"{_heads(q.model)[0][0]} attention heads of {q.model.name}"
        ),
        applies=lambda q: _context(q).exchanges is not None,
    ),
    Constraint(
        name="keys are picked before they are read",
        holds=lambda q: (
            next(attention for attention in q.model.attentions if attention.picks_keys).picks_itself
        ),
        message=lambda q: (
            f"the first layers of {q.model.name} that read picked keys (top_k) pick none: give them an indexer"
        ),
        applies=lambda q: picks_keys(q.model),
    ),
    Constraint(
        name="picked keys over cp",
        choices=("cp_kind",),
        holds=lambda q: sees_picked(q.model, q.degrees.cp, q.degrees.cp_kind),
        message=lambda q: (
            f"{q.model.name} reads keys that an indexer picks of all: cp_kind is all_gather, not {q.degrees.cp_kind}"
        ),
        applies=lambda q: picks_keys(q.model),
    ),
    Constraint(
        name="adapters beside picked keys",
        holds=lambda q: not set(q.workload.trainable.lora_targets) & set(PROJECTED_KEYS),
        message=lambda q: (
            f"{q.model.name} never projects keys and values, which adapters of {', '.join(PROJECTED_KEYS)} need; "
            "lora_targets may be q_proj, o_proj and those of feed-forwards"
        ),
        applies=lambda q: picks_keys(q.model) and bool(q.workload.trainable.lora_rank),
    ),
    Constraint(
        name="cp_inner divides cp",
        key="cp_inner",
        choices=("cp_kind",),
        holds=lambda q: halves_evenly(q.degrees.cp, _inner(q)),
        message=lambda q: (
            f"cp {q.degrees.cp} does not divide into groups of cp_inner {_inner(q):.0f} (hierarchical)"
        ),
        applies=lambda q: _context(q).halves,
    ),
    Constraint(
        name="global batch",
        key="global_batch_size",
        holds=lambda q: _divides(_dp(q.degrees) * q.degrees.micro_batch_size, q.workload.global_batch_size),
        message=lambda q: not_divisible(
            "global_batch_size",
            q.workload.global_batch_size,
            int(_dp(q.degrees) * q.degrees.micro_batch_size),
            f"dp {_dp(q.degrees)} × micro_batch_size {q.degrees.micro_batch_size}",
        ),
    ),
    Constraint(
        name="interleaving needs m % pp = 0",
        key="global_batch_size",
        choices=("schedule",),
        holds=lambda q: (q.degrees.vpp == 1) | _divides(q.degrees.pp, _microbatches(q)),
        message=lambda q: (
            f"interleaved 1F1B needs num_microbatches ({_microbatches(q)}) divisible by pp {q.degrees.pp}"
        ),
        applies=lambda q: q.degrees.schedule is None and _group(q) is None,
    ),
    Constraint(
        name="groups of micro-batches",
        key="microbatch_group",
        choices=("schedule",),
        holds=lambda q: (
            groups_fit(q.degrees.pp, q.degrees.vpp, _microbatches(q), _group(q))
            & ((q.degrees.vpp == 1) | (q.degrees.schedule is None))
        ),
        message=lambda q: violation(q.degrees.schedule, q.degrees.pp, int(_microbatches(q)), _group(q) or 1),
        applies=lambda q: _group(q) is not None,
    ),
    Constraint(
        name="tied matrices are frozen together",
        holds=lambda q: len({q.workload.trainable.freezes(end) for end in ("embedding", "head")}) == 1,
        message=lambda q: (
            f"embedding and head of {q.model.name} share one matrix: freeze or train both, not one of them"
        ),
        applies=lambda q: q.model.tied_embeddings,
    ),
    Constraint(
        name="something is trained",
        holds=lambda q: any(not q.workload.trainable.freezes(part) for part in freezable(q.model)),
        message=lambda q: f"every part of {q.model.name} is frozen; leave one out, or give lora_rank",
        applies=lambda q: not q.workload.trainable.lora_rank,
    ),
    Constraint(
        name="adapters of recurrent layers",
        holds=lambda q: not _misplaced_adapters(q),
        message=lambda q: (
            f"lora_targets has {' and '.join(_misplaced_adapters(q))}, products of layers with a recurrent state, of "
            f"which {q.model.name} has none; the output of its attention is o_proj"
        ),
        applies=lambda q: q.workload.trainable.lora_rank > 0,
    ),
    *VISION_CONSTRAINTS,
    Constraint(
        name="offloaded parameters under zero 3",
        key="zero",
        holds=lambda q: q.degrees.zero == 3,
        message=lambda q: (
            f"offload.parameters keeps the shards of zero 3 on the host; zero is {q.degrees.zero}"
        ),
        applies=lambda q: q.degrees.offload.parameters,
    ),
    Constraint(
        name="reshard divides the shards",
        key="reshard",
        choices=("tp_kind",),
        holds=lambda q: _neighbours_divide(q.degrees, q.degrees.reshard, is_moe=q.model.is_moe),
        message=lambda q: _undivided(q),  # noqa: PLW0108
        applies=lambda q: isinstance(q.degrees.reshard, int) and q.degrees.tp_kind == "1d",
    ),
    Constraint(
        name="placement",
        choices=("placement",),
        holds=lambda q: fills_tiers(_placement(q), q.cluster) & _all(_ranks_divide(q)),
        message=lambda q: _misplaced(q),  # noqa: PLW0108
        applies=lambda q: bool(_placement(q)),
    ),
    Constraint(
        name="recomputed layers",
        choices=("recompute",),
        holds=lambda q: max(q.degrees.recompute.layer_ids) < _num_layers(q.model),
        message=lambda q: (
            f"recompute lists layer {max(q.degrees.recompute.layer_ids)}, but {q.model.name} has layers 0 to "
            f"{_num_layers(q.model) - 1}"
        ),
        applies=lambda q: bool(q.degrees.recompute.layer_ids),
    ),
    Constraint(
        name="layers in bf16",
        holds=lambda q: q.workload.precision.num_layers_in_bf16 <= q.model.num_layers,
        message=lambda q: (
            f"{q.workload.precision.num_layers_in_bf16} layers in bf16; {q.model.name} has {q.model.num_layers}"
        ),
    ),
    _summa("models", lambda q: summa_refusal(q.model) is None, lambda q: str(summa_refusal(q.model))),
    _summa(
        "what is trained",
        lambda q: q.workload.trainable.is_all,
        lambda _: "tp_kind summa trains all weights: leave trainable out, or tp_kind 1d",
    ),
    _summa(
        "sequence parallelism",
        lambda q: truth(q.degrees.sp),
        lambda _: "tp_kind summa splits all activations: leave sp true",
    ),
    _summa(
        "keys and values",
        lambda q: _context(q).gathers,
        lambda q: f"tp_kind summa gathers keys and values: cp_kind is all_gather, not {q.degrees.cp_kind}",
        choices=("cp_kind",),
    ),
    _summa(
        "reshard",
        lambda q: q.degrees.zero < 3,
        lambda q: f"{SUMMA_NEIGHBOURS}, not {q.degrees.reshard}",
        applies=lambda q: isinstance(q.degrees.reshard, int),
    ),
    _summa(
        "panels",
        lambda q: panels_fit(q.degrees.tp, q.degrees.cp, q.degrees.summa_panels, inner_widths(q.model)),
        lambda q: (
            f"lcm(tp {q.degrees.tp}, cp {q.degrees.cp}) × summa_panels {q.degrees.summa_panels} must divide the "
            f"widths {inner_widths(q.model)} of {q.model.name}"
        ),
        choices=("summa_panels",),
    ),
    *TRACED_CONSTRAINTS,
)
"""Every condition on a layout but those of named pipeline schedules, which `schedule.legality` adds."""


def _most_stages(model: Model, vpp: Values) -> Values:
    """Return the most virtual stages that a pipeline has: with several on a rank, two may have no decoder layer."""
    return model.num_layers + 2 * (vpp > 1)


def virtual_stages(model: Model, pp: int) -> tuple[int, ...]:
    """Return every number of virtual stages per rank that is legal for a pipeline of `pp` ranks."""
    most = int(_most_stages(model, 2)) // pp if pp > 1 else 1
    return tuple(range(1, max(most, 1) + 1))


def _group(q: Proposal) -> int | None:
    group: int | None = q.degrees.microbatch_group
    return group


def _neighbours_divide(degrees: Values, count: int, *, is_moe: bool) -> Values:
    """Return where `count` neighbours are a part of those that share weights under stage 3; experts have fewer.

    Source: PyTorch FSDP2, fully_shard: reshard_after_forward as a number must be a factor of the ranks that shard.
    """
    shards, experts = state_shards(degrees, "1d"), expert_shards(degrees)
    inner = minimum(count, maximum(experts, 1))
    parts = (shards == 1) | (shards % count == 0)
    return (degrees.zero < 3) | (parts & ((not is_moe) | (experts % inner == 0)))


def _undivided(q: Proposal) -> str:
    """Return what numbers of neighbours there are to share weights after forward."""
    d = q.degrees
    shards, experts = int(state_shards(d, "1d")), float(expert_shards(d))
    parts = divisors(shards)[1:]
    fit = [f", {count}" for count in parts if _neighbours_divide(d, count, is_moe=q.model.is_moe)]
    over = f"the {counted(shards, 'rank')} that share weights"
    if q.model.is_moe and experts != shards:
        over += f", or the {experts:g} that share those of experts"
    return f"reshard {d.reshard} does not divide {over}; it takes always, never{''.join(fit)}"


def freezable(model: Model) -> tuple[FrozenPart, ...]:
    """Return the parts of a model that can be frozen."""
    absent: set[FrozenPart] = set() if model.vision else {"vision", "projector"}
    if model.is_moe:
        return tuple(part for part in FROZEN_PARTS if part not in absent)
    return tuple(part for part in FROZEN_PARTS if part not in {*absent, "moe"})


def _misplaced_adapters(q: Proposal) -> list[LoraTarget]:
    """Return targets that no layer has; who names all linear layers means those that are there."""
    targets = q.workload.trainable.lora_targets
    if set(ALL_LINEAR) <= set(targets) or q.model.has_recurrent:
        return []
    return [target for target in targets if target in RECURRENT]


def _placement(q: Proposal) -> tuple[Share, ...]:
    return q.degrees.placement or ()


def fills_tiers(placement: Sequence[Share], cluster: Cluster) -> bool:
    """Return whether every tier that a placement names exists and is filled by it."""
    fill = cluster.tier_fill
    return len(placement) <= len(fill) and all(
        share.num_ranks == ranks for share, ranks in zip(placement, fill, strict=False)
    )


def _ranks_divide(q: Proposal) -> list[Values]:
    """Return, for each axis, where its degree is a multiple of the ranks that the placement puts together."""
    degrees = {"tp": q.degrees.tp, "cp": q.degrees.cp, "dp": _dp(q.degrees), "pp": q.degrees.pp}
    return [
        _divides(prod(getattr(share, axis) for share in _placement(q)), degree)
        for axis, degree in degrees.items()
    ]


def _num_layers(model: Model) -> int:
    return model.num_layers + model.num_mtp_layers


def _misplaced(q: Proposal) -> str:
    """Return what is wrong with where the ranks are placed; nothing if all is well."""
    shares, fill = _placement(q), q.cluster.tier_fill
    if len(shares) > len(fill):
        return f"placement names {len(shares)} tiers; {q.cluster.name} has {len(fill)} inside its outermost"
    for share, ranks, tier in zip(shares, fill, q.cluster.tiers, strict=False):
        if share.num_ranks != ranks:
            return (
                f"placement tp {share.tp} × cp {share.cp} × dp {share.dp} × pp {share.pp} = {share.num_ranks} does "
                f"not fill tier {tier.name!r}, which takes {ranks}"
            )
    for axis in ("tp", "cp", "dp", "pp"):
        degree = _dp(q.degrees) if axis == "dp" else getattr(q.degrees, axis)
        near = prod(getattr(share, axis) for share in shares)
        if degree % near:
            return f"placement puts {counted(near, 'rank')} of {axis} together; {axis} is {degree}"
    return ""


def _sequence_parts(q: Proposal) -> Values:
    """Return what must divide the sequence: a context rank's chunks, two in zig-zag, and tp parts under sp."""
    d, cp, tp = q.degrees, q.degrees.cp, q.degrees.tp
    chunks = 2 if d.cp_balanced else 1
    if isinstance(cp, int):
        return lcm(chunks * cp if cp > 1 else 1, cp * tp if d.sp else 1)
    return np.lcm(np.where(cp > 1, chunks * cp, 1), np.where(truth(d.sp), cp * tp, 1))


def check(
    model: Model,
    cluster: Cluster,
    layout: Layout,
    workload: Workload,
    rules: Sequence[Constraint] = CONSTRAINTS,
) -> None:
    """Raise SpecError with every violated constraint of one layout."""
    proposal = Proposal(model=model, cluster=cluster, workload=workload, degrees=layout)
    if result := violated(proposal, rules):
        errors = errors_of(proposal, result, rules)
        text = illegal_layout([item.name for item in result], [*map(str, errors)])
        raise SpecError(text, causes=tuple(errors))


def legal(
    proposal: Proposal,
    shape: tuple[int, ...] | None = None,
    *,
    rules: Sequence[Constraint] = CONSTRAINTS,
) -> tuple[Mask, dict[str, int]]:
    """Return the mask of legal candidates and how many each of `rules` refused.

    Degrees may have any shapes that broadcast to `shape`: a condition is looked at once per combination it needs.
    """
    masks = masks_of(proposal, rules)
    if shape is None:
        shape = np.broadcast_shapes(*(mask.shape for mask in masks.values()))
    mask: Mask = np.ones(shape, dtype=bool)
    for holds in masks.values():
        mask &= holds
    return mask, refused_by(masks, mask.size)
