"""Read every model type of the installed transformers at its default configuration, and count its parameters.

Biases that routers add to scores are buffers in transformers, and parameters in descriptions by layers.

Usage: python benchmarks/bench_types.py [causal | image | TYPE ...]. Rows are appended to types.csv, and types that
have a row are left out, so that an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import csv
import gc
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

from forescale.frameworks.huggingface import read_huggingface  # noqa: E402
from forescale.graph.counts import count_parameters  # noqa: E402
from forescale.graph.recorded import recorded_types  # noqa: E402
from forescale.trace.sources import source_of_config  # noqa: E402

TABLE = Path(__file__).parent / "types.csv"
COLUMNS = ("type", "kind", "by", "parameters", "equal", "seconds", "error")
SECONDS = 600
"""CPU time after which a type counts as not read."""
KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}


def row_of(kind: str, group: str) -> dict[str, Any]:
    """Return the row of a type: how it is read, and whether its parameters are those of the meta build."""
    start, config = time.process_time(), {"model_type": kind}
    row: dict[str, Any] = {"type": kind, "kind": group}
    try:
        module = source_of_config(config, parameters="bf16").module
        row["parameters"] = sum(item.numel() for item in module.parameters())
    except Exception as error:
        row["error"] = f"not built: {first_line(error)}"
        return row
    try:
        model = read_huggingface(config, name=kind, where=kind).model
    except Exception as error:
        row["error"] = first_line(error)
    else:
        total = count_parameters(model).total
        row["by"] = ("recording" if kind in recorded_types() else "trace") if model.traces else "layers"
        biases = sum(
            item.numel() for name, item in module.named_buffers() if name.endswith("correction_bias")
        )
        row["equal"] = total in (row["parameters"], row["parameters"] + biases)
        row["error"] = "" if row["equal"] else f"{total:.0f} parameters"
    row["seconds"] = round(time.process_time() - start, 1)
    return row


def first_line(error: Exception) -> str:
    """Return the first line of an error, without the folder of packages."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text.replace(str(Path(transformers.__file__).parents[1]) + '/', '')}"[
        :300
    ]


def main() -> None:
    """Append the rows of the types that have none."""
    chosen = sys.argv[1:] or list(KINDS)
    rows = list(csv.DictReader(TABLE.open(encoding="utf-8"))) if TABLE.exists() else []
    known = {row["type"] for row in rows}
    types = {kind: group for group in KINDS for kind in KINDS[group] if {group, kind} & {*chosen}}
    torch.set_num_threads(1)
    row_of("llama", "")  # imports what all types need
    gc.freeze()
    for kind, group in types.items():
        if kind in known:
            continue
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            append(row_of(kind, group))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            append({"type": kind, "kind": group, "error": f"not read in {SECONDS} s of CPU time"})


def append(row: dict[str, Any]) -> None:
    """Write one row."""
    first = not TABLE.exists()
    with TABLE.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if first:
            writer.writeheader()
        writer.writerow(row)
    print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
