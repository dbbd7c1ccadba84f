"""Memory columns of the ALModel parallelism strategy analysis (MaxText on devices of 96 GiB).

The analysis prints figures and a legend, not its formulas. What follows reproduces the figures: states in fp32,
a buffer of two gathered layers, the results that MaxText's policies keep plus logits, and a reserve.
"""

from __future__ import annotations

from dataclasses import dataclass

from forescale.errors import SpecError
from forescale.formula import formula
from forescale.graph.layer import embedding_block, layer_block
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Parameter
from forescale.graph.parameters import count_parameters
from forescale.graph.recompute import keep
from forescale.graph.stage import plan_stages
from forescale.numeric import Numeric
from forescale.presets.preset import Account, StageBytes, memory_projection
from forescale.projection.result import Note, Projection
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.strategy import Strategy
from forescale.spec.workload import Workload

ANALYSIS = "ALModel parallelism strategy analysis"
_WEIGHT_BYTES = 4.0
_RESERVE = 0.30
_PREFETCHED_LAYERS = 2.0
_LOGIT_BYTES = 8.0


@formula(unit="1", source=f"{ANALYSIS}, Memory per device: weights, expert and non-expert")
def almodel_device_parameters(
    *, expert: Numeric, other: Numeric, ep: Numeric, fsdp: Numeric, model_ranks: Numeric
) -> Numeric:
    """(expert / EP + other) / (FSDP·TP·PP)."""
    return (expert / ep + other) / (fsdp * model_ranks)


@formula(unit="byte", source=f"{ANALYSIS}, Column Legend: W, O (Adam mu + nu), G")
def almodel_state_bytes(*, parameters: Numeric, copies: Numeric) -> Numeric:
    """Parameters·4·copies: weights and gradients one copy in fp32, the optimizer two."""
    return parameters * _WEIGHT_BYTES * copies


@formula(unit="byte", source=f"{ANALYSIS}, Column Legend: FBuf")
def almodel_fsdp_buffer(*, layer_parameters: Numeric, fsdp: Numeric) -> Numeric:
    """2 layers·full layer weight·(FSDP − 1)/FSDP."""
    return _PREFETCHED_LAYERS * layer_parameters * _WEIGHT_BYTES * (fsdp - 1.0) / fsdp


@formula(unit="byte", source=f"{ANALYSIS}, activations of remat=full less the layers' inputs")
def almodel_logits(*, tokens: Numeric, vocab_size: Numeric, tp: Numeric) -> Numeric:
    """tokens·V·8 / TP: logits in fp32 and as much again."""
    return tokens * vocab_size * _LOGIT_BYTES / tp


@formula(unit="byte", source=f"{ANALYSIS}, Column Legend: Rsv")
def almodel_reserve(*, modelled: Numeric) -> Numeric:
    """30 % of all that is modelled, for buffers and temporaries of XLA."""
    return _RESERVE * modelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Almodel:
    """Memory per device as in the ALModel analysis."""

    name: str = "almodel"
    source: str = ANALYSIS

    def project(self, model: Model, cluster: Cluster, strategy: Strategy, workload: Workload) -> Projection:
        """Project memory per device; `dp_shard` is FSDP × EP there, `dp_replicate` is DP."""
        return memory_projection(
            self.account(model, strategy, workload),
            preset=self.name,
            model=model,
            cluster=cluster,
            strategy=strategy,
            workload=workload,
        )

    def account(self, model: Model, strategy: Strategy, workload: Workload) -> Account:
        """Return bytes by stage.

        Raises
        ------
        SpecError
            If states are not sharded by FSDP, or nothing is recomputed: what that keeps is not stated.
        """
        fsdp = _fsdp(strategy, self.name)
        counts = count_parameters(model)
        ranks = float(strategy.tp * strategy.pp)
        parameters = float(
            almodel_device_parameters(
                expert=float(counts.expert),
                other=float(counts.total - counts.expert),
                ep=float(strategy.ep),
                fsdp=fsdp,
                model_ranks=ranks,
            )
        )
        buffer = almodel_fsdp_buffer(layer_parameters=full_layer(model, strategy), fsdp=fsdp)
        stages = tuple(
            _stage(parameters, float(buffer), kept, count)
            for kept, count in _activations(model, strategy, workload)
        )
        return Account(stages=stages, total_parameters=counts.total, notes=_NOTES)


