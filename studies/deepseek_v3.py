"""Pictures and tables of the study of two published runs: DeepSeek-V3 and Llama 3 405B.

`python studies/deepseek_v3.py FOLDER` writes one Vega-Lite specification per picture, the picture as SVG where
vl-convert-python is installed, and `tables.md`. `--search` looks for better layouts too, in a minute or so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from charts import bar_chart, write

from forescale.api import ask, ask_search
from forescale.graph.ops import AttentionCore, Collective, Gemm, GroupedGemm, Primitive
from forescale.inputs import wire
from forescale.memory.peak import PARTS
from forescale.project import project
from forescale.question import Question
from forescale.search import search
from forescale.units import GIB

Row = dict[str, Any]
RUN: Row = {
    "cluster": "h800-sxm",
    "devices": 2048,
    "seq_len": 4096,
    "global_batch_size": 15360,
    "framework": "deepseek",
}
LAYOUT: Row = {"pp": 16, "ep": 64}
"""DeepSeek-V3 Technical Report (arXiv:2412.19437), sections 3.1, 3.2 and 4.2; the rest is the framework's record."""
BALANCED = (3, *(4,) * 14, 2)
"""Layers of the stages where embedding, head and the prediction of further tokens stand in a layer's place each."""
HOURS_PER_TRILLION = 180e3
"""Device hours of a trillion tokens (section 1)."""
PROFILED: tuple[tuple[str, float], ...] = (
    ("attention core, forward", 1.24),
    ("attention core, backward", 4.25),
    ("dense products, forward, replay and input gradients", 4.71),
    ("grouped products, forward and input gradients", 5.73),
    ("weight gradients of all", 8.19),
    ("dispatch, forward", 4.35),
    ("combine, forward", 6.18),
    ("dispatch of gradients", 3.41),
    ("combine of gradients", 6.18),
)
"""Milliseconds of one MoE layer and micro-batch: kernels of deepseek-ai/profile-data @449602428, train.json, over its
four layers. Compute runs on 112 of 132 cores, messages on 20 beside it, and wait for other ranks."""
LAYER_MS = 128.5 / 4
"""A layer's forward of one micro-batch and backward of another together: the span of all compute in train.json."""
DEEPEP = {"dispatch": (51e9, 1.0 + 4.0 / 128.0), "combine": (50e9, 2.0)}
"""Bytes per second and device between nodes at EP 64, and bytes of a number: deepseek-ai/DeepEP @dd758ca,
docs/legacy.md, on H800 in the setting of DeepSeek-V3."""
NODES_A_TOKEN = 4.0
"""Nodes that a token is sent to (section 2.1.2, node-limited routing)."""
LLAMA: tuple[tuple[int, int, int, int, float, float], ...] = (
    (8192, 1, 8192, 2048, 430e12, 0.43),
    (16384, 1, 8192, 2048, 400e12, 0.41),
    (16384, 16, 131072, 128, 380e12, 0.38),
)
"""Devices, cp, sequence, batch, FLOP/s of a device, MFU: The Llama 3 Herd of Models (arXiv:2407.21783), table 4."""
DROPPED = (0, *(1,) * 126, 0)
"""One layer on each of 128 virtual stages but the first, which embeds, and the last, which has the head (3.3.2)."""


def published() -> Question:
    """Return DeepSeek-V3's question."""
    return ask("deepseek-v3", **RUN, **LAYOUT)


def kernels(question: Question) -> dict[str, float]:
    """Return milliseconds of one MoE layer and micro-batch, by the kinds of kernels of `PROFILED`."""
    found = dict.fromkeys((name for name, _ in PROFILED), 0.0)
    wired = wire(question)
    layer = wired.priced.priced.layers[-1]
    for name, own in layer.operators.items():
        again = "mla_up_proj" in own.operator.modules
        for (primitive, seconds), phase in zip(own.primitives, own.passes, strict=True):
            kind = _kind(name, primitive, phase)
            if kind is not None:
                times = 2.0 if again and phase == "forward" else 1.0
                found[kind] += 1e3 * float(seconds) * times
    return found


