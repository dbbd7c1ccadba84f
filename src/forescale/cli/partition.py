"""`forescale pipeline partition`: which layers go on which pipeline stage."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forescale.cli.console import console, print_json, say
from forescale.cli.inputs import read_question
from forescale.cli.options import JsonFlag, Priced, grouped, option
from forescale.cli.render.words import table
from forescale.numeric import Array
from forescale.schedule.traces import read_run
from forescale.units import GIB

if TYPE_CHECKING:
    from forescale.search.partition import Partitioned

SCHEMA = "forescale.pipeline_partition/1"


@grouped
def partition_command(
    *,
    asked: Priced,
    measured: Path | None = option("Folder of a run of this layout: layers take what its stages took."),
    as_json: JsonFlag = False,
) -> None:
    """Find the layers of every stage that make the slowest as fast as can be, within memory.

    The embedding, the head, multi-token prediction and each kind of layer count with their own costs; where a
    stage does not fit, the layers that it has to recompute are chosen too.
    """
    from forescale.search.partition import partition_stages

    taken = None if measured is None else _seconds(measured)
    result = partition_stages(read_question(asked), taken)
    if as_json:
        print_json(_document(result))
        return
    _print(result)
    if taken is not None:
        say(
            f"measured  slowest stage {taken.max() * 1e3:.4g} ms, {result.partition.longest * 1e3:.4g} ms by this cut"
        )


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
        "step_time_s": partitioned.projection.step_time_s,
        "peak_bytes": partitioned.projection.memory.peak_bytes,
        "given_step_time_s": partitioned.even.step_time_s,
        "given_peak_bytes": partitioned.even.memory.peak_bytes,
    }


def _print(partitioned: Partitioned) -> None:
    cut, even, now = partitioned.partition, partitioned.even, partitioned.projection
    rows = table("stage", "decoder layers", "recomputed", "one micro-batch", "states and activations")
    most = cut.bounds[-1] - 2
    for stage, (low, high) in enumerate(pairwise(cut.bounds)):
        rows.add_row(
            str(stage),
            str(max(0, min(high - 1, most) - max(low - 1, 0))),
            str(len(cut.recomputed[stage])),
            f"{cut.stage_time[stage] * 1e3:.4g} ms",
            f"{cut.stage_memory[stage] / GIB:.4g} GiB",
        )
    console().print(rows)
    say(f"as given  {even.step_time_s:.4g} s a step, peak {even.memory.peak_bytes / GIB:.4g} GiB")
    selected = partitioned.strategy
    if now is even:
        say("the cut is not faster in a whole step; keep the layout as given")
        return
    say(f"this cut  {now.step_time_s:.4g} s a step, peak {now.memory.peak_bytes / GIB:.4g} GiB")
    options = f"--stage-layers {','.join(map(str, selected.stage_layers or ()))}"
    if selected.recompute.layer_ids:
        ids = ",".join(map(str, selected.recompute.layer_ids))
        options += f" --recompute full --recompute-layer-ids {ids}"
    say(f"options   {options}")
