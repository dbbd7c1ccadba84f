"""FLOP of one sequence as the analysis counts them: products, no causal discount, and what recompute adds."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.graph.counts import BACKWARD_PER_FORWARD, model_flops, primitive_flops
from forescale.graph.layer import head_block, layer_block
from forescale.graph.layout import Layout, split_strategy
from forescale.graph.operator import Block, Operator, Part
from forescale.graph.recompute import POLICIES, needed
from forescale.presets.almodel.quirks import Quirks
from forescale.spec.model import Model
from forescale.spec.strategy import Recompute, Strategy
from forescale.spec.workload import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFlops:
    """FLOP of one sequence; `forward` and `backward` are useful, `replayed` is what recompute adds."""

    forward: float
    backward: float
    replayed: float

    @property
    def useful(self) -> float:
        """Forward and backward, nothing recomputed."""
        return self.forward + self.backward

    @property
    def overhead(self) -> float:
        """Share of the useful FLOP that recompute adds."""
        return self.replayed / self.useful


def sequence_flops(model: Model, *, seq_len: int, recompute: Recompute, quirks: Quirks) -> SequenceFlops:
    """Return the FLOP of one sequence under a recompute policy."""
    useful = model_flops(model, seq_len).full
    forward = useful / (1.0 + BACKWARD_PER_FORWARD)
    if recompute.granularity == "none":
        replayed = 0.0
    elif quirks.replays_everything:
        replayed = forward - sum(
            _spared(block, recompute) * times for block, times in _layers(model, seq_len)
        )
    else:
        replayed = sum(_replayed(block, recompute) * times for block, times in _layers(model, seq_len))
    return SequenceFlops(forward=forward, backward=useful - forward, replayed=replayed)


def parts_of_compute(model: Model, seq_len: int) -> dict[Part, float]:
    """Return the share of useful FLOP in each part of the model."""
    found: dict[Part, float] = {}
    for block, times in [*_layers(model, seq_len), (_head(model, seq_len), 1)]:
        for operator in block.operators:
            found[operator.part] = found.get(operator.part, 0.0) + _flops(operator) * times
    whole = sum(found.values())
    return {part: flops / whole for part, flops in found.items()}


def _layout(seq_len: int) -> Layout:
    """Return the layout of one whole sequence on one device."""
    degrees, choices = split_strategy(Strategy())
    return Layout(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))


def _head(model: Model, seq_len: int) -> Block:
    return head_block(model, _layout(seq_len))


def _layers(model: Model, seq_len: int) -> list[tuple[Block, int]]:
    """Return the undivided block of each kind of layer, and how many there are."""
    layout = _layout(seq_len)
    return [(layer_block(model, kind, layout), model.layers.count(kind)) for kind in model.layer_kinds]


def _held(block: Block, recompute: Recompute) -> frozenset[str]:
    """Return the tensors that a policy keeps whole: the block's input and what the policy lists."""
    shares = {} if recompute.policy is None else POLICIES[recompute.policy]
    listed = {name for name, share in shares.items() if share == 1.0 and name in block.tensors}
    return frozenset({block.input_name, *listed})


def _replayed(block: Block, recompute: Recompute) -> float:
    """Return the FLOP of the products that must run again."""
    again = needed(block, _held(block, recompute))
    return sum(_flops(operator) for operator in block.operators if operator.name in again)


def _spared(block: Block, recompute: Recompute) -> float:
    """Return the FLOP of the products whose result is kept."""
    held = _held(block, recompute)
    again, at_worst = needed(block, held), needed(block, frozenset({block.input_name}))
    return sum(
        _flops(operator)
        for operator in block.operators
        if operator.name not in again and (operator.name in at_worst or held.intersection(operator.writes))
    )


def _flops(operator: Operator) -> float:
    return sum(float(primitive_flops(primitive, "full")) for primitive in operator.forward)
