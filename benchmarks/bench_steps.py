"""Compare projections with measured training steps of transformers on one GPU.

Each row of STEPS.json has the `config` of a model and what was measured: `mode` (pure or autocast), `mbs` sequences
of `seq` tokens, `accum` micro-batches, `attn`, `ckpt`, `lora`, `compile`, `step_ms` and `device_used_bytes`.

Usage: python benchmarks/bench_steps.py STEPS.json [--trace] [NAME ...]. `--trace` records each model from its code
first. Prints a row for each step, and medians and 90th percentiles.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from forescale.cli import main as run

COLUMNS = f"{'step':32s}{'measured':>20s}{'time':>8s}{'half':>6s} in {'memory':>8s}{'half':>6s} in"


def flags_of(row: dict[str, Any]) -> list[str]:
    """Return the flags of a project command that asks for the step."""
    framework = "transformers" + ("@eager" if row.get("attn") == "eager" else "")
    flags = ["--cluster", "h200-sxm", "--devices", "1", "--framework", framework, "--master-dtype", "none"]
    flags += ["--seq-len", row["seq"], "--micro-batch-size", row["mbs"]]
    flags += ["--global-batch-size", row["mbs"] * row["accum"]]
    if row["mode"] == "autocast":
        flags += ["--param-dtype", "fp32", "--grad-dtype", "fp32", "--precision", "bf16"]
    else:
        flags += ["--moment-dtype", "bf16", "--grad-dtype", "bf16"]
    flags += ["--recompute", "full"] * bool(row["ckpt"]) + ["--compile", "default"] * bool(row.get("compile"))
    return [*map(str, flags)]


def answer(arguments: list[str]) -> str:
    """Return what a command prints."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        run(arguments)
    return text.getvalue()


def projected(row: dict[str, Any], folder: Path, *, trace: bool) -> dict[str, Any]:
    """Return the projection of a step."""
    config = folder / f"{row['name']}.json"
    config.write_text(json.dumps(row["config"]), encoding="utf-8")
    model, adapters = str(config), list[str]()
    if row.get("lora"):
        adapters = ["--lora-rank", str(row["lora"]), "--lora-targets", ",".join(row["targets"])]
    if trace:
        model = str(folder / f"{row['name']}.trace.json")
        precision = "autocast" if row["mode"] == "autocast" else "bf16"
        attention = ["--attention", "eager"] if row.get("attn") == "eager" else []
        arguments = [
            "trace",
            str(config),
            "-o",
            model,
            "--seq-len",
            str(row["seq"]),
            "--precision",
            precision,
        ]
        answer([*arguments, *attention, *adapters])
        adapters = []
    result: dict[str, Any] = json.loads(answer(["project", model, *flags_of(row), *adapters, "--json"]))
    return result


def row_of(row: dict[str, Any], result: dict[str, Any]) -> tuple[float, float, bool, bool, float, float]:
    """Print the row of a step; return the errors of time and memory, whether they are inside, and half-widths."""
    memory, measured = result["memory"], (row["step_ms"] / 1e3, row["device_used_bytes"])
    values = result["step_time_s"], memory["peak_bytes"]
    lows = result["step_time_low_s"], memory["peak_low_bytes"]
    highs = result["step_time_high_s"], memory["peak_high_bytes"]
    errors = [value / real - 1.0 for value, real in zip(values, measured, strict=True)]
    inside = [low <= real <= high for low, real, high in zip(lows, measured, highs, strict=True)]
    halves = [(high - low) / 2.0 / value for low, value, high in zip(lows, values, highs, strict=True)]
    print(
        f"{row['name']:32s}{row['step_ms']:9.0f} ms{row['device_used_bytes'] / 2**30:6.1f} GiB"
        f"{errors[0]:8.1%}{halves[0]:6.1%} {'in' if inside[0] else '- '}"
        f"{errors[1]:9.1%}{halves[1]:6.1%} {'in' if inside[1] else '- '}",
        flush=True,
    )
    return errors[0], errors[1], inside[0], inside[1], halves[0], halves[1]


def main() -> None:
    """Print the table."""
    path, *names = [item for item in sys.argv[1:] if item != "--trace"]
    rows = [
        row for row in json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
        if not names or row["name"] in names
    ]  # fmt: skip
    print(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        results = [row_of(row, projected(row, Path(folder), trace="--trace" in sys.argv)) for row in rows]
    for index, name in enumerate(("step time", "memory")):
        errors = sorted(abs(result[index]) for result in results)
        inside = sum(bool(result[2 + index]) for result in results)
        half = statistics.median(result[4 + index] for result in results)
        tenth = statistics.quantiles(errors, n=10, method="inclusive")[-1] if len(errors) > 1 else errors[0]
        print(
            f"{name}: median {statistics.median(errors):.1%}, 90th percentile {tenth:.1%}, "
            f"{inside} of {len(errors)} inside, half-width {half:.1%}"
        )


if __name__ == "__main__":
    main()
