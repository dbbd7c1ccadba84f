"""The page of the study of Subramanian et al. 2024: its tables, its figures and its statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from charts import Chart, titled
from study import Output, Study, bounds
from subramanian2024 import (
    DEVICES,
    FIGURES,
    GPT,
    KEPT,
    LARGE,
    MEANT,
    PIPELINES,
    TENSORS,
    VIT,
    best,
    boundless,
    cluster,
    days,
    held,
    quirk_effects,
    quirk_table,
    scaling_table,
    systems,
    total,
    training_table,
)
from subramanian2024_engine import (
    KINDS,
    Summa,
    bubble_share,
    compute,
    cp_free,
    degrees,
    engine_best,
    engine_table,
    over_published,
    summa_cases,
    summa_table,
    validated_words,
    validation,
    validation_table,
)
from winners import Winners

from forescale.presets.subramanian2024 import Quirks, Ranked, TensorParallel
from forescale.projection.result import Projection

Figures = dict[str, Any]
Own = Mapping[tuple[str, int], Projection]
ASKED: tuple[Quirks, Quirks] = (KEPT, MEANT)
"""As published and as meant."""


def of_gpt(kind: TensorParallel, domain: int, fixed: Mapping[str, int], quirks: Quirks = KEPT) -> Ranked:
    """Return a configuration of GPT3-1T on 16,384 B200 that hold everything."""
    result = held(GPT, kind, boundless(cluster("b200", domain, LARGE)), fixed, quirks)
    assert result is not None
    return result


def fastest(
    domain: int, choices: Sequence[Mapping[str, int]], *, fits: bool, quirks: Quirks = KEPT
) -> Ranked:
    """Return the fastest of some configurations in 1D, of all or of those that fit."""
    limit = cluster("b200", domain, LARGE).device.hbm_bytes
    of_gpts = [of_gpt("1d", domain, fixed, quirks) for fixed in choices]
    return min((one for one in of_gpts if not fits or total(one) <= limit), key=lambda one: one.step_time_s)


def layout_figures() -> Figures:
    """Return what the page says of figures 1 to 3."""
    first, free = (fastest(8, TENSORS, fits=False), fastest(64, PIPELINES, fits=False))
    whole = {"pp": 1, "micro_batch_size": 8}
    deep = {"tp1": 8, "tp2": 1, "pp": 128, "micro_batch_size": 1}
    flat = {"tp1": 8, "tp2": 4, **whole}
    return {
        "figure_1_gb": total(first) / 1e9,
        "figure_2b": free,
        "figure_2b_gb": total(free) / 1e9,
        "figure_2b_fits": fastest(64, PIPELINES, fits=True),
        "pp_1": of_gpt("1d", 64, PIPELINES[0]),
        "flat": [of_gpt("summa", 64, flat, quirks).step_time_s for quirks in ASKED],
        "deep": [of_gpt("summa", 64, deep, quirks).step_time_s for quirks in ASKED],
    }


def scale_figures() -> Figures:
    """Return what the page says of figures 4 and 5."""
    every = [best(GPT, "1d", cluster("b200", 8, 2**p)) for p in range(7, 15)]
    large = {
        device: bounds(training(GPT, "1d", device, domain, LARGE) for domain in (4, 8, 64))
        for device in DEVICES
    }
    vit = best(VIT, "2d", cluster("b200", 8, LARGE))
    assert vit is not None
    return {
        "tps": ", ".join(str(one.configuration.tp1) for one in every if one),
        "days_a100": large["a100"],
        "days_b200": large["b200"],
        "domain_gpt": [domain_gain(GPT, "1d", n) for n in (128, 1024, LARGE)],
        "domain_vit": [domain_gain(VIT, "2d", n) for n in (128, LARGE)],
        "vit_gb": total(vit) / 1e9,
    }


def training(model: str, kind: TensorParallel, device: str, domain: int, n: int) -> float:
    """Return the days of a training where something fits."""
    result = best(model, kind, cluster(device, domain, n))
    assert result is not None
    return days(model, result)


def domain_gain(model: str, kind: TensorParallel, n: int) -> float:
    """Return the share of the days that domains of 64 in place of 4 save on B200."""
    small, large = (training(model, kind, "b200", domain, n) for domain in (4, 64))
    return 1.0 - large / small


def strategy_figures() -> Figures:
    """Return what the page says of 1D, 2D and SUMMA against each other."""
    figures: Figures = {}
    for name, quirks in zip(("published", "meant"), ASKED, strict=True):
        figures[name] = {
            **{kind: gains_over_1d(kind, quirks) for kind in ("2d", "summa")},
            "vit": summa_against_2d(quirks),
        }
    return figures


def gains_over_1d(kind: TensorParallel, quirks: Quirks) -> tuple[float, float, float]:
    """Return least, median and greatest gain of a strategy over 1D for GPT3-1T, over the systems of figure A4."""
    pairs = [
        (best(GPT, "1d", system, quirks), best(GPT, kind, system, quirks))
        for system in systems()
        if system.num_devices >= 128
    ]
    gains = [one.step_time_s / other.step_time_s - 1.0 for one, other in pairs if one and other]
    return min(gains), median(gains), max(gains)


def summa_against_2d(quirks: Quirks) -> Figures:
    """Return in how many cases SUMMA is slower than 2D for the ViT, and in how many it needs less memory."""
    pairs = [(best(VIT, "2d", system, quirks), best(VIT, "summa", system, quirks)) for system in systems()]
    both = [(one, other) for one, other in pairs if one and other]
    return {
        "both": len(both),
        "slower": sum(other.step_time_s > one.step_time_s for one, other in both),
        "leaner": sum(total(other) < total(one) for one, other in both),
        "median": 1.0 - median(total(other) / total(one) for one, other in both),
    }


def map_figures(charts: Mapping[str, Chart]) -> Figures:
    """Return what the page says of figures A5 and A6."""
    maps = {name: charts[f"figure-{name}"]["data"]["values"] for name in FIGURES if name[:2] in ("A5", "A6")}
    spans = {name: bounds(row["days"] for row in rows if row["days"]) for name, rows in maps.items()}
    slow = {(row["GB"], row["TB/s"]): row["days"] for row in maps["A6a"]}
    return {
        "maps": {name.replace("-", "_"): span for name, span in spans.items()},
        "much_memory": slow[768.0, 1.0],
        "fast_memory": slow[192.0, 8.0],
        "capacity_gain": {
            name.replace("-", "_"): capacity_gain(maps[name]) for name in ("A6b", "A6b-own", "A6a-own")
        },
        "bandwidth_gain": {
            name.replace("-", "_"): bandwidth_gain(maps[name], 4.0)
            for name in ("A6a", "A6a-own", "A6b", "A6b-own")
        },
    }


def cells(rows: Sequence[Figures]) -> dict[tuple[float, float], float]:
    """Return the days of a map by capacity and bandwidth, without cells in which nothing fits."""
    return {(row["GB"], row["TB/s"]): row["days"] for row in rows if row["days"]}


def capacity_gain(rows: Sequence[Figures]) -> float:
    """Return the largest gain from 192 to 768 GB at any bandwidth, as a share of the days."""
    at = cells(rows)
    return max(1.0 - at[768.0, item] / value for (size, item), value in at.items() if size == 192.0)


def bandwidth_gain(rows: Sequence[Figures], first: float) -> float:
    """Return the largest gain from a bandwidth to 16 TB/s at any capacity, as a share of the days."""
    at = cells(rows)
    return max(1.0 - at[size, 16.0] / value for (size, item), value in at.items() if item == first)


def engine_figures(local: Own, winners: Winners) -> Figures:
    """Return what the page says of our own engine."""
    ratios = {case: over_published(*case, one) for case, one in local.items()}
    published = {case: best(case[0], KINDS[case[0]], cluster("b200", 8, case[1])) for case in local}
    large, paper = local[GPT, LARGE], published[GPT, LARGE]
    assert paper is not None
    computes = [
        compute(one) / theirs.time_s.compute
        for case, one in local.items()
        if (theirs := published[case]) is not None
    ]
    alone = {n: (cp_free(winners, n), winners_of_vit(winners, n)) for n in (128, LARGE)}
    return {
        "ratios": bounds(ratio for ratio in ratios.values() if ratio),
        "computes": bounds(computes),
        "own_bubble": bubble_share(large),
        "own_pp": large.strategy.pp,
        "own_vpp": large.strategy.vpp,
        "paper_bubble": paper.time_s.bubble / paper.step_time_s,
        "paper_pp": paper.configuration.pp,
        "own_tps": ", ".join(str(one.strategy.tp) for (name, _), one in local.items() if name == GPT),
        "paper_tps": ", ".join(
            str(one.configuration.tp1) for (name, _), one in published.items() if one and name == GPT
        ),
        "own_zero_3": sum(one.strategy.zero == 3 for one in local.values()),
        "own_cp": sum(one.strategy.cp > 1 for one in local.values()),
        "own_selective": sum(one.strategy.recompute.granularity == "selective" for one in local.values()),
        "own_cases": len(local),
        "cp_1": {
            n: {
                "alone": one,
                "free": free,
                "slower": one.step_time_s / free.step_time_s - 1.0,
                "words": degrees(one),
            }
            for n, (one, free) in alone.items()
        },
    }


def winners_of_vit(winners: Winners, n: int) -> Projection:
    """Return the best layout of the ViT on some B200 with NVS 8."""
    return cp_free(winners, n, free=True)


def summa_figures(cases: Sequence[Summa]) -> Figures:
    """Return what the page says of SUMMA in our own engine."""
    on_b200 = [one for one in cases if one.device == "B200"]
    (other,) = (one for one in cases if one.device == "A100")
    return {
        "summa_gpt": bounds(one.slower for one in on_b200 if one.model == GPT),
        "summa_vit": bounds(one.slower for one in on_b200 if one.model == VIT),
        "summa_a100": other.slower,
    }


def validation_figures(paper: Mapping[str, Ranked], projections: Mapping[str, Projection]) -> Figures:
    """Return what the page says of the paper's validation."""
    at = paper["its best"].configuration
    return {
        "validated": (at.tp1, at.pp, at.dp, at.micro_batch_size),
        "validated_s": paper["its best"].step_time_s,
        "validated_own_s": projections["as measured"].step_time_s,
        "validated_more": projections["as measured"].step_time_s / paper["as measured"].step_time_s - 1.0,
        "validated_best_s": projections["its best"].step_time_s,
        "validated_words": validated_words(projections["its best"]),
    }


