"""The figures and tables of Subramanian et al. 2024 (arXiv:2410.00273)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from charts import layout_chart, line_chart, map_chart, measured_chart, point_chart
from study import bounds
from winners import Winners

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.cost.mesh import Group
from forescale.cost.select import Costs
from forescale.errors import InfeasibleError
from forescale.presets.subramanian2024 import Quirks, Ranked, TensorParallel, search_subramanian2024
from forescale.presets.subramanian2024.machine import machine_of
from forescale.question import Question
from forescale.report.subramanian2024 import definitions
from forescale.spec import Cluster, Workload
from forescale.spec.space import Space

BATCH = 4096
SCALES = tuple(2**power for power in range(7, 15))
DEVICES, DOMAINS = ("a100", "h200", "b200"), (4, 8, 64)
GPT, VIT = "gpt3-1t", "vit-era5"
SAMPLES = {GPT: 1e12 / 2048, VIT: 350_000 * 80.0}
"""Sequences of a whole training: 1 T tokens; 40 years of hourly ERA5, 80 times (section IV, figure 5)."""
KEPT, MEANT = Quirks(), Quirks.none()
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One picture of the paper: its caption and its chart."""

    caption: str
    chart: Callable[[Winners], Row]


@cache
def cluster(device: str, domain: int, devices: int) -> Cluster:
    """Return a system of the paper."""
    return load_cluster(f"{device}-nvs{domain}", devices)


def boundless(value: Cluster) -> Cluster:
    """Return a cluster whose devices hold everything: figures 1 to 3 show what does not fit too."""
    return replace(value, device=replace(value.device, hbm_bytes=1e18))


@cache
def best(model: str, kind: TensorParallel, value: Cluster, quirks: Quirks = KEPT) -> Ranked | None:
    """Return the fastest configuration, or None if none fits."""
    return held(model, kind, value, {}, quirks)


def held(
    model: str, kind: TensorParallel, value: Cluster, fixed: Mapping[str, int], quirks: Quirks = KEPT
) -> Ranked | None:
    """Return the fastest configuration with some degrees fixed."""
    try:
        result = search_subramanian2024(
            load_model(model),
            value,
            tensor_parallel=kind,
            global_batch_size=BATCH,
            top=1,
            quirks=quirks,
            fixed=fixed,
        )
    except InfeasibleError:
        return None
    return result.best[0]


def days(model: str, one: Ranked) -> float:
    """Return the days of a whole training."""
    return SAMPLES[model] / one.samples_per_s / 86400.0


def layouts(
    kind: TensorParallel, value: Cluster, choices: Iterable[Mapping[str, int]], model: str = GPT
) -> Row:
    """Return the chart of configurations A, B, C, ... on devices that hold everything."""
    result = [held(model, kind, boundless(value), fixed) for fixed in choices]
    shown = [one for one in result if one is not None]
    limit = value.device.hbm_bytes
    fitting = [one for one in shown if total(one) <= limit]
    winner = min(fitting, key=lambda one: one.step_time_s, default=None)
    marks = [" best" if one is winner else "" if one in fitting else " over" for one in shown]
    labels = [f"{chr(ord('A') + index)}{mark}" for index, mark in enumerate(marks)]
    axis = "configuration (best: fastest that fits; over: does not fit)"
    return layout_chart(dict(zip(labels, shown, strict=True)), axis=axis)


def scaling(model: str, kind: TensorParallel, domain: int) -> Row:
    """Return the chart of the best configuration at every scale, on B200."""
    result = {f"{n}": best(model, kind, cluster("b200", domain, n)) for n in SCALES}
    shown = {n: one for n, one in result.items() if one is not None}
    return layout_chart(shown, axis="devices", log_time=True)


def training(model: str, kind: TensorParallel) -> Row:
    """Return the chart of days over devices, for all systems."""
    rows = [
        {"devices": n, "days": days(model, one), "generation": device.upper(), "domain": f"NVS {domain}"}
        for device in DEVICES
        for domain in DOMAINS
        for n in SCALES
        if (one := best(model, kind, cluster(device, domain, n))) is not None
    ]
    return line_chart(rows, x="devices", y="days", colour="generation", dash="domain")


def speedups(kind: TensorParallel) -> Row:
    """Return the chart of step times under 1D over those under `kind`."""
    rows = []
    for device, domain, n in ((d, s, n) for d in DEVICES for s in DOMAINS for n in SCALES):
        plain, other = (best(GPT, one, cluster(device, domain, n)) for one in ("1d", kind))
        if plain is not None and other is not None:
            ratio = plain.step_time_s / other.step_time_s
            rows.append(
                {"devices": n, "speedup": ratio, "generation": device.upper(), "domain": f"NVS {domain}"}
            )
    return point_chart(rows, x="devices", y="speedup", colour="generation", shape="domain")


