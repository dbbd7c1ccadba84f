"""Bounds of a search against every layout behind them: none above the least, and none far below it.

The cases leave little between a bound and a layout: what data-parallel traffic and the update add is small, so that
a bound that counts something twice, or leaves something out, shows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bounded import every_bound
from tests.small import MLA, cluster, workload

from forescale.cost.select import Costs
from forescale.question import Question
from forescale.spec import (
    Cluster,
    DenseFfn,
    FullAttention,
    Layer,
    Layout,
    Model,
    MoeFfn,
    Overlap,
    Precision,
    Recompute,
    Share,
    Workload,
)
from forescale.spec.layout import Kernels, Offload
from forescale.spec.proposal import Constraint
from forescale.spec.space import NAMES, ORDERS, Space, default_recompute, partial_recompute
from forescale.spec.workload import Trainable

WORK = workload(8192, 8)
SHORT = workload(256, 16)
FULL = Recompute(granularity="full")
NARROW = Precision(compute="fp8", recipe="blockwise", parameters="fp8")
QLORA = {
    "trainable": Trainable(lora_rank=16, lora_dropout=True),
    "precision": Precision(frozen="nf4_double"),
}
NO_OVERLAP = Overlap(**dict.fromkeys(Overlap.__dataclass_fields__, False))


def uniform(num_layers: int = 8) -> Model:
    """Equal layers, next to no vocabulary: every stage takes as long."""
    layer = Layer(
        attention=FullAttention(num_heads=32, num_kv_heads=8, head_dim=128),
        ffn=DenseFfn(ffn_hidden_size=16384),
    )
    return Model(name="uniform", hidden_size=4096, layers=(layer,) * num_layers, vocab_size=16)


def latent() -> Model:
    """Latent attention, and a vocabulary that both ends share."""
    layer = Layer(attention=MLA, ffn=DenseFfn(ffn_hidden_size=8192))
    return Model(name="latent", hidden_size=2048, layers=(layer,) * 4, vocab_size=32000, tied_embeddings=True)


def experts(width: int = 2048, num_mtp_layers: int = 0) -> Model:
    """Layers of experts of one width, whose router has biases."""
    ffn = MoeFfn(
        num_experts=16, top_k=4, ffn_hidden_size=width, shared_ffn_hidden_size=width, score_bias=True
    )
    layers = (Layer(attention=MLA, ffn=ffn),) * 4
    return Model(
        name="experts", hidden_size=2048, layers=layers, vocab_size=16, num_mtp_layers=num_mtp_layers
    )


def swift(num_devices: int) -> Cluster:
    """A network whose messages take next to no time."""
    value = cluster(num_devices)
    return replace(value, tiers=tuple(replace(tier, bandwidth=1e15, latency=0.0) for tier in value.tiers))


def nodes(num_devices: int, bandwidth: float = 50e9) -> Cluster:
    """Nodes of 4."""
    value = cluster(num_devices)
    node, fabric = value.tiers
    return replace(
        value, devices_per_node=4, tiers=(replace(node, size=4), replace(fabric, bandwidth=bandwidth))
    )


def racks(num_devices: int) -> Cluster:
    """Nodes of 4 in racks of 8."""
    value = cluster(num_devices)
    node, fabric = value.tiers
    tiers = (replace(node, size=4), replace(fabric, name="rack", size=8, bandwidth=150e9), fabric)
    return replace(value, devices_per_node=4, tiers=tiers)


def asked(model: Model, devices: Cluster, work: Workload = WORK, clock: float | None = None, **changes):
    return Question(model=model, cluster=devices, workload=work, costs=Costs(clock_hz=clock), **changes)


def space(**changes) -> Space:
    """One way to shard and to recompute, in one order, where nothing else is said."""
    usual = {
        "sp": (True,),
        "zero": (1,),
        "recompute": (Recompute(),),
        "cp_kind": ("ring",),
        "axis_order": ORDERS[:1],
    }
    if changes.pop("anywhere", False):
        changes["placement"] = ("orders", "all")
    base = {name: changes.pop(name) for name in BASE if name in changes}
    return Space(**{**usual, "base": Layout(**base), **changes})


BASE = tuple(name for name in Layout.__struct_fields__ if name not in NAMES)
ALONE = {"tp": (1,), "cp": (1,)}
APART = {**ALONE, "pp": (1,), "kernels": Kernels(gathers_ends_apart=True), "zero": (3,)}
DENSE = uniform()
WORDY = replace(latent(), vocab_size=512000)
COUNTED = (*default_recompute(DENSE), *partial_recompute(DENSE))
LISTED = (Recompute(granularity="full", unit=2), Recompute(granularity="full", layer_ids=(0, 2)))
KINDS = ("all_gather", "ring", "ulysses", "hierarchical")
SLOW = 0.2e9
ONE_SEQUENCE = Constraint(
    name="zero 3 of one sequence",
    holds=lambda q: (q.degrees.zero < 3) | (q.degrees.micro_batch_size == 1),
    message=lambda _: "zero 3 takes one sequence at a time",
)
"""A rule that says of a batch how it may be sharded."""

CASES = {
    "stages of a pipeline": (asked(DENSE, swift(8), clock=SLOW), space(**ALONE)),
    "few micro-batches": (
        asked(DENSE, swift(8), workload(8192, 2), clock=SLOW),
        space(**ALONE, pp=(4, 8)),
    ),
    "messages between stages": (
        asked(DENSE, cluster(8), workload(8192, 4)),
        space(**ALONE, pp=(8,), sp=(False,)),
    ),
    "stages anywhere": (
        asked(DENSE, racks(8)),
        space(tp=(1, 2), cp=(1,), pp=(2, 4), anywhere=True),
    ),
    "tensor parallel anywhere": (
        asked(DENSE, racks(16)),
        space(cp=(1,), pp=(1,), sp=(True, False), anywhere=True),
    ),
    "context parallel anywhere": (
        asked(DENSE, racks(16)),
        space(tp=(1, 2), pp=(1,), cp_kind=KINDS, anywhere=True),
    ),
    "overlapped": (
        asked(DENSE, racks(16)),
        space(cp=(1, 2), pp=(1, 2), anywhere=True, overlap=Overlap(tensor=True, bubbles=True)),
    ),
    "nothing overlapped": (asked(DENSE, cluster(8)), space(cp=(1, 2), pp=(1, 2), overlap=NO_OVERLAP)),
    "summa": (
        asked(DENSE, cluster(8)),
        space(tp_kind=("summa", "1d"), summa_panels=(1, 2), cp_kind=("all_gather",)),
    ),
    "hardly any experts": (
        asked(experts(16), cluster(8), clock=SLOW),
        space(tp=(1, 2), cp=(1,), pp=(1, 2), ep=(1,)),
    ),
    "experts": (asked(experts(), cluster(8), clock=SLOW), space(tp=(1, 2), cp=(1,), pp=(1, 2))),
    "experts anywhere": (
        asked(experts(num_mtp_layers=1), racks(16)),
        space(tp=(1, 2), cp=(1, 2), pp=(1, 2), ep=(1, 4, 8), etp=(1, 2), anywhere=True),
    ),
    "experts overlapped": (
        asked(experts(), racks(8), clock=SLOW),
        space(tp=(1, 2), cp=(1,), pp=(1, 2), overlap=Overlap(expert=True, shared_experts=True)),
    ),
    "experts sent once": (
        asked(experts(), racks(16), workload(8192, 16)),
        space(**ALONE, pp=(1,), ep=(8, 16), dispatcher="deepep", anywhere=True),
    ),
    "held tensor ranks": (
        asked(DENSE, nodes(8)),
        space(tp=(2,), cp=(1,), pp=(1, 2), placement=((Share(dp=4),), (Share(tp=2, pp=2),))),
    ),
    "held tensor ranks in racks": (
        asked(DENSE, racks(16)),
        space(
            tp=(8,),
            cp=(1,),
            pp=(1,),
            placement=((Share(tp=4), Share(dp=2)), (Share(tp=4), Share(tp=2))),
        ),
    ),
    "held context ranks": (
        asked(DENSE, nodes(16), workload(8192, 16)),
        space(tp=(1,), cp=(4,), pp=(1,), placement=((Share(dp=4),),), cp_kind=KINDS, cp_inner=2),
    ),
    "held expert ranks": (
        asked(experts(), nodes(8), workload(8192, 32)),
        space(**ALONE, pp=(2,), ep=(1, 4), etp=(1, 4), placement=((Share(pp=2, dp=2),),)),
    ),
    "messages anywhere": (
        asked(DENSE, nodes(8, bandwidth=2e9), workload(8192, 1024)),
        space(**ALONE, pp=(2,), micro_batch_size=(1,), anywhere=True),
    ),
    "experts that wait for launches": (asked(experts(), cluster(8), workload(256, 512)), space(**ALONE)),
    "experts behind all else": (
        asked(experts(8192), nodes(8, bandwidth=20e9), workload(8192, 64)),
        space(**ALONE, ep=(8,), micro_batch_size=(2,), overlap=Overlap(expert=True, shared_experts=True)),
    ),
    "experts behind the rest of their layers": (
        asked(experts(1024), nodes(8, bandwidth=30e9), workload(8192, 64)),
        space(**ALONE, pp=(1,), ep=(8,), micro_batch_size=(2,), overlap=Overlap(expert=True)),
    ),
    "shards and replicas": (asked(latent(), cluster(8)), space(cp=(1, 2), pp=(1, 2), zero=(0, 1, 2, 3))),
    "shards of experts": (asked(experts(), cluster(8)), space(**ALONE, pp=(1, 2), zero=(0, 1, 2, 3))),
    "kept whole": (asked(latent(), cluster(8)), space(**ALONE, zero=(3,), reshard="never")),
    "kept among two": (asked(latent(), cluster(8)), space(**ALONE, zero=(3,), reshard=2)),
    "counts of layers": (asked(DENSE, swift(4)), space(**ALONE, recompute=COUNTED)),
    "layers together": (asked(DENSE, swift(4)), space(**ALONE, recompute=LISTED)),
    "many layers together": (
        asked(uniform(160), swift(8), workload(65536, 8)),
        space(**ALONE, pp=(8,), vpp=(1,), recompute=(Recompute(granularity="full", unit=2),)),
    ),
    "all recomputed": (asked(DENSE, swift(4)), space(**ALONE, recompute=(FULL,))),
    "shards by rule": (
        asked(latent(), cluster(8)),
        space(**ALONE, zero=(0, 3), rules=(ONE_SEQUENCE,), micro_batch_size=(1, 2)),
    ),
    "states on the host": (
        asked(DENSE, cluster(8)),
        space(**ALONE, zero=(1, 3), offload=Offload(optimizer=0.5, overlap=False)),
    ),
    "activations on the host": (
        asked(DENSE, cluster(8)),
        space(**ALONE, pp=(1, 2), offload=Offload(activation_layers=2)),
    ),
    "modules on the host": (
        asked(DENSE, cluster(8)),
        space(**ALONE, pp=(1, 2), recompute=(Recompute(), FULL), offload=Offload(modules=("core_attn",))),
    ),
    "modules of kept layers on the host": (
        asked(DENSE, cluster(8)),
        space(**ALONE, pp=(1, 2), offload=Offload(modules=("core_attn",))),
    ),
    "parameters on the host": (
        asked(DENSE, cluster(8)),
        space(**ALONE, zero=(3,), offload=Offload(parameters=True)),
    ),
    "narrow": (
        asked(experts(), cluster(8), replace(WORK, precision=NARROW), clock=SLOW),
        space(tp=(1, 2), cp=(1,), pp=(1, 2)),
    ),
    "adapters": (
        asked(latent(), cluster(8), replace(WORK, trainable=Trainable(lora_rank=16))),
        space(cp=(1, 2), pp=(1, 2), sp=(True, False), zero=(0, 1, 2, 3)),
    ),
    "adapters of experts": (
        asked(experts(num_mtp_layers=1), cluster(8), replace(WORK, **QLORA)),
        space(tp=(1, 2), cp=(1,), pp=(1, 2), zero=(1, 3), recompute=(Recompute(), FULL)),
    ),
    "frozen but for the head": (
        asked(
            DENSE,
            cluster(8),
            replace(WORK, trainable=Trainable(frozen=("embedding", "attention", "ffn", "norm"))),
        ),
        space(**ALONE, pp=(1, 2), zero=(1, 3)),
    ),
    "an engine that waits": (
        asked(uniform(4), swift(4), workload(256, 256)),
        space(**ALONE, kernels=Kernels(blocking_launches=True)),
    ),
    "an engine that runs ahead": (
        asked(uniform(4), cluster(4), SHORT),
        space(
            **ALONE,
            kernels=Kernels(
                runs_ahead=True,
                keeps_stage_outputs=True,
                bucket_elements=5e8,
                flat_update=True,
                receives_copies=True,
            ),
        ),
    ),
    "weight gradients of the head in the flush": (
        asked(replace(DENSE, vocab_size=128000), cluster(4), SHORT),
        space(**ALONE, kernels=Kernels(deferred_head_gradients=3), zero=(0, 1)),
    ),
    "updates received, at the upper end": (
        asked(uniform(4), cluster(4), SHORT, safe=True),
        space(**ALONE, kernels=Kernels(flat_update=True, receives_copies=True), zero=(1, 2)),
    ),
    "gathered in a stream of its own": (
        asked(latent(), cluster(8)),
        space(**ALONE, pp=(1,), kernels=Kernels(gathers_aside=True), zero=(0, 3)),
    ),
    "gathered in a stream of its own, at the upper end": (
        asked(latent(), cluster(8), safe=True),
        space(**ALONE, pp=(1,), kernels=Kernels(gathers_aside=True, gathers_ends_apart=True), zero=(3,)),
    ),
    "gathered for the loss": (asked(WORDY, cluster(8)), space(**APART)),
    "gathered for the head's gradient": (asked(WORDY, cluster(8), SHORT), space(**APART)),
    "an update that takes more than all before": (
        asked(uniform(4), cluster(4), replace(SHORT, precision=Precision(gradients="bf16"))),
        space(**ALONE, pp=(1,)),
    ),
    "a host that is ahead": (
        asked(uniform(4), cluster(4), SHORT, safe=True),
        space(
            cp=(1,),
            zero=(0, 1),
            recompute=(Recompute(), FULL),
            kernels=Kernels(queued_layers=2, receives_copies=True, copies_keys_values=True),
        ),
    ),
    "graphs": (asked(uniform(4), cluster(4), SHORT), space(**ALONE, graphs="partial")),
    "at the upper end": (
        asked(latent(), cluster(8), safe=True),
        space(cp=(1,), zero=(0, 1, 3), anywhere=True),
    ),
    "pieces of sequences": (
        asked(replace(DENSE, vocab_size=128000), swift(4), workload(32768, 16)),
        space(**ALONE, pp=(2, 4), micro_batch_size=(1,), schedule=("seq1f1b",), sequence_pieces=4),
    ),
    **{
        f"groups of {group} micro-batches": (
            asked(replace(DENSE, vocab_size=128000), swift(4), workload(8192, 16)),
            space(**ALONE, pp=(2, 4), vpp=(2,), micro_batch_size=(1,), microbatch_group=group),
        )
        for group in (6, 8)
    },
    "one stage of a split backward": (
        asked(DENSE, nodes(8, bandwidth=2e9)),
        space(tp=(2, 8), cp=(1,), pp=(1, 2), schedule=("zb-h1",)),
    ),
    **{
        f"{name} of few micro-batches": (
            asked(DENSE, swift(4), workload(8192, 4), clock=SLOW),
            space(**ALONE, pp=(4,), micro_batch_size=(1, 2), schedule=(name,)),
        )
        for name in ("zb-h1", "zb-h2", "zbv")
    },
    **{
        name: (
            asked(DENSE, swift(4), workload(8192, 16)),
            space(**ALONE, pp=(2, 4), micro_batch_size=(1, 2), schedule=(name,)),
        )
        for name in (
            "1f1b",
            "gpipe",
            "interleaved-1f1b",
            "looped-bfs",
            "zb-h1",
            "zb-h2",
            "zbv",
            "dualpipe",
            "dualpipev",
            "seq1f1b",
        )
    },
}

FLOORS = {
    "stages of a pipeline": (0.989, 0.989, 0.998, 0.999, 1.000, 1.000, 1.000),
    "few micro-batches": (0.986, 0.986, 0.998, 0.998, 1.000, 1.000, 1.000),
    "messages between stages": (0.919, 0.919, 0.993, 0.993, 1.000, 1.000, 1.000),
    "stages anywhere": (0.894, 0.894, 0.973, 0.991, 1.000, 1.000, 1.000),
    "tensor parallel anywhere": (0.793, 0.793, 0.926, 0.979, 1.000, 1.000, 1.000),
    "context parallel anywhere": (0.763, 0.763, 0.904, 0.992, 1.000, 1.000, 1.000),
    "overlapped": (0.810, 0.810, 0.949, 0.989, 1.000, 1.000, 1.000),
    "nothing overlapped": (0.869, 0.869, 0.959, 0.988, 1.000, 1.000, 1.000),
    "summa": (0.907, 0.907, 0.980, 0.988, 1.000, 1.000, 1.000),
    "hardly any experts": (0.512, 0.816, 0.963, 0.963, 1.000, 1.000, 1.000),
    "experts": (0.250, 0.908, 0.979, 0.984, 1.000, 1.000, 1.000),
    "experts anywhere": (0.152, 0.441, 0.938, 0.975, 1.000, 1.000, 1.000),
    "experts overlapped": (0.249, 0.902, 0.979, 0.984, 1.000, 1.000, 1.000),
    "experts sent once": (0.138, 0.630, 0.950, 0.976, 1.000, 1.000, 1.000),
    "held tensor ranks": (0.856, 0.856, 0.934, 0.990, 1.000, 1.000, 1.000),
    "held tensor ranks in racks": (0.798, 0.798, 0.930, 0.979, 1.000, 1.000, 1.000),
    "held context ranks": (0.816, 0.816, 0.895, 0.995, 1.000, 1.000, 1.000),
    "held expert ranks": (0.159, 0.875, 0.962, 0.988, 1.000, 1.000, 1.000),
    "messages anywhere": (0.952, 0.952, 0.954, 0.990, 1.000, 1.000, 1.000),
    "experts that wait for launches": (0.083, 0.444, 0.977, 0.983, 1.000, 1.000, 1.000),
    "experts behind all else": (0.080, 0.959, 0.986, 0.995, 1.000, 1.000, 1.000),
    "experts behind the rest of their layers": (0.180, 0.930, 0.990, 0.993, 1.000, 1.000, 1.000),
    "shards and replicas": (0.754, 0.754, 0.980, 0.990, 1.000, 1.000, 1.000),
    "shards of experts": (0.156, 0.691, 0.962, 0.982, 1.000, 1.000, 1.000),
    "kept whole": (0.714, 0.714, 0.966, 0.986, 1.000, 1.000, 1.000),
    "kept among two": (0.703, 0.703, 0.950, 0.969, 1.000, 1.000, 1.000),
    "counts of layers": (0.939, 0.939, 0.987, 0.989, 0.863, 1.000, 1.000),
    "layers together": (0.852, 0.852, 0.988, 0.989, 0.753, 1.000, 1.000),
    "many layers together": (0.767, 0.767, 1.000, 1.000, 0.712, 1.000, 1.000),
    "all recomputed": (0.719, 0.719, 0.989, 0.990, 1.000, 1.000, 1.000),
    "shards by rule": (0.693, 0.693, 0.956, 0.979, 1.000, 1.000, 1.000),
    "states on the host": (0.586, 0.586, 0.632, 0.642, 1.000, 1.000, 1.000),
    "activations on the host": (0.493, 0.493, 0.974, 0.994, 1.000, 1.000, 1.000),
    "modules on the host": (0.867, 0.867, 0.962, 0.990, 0.897, 1.000, 1.000),
    "modules of kept layers on the host": (0.867, 0.867, 0.957, 0.989, 0.989, 1.000, 1.000),
    "parameters on the host": (0.484, 0.484, 0.521, 0.529, 1.000, 1.000, 1.000),
    "narrow": (0.296, 0.893, 0.977, 0.981, 1.000, 1.000, 1.000),
    "adapters": (0.854, 0.854, 1.000, 1.000, 1.000, 1.000, 1.000),
    "adapters of experts": (0.153, 0.614, 0.999, 0.999, 0.558, 1.000, 1.000),
    "frozen but for the head": (0.879, 0.879, 1.000, 1.000, 1.000, 1.000, 1.000),
    "an engine that waits": (0.925, 0.925, 0.986, 0.988, 1.000, 1.000, 1.000),
    "an engine that runs ahead": (0.500, 0.500, 0.889, 0.958, 1.000, 1.000, 1.000),
    "weight gradients of the head in the flush": (0.636, 0.636, 0.855, 0.922, 1.000, 1.000, 1.000),
    "updates received, at the upper end": (0.559, 0.559, 0.903, 0.957, 0.993, 0.993, 0.993),
    "gathered in a stream of its own": (0.566, 0.566, 0.921, 0.967, 1.000, 1.000, 1.000),
    "gathered in a stream of its own, at the upper end": (0.566, 0.566, 0.921, 0.967, 0.997, 0.997, 0.997),
    "gathered for the loss": (0.781, 0.781, 0.879, 0.936, 1.000, 1.000, 1.000),
    "gathered for the head's gradient": (0.467, 0.467, 0.706, 0.843, 1.000, 1.000, 1.000),
    "an update that takes more than all before": (0.494, 0.494, 0.873, 0.948, 1.000, 1.000, 1.000),
    "a host that is ahead": (0.635, 0.635, 0.940, 0.966, 0.982, 0.996, 0.996),
    "graphs": (0.440, 0.440, 0.874, 0.944, 1.000, 1.000, 1.000),
    "at the upper end": (0.763, 0.763, 0.983, 0.990, 1.000, 1.000, 1.000),
    "pieces of sequences": (0.732, 0.732, 0.982, 0.982, 0.758, 0.758, 0.758),
    "groups of 6 micro-batches": (0.976, 0.976, 0.992, 0.993, 1.000, 1.000, 1.000),
    "groups of 8 micro-batches": (0.976, 0.976, 0.992, 0.993, 1.000, 1.000, 1.000),
    "one stage of a split backward": (0.638, 0.638, 0.709, 0.797, 1.000, 1.000, 1.000),
    "zb-h1 of few micro-batches": (0.617, 0.617, 0.938, 0.938, 1.000, 1.000, 1.000),
    "zb-h2 of few micro-batches": (0.608, 0.608, 0.927, 0.927, 1.000, 1.000, 1.000),
    "zbv of few micro-batches": (0.631, 0.631, 0.759, 0.759, 0.708, 0.708, 0.708),
    "1f1b": (0.779, 0.779, 0.991, 0.991, 1.000, 1.000, 1.000),
    "gpipe": (0.779, 0.779, 0.991, 0.991, 0.974, 0.974, 0.974),
    "interleaved-1f1b": (0.868, 0.868, 0.977, 0.977, 0.843, 0.843, 0.843),
    "looped-bfs": (0.845, 0.845, 0.984, 0.984, 0.978, 0.978, 0.978),
    "zb-h1": (0.853, 0.853, 0.958, 0.958, 1.000, 1.000, 1.000),
    "zb-h2": (0.883, 0.883, 0.991, 0.991, 1.000, 1.000, 1.000),
    "zbv": (0.908, 0.908, 0.979, 0.979, 1.000, 1.000, 1.000),
    "dualpipe": (0.913, 0.913, 0.951, 0.951, 0.876, 0.876, 0.876),
    "dualpipev": (0.865, 0.865, 0.933, 0.933, 0.907, 0.907, 0.907),
    "seq1f1b": (0.803, 0.803, 0.840, 0.840, 0.795, 0.795, 0.795),
}
"""The mean of each bound over the least that it bounds, of the time and then of the memory."""
BELOW = {"time": 0.01, "memory": 0.002}
"""By how much a mean may fall when what is bounded changes."""


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_below_every_layout_and_near_the_least(name):
    question, layouts = CASES[name]
    ratios = every_bound(question, layouts).ratios()
    closer = ratios.pop("time traffic")
    assert closer.max() <= 1.0
    assert (closer >= ratios["time cell"]).all()
    for (bound, ratio), floor in zip(ratios.items(), FLOORS[name], strict=True):
        assert ratio.max() <= 1.0, bound
        assert ratio.mean() >= floor - BELOW[bound.split()[0]], bound
