"""Bounds of memory that discard whole cells: states at their least, and the least that any recompute policy keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from forescale.evaluate import Inputs, footprint
from forescale.graph.layout import Choices
from forescale.graph.operator import Block
from forescale.graph.parts import Parts
from forescale.graph.recompute import keep
from forescale.memory.parameters import holdings
from forescale.memory.summary import highest_peak
from forescale.numeric import Array, mapped, smaller
from forescale.project import setting_of
from forescale.search.batches import Batch, batches, uncounted
from forescale.search.bounds import MARGIN, LeastStates
from forescale.search.cells import Cells
from forescale.search.evaluate import BLOCK_KEY, CHUNK, Gather
from forescale.search.lists import Legality
from forescale.search.places import Anywhere
from forescale.search.question import Question
from forescale.search.space import Rows
from forescale.search.tables import as_degrees, distinct
from forescale.spec.strategy import Recompute
from forescale.time.blocks import BlockCost, block_bytes
from forescale.time.data_parallel import free_traffic
from forescale.time.pieces import NO_RECOMPUTE, Piece
from forescale.time.pipeline_floor import PipelineFloor


class MemoryBounds:
    """Bytes that no layout of a cell needs less than, however states are sharded and whatever is recomputed."""

    def __init__(self, question: Question, cells: Cells, legality: Legality, anywhere: Anywhere) -> None:
        self.question, self.cells, self.anywhere = question, cells, anywhere
        self.lists = legality.lists
        self.bounds = np.full(legality.nodes.shape, np.inf)
        which, cell = np.nonzero(legality.nodes)
        variants = tuple(replace(each.first, recompute=NO_RECOMPUTE) for each in self.lists)
        bare = replace(cells.whole, variants=variants)
        least = LeastStates(question=question, cells=cells, chosen=np.arange(len(cells)))
        for batch in batches(question, bare, which, cell, anywhere=anywhere, bounded=True):
            pairs = batch.pairs
            self.bounds[which[pairs], cell[pairs]] = self._of(batch, least(batch)) * MARGIN

    def coarse(self) -> Array:
        """Return (lists, cells) bounds."""
        return self.bounds

    def fine(self, rows: Rows, cells: Rows) -> Array:
        """Return the bounds of some (list, cell) pairs: the same."""
        found: Array = self.bounds[rows, cells]
        return found

    def _of(self, batch: Batch, floor: Array) -> Array:
        """Return the bounds of a batch, whose states and standing buffers take `floor` (stages, pairs)."""
        question, choices = self.question, replace(batch.choices, recompute=NO_RECOMPUTE)
        columns = {name: values[batch.rows] for name, values in self.cells.whole.columns.items()}
        table = distinct(columns, BLOCK_KEY)
        blocks = question.blocks(as_degrees(table.columns), choices)
        pieces = least_pieces(blocks, self._policies(batch), choices)
        held = holdings(blocks)
        model = question.model
        setting = setting_of(model, question.cluster, question.workload, choices, question.run)
        peaks = np.empty(len(batch.rows))
        for start in range(0, len(peaks), CHUNK):
            part = np.arange(start, min(start + CHUNK, len(peaks)))
            degrees = as_degrees({name: values[part] for name, values in columns.items()})
            stages = batch.stages(part)
            own = mapped(held, at := Gather(table.where[part]))
            tied, num_mtp = model.tied_embeddings, model.num_mtp_layers
            pipeline = batch.pipeline
            inputs = Inputs(
                degrees=degrees,
                stages=stages,
                pieces=mapped(pieces, at),
                held=own,
                traffic=free_traffic(own, stages, degrees, tied=tied, num_mtp=num_mtp),
                floor=floor[:, part],
                pricing=batch.ranks.pricing(question, degrees, choices, part),
                pipeline=pipeline.take(part) if isinstance(pipeline, PipelineFloor) else pipeline,
            )
            found = footprint(setting, inputs)
            peaks[part] = highest_peak(found, setting.overhead, stages) if question.safe else found.peak
        return peaks

    def _policies(self, batch: Batch) -> tuple[Recompute, ...]:
        """Return what the variants of a batch's list may recompute; of counts of layers one stands for all."""
        each = self.lists[int(batch.variant[0])]
        variants = self.cells.whole.variants
        return tuple(dict.fromkeys(uncounted(variants[index].recompute) for index in each.variants[0]))


def least_pieces(blocks: Parts[Block], policies: Sequence[Recompute], choices: Choices) -> Parts[Piece]:
    """Return blocks that keep, and need at work, the least that any policy has, whichever layers it takes."""
    if not all(policy.takes_all for policy in policies):
        policies = tuple(dict.fromkeys((*policies, NO_RECOMPUTE)))
    layers = [
        [_on_layer(blocks.layers, at, each, choices) for each in policies] for at in range(len(blocks.layers))
    ]
    return Parts(
        layers=tuple(_piece(_least(each)) for each in layers),
        embedding=_piece(block_bytes(blocks.embedding, keep(blocks.embedding, NO_RECOMPUTE))),
        head=_piece(block_bytes(blocks.head, keep(blocks.head, NO_RECOMPUTE))),
        mtp=None
        if blocks.mtp is None
        else _piece(_least([_on_layer((blocks.mtp,), 0, each, choices) for each in policies])),
    )


def _on_layer(layers: Sequence[Block], at: int, policy: Recompute, choices: Choices) -> BlockCost:
    """Return the bytes of a layer under a policy, without what is offloaded.

    Layers that are replayed together keep one input, of whichever kind the first of them is.
    """
    offload = choices.offload
    own, *others = (
        block_bytes(each, keep(each, policy), offloaded=offload.modules, captured=choices.graphs == "partial")
        for each in (layers[at], *(layers if policy.unit > 1 else ()))
    )
    kept, working = own.kept_bytes, own.backward_bytes - own.kept_bytes
    if policy.unit > 1:
        kept = reduce(smaller, [each.kept_bytes for each in others]) / float(policy.unit)
        working = working + float(policy.unit - 1) * keep(layers[at], NO_RECOMPUTE).num_bytes
    kept = kept - offload.module_share * own.offloaded_bytes
    return replace(own, kept_bytes=kept, backward_bytes=kept + working, offloaded_bytes=0.0)


def _least(found: Sequence[BlockCost]) -> BlockCost:
    """Return what is kept, and needed beyond that at work, at the least of each."""
    kept = reduce(smaller, [each.kept_bytes for each in found])
    working = reduce(smaller, [each.backward_bytes - each.kept_bytes for each in found])
    pools = [each.captured_bytes for each in found if each.captured_bytes is not None]
    captured = [reduce(smaller, each) for each in zip(*pools, strict=True)]
    return replace(
        found[0],
        kept_bytes=kept,
        backward_bytes=kept + working,
        captured_bytes=(captured[0], captured[1]) if captured else None,
    )


def _piece(cost: BlockCost) -> Piece:
    return Piece(cost=cost, plain=cost)
