"""Study of the Ultra-Scale Playbook (Hugging Face, 2025)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from charts import EQUAL, RATIO, Chart, cell_chart, degree_chart, stack_chart, titled
from study import Output, Study, bounds
from winners import Winners

from forescale.advise import Advice, advise
from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import load_model
from forescale.cost.mesh import Group
from forescale.face import ask, ask_search
from forescale.memory.peak import PARTS
from forescale.presets.playbook.preset import (
    playbook_bubble_ratio,
    playbook_cp_ratio,
    playbook_ddp_ratio,
    playbook_fsdp_ratio,
    playbook_pp_ratio,
    playbook_tp_ratio,
    ring_bandwidth,
)
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.spec import Model, Workload
from forescale.spec.attention import FullAttention
from forescale.spec.framework import searched
from forescale.spec.model import DenseFfn, Layer
from forescale.units import GIB, format_seconds
from forescale.view.axes import colour

Row = dict[str, Any]
CLUSTER = load_cluster("h100-sxm", 1024)
PEAK = CLUSTER.device.matrix_flops.bf16 or 0.0
NODE = CLUSTER.devices_per_node
PORT = CLUSTER.tiers[-1].bandwidth / 2.0
"""bf16 elements per second of one device between nodes."""
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
    """Yield a ratio of data parallelism at one sequence of 8192 tokens per device, by how ranks fill the nodes."""
    for line, stride in (("all ranks of a node", 1), (f"one rank a node (tp {NODE})", NODE)):
        for dp in DEGREES:
            if dp * stride > CLUSTER.num_devices:
                continue
            tokens = 8192.0 * (dp if all_replicas else 1)
            bandwidth = ring_bandwidth(CLUSTER, Group(size=float(dp), stride=float(stride)))
            value = ratio(dp=float(dp), peak=PEAK, tokens=tokens, bandwidth=bandwidth)
            yield {"degree": dp, "value": float(value), "line": line}


def tensor_rows() -> Iterator[Row]:
    """Yield the ratio of tensor parallelism by model; beyond a node its ranks share the ports of all nodes."""
    for name in MODELS:
        for tp in DEGREES[:5]:
            hidden = float(load_model(name).hidden_size)
            bandwidth = ring_bandwidth(CLUSTER, Group(size=float(tp)))
            value = playbook_tp_ratio(tp=float(tp), peak=PEAK, hidden_size=hidden, bandwidth=bandwidth)
            yield {"degree": tp, "value": float(value), "line": name}


def stage_rows() -> Iterator[Row]:
    """Yield the ratio of a send between stages by model, over one port."""
    for name in MODELS:
        model = load_model(name)
        for pp in DEGREES[:5]:
            value = playbook_pp_ratio(
                num_layers=model.num_layers / pp,
                peak=PEAK,
                hidden_size=float(model.hidden_size),
                bandwidth=PORT,
            )
            yield {"degree": pp, "value": float(value), "line": name}


def bubble_rows() -> Iterator[Row]:
    """Yield the bubble of 32 micro-batches."""
    for vpp in (1, 2, 4, 8):
        for pp in DEGREES[:5]:
            value = playbook_bubble_ratio(pp=float(pp), vpp=float(vpp), num_microbatches=32.0)
            yield {"degree": pp, "value": float(value), "line": "1 chunk" if vpp == 1 else f"{vpp} chunks"}


def context_rows() -> Iterator[Row]:
    """Yield the ratio of a ring step of Llama-3.1-70B by length, over one port."""
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
                bandwidth=PORT,
            )
            yield {"degree": cp, "value": float(value), "line": f"{seq_len:,} tokens"}


COLOURS = {part: colour(part, 0) for part in PARTS}
HBM: Row = {
    "limit": CLUSTER.device.hbm_bytes / GIB,
    "limit_name": f"{CLUSTER.device.hbm_bytes / GIB:.0f} GiB of an H100",
}


def memory_rows(bars: Mapping[str, Row], row: Row) -> Iterator[Row]:
    """Yield the parts of memory of the fullest device, by what differs."""
    for bar, more in bars.items():
        stage = max(
            project(ask(cluster="h100-sxm", framework="none", **{**row, **more})).memory.stages,
            key=lambda s: s.peak_bytes,
        )
        for part in PARTS:
            yield {"bar": bar, "part": part, "value": getattr(stage, f"{part}_bytes") / GIB}


def memory_chart() -> Chart:
    """Return memory by length of sequence."""
    bars = {f"{length // 1024}k": {"seq_len": length} for length in (1024, 2048, 4096, 8192, 16384)}
    rows = [*memory_rows(bars, {"model": "llama-3.1-8b", "devices": 8, "global_batch_size": 64})]
    return stack_chart(rows, x="tokens of a sequence", y="GiB", colours=COLOURS, **HBM)


def recompute_chart() -> Chart:
    """Return memory by what is recomputed."""
    selected = {
        "none": {},
        "norms": {"granularity": "selective", "modules": ["layernorm"]},
        "norms, FFN": {"granularity": "selective", "modules": ["layernorm", "mlp"]},
        "all layers": {"granularity": "full"},
    }
    bars = {name: {"recompute": how} if how else {} for name, how in selected.items()}
    question = {"model": "llama-3.1-8b", "devices": 8, "seq_len": 16384, "global_batch_size": 64, "zero": 2}
    rows = [*memory_rows(bars, question)]
    return stack_chart(rows, x="what is recomputed", y="GiB", colours=COLOURS, **HBM)


def rate_rows(over: str, lines: Mapping[str, Mapping[str, Any]], degrees: Sequence[int]) -> Iterator[Row]:
    """Yield MFU over one degree, a line per question."""
    for line, question in lines.items():
        for degree in degrees:
            result = project(ask(cluster="h100-sxm", framework="none", **{**question, over: degree}))
            yield {"degree": degree, "value": 100.0 * result.mfu, "line": line}


def activation_rows(
    over: str, lines: Mapping[str, Mapping[str, Any]], degrees: Sequence[int], part: str = "activations"
) -> Iterator[Row]:
    """Yield memory of the fullest device over one degree, a line per question."""
    for line, question in lines.items():
        for degree in degrees:
            stages = project(
                ask(cluster="h100-sxm", framework="none", **{**question, over: degree})
            ).memory.stages
            value = max(getattr(stage, f"{part}_bytes") for stage in stages) / GIB
            yield {"degree": degree, "value": value, "line": line}


def tp_chart() -> Chart:
    """Return MFU by tensor parallelism."""
    lines = {
        name: {"model": name, "devices": 64, "seq_len": 8192, "global_batch_size": 64} for name in MODELS[:2]
    }
    return degree_chart([*rate_rows("tp", lines, (1, 2, 4, 8, 16, 32))], x="tensor parallel", y="MFU, %")


def sp_chart() -> Chart:
    """Return activations by tensor parallelism, with and without sequence parallelism."""
    question = {"model": "llama-3.1-70b", "devices": 64, "seq_len": 8192, "global_batch_size": 64}
    lines = {"tp alone": {**question, "sp": False}, "tp and sp": {**question, "sp": True}}
    rows = activation_rows("tp", lines, (2, 4, 8, 16))
    return degree_chart([*rows], x="tensor parallel", y="GiB of activations")


def cp_chart() -> Chart:
    """Return memory by context parallelism, for several lengths."""
    lines = {
        f"{length // 1024}k tokens": {
            "model": "llama-3.1-8b",
            "devices": 64,
            "seq_len": length,
            "global_batch_size": 64,
            "zero": 3,
        }
        for length in (8192, 32768, 131072)
    }
    rows = activation_rows("cp", lines, (1, 2, 4, 8, 16), "peak")
    return degree_chart([*rows], x="context parallel", y="GiB", log=True, **HBM)


def pp_chart() -> Chart:
    """Return MFU by pipeline stages, for few and many micro-batches."""
    lines = {
        f"{count} micro-batches": {
            "model": "llama-3.1-70b",
            "seq_len": 8192,
            "global_batch_size": count,
            "zero": 0,
        }
        for count in (8, 32, 128)
    }
    rows = [
        row
        for degree in (1, 2, 4, 8, 16)
        for row in rate_rows(
            "pp", {name: {**line, "devices": degree} for name, line in lines.items()}, [degree]
        )
    ]
    return degree_chart(rows, x="pipeline stages", y="MFU, %")


WIDTHS = {"1.34": (16, 2048, 8192, 32), "3.57": (28, 3072, 8192, 32), "8.86": (32, 4096, 14336, 32)}
WIDTHS |= {"80.0": (80, 8192, 28672, 64)}
"""Layers, hidden and feed-forward size, heads of the models of nanotron's benchmark, by billions of parameters."""