def layer_ms(question: Question) -> float:
    """Return milliseconds of a MoE layer's forward and backward, with what is replayed and what does not hide."""
    wired = wire(question)
    seconds = wired.inputs.seconds.layers[-1].taken
    return 1e3 * float(sum((*seconds.forward_parts.values(), *seconds.backward_parts.values())))


def deepep_seconds(question: Question) -> dict[str, float]:
    """Return the seconds of dispatch and combine that DeepEP's bandwidths say."""
    sent = NODES_A_TOKEN * question.workload.seq_len * question.model.hidden_size
    return {name: sent * size / rate for name, (rate, size) in DEEPEP.items()}


def _kind(name: str, primitive: Primitive, phase: str) -> str | None:
    """Return which line of `PROFILED` a kernel counts for."""
    forward = phase == "forward"
    if isinstance(primitive, AttentionCore):
        return f"attention core, {'forward' if forward else 'backward'}"
    if isinstance(primitive, Gemm | GroupedGemm) and phase == "backward_weight":
        return "weight gradients of all"
    if isinstance(primitive, GroupedGemm):
        return "grouped products, forward and input gradients"
    if isinstance(primitive, Gemm):
        return "dense products, forward, replay and input gradients"
    if isinstance(primitive, Collective) and name in ("moe.dispatch", "moe.combine"):
        sends = (name == "moe.dispatch") == forward
        return f"{'dispatch' if sends else 'combine'}{', forward' if forward else ' of gradients'}"
    return None


def memory_rows() -> Iterator[Row]:
    """Yield the parts of every rank's memory."""
    for stage in project(published()).memory.stages:
        for part in PARTS:
            yield {"rank": stage.stage, "GiB": getattr(stage, f"{part}_bytes") / GIB, "part": part}


def kernel_rows() -> Iterator[Row]:
    """Yield kernels as published and as projected."""
    ours = kernels(published())
    for name, milliseconds in PROFILED:
        yield {"kernels": name, "ms": milliseconds, "of": "profile"}
        yield {"kernels": name, "ms": ours[name], "of": "projected"}


def step_rows() -> Iterator[Row]:
    """Yield the parts of the step."""
    for part, seconds in project(published()).time_s.items():
        yield {"part": part, "seconds": seconds, "run": "projected"}


TITLES = {
    "memory": "DeepSeek-V3: memory by pipeline rank",
    "kernels": "DeepSeek-V3: kernels of a layer, published and projected",
    "step": "Where a step goes",
}
PICTURES: dict[str, tuple[Callable[[], Iterator[Row]], dict[str, Any]]] = {
    "memory": (memory_rows, {"x": "rank", "y": "GiB", "colour": "part", "stacked": True}),
    "kernels": (kernel_rows, {"x": "ms", "y": "kernels", "colour": "of", "stacked": False}),
    "step": (step_rows, {"x": "seconds", "y": "part", "colour": "run", "stacked": False}),
}
"""Rows and axes by file."""


def deepseek_table() -> str:
    """Return DeepSeek-V3 as published beside what is projected."""
    question = published()
    found = project(question)
    step = HOURS_PER_TRILLION * 3600.0 * question.workload.tokens_per_step / 1e12 / 2048
    memory = found.memory
    balanced = project(ask("deepseek-v3", **RUN, **LAYOUT, stage_layers=BALANCED))
    lines = [
        "| | published | projected |",
        "|---|---:|---:|",
        f"| step | {step:.2f} s | {found.step_time_s:.2f} s |",
        f"| step, ends in the place of layers | | {balanced.step_time_s:.2f} s |",
        f"| memory of the fullest rank | at most 80 GB | {memory.peak_bytes / GIB:.1f} of "
        f"{memory.capacity_bytes / GIB:.1f} GiB |",
    ]
    ours = kernels(question)
    lines += [f"| {name} | {value:.2f} ms | {ours[name]:.2f} ms |" for name, value in PROFILED]
    for name, alone in deepep_seconds(question).items():
        lines.append(
            f"| {name} by DeepEP's own table | {1e3 * alone:.2f} ms | {ours[f'{name}, forward']:.2f} ms |"
        )
    lines.append(f"| a layer, forward and backward | {LAYER_MS:.1f} ms | {layer_ms(question):.1f} ms |")
    return "\n".join(lines)