def claims(local: Own, cases: Sequence[Summa]) -> dict[str, bool]:
    """Return which statements of the page hold."""
    ratios = [over_published(GPT, n, one) or 0.0 for (name, n), one in local.items() if name == GPT]
    first = [fastest(8, TENSORS, fits=False, quirks=quirks).configuration for quirks in ASKED]
    second = [fastest(8, PIPELINES, fits=False, quirks=quirks).configuration for quirks in ASKED]
    grids = {one.model: one.any_grid.strategy.cp > 1 for one in cases}
    return {
        "with pp 64 the best is tp 8, dp 32, 128 micro-batches | yes | yes |": all(
            (one.tp1, one.dp, one.num_microbatches) == (8, 32, 128) for one in first
        ),
        "with tp 8 on NVS 8 the best is pp 64": all(one.pp == 64 for one in second),
        "the ViT does not fit under 1D on any system | yes | yes |": all(
            best(VIT, "1d", system, quirks) is None for quirks in ASKED for system in systems()
        ),
        "Its gap to the paper closes with scale": ratios == sorted(ratios, reverse=True),
        "is never best": all(one.slower > 0.0 for one in cases),
        "For GPT3-1T its grid is a line": not grids[GPT],
        "for the ViT it is a true grid": grids[VIT],
    }


