"""Pictures and tables of the study of the Ultra-Scale Playbook (Hugging Face, 2025).

`python studies/playbook.py FOLDER` writes one Vega-Lite specification per picture, the picture as SVG where
vl-convert-python is installed, and `tables.md`, in a minute or so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from charts import RATIO, ratio_chart
from subramanian2024 import drawn

from forescale.advise import Advice, advise
from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.presets.playbook.formulas import (
    playbook_bubble_ratio,
    playbook_cp_ratio,
    playbook_ddp_ratio,
    playbook_fsdp_ratio,
    playbook_pp_ratio,
    playbook_tp_ratio,
)
from forescale.spec import Workload
from forescale.spec.model import FullAttention
from forescale.units import format_seconds

Row = dict[str, Any]
CLUSTER = load_cluster("h100-sxm", 1024)
PEAK = CLUSTER.device.matrix_flops.bf16 or 0.0
NETWORKS = {tier.name: tier.bandwidth / 2.0 for tier in (CLUSTER.tiers[0], CLUSTER.tiers[-1])}
"""bf16 elements per second and device."""
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
DEGREES = tuple(2**power for power in range(1, 11))
LENGTHS = (8192, 32768, 131072)
CASES = (
    ("llama-3.1-8b", 64, 8192, 256),
    ("llama-3.1-8b", 512, 8192, 512),
    ("llama-3.1-8b", 64, 131072, 64),
    ("llama-3.1-70b", 256, 8192, 512),
    ("llama-3.1-70b", 1024, 8192, 1024),
    ("llama-3.1-405b", 1024, 8192, 1024),
    ("mixtral-8x7b", 64, 4096, 256),
    ("mixtral-8x22b", 256, 4096, 1024),
)
"""Model, devices, sequence length, global batch."""


def data_rows(ratio: Callable[..., Any], *, all_replicas: bool) -> Iterator[Row]:
    """Yield a ratio of data parallelism at one sequence of 8192 tokens per device, over both networks."""
    for network, bandwidth in NETWORKS.items():
        for dp in DEGREES:
            tokens = 8192.0 * (dp if all_replicas else 1)
            value = ratio(dp=float(dp), peak=PEAK, tokens=tokens, bandwidth=bandwidth)
            yield {"degree": dp, "ratio": float(value), "line": network}


def tensor_rows() -> Iterator[Row]:
    """Yield the ratio of tensor parallelism by model, over both networks."""
    for name in MODELS:
        for network, bandwidth in NETWORKS.items():
            for tp in DEGREES[:5]:
                hidden = float(load_model(name).hidden_size)
                value = playbook_tp_ratio(tp=float(tp), peak=PEAK, hidden_size=hidden, bandwidth=bandwidth)
                yield {"degree": tp, "ratio": float(value), "line": f"{name}, {network}"}


def stage_rows() -> Iterator[Row]:
    """Yield the ratio of a send between stages by model, over the outer network."""
    for name in MODELS:
        model = load_model(name)
        for pp in DEGREES[:5]:
            value = playbook_pp_ratio(
                num_layers=model.num_layers / pp,
                peak=PEAK,
                hidden_size=float(model.hidden_size),
                bandwidth=NETWORKS[CLUSTER.tiers[-1].name],
            )
            yield {"degree": pp, "ratio": float(value), "line": name}


def bubble_rows() -> Iterator[Row]:
    """Yield the bubble of 32 micro-batches."""
    for vpp in (1, 2, 4, 8):
        for pp in DEGREES[:5]:
            value = playbook_bubble_ratio(pp=float(pp), vpp=float(vpp), num_microbatches=32.0)
            yield {"degree": pp, "ratio": float(value), "line": "1 chunk" if vpp == 1 else f"{vpp} chunks"}


def context_rows() -> Iterator[Row]:
    """Yield the ratio of a ring step of Llama-3.1-70B by length, over the outer network."""
    model = load_model("llama-3.1-70b")
    attention = model.layers[0].attention
    assert isinstance(attention, FullAttention)
    for seq_len in LENGTHS:
        for cp in DEGREES[:6]:
            value = playbook_cp_ratio(
                cp=float(cp),
                peak=PEAK,
                hidden_size=float(model.hidden_size),
                kv_width=2.0 * attention.num_kv_heads * attention.head_dim,
                seq_len=float(seq_len),
                bandwidth=NETWORKS[CLUSTER.tiers[-1].name],
            )
            yield {"degree": cp, "ratio": float(value), "line": f"{seq_len:,} tokens"}


BUBBLE = "bubble / ideal time"
PICTURES: dict[str, tuple[str, str, str, Callable[[], Iterator[Row]]]] = {
    "data": (
        "Gradient all-reduce to backward",
        "data parallel",
        RATIO,
        lambda: data_rows(playbook_ddp_ratio, all_replicas=False),
    ),
    "zero-3": (
        "ZeRO-3 gather to forward",
        "data parallel",
        RATIO,
        lambda: data_rows(playbook_fsdp_ratio, all_replicas=True),
    ),
    "tensor": ("Tensor-parallel gather to feed-forward", "tensor parallel", RATIO, tensor_rows),
    "pipeline": ("Send to the next stage's forward", "pipeline stages", RATIO, stage_rows),
    "context": (
        "Keys and values to a step of the ring, Llama-3.1-70B",
        "context parallel",
        RATIO,
        context_rows,
    ),
    "bubble": ("Bubble to ideal time, 32 micro-batches", "pipeline stages", BUBBLE, bubble_rows),
}
"""Title, both axes and rows by file."""


def advice_of(model: str, devices: int, seq_len: int, batch: int) -> Advice:
    """Return the advice on one case, with the exact search."""
    workload = Workload(seq_len=seq_len, global_batch_size=batch)
    return advise(load_model(model), load_cluster("h100-sxm", devices), workload)


def advice_table() -> str:
    """Return what the process finds on every case, and how far that is from the exact best."""
    lines = [
        "| model | devices | seq_len | batch | fits first | advised step | moves | best step | advised is longer by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, devices, seq_len, batch in CASES:
        found = advice_of(model, devices, seq_len, batch)
        fit, _, throughput = found.steps
        first = next(trial.move for trial in fit.trials if trial.taken)
        moves = sum(trial.taken for trial in throughput.trials)
        assert found.best is not None
        assert found.excess is not None
        lines.append(
            f"| {model} | {devices} | {seq_len:,} | {batch} | {first} | {format_seconds(found.advised.step_time_s)} "
            f"| {moves} | {format_seconds(found.best.step_time_s)} | {100.0 * found.excess:.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where pictures and tables go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, x, y, rows) in PICTURES.items():
        chart = ratio_chart(list(rows()), title=title, x=x, y=y)
        text = json.dumps(chart, indent=1, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        picture = drawn(text)
        if picture is not None:
            (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
    page = (
        f"# Advice and exact search on H100 nodes\n\nWritten by `studies/playbook.py`.\n\n{advice_table()}\n"
    )
    (folder / "tables.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