def llama(devices: int, cp: int, seq_len: int, batch: int, reshard: str = "default") -> Question:
    """Return the question of one line of `LLAMA`."""
    return ask(
        "llama-3.1-405b",
        "h100-sxm",
        devices=devices,
        seq_len=seq_len,
        global_batch_size=batch,
        tp=8,
        cp=cp,
        pp=16,
        vpp=8,
        zero=2,
        stage_layers=DROPPED,
        reshard=reshard,
    )


def llama_memory() -> str:
    """Return the fullest device of Llama 3 405B where gradients wait for the last backward, and where none does."""
    lines = ["| gradients | of 80 GiB | activations |", "|---|---:|---:|"]
    for name, reshard in (
        ("whole until a stage's last backward", "default"),
        ("reduced as they come", "always"),
    ):
        memory = project(llama(*LLAMA[0][:4], reshard=reshard)).memory
        most = max(memory.stages, key=lambda stage: stage.peak_bytes)
        lines.append(f"| {name} | {most.peak_bytes / GIB:.0f} | {most.activations_bytes / GIB:.0f} |")
    return "\n".join(lines)


def llama_table() -> str:
    """Return Llama 3 405B as published beside what is projected."""
    lines = [
        "| devices | cp | tokens | TFLOP/s, published | projected | MFU, published | projected | error of the step |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for devices, cp, seq_len, batch, rate, mfu in LLAMA:
        question = llama(devices, cp, seq_len, batch)
        found = project(question)
        ours = found.mfu * (question.cluster.device.matrix_flops.bf16 or 0.0)
        lines.append(
            f"| {devices:,} | {cp} | {seq_len:,} | {rate / 1e12:.0f} | {ours / 1e12:.0f} | {mfu:.0%} | "
            f"{found.mfu:.1%} | {rate / ours - 1.0:+.1%} |"
        )
    return "\n".join(lines)


def search_table(top: int = 5) -> str:
    """Return what a search finds in the stack that DeepSeek published, and with more."""
    lines = ["| layout | step | GiB | |", "|---|---:|---:|---|"]
    found = search(ask_search("deepseek-v3", **RUN), top=top)
    for one in found.best:
        s = one.strategy
        degrees = f"tp {s.tp} cp {s.cp} ep {s.ep} pp {s.pp} vpp {s.vpp} dp {s.dp} zero {s.zero}"
        words = f"{s.schedule or '1F1B'}, {s.recompute.granularity}"
        memory = f"{one.memory.peak_bytes / GIB:.1f} | {one.memory.verdict}"
        lines.append(f"| {degrees}, {words} | {one.step_time_s:.2f} s | {memory} |")
    lines.append(f"\n{found.num_legal:,} layouts, gap {found.gap:.0%}.")
    return "\n".join(lines)


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where pictures and tables go")
    parser.add_argument("--search", action="store_true", help="look for better layouts too")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name, (rows, axes) in PICTURES.items():
        write(asked.folder, name, bar_chart(list(rows()), **axes), title=TITLES[name])
    parts = [
        "# Two published runs",
        "Written by `studies/deepseek_v3.py`.",
        "## DeepSeek-V3",
        deepseek_table(),
        "## Llama 3 405B",
        llama_table(),
        "## Its memory",
        llama_memory(),
    ]
    if asked.search:
        parts += ["## What a search finds for DeepSeek-V3", search_table()]
    (asked.folder / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
