"""Random questions: models, clusters, layouts and workloads of every kind, most of them legal.

`question(pick)` asks `pick` for one of a list again and again, so that hypothesis and a seeded run draw alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.schedule import families
from forescale.spec import (
    Cluster,
    Kernels,
    Layout,
    LinearAttention,
    Model,
    Overlap,
    Precision,
    Recompute,
    Workload,
)
from forescale.spec.groups import group_of
from forescale.spec.layout import Offload, Routing

Pick = Callable[[Sequence[Any]], Any]

MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "qwen3-4b", "gemma-3-4b", "falcon-180b", "gpt2-xl", "vit-era5",
    "mixtral-8x7b", "grok-1", "gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v3", "deepseek-v2-lite",
    "deepseek-v3.2", "glm-5.2", "qwen3-next-80b-a3b", "minimax-text-01", "nemotron-3-nano-30b-a3b",
)  # fmt: skip
CLUSTERS = (
    "h100-sxm", "a100-sxm-80gb", "b200", "gb200-nvl72", "h100-pcie", "l40s-pcie", "v100-dgx2", "mi300x", "mi355x",
    "mi250x-frontier", "gaudi3", "tpu-v5p", "trn2",
)  # fmt: skip
LAYERS = (2, 3, 4, 6, 8, 12)

FULL_32 = {"parameters": "fp32", "gradients": "fp32", "master": "none", "activations": "fp32"}
PRECISIONS = (
    *[Precision()] * 4,
    Precision(gradients="bf16", moments="bf16", master="none"),
    Precision(compute="fp16", parameters="fp16", activations="fp16"),
    Precision(compute="fp32", **FULL_32),
    Precision(compute="fp32"),
    Precision(compute="tf32", **FULL_32),
    *[Precision(compute="fp8", recipe=recipe) for recipe in ("delayed", "current", "blockwise")],
    Precision(compute="fp8", recipe="blockwise", parameters="fp8"),
    Precision(compute="mxfp8"),
    Precision(compute="nvfp4"),
)
RECOMPUTE = (
    *[Recompute()] * 4,
    Recompute(granularity="full"),
    Recompute(granularity="full", num_layers=1),
    Recompute(granularity="full", unit=2),
    Recompute(granularity="full", stops_early=True),
    Recompute(granularity="full", layer_ids=(0, 1)),
    Recompute(granularity="selective", modules=("core_attn",)),
    Recompute(granularity="selective", modules=("layernorm", "moe_act", "mla_up_proj")),
    Recompute(granularity="selective", modules=("mlp", "moe", "shared_experts"), num_layers=1),
    Recompute(granularity="policy", policy="minimal"),
    Recompute(granularity="policy", policy="save_qkv_proj"),
    Recompute(granularity="policy", policy="torch_per_op"),
    Recompute(granularity="policy", policy="custom", kept=("context", "mlpwi")),
)
OFFLOADS = (
    *[Offload()] * 6,
    Offload(optimizer=0.5, overlap=False),
    Offload(optimizer=1.0, master=False),
    Offload(activation_layers=1),
    Offload(activation_layers=1_000_000),
    Offload(activation_layers=1_000_000, overlap=False),
    Offload(modules=("qkv_linear", "moe_act", "core_attn")),
    Offload(modules=("attn_norm", "mlp_norm"), module_share=0.5, optimizer=0.25),
    Offload(parameters=True),
    Offload(parameters=True, activation_layers=2),
    Offload(parameters=True, overlap=False),
)
ROUTINGS = (
    *[Routing()] * 4,
    Routing(imbalance=1.5),
    Routing(capacity_factor=0.5),
    Routing(capacity_factor=1.0, pad_to_capacity=True),
    Routing(capacity_factor=1.25, imbalance=2.0),
    Routing(dispatch="fp8", balance="none"),
)
KERNELS = (
    *[Kernels()] * 4,
    Kernels(fused=False),
    Kernels(cross_entropy="fused_linear", grouped_experts=False),
    Kernels(
        cross_entropy="eager", regathers_inputs=False, gradient_sum="after_product", hides_input_sums=False
    ),
    Kernels(
        cross_entropy="loss_parallel", narrow_inputs=False, caches_narrow_weights=False, gathers_aside=True
    ),
    Kernels(
        keeps_product_gradients=True,
        flat_update=True,
        bucket_elements=5e8,
        runs_ahead=True,
        flat_gradients=True,
    ),
    Kernels(offloads_gradients=True, flat_gradients=True, frees_gradients=True),
    Kernels(bucket_elements=2e7, reduces_every_microbatch=True),
    Kernels(deferred_head_gradients=2, updates_in_backward=True),
    Kernels(gathers_each_weight=True, expert_kernels="one", narrow_experts=False, frees_gradients=True),
    Kernels(broadcasts_updates=True, shares_messages=True, keeps_stage_outputs=True, dropout=True),
    Kernels(blocking_launches=True, deterministic=True, fused_rotary=True, weighted_activation=False),
)
OVERLAPS = (
    *[Overlap()] * 3,
    Overlap(**dict.fromkeys(Overlap.__dataclass_fields__, False)),
    Overlap(tensor=True, expert=True),
    Overlap(tensor=True, shared_experts=True, bubbles=True),
    Overlap(grad_reduce=False, pipeline=False),
    Overlap(param_gather=False, bubbles=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question, as `project` takes it."""

    model: Model
    cluster: Cluster
    strategy: Layout
    workload: Workload

    @property
    def arguments(self) -> tuple[Model, Cluster, Layout, Workload]:
        return self.model, self.cluster, self.strategy, self.workload

    def __str__(self) -> str:
        text = f"seq {self.workload.seq_len} batch {self.workload.global_batch_size}"
        return (
            f"{self.model.name} × {self.model.num_layers} layers on {self.cluster.num_devices} {self.cluster.name}, "
            f"{text} {_unusual(self.workload.precision)} {self.workload.optimizer}: {_unusual(self.strategy)}"
        )