def changed(rate: tuple[float, float], capacity: float, bandwidth: float) -> Cluster:
    """Return 8,192 B200 with other rates (matrix, vector; TFLOP/s), capacity (GB) and bandwidth (TB/s)."""
    base = cluster("b200", 8, 8192)
    matrix = replace(base.device.matrix_flops, fp16=rate[0] * 1e12, bf16=rate[0] * 1e12)
    device = replace(
        base.device,
        matrix_flops=matrix,
        vector_flops=rate[1] * 1e12,
        hbm_bytes=capacity * 1e9,
        hbm_bandwidth=bandwidth * 1e12,
    )
    return replace(base, device=device)


RATES: list[tuple[float, float]] = definitions()["figA5a"]["rates"]
MEMORIES: list[tuple[float, float]] = definitions()["figA5a"]["memories"]
CAPACITIES, BANDWIDTHS = (
    sorted(set(values)) for values in zip(*definitions()["figA6a"]["memories"], strict=True)
)


Days = Callable[[Cluster, Winners], float | None]


def published_days(model: str, kind: TensorParallel) -> Days:
    """Return what gives the days of a whole training on a cluster, as the paper's model has them."""

    def of(value: Cluster, _: Winners) -> float | None:
        one = best(model, kind, value)
        return None if one is None else days(model, one)

    return of


def own_days(model: str) -> Days:
    """Return the same by Forescale's own engine, over all of its layouts."""

    def of(value: Cluster, winners: Winners) -> float | None:
        device = value.device
        rate = (device.matrix_flops.bf16 or 0.0) / 1e12
        name = (
            f"{model}, {rate:g} TFLOP/s, {device.hbm_bytes / 1e9:g} GB, {device.hbm_bandwidth / 1e12:g} TB/s"
        )
        result = winners.best(name, asked(model, value))
        return SAMPLES[model] / BATCH * result[0].step_time_s / 86400.0 if result else None

    return of


def asked(model: str, value: Cluster, batch: int = BATCH, space: Space | None = None) -> Question:
    """Return what Forescale's own engine is asked."""
    return Question(
        model=load_model(model), cluster=value, workload=work(model, batch), space=space or Space()
    )


def work(model: str, batch: int = BATCH) -> Workload:
    """Return the batch that a model is trained on."""
    return Workload(seq_len=load_model(model).max_seq_len, global_batch_size=batch)


def rate_map(of: Days, winners: Winners) -> Row:
    """Return the chart of days over the FLOP rate and the memory, both as they come."""
    rows = [
        {
            "memory": f"{capacity:g} GB, {bandwidth:g} TB/s",
            "TFLOP/s": rate[0],
            "days": of(changed(rate, capacity, bandwidth), winners),
        }
        for rate in RATES
        for capacity, bandwidth in MEMORIES
    ]
    return map_chart(rows, x="memory", y="TFLOP/s", value="days")


def memory_map(of: Days, winners: Winners) -> Row:
    """Return the chart of days over the memory's capacity and bandwidth."""
    rows = [
        {
            "GB": capacity,
            "TB/s": bandwidth,
            "days": of(changed(RATES[2], capacity, bandwidth), winners),
        }
        for capacity in CAPACITIES
        for bandwidth in BANDWIDTHS
    ]
    return map_chart(rows, x="TB/s", y="GB", value="days")


MEASURED = Path(__file__).parents[1] / "data" / "published" / "kernels.csv"
NEAR = (2, 4)
"""Ranks in a node of the paper's Figure A1."""


