"""The questions of Subramanian et al. 2024 asked of our own engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from subramanian2024 import GPT, LARGE, VIT, asked, best, cluster, total
from winners import Winners

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.presets.subramanian2024 import Ranked, TensorParallel, search_subramanian2024
from forescale.project import project
from forescale.projection.result import Projection
from forescale.spec import Layout, Precision
from forescale.spec.space import Space


def engine_best(winners: Winners) -> dict[tuple[str, int], Projection]:
    """Return the best layouts of our own engine on B200 with NVS 8, by model and devices."""
    return {
        (name, n): winners.best(f"{name}, {n} B200, NVS 8", asked(name, cluster("b200", 8, n)))[0]
        for name in KINDS
        for n in (256, 2048, LARGE)
    }


KINDS: dict[str, TensorParallel] = {GPT: "1d", VIT: "2d"}
"""The strategy that the paper prefers for each model."""


def over_published(name: str, n: int, one: Projection) -> float | None:
    """Return the step of our own engine over that of the paper's best."""
    result = best(name, KINDS[name], cluster("b200", 8, n))
    return one.step_time_s / result.step_time_s if result else None


def bubble_share(one: Projection) -> float:
    """Return the share of the step that is bubble."""
    return abs(one.time_s["bubble"]) / one.step_time_s


def engine_table(projections: Mapping[tuple[str, int], Projection]) -> str:
    """Return what Forescale's own engine finds best for the same questions, in Markdown."""
    lines = [
        "| model | devices | layout | recompute | step (s) | over the paper's best | MFU | bubble | GB |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|",
    ]
    for (name, n), one in projections.items():
        ratio = over_published(name, n, one)
        lines.append(
            f"| {name} | {n:,} | {degrees(one)} | {one.strategy.recompute.granularity} | {one.step_time_s:.2f} "
            f"| {f'{ratio:.2f}' if ratio else '–'} "
            f"| {100.0 * one.mfu:.0f} % | {100.0 * bubble_share(one):.1f} % "
            f"| {one.memory.peak_bytes / 1e9:.0f} |"
        )
    return "\n".join(lines)


def compute(one: Projection) -> float:
    """Return the seconds of compute, without what is recomputed."""
    return sum(one.time_s[part] for part in ("attention", "ffn", "moe", "norm", "embedding", "head"))


def cp_free(winners: Winners, n: int, *, free: bool = False) -> Projection:
    """Return the best layout of the ViT on B200 with NVS 8: without context parallelism, or any."""
    space = Space() if free else Space(cp=(1,))
    where = f"{VIT}, {n} B200, NVS 8"
    return winners.best(where if free else f"{where}, cp 1", asked(VIT, cluster("b200", 8, n), space=space))[
        0
    ]


def degrees(one: Projection) -> str:
    """Return the degrees of a layout above 1."""
    plan = one.strategy
    names = ("tp", "cp", "pp", "vpp", "dp", "zero")
    return " ".join(f"{name} {getattr(plan, name)}" for name in names if getattr(plan, name) > 1)


VALIDATED = {"tp1": 4, "pp": 16, "micro_batch_size": 1}
"""What the paper ran on Perlmutter (section IV): GPT3-175B on 512 A100 in nodes of 4, 8 replicas, a batch of 1,024."""


def validation(winners: Winners) -> tuple[dict[str, Ranked], dict[str, Projection]]:
    """Return the configuration that the paper measured and the best one: in the paper's model, in our own engine."""
    value = load_cluster("a100-nvs4", 512)
    paper = {
        name: search_subramanian2024(
            load_model("gpt3-175b"),
            value,
            tensor_parallel="1d",
            global_batch_size=1024,
            top=1,
            fixed=fixed,
        ).best[0]
        for name, fixed in {"as measured": VALIDATED, "its best": {}}.items()
    }
    question = asked("gpt3-175b", value, 1024)
    work = replace(question.workload, precision=Precision(compute="fp16", parameters="fp16"))
    run = project(replace(question, workload=work, strategy=Layout(tp=4, pp=16, dp_shard=8, zero=1)))
    return paper, {"as measured": run, "its best": winners.best("gpt3-175b, 512 A100, NVS 4", question)[0]}


def validation_table(paper: Mapping[str, Ranked], projections: Mapping[str, Projection]) -> str:
    """Return the step of the configuration that the paper measured, and the best of both models, in Markdown."""
    lines = ["| who | configuration | step (s) | GB |", "|---|---|--:|--:|"]
    for name, one in paper.items():
        at = one.configuration
        text = f"tp {at.tp1}, pp {at.pp}, dp {at.dp}, micro-batch {at.micro_batch_size}"
        lines.append(
            f"| the paper's model, {name} | {text} | {one.step_time_s:.1f} | {total(one) / 1e9:.0f} |"
        )
    for name, item in projections.items():
        lines.append(
            f"| Forescale's own engine, {name} | {validated_words(item)} | {item.step_time_s:.1f} "
            f"| {item.memory.peak_bytes / 1e9:.0f} |"
        )
    return "\n".join(lines)


def validated_words(one: Projection) -> str:
    """Return the degrees of a layout as the table of the validation has them."""
    plan = one.strategy
    return f"tp {plan.tp}, pp {plan.pp}, vpp {plan.vpp}, dp {plan.dp}, micro-batch {plan.micro_batch_size}"


SUMMA = Space(tp_kind=("summa",), summa_panels=(1, 2, 4, 8, 16))
GRIDS = replace(SUMMA, cp=(2, 4, 8, 16))
CASES = [("b200", 64, GPT, n) for n in (256, 1024, 4096, LARGE)]
CASES += [("b200", 64, VIT, 1024), ("b200", 64, VIT, 4096), ("a100", 4, GPT, 4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summa:
    """The best layouts of one case: of any kind, with SUMMA, and with SUMMA whose grid has two dimensions."""

    device: str
    domain: int
    model: str
    num_devices: int
    free: Projection
    any_grid: Projection
    square: Projection

    @property
    def slower(self) -> float:
        """How much longer a step takes with SUMMA than with any layout, as a share."""
        return self.any_grid.step_time_s / self.free.step_time_s - 1.0


def summa_cases(winners: Winners) -> list[Summa]:
    """Return what SUMMA takes in Forescale's own engine."""
    result = []
    for device, domain, name, n in CASES:
        value = cluster(device, domain, n)
        where = f"{name}, {n} {device.upper()}, NVS {domain}"
        free, any_grid, square = (
            winners.best(f"{where}{of}", asked(name, value, space=space))[0]
            for of, space in (("", Space()), (", SUMMA", SUMMA), (", SUMMA with cp", GRIDS))
        )
        result.append(
            Summa(
                device=device.upper(),
                domain=domain,
                model=name,
                num_devices=n,
                free=free,
                any_grid=any_grid,
                square=square,
            )
        )
    return result


def summa_table(cases: Iterable[Summa]) -> str:
    """Return what SUMMA takes in Forescale's own engine, next to any layout, in Markdown."""
    lines = [
        "| model | devices | any layout (s) | SUMMA (s) | grid of SUMMA (tp × cp) | SUMMA with cp of 2 to 16 (s) |",
        "|---|--:|--:|--:|---|--:|",
    ]
    for one in cases:
        plan = one.any_grid.strategy
        lines.append(
            f"| {one.model} | {one.num_devices:,} {one.device}, NVS {one.domain} | {one.free.step_time_s:.2f} "
            f"| {one.any_grid.step_time_s:.2f} | {plan.tp} × {plan.cp} | {one.square.step_time_s:.2f} |"
        )
    return "\n".join(lines)