def benchmark_model(size: str) -> Model:
    """Return a model of the benchmark: Llama's layers, all heads keyed, a vocabulary of 131,072."""
    layers, hidden, ffn, heads = WIDTHS[size]
    attention = FullAttention(num_heads=heads, num_kv_heads=heads, head_dim=hidden // heads)
    layer = Layer(attention=attention, ffn=DenseFfn(ffn_hidden_size=ffn))
    return Model(name=f"{size}B", hidden_size=hidden, layers=(layer,) * layers, vocab_size=131072)


@cache
def measured_cells() -> tuple[Row, ...]:
    """Return the 26 best configurations by size and nodes that nanotron's authors measured, from large to small.

    huggingface/nanotron at 2411b02, docs/benchmark_summary.svg: MFU, reserved memory and configuration of every cell;
    sequences of 4,096 tokens, 256 a step.
    """
    with (Path(__file__).parent / "nanotron.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


RUN: Row = {"cluster": "h100-sxm", "seq_len": 4096, "global_batch_size": 256, "framework": "nanotron"}


Cell: TypeAlias = tuple[str, str]
"""Billions of parameters, and nodes."""


def same_layout(cell: Row) -> Projection:
    """Return the projection of what was measured."""
    degrees = {
        "tp": int(cell["tp"]),
        "pp": int(cell["pp"]),
        "dp_shard": int(cell["dp"]),
        "zero": int(cell["zero"]),
    }
    size = {"devices": 8 * int(cell["nodes"]), "micro_batch_size": int(cell["micro_batch"])}
    return project(ask(benchmark_model(cell["model_b"]), **{**RUN, **degrees, **size}))


def best_layout(cell: Row, winners: Winners) -> Projection:
    """Return the best layout that a search finds for a cell, among those that nanotron runs."""
    question = ask_search(benchmark_model(cell["model_b"]), devices=8 * int(cell["nodes"]), **RUN)
    space = searched(load_framework("nanotron"), replace(question.space, cp=(1,)), limited=True)
    name = f"nanotron, {cell['model_b']} B, {cell['nodes']} nodes"
    return winners.best(name, replace(question, space=space))[0]


def cell_row(cell: Row, mfu: float, plan: Mapping[str, Any]) -> Row:
    """Return a cell with its layout in words."""
    return {
        "nodes": cell["nodes"],
        "billions of parameters": cell["model_b"],
        "MFU": mfu,
        "label": f"{mfu:.0f} %",
        "layout": f"dp {plan['dp']} tp {plan['tp']} pp {plan['pp']}",
        "more": f"mbs {plan['micro_batch']} zero {plan['zero']}",
    }


def measured_chart() -> Chart:
    """Return the measured map."""
    rows = [cell_row(cell, float(cell["mfu_pct"]), cell) for cell in measured_cells()]
    return cell_chart(rows, x="billions of parameters", y="nodes", value="MFU", top=60.0)


def swept_chart(winners: Winners) -> Chart:
    """Return the same map by our own searches."""
    rows = []
    for cell in measured_cells():
        result = best_layout(cell, winners)
        plan = result.strategy
        parts = {
            "dp": plan.dp,
            "tp": plan.tp,
            "pp": plan.pp,
            "micro_batch": plan.micro_batch_size,
            "zero": plan.zero,
        }
        rows.append(cell_row(cell, 100.0 * result.mfu_full_attention, parts))
    return cell_chart(rows, x="billions of parameters", y="nodes", value="MFU", top=60.0)


def projected_cells() -> dict[Cell, Projection]:
    """Return the projection of every measured layout, by size and nodes."""
    return {(cell["model_b"], cell["nodes"]): same_layout(cell) for cell in measured_cells()}


def too_high(cell: Row, projected: Mapping[Cell, Projection]) -> float:
    """Return by which share of the measured MFU the projected one is too high."""
    mfu = projected[cell["model_b"], cell["nodes"]].mfu_full_attention
    return 100.0 * mfu / float(cell["mfu_pct"]) - 1.0


def benchmark_table(projected: Mapping[Cell, Projection]) -> str:
    """Return every cell: what was measured, what is projected of that layout."""
    lines = ["| billions | nodes | layout measured | MFU | projected | off by |", "|--:|--:|---|--:|--:|--:|"]
    for cell in measured_cells():
        ours = 100.0 * projected[cell["model_b"], cell["nodes"]].mfu_full_attention
        names = {"dp": "dp", "tp": "tp", "pp": "pp", "micro_batch": "micro-batch", "zero": "zero"}
        parts = ", ".join(f"{name} {cell[key]}" for key, name in names.items())
        lines.append(
            f"| {cell['model_b']} | {cell['nodes']} | {parts} | {float(cell['mfu_pct']):.1f} % | {ours:.1f} % "
            f"| {too_high(cell, projected):+.0%} |"
        )
    return "\n".join(lines)


APART = ("data_comm", "tensor_comm", "bubble", "overhead")
"""Parts of a step that are not a rank's own kernels, in the table of terms."""


def missing(projected: Mapping[Cell, Projection]) -> dict[Cell, float]:
    """Return the seconds by which each measured step is longer than its projection."""
    steps = {name: result.step_time_s for name, result in projected.items()}
    return {
        (name := (cell["model_b"], cell["nodes"])): steps[name] * too_high(cell, projected)
        for cell in measured_cells()
    }


def terms_table(projected: Mapping[Cell, Projection]) -> str:
    """Return the terms of the cells of 64 and 32 nodes, and of those that are far off, in seconds per step."""
    lines = [
        f"| billions | nodes | measured | projected | kernels | {' | '.join(APART)} | missing |",
        f"|--:|--:|{'--:|' * (len(APART) + 4)}",
    ]
    gaps = missing(projected)
    for cell in measured_cells():
        name = (cell["model_b"], cell["nodes"])
        if name[1] not in ("64", "32") and too_high(cell, projected) < FAR:
            continue
        result, parts = projected[name], projected[name].time_s
        kernels = sum(seconds for part, seconds in parts.items() if part not in (*APART, "pipeline_comm"))
        numbers = (result.step_time_s + gaps[name], result.step_time_s, kernels)
        columns = [*numbers, *(parts[part] for part in APART), gaps[name]]
        lines.append(f"| {' | '.join(name)} | {' | '.join(f'{number:.3f}' for number in columns)} |")
    return "\n".join(lines)


FAR = 0.4
"""Cells whose projection is too high by more than this share."""
SMALL = ("1.34", "3.57", "8.86")
"""Sizes whose layouts have one micro-batch per step on 64 nodes."""


def term_figures(projected: Mapping[Cell, Projection]) -> Row:
    """Return what the page says of the terms of the cells that are far off."""
    gaps = missing(projected)
    alone = [gaps[size, "64"] for size in SMALL]
    wait = sum(alone) / len(alone)
    measured = {name: result.step_time_s + gaps[name] for name, result in projected.items()}
    tensor = {nodes: projected["80.0", nodes].time_s["tensor_comm"] for nodes in ("64", "4")}
    return {
        "wait": wait,
        "waits": bounds(alone),
        "waits_32": bounds(gaps[size, "32"] for size in SMALL),
        "with_wait": max(
            abs((projected[size, "64"].step_time_s + wait) / measured[size, "64"] - 1.0) for size in SMALL
        ),
        "network": bounds(
            1.0 + gaps[size, "64"] / projected[size, "64"].time_s["data_comm"] for size in SMALL
        ),
        "tensor_64": 1.0 + (gaps["80.0", "64"] - wait) / tensor["64"],
        "tensor_4": 1.0 + gaps["80.0", "4"] / tensor["4"],
        "step_80": (measured["80.0", "4"], measured["80.0", "8"]),
        "ratio_80": measured["80.0", "4"] / measured["80.0", "8"],
    }


def ratios(rows: Callable[[], Iterator[Row]], x: str, y: str = RATIO) -> Callable[[], Chart]:
    """Return what draws ratios over a degree."""
    return lambda: degree_chart([*rows()], x=x, y=y, **EQUAL)


PICTURES: dict[str, tuple[str, Callable[[], Chart]]] = {
    "memory": ("Memory by sequence length: Llama-3.1-8B on 8 H100, ZeRO 1", memory_chart),
    "recompute": (
        "Memory by what is recomputed: Llama-3.1-8B, 8 H100, 16,384 tokens, ZeRO 2",
        recompute_chart,
    ),
    "tp": ("MFU by tensor parallelism on 64 H100: it falls where tp leaves the node of 8", tp_chart),
    "sp": ("Activations of Llama-3.1-70B at 8,192 tokens, with and without sequence parallelism", sp_chart),
    "cp": ("Memory by context parallelism: Llama-3.1-8B on 64 H100, ZeRO 3", cp_chart),
    "pp": ("MFU by pipeline stages, Llama-3.1-70B: few micro-batches leave a long bubble", pp_chart),
    "data": (
        "Gradient all-reduce to backward",
        ratios(lambda: data_rows(playbook_ddp_ratio, all_replicas=False), "data parallel"),
    ),
    "zero-3": (
        "ZeRO-3 gather to forward",
        ratios(lambda: data_rows(playbook_fsdp_ratio, all_replicas=True), "data parallel"),
    ),
    "tensor": ("Tensor-parallel gather to feed-forward", ratios(tensor_rows, "tensor parallel")),
    "pipeline": ("Send to the next stage's forward", ratios(stage_rows, "pipeline stages")),
    "context": (
        "Keys and values to a step of the ring, Llama-3.1-70B",
        ratios(context_rows, "context parallel"),
    ),
    "bubble": (
        "Bubble to ideal time, 32 micro-batches",
        lambda: degree_chart([*bubble_rows()], x="pipeline stages", y="bubble / ideal time", log=True),
    ),
    "measured": ("Measured by nanotron's authors: MFU of the best configuration on H100", measured_chart),
}
"""Title and chart by file, of pictures that need no search."""
SWEPT = "By search, among what nanotron runs: MFU of the best layout on H100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """The advice on one case, and the best layout of all."""

    case: tuple[str, int, int, int]
    advice: Advice
    best: Projection

    @property
    def excess(self) -> float:
        """How much longer the advised step is than the best one, as a share of it."""
        return self.advice.advised.step_time_s / self.best.step_time_s - 1.0


def advised(case: tuple[str, int, int, int], winners: Winners) -> Advised:
    """Return the advice on one case, and what a search of the whole space finds."""
    model, devices, seq_len, batch = case
    question = Question(
        model=load_model(model),
        cluster=load_cluster("h100-sxm", devices),
        workload=Workload(seq_len=seq_len, global_batch_size=batch),
    )
    best = winners.best(f"{model}, {devices} devices, {seq_len} tokens", question)[0]
    return Advised(case=case, advice=advise(question, exact=False), best=best)


def advice_table(cases: Sequence[Advised]) -> str:
    """Return what the process finds on every case, and how far that is from the exact best."""
    lines = [
        "| model | devices | seq_len | batch | fits first | advised step | moves | best step | advised is longer by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for item in cases:
        model, devices, seq_len, batch = item.case
        fit, _, throughput = item.advice.steps
        first = next(trial.move for trial in fit.trials if trial.taken)
        moves = sum(trial.taken for trial in throughput.trials)
        lines.append(
            f"| {model} | {devices} | {seq_len:,} | {batch} | {first} "
            f"| {format_seconds(item.advice.advised.step_time_s)} "
            f"| {moves} | {format_seconds(item.best.step_time_s)} | {100.0 * item.excess:.1f} % |"
        )
    return "\n".join(lines)


def values(chart: Chart) -> list[Row]:
    """Return the rows of a chart."""
    rows: list[Row] = chart["data"]["values"]
    return rows


def bars(chart: Chart) -> dict[str, float]:
    """Return the heights of stacked bars."""
    heights: dict[str, float] = {}
    for row in values(chart):
        heights[row["bar"]] = heights.get(row["bar"], 0.0) + row["value"]
    return heights


def of_nodes(chart: Chart, nodes: str) -> tuple[float, float]:
    """Return the least and the greatest MFU on some nodes."""
    return bounds(row["MFU"] for row in values(chart) if row["nodes"] == nodes)


def benchmark_figures(charts: Mapping[str, Chart], projected: Mapping[Cell, Projection]) -> Row:
    """Return what the page says of the measured benchmark."""
    off = {(cell["model_b"], cell["nodes"]): too_high(cell, projected) for cell in measured_cells()}
    return {
        "measured_one": of_nodes(charts["measured"], "1"),
        "measured_64": of_nodes(charts["measured"], "64"),
        "swept_one": of_nodes(charts["swept"], "1"),
        "swept_64": of_nodes(charts["swept"], "64"),
        "measured_one_layouts": one_node(charts["measured"]),
        "swept_one_layouts": one_node(charts["swept"]),
        "near": sum(abs(round(100.0 * miss)) <= 12 for miss in off.values()),
        "cells": len(off),
        "off_64": bounds(miss for (_, nodes), miss in off.items() if nodes == "64"),
        "off_80": off["80.0", "4"],
    }


def picture_figures(charts: Mapping[str, Chart]) -> Row:
    """Return what the page says of the pictures."""
    length, recompute = bars(charts["memory"]), bars(charts["recompute"])
    limit = CLUSTER.device.hbm_bytes / GIB
    context = {row["degree"]: row["value"] for row in values(charts["cp"]) if row["line"] == "128k tokens"}
    stages = {(row["degree"], row["line"]): row["value"] for row in values(charts["pp"])}
    last = max(degree for degree, _ in stages)
    return {
        "pp_last": (last, stages[last, "8 micro-batches"], stages[last, "128 micro-batches"]),
        "over_from": next(bar for bar, height in length.items() if height > limit),
        "recompute_none": recompute["none"],
        "recompute_all": recompute["all layers"],
        "cp_fits": min(degree for degree, height in context.items() if height <= limit),
        **{
            f"{name.replace('-', '_')}_ends": tuple(
                next(row["value"] for row in reversed(values(charts[name])) if row["line"].startswith(start))
                for start in ("all ranks", "one rank")
            )
            for name in ("data", "zero-3")
        },
        "hidden": {
            model: max(
                row["degree"]
                for row in values(charts["tensor"])
                if row["line"] == model and row["value"] < 1.0
            )
            for model in MODELS
        },
    }


def advice_figures(cases: Sequence[Advised]) -> Row:
    """Return what the page says of the decision process."""
    far = [item.excess for item in cases if item.excess > NEAR]
    return {"cases": len(cases), "found": len(cases) - len(far), "far": bounds(far or [0.0])}


NEAR = 0.01
"""The advice is as good as the best layout within this share."""


def claims(charts: Mapping[str, Chart]) -> dict[str, bool]:
    """Return which statements of the page hold."""
    return {
        "hidden for all models up to 32 stages": all(
            row["value"] < 1.0 for row in values(charts["pipeline"])
        ),
        "MFU falls with nearly every doubling of nodes at a fixed batch": falls(charts["swept"])
        and falls(charts["measured"]),
    }


def term_claims(projected: Mapping[Cell, Projection]) -> dict[str, bool]:
    """Return which statements about the terms hold."""
    gaps = missing(projected)
    alone = [gaps[size, "64"] for size in SMALL]
    return {"whatever their size": max(alone) < 1.6 * min(alone)}


def one_node(chart: Chart) -> str:
    """Return the layouts on one node by size of model."""
    rows = [row for row in values(chart) if row["nodes"] == "1"]
    return ", ".join(f"{row['layout']} for {row['billions of parameters']} B" for row in rows)


def falls(chart: Chart) -> bool:
    """Whether MFU falls with the nodes in four of five neighbouring cells of a size."""
    sizes = dict.fromkeys(row["billions of parameters"] for row in values(chart))
    lines = [[row["MFU"] for row in values(chart) if row["billions of parameters"] == size] for size in sizes]
    falling = [bool(more < less) for line in lines for more, less in pairwise(line)]
    return sum(falling) >= 0.8 * len(falling)


def output(winners: Winners) -> Output:
    """Return tables, pictures and figures."""
    charts = {name: titled(chart(), title) for name, (title, chart) in PICTURES.items()}
    charts["swept"] = titled(swept_chart(winners), SWEPT)
    projected = projected_cells()
    cases = [advised(case, winners) for case in CASES]
    parts = ["# Tables of the study of the playbook", "Written by `studies/playbook.py`."]
    parts += ["## The measured benchmark, layout by layout", benchmark_table(projected)]
    parts += ["## Terms of the step, in seconds", terms_table(projected)]
    parts += ["## Advice and exact search on H100 nodes", advice_table(cases)]
    return Output(
        tables={"tables.md": "\n\n".join(parts) + "\n"},
        charts=charts,
        figures={
            **picture_figures(charts),
            **benchmark_figures(charts, projected),
            **term_figures(projected),
            **advice_figures(cases),
        },
        claims={**claims(charts), **term_claims(projected)},
    )


STUDY = Study(name="playbook", output=output)