def tables(local: Own, cases: Sequence[Summa], winners: Winners) -> tuple[str, Figures]:
    """Return all tables as one page, and the figures of those that are computed for it alone."""
    parts = [
        "# Tables of the study of Subramanian et al. 2024",
        "Written by `studies/subramanian2024_page.py`.",
    ]
    scaled: tuple[tuple[str, TensorParallel, int], ...] = (
        (GPT, "1d", 8),
        (VIT, "2d", 8),
        (GPT, "1d", 64),
        (GPT, "summa", 64),
    )
    for model, kind, domain in scaled:
        parts += [f"## Best on B200: {model}, {kind}, NVS {domain}", scaling_table(model, kind, domain)]
    for model, kind in KINDS.items():
        parts += [f"## Days of training: {model}, {kind}", training_table(model, kind)]
    effects = quirk_effects()
    parts += ["## Quirks left out, one at a time", quirk_table(effects)]
    parts += ["## All quirks left out: gpt3-1t, summa, NVS 64", scaling_table(GPT, "summa", 64, MEANT)]
    paper, validated = validation(winners)
    parts += ["## The paper's validation: GPT3-175B on 512 A100, NVS 4", validation_table(paper, validated)]
    parts += ["## Forescale's own engine: B200, NVS 8", engine_table(local)]
    parts += ["## SUMMA with Forescale's own engine", summa_table(cases)]
    hops = [one for (name, *_), one in effects.items() if name == "free_slow_hops"]
    figures = {
        "norm_gpt": effects["summa_norm_splits_sequence", GPT, "summa"],
        "norm_vit": effects["summa_norm_splits_sequence", VIT, "summa"],
        "hops_moved": bounds(one.moved for one in hops),
        "hops_loss": min(one.gains[0] for one in hops),
        **validation_figures(paper, validated),
    }
    return "\n\n".join(parts) + "\n", figures


def output(winners: Winners) -> Output:
    """Return tables, pictures and figures."""
    charts = {
        f"figure-{number}": titled(figure.chart(winners), f"Figure {number}. {figure.caption}")
        for number, figure in FIGURES.items()
    }
    local, cases = engine_best(winners), summa_cases(winners)
    text, figures = tables(local, cases, winners)
    return Output(
        tables={"tables.md": text},
        charts=charts,
        figures={
            **layout_figures(),
            **scale_figures(),
            **strategy_figures(),
            **map_figures(charts),
            **engine_figures(local, winners),
            **summa_figures(cases),
            **figures,
        },
        claims=claims(local, cases),
    )


STUDY = Study(name="subramanian2024", output=output)