def gather_chart(_: Winners) -> Row:
    """Return the time of an all-gather among 32 A100 by size: as measured, by the paper's formula, by our engine."""
    value, size = load_cluster("perlmutter", 32 * 4 // NEAR[0]), 32
    with MEASURED.open(encoding="utf-8") as file:
        timed = [
            row
            for row in csv.DictReader(file)
            if row["id"].startswith("PERLM") and row["op"] == "allgather" and row["n_gpus"] == str(size)
        ]
    paper, collective_model = machine_of(value), Costs().collective_model(value)
    rows: list[Row] = []
    for near in NEAR:
        group = Group(size=float(near), outer=((float(size // near), float(value.devices_per_node)),))
        sizes = sorted({float(row["msg_bytes"]) for row in timed if row["gpus_per_node"] == str(near)})
        for volume in sizes:
            seconds = {
                "the paper's formula": float(
                    paper.collective(
                        kind="all_gather",
                        num_bytes=volume,
                        num_ranks=float(size),
                        near=float(near),
                        quirks=MEANT,
                    )
                ),
                "Forescale": float(
                    collective_model.seconds(kind="all_gather", num_bytes=volume, group=group)
                ),
            }
            rows += [
                {"MB": volume / 1e6, "ms": 1e3 * s, "of": of, "ranks": f"{near} a node"}
                for of, s in seconds.items()
            ]
        rows += [
            {
                "MB": float(row["msg_bytes"]) / 1e6,
                "ms": float(row["time_us"]) / 1e3,
                "of": "measured",
                "ranks": f"{near} a node",
            }
            for row in timed
            if row["gpus_per_node"] == str(near)
        ]
    return measured_chart(rows, x="MB", y="ms", colour="ranks", of="of")


TENSORS, PIPELINES, SQUARES, LONG = (
    tuple(definitions()[name]["hold"]) for name in ("fig1", "fig2a", "fig3a", "figA2b")
)
LARGE = 16384
FIGURES: dict[str, Figure] = {
    "1": Figure(
        caption="GPT3-1T, 1D, 16,384 B200, NVS 8: pp 64, micro-batch 1, tp from 1 to 32",
        chart=lambda _: layouts("1d", cluster("b200", 8, LARGE), TENSORS),
    ),
    "2a": Figure(
        caption="As 1 with tp 8, pp from 1 to 128",
        chart=lambda _: layouts("1d", cluster("b200", 8, LARGE), PIPELINES),
    ),
    "2b": Figure(
        caption="As 2a with NVS 64", chart=lambda _: layouts("1d", cluster("b200", 64, LARGE), PIPELINES)
    ),
    "3a": Figure(
        caption="GPT3-1T, SUMMA, 16,384 B200, NVS 8: tp 32 with pp 1, then tp 8 with pp 128",
        chart=lambda _: layouts("summa", cluster("b200", 8, LARGE), SQUARES),
    ),
    "3b": Figure(
        caption="As 3a with NVS 64", chart=lambda _: layouts("summa", cluster("b200", 64, LARGE), SQUARES)
    ),
    "4a": Figure(caption="GPT3-1T, 1D, best on B200, NVS 8", chart=lambda _: scaling(GPT, "1d", 8)),
    "4b": Figure(caption="ViT, 2D, best on B200, NVS 8", chart=lambda _: scaling(VIT, "2d", 8)),
    "5a": Figure(caption="GPT3-1T, 1D: days for 1 T tokens", chart=lambda _: training(GPT, "1d")),
    "5b": Figure(caption="ViT, 2D: days for 40 years of ERA5, 80 times", chart=lambda _: training(VIT, "2d")),
    "A1": Figure(caption="All-gather among 32 A100 of Perlmutter, 2 and 4 ranks a node", chart=gather_chart),
    "A2a": Figure(
        caption="As 3b with 2D", chart=lambda _: layouts("2d", cluster("b200", 64, LARGE), SQUARES)
    ),
    "A2b": Figure(
        caption="ViT, 2D, 16,384 B200, NVS 64: tp 16 with pp 1, then with pp 16",
        chart=lambda _: layouts("2d", cluster("b200", 64, LARGE), LONG, VIT),
    ),
    "A3a": Figure(caption="GPT3-1T, 1D, best on B200, NVS 64", chart=lambda _: scaling(GPT, "1d", 64)),
    "A3b": Figure(caption="GPT3-1T, SUMMA, best on B200, NVS 64", chart=lambda _: scaling(GPT, "summa", 64)),
    "A4a": Figure(caption="GPT3-1T: SUMMA over 1D", chart=lambda _: speedups("summa")),
    "A4b": Figure(caption="GPT3-1T: 2D over 1D", chart=lambda _: speedups("2d")),
    **{
        f"{number}{letter}{suffix}": Figure(
            caption=f"{what}, 8,192 devices, NVS 8: days over {over}{by}", chart=partial(chart, of)
        )
        for number, over, chart in (
            ("A5", "FLOP rate and memory", rate_map),
            ("A6", "capacity and bandwidth", memory_map),
        )
        for letter, what, model, kind in (("a", "GPT3-1T, 1D", GPT, "1d"), ("b", "ViT, 2D", VIT, "2d"))
        for suffix, by, of in (
            ("", "", published_days(model, cast("TensorParallel", kind))),
            ("-own", ", by Forescale's own engine", own_days(model)),
        )
    },
}


def total(one: Ranked) -> float:
    """Return the bytes on one device."""
    return float(one.memory_bytes.total)


def near(one: Ranked) -> str:
    """Return which ranks share a fast domain."""
    placed = asdict(one.configuration.placement)
    return " ".join(f"{name} {count}" for name, count in placed.items() if count > 1) or "–"


def scaling_table(model: str, kind: TensorParallel, domain: int, quirks: Quirks = KEPT) -> str:
    """Return the best configurations on B200 over devices, in Markdown."""
    lines = [
        "| devices | tp1 × tp2 | pp | dp | micro-batch | m | near | step (s) | days | GB "
        "| compute | tp | dp | pp | bubble |",
        "|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for n in SCALES:
        one = best(model, kind, cluster("b200", domain, n), quirks)
        if one is None:
            lines.append(f"| {n:,} | none fits |" + " |" * 13)
            continue
        config, times = one.configuration, one.time_s
        parts = (times.compute, times.tensor, times.data, times.pipeline, times.bubble)
        shares = " | ".join(f"{100.0 * part / one.step_time_s:.1f} %" for part in parts)
        lines.append(
            f"| {n:,} | {config.tp1} × {config.tp2} | {config.pp} | {config.dp} | {config.micro_batch_size} "
            f"| {config.num_microbatches} | {near(one)} | {one.step_time_s:.2f} | {days(model, one):.1f} "
            f"| {total(one) / 1e9:.0f} | {shares} |"
        )
    return "\n".join(lines)


def training_table(model: str, kind: TensorParallel) -> str:
    """Return days of training over devices for all systems, in Markdown."""
    lines = [
        "| system | " + " | ".join(f"{n:,}" for n in SCALES) + " |",
        "|---|" + "--:|" * len(SCALES),
    ]
    for device in DEVICES:
        for domain in DOMAINS:
            bests = (best(model, kind, cluster(device, domain, n)) for n in SCALES)
            cells = (f"{days(model, one):.1f}" if one else "–" for one in bests)
            lines.append(f"| {device.upper()}, NVS {domain} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What leaving a quirk out changes over all devices, domains and sizes."""

    moved: int
    """Best configurations that change."""
    both: int
    """Cases with a result either way."""
    gains: tuple[float, float]
    """Least and greatest change of throughput."""


def quirk_effects() -> dict[tuple[str, str, TensorParallel], Effect]:
    """Return what leaving out each quirk changes, by quirk, model and strategy; what changes nothing is left out."""
    effects: dict[tuple[str, str, TensorParallel], Effect] = {}
    for name, model, kind in ((n, m, k) for n in asdict(KEPT) for m in (GPT, VIT) for k in STRATEGIES):
        if kind not in OF_STRATEGY.get(name, STRATEGIES):
            continue
        left_out = replace(KEPT, **{name: False})
        pairs = [(best(model, kind, system), best(model, kind, system, left_out)) for system in systems()]
        both = [(one, other) for one, other in pairs if one is not None and other is not None]
        gains = [other.samples_per_s / one.samples_per_s - 1.0 for one, other in both]
        if both and max(map(abs, gains)) > 5e-4:
            moved = sum(one.configuration != other.configuration for one, other in both)
            effects[name, model, kind] = Effect(moved=moved, both=len(both), gains=bounds(gains))
    return effects


def systems() -> list[Cluster]:
    """Return every device with every domain and size."""
    return [cluster(device, domain, 2**p) for device in DEVICES for domain in DOMAINS for p in range(2, 15)]


STRATEGIES: tuple[TensorParallel, ...] = ("1d", "2d", "summa")
OF_STRATEGY: dict[str, tuple[TensorParallel, ...]] = {
    "summa_norm_splits_sequence": ("summa",),
    "projection_bias_splits_hidden": ("2d",),
}
"""Strategies whose operations have a quirk; the others are the same without it."""


def quirk_table(effects: Mapping[tuple[str, str, TensorParallel], Effect]) -> str:
    """Return what leaving out each quirk changes over all 54 studies, in Markdown."""
    lines = ["| left out | model | strategy | best changes | throughput |", "|---|---|---|--:|--:|"]
    for (name, model, kind), one in effects.items():
        low, high = (100.0 * gain for gain in one.gains)
        lines.append(
            f"| `{name}` | {model} | {kind} | {one.moved} of {one.both} | {low:+.1f} % to {high:+.1f} % |"
        )
    return "\n".join(lines)