def full_layer(model: Model, strategy: Strategy) -> float:
    """Return the elements that one gather brings: the largest layer's experts and the largest other block."""
    degrees, choices = split_strategy(Strategy())
    layout = Layout(
        degrees=degrees,
        choices=choices,
        precision=Workload(seq_len=1, global_batch_size=1).precision,
        seq_len=1.0,
    )
    blocks = [layer_block(model, kind, layout).parameters for kind in model.layer_kinds]
    experts = max(_elements(block, "expert") for block in blocks)
    others = [*blocks, embedding_block(model, layout).parameters]
    return (
        experts / (strategy.ep * strategy.tp)
        + max(_elements(block, "dense") for block in others) / strategy.tp
    )


def _elements(parameters: tuple[Parameter, ...], group: str) -> float:
    return sum(parameter.elements for parameter in parameters if parameter.group == group)


def _fsdp(strategy: Strategy, preset: str) -> float:
    """Return the degree that shards states: the analysis counts experts' ranks apart from it."""
    if strategy.recompute.granularity in ("none", "selective"):
        msg = (
            f"preset {preset}: the analysis does not say what is kept with recompute "
            f"{strategy.recompute.granularity!r}; use full, or a policy such as save_out_proj"
        )
        raise SpecError(msg)
    if strategy.dp_shard % strategy.ep:
        msg = f"preset {preset}: dp_shard is FSDP × EP there, but ep {strategy.ep} does not divide {strategy.dp_shard}"
        raise SpecError(msg)
    fsdp = strategy.dp_shard // strategy.ep
    if fsdp > 1 and strategy.zero != 3:
        msg = f"preset {preset} shards weights, gradients and optimizer alike: use zero 3 (FSDP), not {strategy.zero}"
        raise SpecError(msg)
    return float(fsdp)


def _activations(model: Model, strategy: Strategy, workload: Workload) -> list[tuple[float, int]]:
    """Return, per stage, bytes kept and number of layers."""
    degrees, choices = split_strategy(strategy)
    layout = Layout(
        degrees=degrees, choices=choices, precision=workload.precision, seq_len=float(workload.seq_len)
    )
    kept = [
        float(keep(layer_block(model, kind, layout), strategy.recompute).num_bytes)
        for kind in model.layer_kinds
    ]
    plan = plan_stages(model, pp=strategy.pp, vpp=strategy.vpp, stage_layers=strategy.stage_layers)
    tokens = strategy.micro_batch_size * workload.seq_len / strategy.cp
    logits = almodel_logits(tokens=tokens, vocab_size=float(model.vocab_size), tp=float(strategy.tp))
    num_microbatches = workload.global_batch_size / (strategy.dp * strategy.micro_batch_size)
    found = []
    for rank, counts in enumerate(plan.counts):
        layers = sum(count * size for count, size in zip(counts.tolist(), kept, strict=True))
        in_flight = min(float(strategy.pp - rank), num_microbatches)
        last = float(logits) if rank == strategy.pp - 1 else 0.0
        found.append((layers * in_flight + last, int(counts.sum())))
    return found


def _stage(parameters: float, buffer: float, activations: float, num_layers: int) -> StageBytes:
    copy = float(almodel_state_bytes(parameters=parameters, copies=1.0))
    modelled = StageBytes(
        num_layers=num_layers,
        parameters=parameters,
        weights=copy,
        gradients=copy,
        optimizer=float(almodel_state_bytes(parameters=parameters, copies=2.0)),
        activations=activations,
        buffers=buffer,
    )
    return StageBytes(
        num_layers=num_layers,
        parameters=parameters,
        weights=modelled.weights,
        gradients=modelled.gradients,
        optimizer=modelled.optimizer,
        activations=activations,
        buffers=buffer,
        overhead=float(almodel_reserve(modelled=modelled.total)),
    )


_NOTES = (
    Note(
        topic="activations",
        text="the analysis prints full, save_out_proj, save_qkv_proj and save_dot_except_mlp; the last two come out "
        "0.1 % above it, as it does not state the widths of its latent attention",
    ),
    Note(
        topic="buffers",
        text="its full layer weight is the experts of one layer and the embedding table: attention and the second "
        "gathered layer's own size are not in it",
    ),
    Note(
        topic="overhead",
        text="30 % as its legend and its detailed configurations say; the first table there was made with 25 %",
    ),
)
ALMODEL = Almodel()
