"""What every kind of context parallelism must pass: its messages and work are those of a dataflow that reaches all keys.

`DATAFLOWS` has each kind as a small program over sets: which (token, head) of queries, keys and values every rank holds,
receives, and multiplies. A new kind adds one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain, product
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace
from tests import small

from forescale.errors import ForescaleError, SpecError
from forescale.explain.explain import explain
from forescale.export import export
from forescale.frameworks.writers import WRITERS
from forescale.graph.layer import layer_block
from forescale.graph.ops import AttentionCore, Collective
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.project import project
from forescale.question import question_of
from forescale.spec.attention import FullAttention
from forescale.spec.context import CONTEXT_KINDS, ContextParallel
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Layer, Model
from forescale.spec.workload import Precision

TOKENS, HEADS, RANKS, INNER, WIDTH = 16, 4, 4, 2, 8
Cells: TypeAlias = frozenset[tuple[int, int]]
"""(token, head) pairs, each of which stands for the elements of one head of one token."""
LAYER = Layer(
    attention=FullAttention(num_heads=HEADS, num_kv_heads=HEADS, head_dim=WIDTH, causal=False),
    ffn=DenseFfn(ffn_hidden_size=64),
)
MODEL = Model(name="small", hidden_size=HEADS * WIDTH, layers=(LAYER,), vocab_size=64, max_seq_len=TOKENS)


class Run:
    """Ranks that hold equal parts of a sequence; counts what each receives and multiplies in forward."""

    def __init__(self) -> None:
        part = TOKENS // RANKS
        self.shards = [
            frozenset(product(range(at * part, (at + 1) * part), range(HEADS))) for at in range(RANKS)
        ]
        self.received: Counter[int] = Counter()
        self.pairs: list[set[tuple[int, int, int]]] = [set() for _ in range(RANKS)]

    def gathered(self, cells: list[Cells], ranks: range) -> Cells:
        """Return what `ranks` hold together; each receives all but its own."""
        whole = frozenset(chain.from_iterable(cells[rank] for rank in ranks))
        for rank in ranks:
            self.received[rank] += len(whole) - len(cells[rank])
        return whole

    def by_heads(self, cells: list[Cells], ranks: range) -> list[Cells]:
        """Return all tokens of `ranks` with an equal share of heads for each; a rank receives what it lacks."""
        whole, share = frozenset(chain.from_iterable(cells[rank] for rank in ranks)), HEADS // len(ranks)
        result = list(cells)
        for place, rank in enumerate(ranks):
            result[rank] = frozenset(cell for cell in whole if cell[1] // share == place)
            self.received[rank] += len(result[rank] - cells[rank])
        return result

    def multiply(self, rank: int, queries: Cells, keys: Cells) -> None:
        """Multiply every query by the keys of its head."""
        self.pairs[rank] |= {
            (token, head, key) for token, head in queries for key, other in keys if head == other
        }


def _all_gather(run: Run) -> None:
    for _ in ("keys", "values"):
        keys = run.gathered(run.shards, range(RANKS))
    for rank in range(RANKS):
        run.multiply(rank, run.shards[rank], keys)


def _ring(run: Run) -> None:
    _around(run, run.shards, [range(RANKS)])


def _around(run: Run, cells: list[Cells], rings: list[range]) -> None:
    for ring in rings:
        for step, (place, rank) in product(range(len(ring)), enumerate(ring)):
            keys = cells[ring[(place - step) % len(ring)]]
            run.received[rank] += 2 * len(keys) if step else 0
            run.multiply(rank, cells[rank], keys)


def _ulysses(run: Run) -> None:
    _exchanged(
        run, [range(RANKS)], lambda kept: _around(run, kept, [range(rank, rank + 1) for rank in range(RANKS)])
    )


def _hierarchical(run: Run) -> None:
    groups = [range(first, first + INNER) for first in range(0, RANKS, INNER)]
    _exchanged(run, groups, lambda kept: _around(run, kept, [range(at, RANKS, INNER) for at in range(INNER)]))


def _exchanged(run: Run, groups: list[range], core: Callable[[list[Cells]], None]) -> None:
    shards = list(run.shards)
    for group in groups:
        for _ in ("queries", "keys"):
            run.by_heads(run.shards, group)
        swapped = run.by_heads(run.shards, group)  # values
        for rank in group:
            shards[rank] = swapped[rank]
    core(shards)
    for rank in range(RANKS):
        run.received[rank] += len(run.shards[rank] - shards[rank])  # outputs of the rank's own tokens


DATAFLOWS: Mapping[str, Callable[[Run], None]] = {
    "all_gather": _all_gather,
    "ring": _ring,
    "ulysses": _ulysses,
    "hierarchical": _hierarchical,
}


def check_context_kind(
    kind: ContextParallel, dataflows: Mapping[str, Callable[[Run], None]] = DATAFLOWS
) -> None:
    """Fail with an AssertionError where a kind of context parallelism breaks a rule.

    Its dataflow must reach every key; the messages and the work of one rank must be those of the dataflow, none on one
    rank, and no more work on more ranks; heads that cannot be exchanged are refused; its time is explained; frameworks
    that have a name for it write it, others say that they do not.
    """
    assert kind.name in dataflows, f"{kind.name} has no dataflow"
    run = Run()
    dataflows[kind.name](run)
    assert len(set().union(*run.pairs)) == TOKENS * HEADS * TOKENS, "a query does not meet all keys"
    received, work = _modelled(kind)
    assert received == pytest.approx(max(run.received.values()) * WIDTH * 2.0), "bytes that a rank receives"
    assert work == pytest.approx(max(map(len, run.pairs))), "pairs that a rank multiplies"
    alone = _modelled(kind, cp=1)
    assert alone[0] == 0.0 and alone[1] == TOKENS * HEADS * TOKENS, (
        "one rank sends nothing and has all the work"
    )
    _check_legality(kind)
    assert explain(_question(kind), "step_time").value > 0.0
    _check_names(kind)
    _check_writers(kind)


def _modelled(kind: ContextParallel, cp: int = RANKS) -> tuple[float, float]:
    """Return the bytes that one rank receives in forward, and the pairs that its core multiplies."""
    degrees, choices = split_layout(
        Layout(cp=cp, cp_kind=kind.name, cp_inner=min(INNER, cp), cp_balanced=False)
    )
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(TOKENS))
    block = layer_block(MODEL, LAYER, layout)
    work = list(
        chain.from_iterable(
            operator.forward for operator in block.operators if operator.name.startswith("attention")
        )
    )
    received = 0.0
    for message in work:
        if isinstance(message, Collective) and message.axis.startswith("cp"):
            ranks = float(layout.degree(message.axis))
            received += float(message.num_bytes) * (ranks - 1.0) / ranks
    (core,) = (item for item in work if isinstance(item, AttentionCore))
    return received, float(core.pairs * core.heads)


def _question(kind: ContextParallel, model: Model = MODEL, **layout: Any) -> Any:
    run = replace(small.workload(), seq_len=TOKENS, global_batch_size=8)
    parts = {"cp": RANKS, "cp_kind": kind.name, "dp_shard": 2, "cp_balanced": False, **layout}
    if kind.halves:
        parts.setdefault("cp_inner", INNER)
    return question_of(model, small.cluster(8), run, strategy=Layout(**parts))


def _check_legality(kind: ContextParallel) -> None:
    odd = replace(LAYER, attention=replace(LAYER.attention, num_heads=3, num_kv_heads=3))
    question = _question(kind, replace(MODEL, layers=(odd,)))
    if kind.exchanges is None:
        project(question)
    else:
        with pytest.raises(SpecError, match="heads"):
            project(question)


def _check_names(kind: ContextParallel) -> None:
    for framework, names in kind.frameworks.items():
        others = (
            other.frameworks.get(framework, ()) for other in CONTEXT_KINDS.values() if other.name != kind.name
        )
        assert not set(names) & set(chain.from_iterable(others)), f"{framework} has one name for two kinds"


def _check_writers(kind: ContextParallel) -> None:
    for framework in (writer.frameworks[0] for writer in WRITERS):
        try:
            result = export(_question(kind), framework)
        except ForescaleError as error:
            assert str(error), framework
            continue
        same = result.read_back.strategy.cp_kind == result.question.layout.cp_kind
        equal = (
            result.read_back.step_time_s == result.projection.step_time_s
        )  # such as one group of all ranks
        assert same or equal or any(item.word.endswith("cp_kind") for item in result.unsaid), framework
