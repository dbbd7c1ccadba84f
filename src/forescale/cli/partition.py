"""`forescale pipeline partition`: which layers go on which pipeline stage."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forescale.cli.console import show
from forescale.cli.declare import option
from forescale.cli.formats import Answer
from forescale.cli.inputs import read_question
from forescale.cli.options import Priced
from forescale.cli.output import OutputOptions
from forescale.numeric import Array
from forescale.report.document import View, facts, line, table
from forescale.schedule.traces import read_run
from forescale.struct import attributes
from forescale.units import GIB

if TYPE_CHECKING:
    from forescale.projection.result import Projection
    from forescale.schedule.optimise.partition import Partition
    from forescale.search.partition import Partitioned
    from forescale.spec import Layout

SCHEMA = "forescale.pipeline_partition/1"


def partition_command(
    *,
    request: Priced,
    measured: Path | None = option("Folder of a run of this layout: layers take what its stages took."),
    output: OutputOptions,
) -> None:
    """Find the layers of every stage that make the slowest as fast as can be, within memory.

    The embedding, the head, multi-token prediction and each kind of layer count with their own costs; where a
    stage does not fit, the layers that it has to recompute are chosen too.
    """
    from forescale.search.partition import partition_stages

    taken = None if measured is None else _seconds(measured)
    result = partition_stages(read_question(request), taken)
    show(Answer(view=lambda: _view(result, taken), document=lambda: _document(result)), output)


def _seconds(folder: Path) -> Array:
    """Return what a micro-batch took on each stage of a run."""
    times = read_run(folder).typical.times
    return 1e-3 * (np.asarray(times.forward) + times.input_grad + times.weight_grad)


def _document(partitioned: Partitioned) -> dict[str, Any]:
    selected = partitioned.strategy
    return {
        "schema": SCHEMA,
        "stage_layers": None if selected.stage_layers is None else list(selected.stage_layers),
        "recomputed_layers": list(selected.recompute.layer_ids),
        "bounds": list(partitioned.partition.bounds),
        "stage_time_s": list(partitioned.partition.stage_time),
        "stage_memory_bytes": list(partitioned.partition.stage_memory),
        **attributes(partitioned.projection, "step_time_s", "peak_bytes=memory.peak_bytes"),
        **attributes(partitioned.even, "given_step_time_s=step_time_s", "given_peak_bytes=memory.peak_bytes"),
    }


def _view(partitioned: Partitioned, taken: Array | None) -> View:
    cut, even, now = partitioned.partition, partitioned.even, partitioned.projection
    if now is even:
        return _view_as_given(partitioned, taken)
    rows = (
        (
            str(stage),
            str(layers),
            str(len(cut.recomputed[stage])),
            f"{cut.stage_time[stage] * 1e3:.4g} ms",
            f"{cut.stage_memory[stage] / GIB:.4g} GiB",
        )
        for stage, layers in enumerate(_layers(partitioned))
    )
    headings = ("stage", "decoder layers", "recomputed", "one micro-batch", "states and activations")
    steps = [("as given", _step(even)), ("this cut", _step(now)), ("options", _options(partitioned.strategy))]
    return View(contents=(table(*headings, rows=rows), facts([*steps, *_measured(cut, taken)])))


def _measured(cut: Partition, taken: Array | None) -> list[tuple[str, str]]:
    """Return what the slowest stage took, and takes by a cut; nothing where nothing was measured."""
    if taken is None:
        return []
    return [("measured", f"slowest stage {taken.max() * 1e3:.4g} ms, {cut.longest * 1e3:.4g} ms by this cut")]


def _layers(partitioned: Partitioned) -> list[int]:
    """Return the decoder layers of every stage of the cut, whose first layer is the embedding and last one the head."""
    most = partitioned.partition.bounds[-1] - 2
    return [
        max(0, min(high - 1, most) - max(low - 1, 0)) for low, high in pairwise(partitioned.partition.bounds)
    ]


def _view_as_given(partitioned: Partitioned, taken: Array | None) -> View:
    """Return the stages of the layout as it was given, than which no cut is faster."""
    even = partitioned.even
    rows = (
        (
            str(place.stage),
            str(place.num_layers),
            f"{(spent.forward_s + spent.backward_s) * 1e3:.4g} ms",
            f"{place.peak_bytes / GIB:.4g} GiB",
        )
        for place, spent in zip(even.memory.stages, even.stage_times, strict=True)
    )
    headings = ("stage", "decoder layers", "one micro-batch", "peak")
    tried = ",".join(map(str, _layers(partitioned)))
    kept = line(f"keep the layout as given: the best other cut, {tried}, is not faster in a whole step")
    steps = [("as given", _step(even)), *_measured(partitioned.partition, taken)]
    return View(contents=(table(*headings, rows=rows), facts(steps), kept))


def _step(one: Projection) -> str:
    memory = one.memory
    return f"{one.step_time_s:.4g} s a step, peak {memory.peak_bytes / GIB:.4g} GiB, {memory.verdict}"


def _options(layout: Layout) -> str:
    options = f"--stage-layers {','.join(map(str, layout.stage_layers or ()))}"
    if layout.recompute.layer_ids:
        ids = ",".join(map(str, layout.recompute.layer_ids))
        options += f" --recompute full --recompute-layer-ids {ids}"
    return options
