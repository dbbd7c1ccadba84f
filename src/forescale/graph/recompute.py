"""Recompute: a set of operators replayed in backward, and with it the set of tensors no longer kept."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.graph.operator import Block, Operator, Tensor
from forescale.numeric import Numeric
from forescale.spec.strategy import Recompute

OUTPUT_DISCARDED = frozenset({"layernorm", "moe_act", "mla_up_proj"})
"""Modules whose result is dropped too, though the next linear layer saved it (Megatron's output-discarding
checkpoint); core_attn, mlp, moe and shared_experts are plain checkpoints whose output stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one block keeps per micro-batch, and which operators run forward a second time."""

    tensors: tuple[Tensor, ...]
    replayed: tuple[Operator, ...]
    working_set: tuple[Tensor, ...]
    """Tensors that exist only while one block is replayed."""

    @property
    def num_bytes(self) -> Numeric:
        """Bytes kept per micro-batch."""
        return _sum(self.tensors)

    @property
    def working_bytes(self) -> Numeric:
        """Bytes that come back while one block is replayed."""
        return _sum(self.working_set)


def _sum(tensors: tuple[Tensor, ...]) -> Numeric:
    result: Numeric = 0.0
    for tensor in tensors:
        result = result + tensor.num_bytes
    return result


def keep(block: Block, recompute: Recompute) -> Kept:
    """Apply a recompute policy to a block.

    `full` keeps the block's input and replays all of it. `selective` replays the operators of the named modules:
    what only they save is dropped, what they read from outside is kept.
    """
    if recompute.granularity == "none":
        return Kept(tensors=_named(block, _saved(block.operators)), replayed=(), working_set=())
    if recompute.granularity == "full":
        everything = _saved(block.operators)
        kept = (block.input_name,)
        return Kept(
            tensors=_named(block, kept),
            replayed=block.operators,
            working_set=_named(block, tuple(name for name in everything if name not in kept)),
        )
    wanted = set(recompute.modules)
    replayed = tuple(operator for operator in block.operators if wanted & set(operator.modules))
    others = tuple(operator for operator in block.operators if not wanted & set(operator.modules))
    fed = _fed(replayed)
    dropped_results = {
        name for operator in replayed if wanted & OUTPUT_DISCARDED & set(operator.modules) for name in operator.writes
    } - set(fed)
    kept_names = tuple(dict.fromkeys(name for name in (*_saved(others), *fed) if name not in dropped_results))
    everything = _saved(block.operators)
    return Kept(
        tensors=_named(block, kept_names),
        replayed=replayed,
        working_set=_named(block, tuple(name for name in everything if name not in kept_names)),
    )


def _fed(replayed: tuple[Operator, ...]) -> tuple[str, ...]:
    """Return the tensors that the replayed operators read before any of them wrote it."""
    made: set[str] = set()
    fed: dict[str, None] = {}
    for operator in replayed:
        fed.update(dict.fromkeys(name for name in operator.reads if name not in made))
        made.update(operator.writes)
    return tuple(fed)


def _saved(operators: tuple[Operator, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for operator in operators for name in operator.saves))


def _named(block: Block, names: tuple[str, ...]) -> tuple[Tensor, ...]:
    return tuple(block.tensors[name] for name in names)