def _unusual(value: Any) -> Any:
    """Return what of a specification is not its default."""
    if not is_dataclass(value):
        return value
    usual = type(value)()
    result = {item.name: getattr(value, item.name) for item in fields(value)}
    changed = {name: _unusual(item) for name, item in result.items() if item != getattr(usual, name)}
    return f"({', '.join(f'{name}={item}' for name, item in changed.items())})"


@cache
def cut(name: str, num_layers: int) -> Model:
    """Return a catalogue model of so many layers, each of its kinds among them."""
    model = load_model(name)
    kinds = model.layer_kinds
    first = [kinds[0]] if len(kinds) > 1 and model.layers[1] == kinds[0] else []
    layers = tuple((first + list(kinds) * num_layers)[:num_layers])
    return replace(model, layers=layers)


@cache
def network(name: str, devices: int) -> Cluster:
    return load_cluster(name, devices)


def question(pick: Pick) -> Asked:
    """Return a random question; some cannot be projected."""
    model = cut(pick(MODELS), pick(LAYERS))
    layout = _degrees(pick, model)
    cluster = network(pick(CLUSTERS), layout.num_devices)
    precision = pick([item for item in PRECISIONS if _multiplies(cluster, item)])
    workload = Workload(
        seq_len=pick((512, 1024, 4096, 16384)),
        global_batch_size=layout.dp * layout.micro_batch_size * _microbatches(pick, layout),
        precision=precision,
        optimizer=pick(("adamw", "adamw", "adamw", "muon", "lion", "adafactor", "sgd")),
        varied_lengths=pick((False, False, False, True)),
    )
    return Asked(model=model, cluster=cluster, strategy=_choices(pick, layout, model), workload=workload)


@st.composite
def questions(draw: Any) -> Asked:
    """Random questions; some cannot be projected."""
    return question(lambda values: draw(st.sampled_from(values)))


def _multiplies(cluster: Cluster, precision: Precision) -> bool:
    rates = cluster.device.matrix_flops
    needs = {
        "fp8": rates.fp8,
        "mxfp8": rates.fp4,
        "nvfp4": rates.fp4,
        "tf32": rates.tf32,
        "fp32": True,
        "fp16": rates.fp16,
    }
    return bool(needs.get(precision.compute, True))


def _microbatches(pick: Pick, layout: Layout) -> int:
    if group_of(layout) is not None and layout.schedule is None:
        group = group_of(layout)
        return group * pick((1, 2, 4)) + pick((0, layout.pp if layout.pp < group else 0))
    return layout.pp * pick((1, 1, 2, 4)) if layout.vpp > 1 else pick((1, 2, 4, 8, 12))


def _degrees(pick: Pick, model: Model) -> Layout:
    pp = pick((1, 1, 2, 4))
    family = pick(families()) if pp > 1 and pick((True, False)) else None
    if family is None:
        vpp = pick((1, 1, 2)) if pp > 1 else 1
    else:
        low, high = family.vpp
        vpp = pick(range(low, min(high or low + 2, 3) + 1))
    tp, cp, dp = pick((1, 1, 2, 4)), pick((1, 1, 2, 4)), pick((1, 2, 4))
    ep = pick((1, 2, 4, 8)) if model.is_moe else 1
    replicas = pick((1, 1, 2)) if dp > 1 else 1
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        ep=ep,
        etp=pick((1, 1, tp)) if model.is_moe else 1,
        dp_replicate=replicas,
        dp_shard=dp // replicas,
        schedule=family.name if family is not None else None,
        microbatch_group=pick((None, pp, pp + 1, 2 * pp)) if vpp > 1 and family is None else None,
        sequence_pieces=pick((2, 4)),
        zero=pick((0, 1, 1, 2, 3, 3)),
        micro_batch_size=pick((1, 1, 2)),
        sp=pick((True, True, True, False)) if tp > 1 else True,
        cp_kind=pick(("all_gather", "ring", "ulysses", "hierarchical")),
        cp_balanced=pick((True, True, False)),
    )


def _choices(pick: Pick, layout: Layout, model: Model) -> Layout:
    summa = _lays_out(model) and layout.sp and pick((True, False, False))
    if summa:
        layout = replace(layout, tp_kind="summa", cp_kind="all_gather", summa_panels=pick((1, 2)))
    return replace(
        layout,
        recompute=pick(RECOMPUTE),
        overlap=pick(OVERLAPS),
        kernels=pick(KERNELS),
        offload=pick(OFFLOADS),
        routing=pick(ROUTINGS) if model.is_moe else Routing(),
        dispatcher=pick(("all_to_all", "all_to_all", "deepep", "hybridep")) if model.is_moe else "all_to_all",
        reshard=pick(("default", "default", "always", "never", 2)),
        flash_attention=pick((True, True, True, False)),
        graphs=pick(("none", "none", "router" if model.is_moe else "none", "partial", "full")),
        allocator=pick(("segments", "expandable_segments")),
        axis_order=pick((("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"), ("dp", "tp", "pp", "cp"))),
        software=pick((None, None, None, "megatron-deepspeed", "torch-compile", "xla")),
    )


def _lays_out(model: Model) -> bool:
    """Whether SUMMA can lay out the model."""
    linear = any(isinstance(kind.attention, LinearAttention) for kind in model.layer_kinds)
    return not (model.is_moe or linear or model.num_mtp_layers)
