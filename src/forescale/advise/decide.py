"""`advise`: fit, then batch, then throughput, each with the numbers of the case; then the exact search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from msgspec.structs import replace

from forescale.advise.advice import Advice, Case, Fact, Step, Trial, first
from forescale.advise.changes import recompute_text
from forescale.advise.check import verdict_within
from forescale.cost.select import Costs
from forescale.errors import InfeasibleError
from forescale.graph.counts import count_parameters
from forescale.numeric import divisors
from forescale.presets.playbook.preset import bytes_per_parameter, playbook_ratios
from forescale.presets.preset import microbatches_of
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question, question_of
from forescale.search.compare import compare
from forescale.search.rank import search
from forescale.search.relax import exchanged
from forescale.search.scenarios import step_of_all
from forescale.spec.cluster import Cluster
from forescale.spec.constraints import virtual_stages
from forescale.spec.layout import Layout, Recompute
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.time.outer import bandwidth_needed
from forescale.units import counted, format_bytes, format_seconds

EXCHANGED = (("tp", "pp"), ("tp", "cp"), ("cp", "pp"))
"""Degrees of which one is doubled and the other halved, data parallel left as it is."""


def moves(case: Case, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield (what, layout) of every neighbour, each with the rest of the devices as data-parallel shards."""
    for what, changed in _changed(case, layout):
        filled = case.filled(changed)
        if filled is not None and filled != layout:
            yield what, filled


def reliefs(case: Case, layout: Layout, *, before: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield what makes room for a faster layout that does not fit: gradients sharded, cheap recompute, both.

    Recompute that the move `before` -> `layout` has just dropped does not come back.
    """
    cheap = case.policies[1]
    sharded = replace(layout, zero=2)
    if layout.zero < 2:
        yield "zero 2", sharded
    if layout.recompute.granularity == "none" == before.recompute.granularity:
        yield recompute_text(cheap), replace(layout, recompute=cheap)
        if layout.zero < 2:
            yield f"zero 2, {recompute_text(cheap)}", replace(sharded, recompute=cheap)


def _changed(case: Case, layout: Layout) -> Iterator[tuple[str, Layout]]:
    yield from _degrees(case, layout)
    for zero in range(4):
        if zero != layout.zero:
            yield f"zero {zero}", replace(layout, zero=zero)
    for recompute in case.policies:
        if recompute != layout.recompute:
            yield recompute_text(recompute), replace(layout, recompute=recompute)
    most = case.question.workload.global_batch_size // layout.dp
    for size in _beside(layout.micro_batch_size, divisors(most)):
        yield f"micro-batch of {size}", replace(layout, micro_batch_size=size)
    for vpp in _beside(layout.vpp, virtual_stages(case.question.model, layout.pp)):
        yield f"{counted(vpp, 'model chunk')} per device", replace(layout, vpp=vpp)


def _degrees(case: Case, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield degrees doubled and halved, alone and one against another; chunks start again at one."""
    names = {"tp": "tensor parallel", "cp": "context parallel", "pp": "pipeline stages"}
    if case.question.model.is_moe:
        names |= {"ep": "expert parallel", "etp": "tensor parallel of experts"}
    for name, parts in names.items():
        for degree in _scaled(getattr(layout, name)):
            vpp = 1 if name == "pp" else layout.vpp
            changed: dict[str, Any] = {name: degree, "vpp": vpp}
            yield f"{parts} {degree}", replace(layout, **changed)
    for one, other in EXCHANGED:
        for up, down in ((one, other), (other, one)):
            if getattr(layout, down) % 2 == 0:
                changed = {up: getattr(layout, up) * 2, down: getattr(layout, down) // 2, "vpp": 1}
                what = ", ".join(
                    f"{names[name]} {degree}" for name, degree in changed.items() if name != "vpp"
                )
                yield what, replace(layout, **changed)


def _scaled(degree: int) -> list[int]:
    return [2 * degree] + ([degree // 2] if degree % 2 == 0 else [])


def _beside(value: int, possible: tuple[int, ...]) -> list[int]:
    """Return the next smaller and larger possible value."""
    return [*[v for v in possible if v < value][-1:], *[v for v in possible if v > value][:1]]


STAGES = ("all states everywhere", "optimizer sharded", "and gradients sharded", "and weights sharded")
LONGEST_RUNG = 4096
"""Largest degree that a rung reaches by doubling."""


def tree(case: Case, *, activations_lead: bool) -> Iterator[tuple[str, Layout]]:
    """Yield (what, layout): data parallel, then within the node, then context or stages; then with recompute.

    Ultra-Scale Playbook, How to Find the Best Training Configuration: data parallelism first, with ZeRO; tensor
    parallelism up to the fast domain; beyond it stages, or context parallelism where activations outweigh the
    states. Less memory for more compute, recompute, comes last.
    """
    for recompute in case.policies:
        for what, layout in _without(case, recompute, activations_lead=activations_lead):
            filled = case.filled(layout)
            if filled is not None:
                yield what, filled


def _without(case: Case, recompute: Recompute, *, activations_lead: bool) -> Iterator[tuple[str, Layout]]:
    """Yield every rung with few, then many expert ranks."""
    tail = "" if recompute.granularity == "none" else f", {_words(recompute)} recompute"
    for what, layout in _rungs(case, activations_lead=activations_lead):
        for ep in _expert_degrees(case):
            head = f"expert parallel {ep}, " if ep > 1 else ""
            yield f"{head}{what}{tail}", replace(layout, ep=ep, recompute=recompute)


def _rungs(case: Case, *, activations_lead: bool) -> Iterator[tuple[str, Layout]]:
    start = case.start
    for zero, stage in enumerate(STAGES):
        yield f"data parallel, zero {zero}: {stage}", replace(start, zero=zero)
    for tp in doubling(2, case.question.cluster.domain):
        yield f"tensor parallel {tp}", replace(start, tp=tp, zero=1)
    inside = doubling(1, case.question.cluster.domain)[-1]
    most = case.question.cluster.num_devices // inside
    beyond = [(cp, pp) for cp in doubling(1, most) for pp in doubling(1, most // cp) if cp * pp > 1]
    for cp, pp in sorted(beyond, key=lambda pair: _rank(pair, activations_lead=activations_lead)):
        parts = [f"context parallel {cp}"] * (cp > 1) + [f"{pp} stages"] * (pp > 1)
        yield f"tensor parallel {inside}, {', '.join(parts)}", replace(start, tp=inside, cp=cp, pp=pp, zero=1)


def _rank(pair: tuple[int, int], *, activations_lead: bool) -> tuple[int, int, int]:
    """Order (cp, pp): fewest devices first, then the axis that the tree prefers; mixtures before far ends."""
    cp, pp = pair
    preferred, other = (cp, pp) if activations_lead else (pp, cp)
    return cp * pp, other, preferred


def doubling(start: int, most: int) -> list[int]:
    """Return start, 2·start, ... up to `most`."""
    result = []
    while start <= min(most, LONGEST_RUNG):
        result.append(start)
        start *= 2
    return result


def _expert_degrees(case: Case) -> list[int]:
    """Return 1; of a mixture of experts also the most that stay in the fast domain, and the most there are."""
    if case.question.model.moe is None:
        return [1]
    possible = [
        ep
        for ep in divisors(case.question.model.moe.num_experts)
        if case.question.cluster.num_devices % ep == 0
    ]
    return sorted({1, max(ep for ep in possible if ep <= case.question.cluster.domain), max(possible)})


def _words(recompute: Recompute) -> str:
    return " ".join(recompute.modules) if recompute.modules else recompute.granularity


_CHOICES = [item.name for item in fields(Layout) if item.name not in ("dp_replicate", "dp_shard")]
"""What a change changes; data parallelism follows."""
LEAST_GAIN = 1e-3
"""A move that gains less of the step than this is not worth making."""
MOST_MOVES = 40
"""Moves made at most; each one shortens the step, so this only bounds the time."""
FIT = "What is the least that makes one training step fit?"
BATCH = "How do the devices make up the global batch?"
THROUGHPUT = "Which change makes the step shorter, until none does?"
SITES = "What would make the sites wait less for each other?"
ENOUGH = 0.95
"""Share of the time that sites should compute."""


def advise(
    question: Question | Model,
    cluster: Cluster | None = None,
    workload: Workload | None = None,
    *,
    max_memory: float | None = None,
    exact: bool = True,
    costs: Costs | None = None,
) -> Advice:
    """Walk through the playbook's decision process (How to Find the Best Training Configuration).

    It takes a question, or the parts of one.

    Parameters
    ----------
    max_memory
        Bytes per device that a layout may need; the device's capacity by default.
    exact
        Whether to search the whole space too and say how far the advice is from its best.
    costs
        Cost models and calibration, of the process and of the search; by default what is known of the device.

    Raises
    ------
    InfeasibleError
        If nothing that the process tries fits.
    """
    request = question_of(question, cluster, workload, max_memory=max_memory, costs=costs)
    case = Case(question=request.site)
    fit, layout = _fit(case)
    batch, layout = _batch(case, layout)
    throughput, of_site = _throughput(case, layout)
    advised = project(request.over_sites(case.question.with_layout(of_site.strategy)))
    model, cluster, workload = request.model, request.cluster, request.workload
    best = search(replace(request, objective="step_time"), top=1, gains=False).best[0] if exact else None
    return Advice(
        model=model,
        cluster=cluster,
        workload=workload,
        steps=(fit, batch, throughput, *_sites(request, advised)),
        advised=advised,
        verdict=verdict_within(advised, request.memory_limit),
        ratios=playbook_ratios(
            model,
            case.question.cluster,
            of_site.strategy,
            case.question.workload,
            num_layers=min(stage.num_layers for stage in of_site.memory.stages),
        ),
        best=best,
        comparison=None
        if best is None
        else compare(advised, best, name_a="the advice", name_b="the exact best"),
    )


def _fit(case: Case) -> tuple[Step, Layout]:
    """Step 1: down the decision tree until a layout fits."""
    parameters = count_parameters(case.question.model).total
    states = parameters * bytes_per_parameter(case.question.workload.precision).total
    lead = _activations_lead(case)

    def refuse(projection: Projection) -> str | None:
        """Refuse stage 3 whose gathers take longer than the forward that hides them."""
        ratios = playbook_ratios(
            case.question.model,
            case.question.cluster,
            projection.strategy,
            case.question.workload,
            num_layers=case.question.model.num_layers,
        )
        exposed = [ratio for ratio in ratios if ratio.part == "data_comm" and ratio.value >= 1.0]
        if projection.strategy.zero < 3 or not exposed:
            return None
        return f"{exposed[0].name}: {exposed[0].value:.2g}, not below 1, so it cannot hide"

    trials, place = first(case, tree(case, activations_lead=lead), refuse=refuse)
    if place is None:
        raise _nothing(case, trials, states)
    trial = replace(trials[place], taken=True)
    trials[place] = trial
    facts = (
        Fact(name="parameters", value=float(parameters), unit="parameter"),
        Fact(name="states of all parameters", value=states, unit="byte"),
        Fact(name="memory of a device", value=case.question.memory_limit, unit="byte"),
        Fact(
            name="devices that the states alone fill",
            value=states / case.question.memory_limit,
            unit="device",
        ),
    )
    order = "activations outweigh the states, so context parallelism comes before stages" if lead else ""
    finding = "; ".join(filter(None, [f"{trial.move} fits", order]))
    return Step(name="fit", question=FIT, facts=facts, trials=tuple(trials), finding=finding), trial.strategy


def _nothing(case: Case, trials: list[Trial], states: float) -> InfeasibleError:
    """Return the error for a case in which nothing is legal, or nothing fits."""
    if trials and all(trial.step_time_s is None for trial in trials):
        msg = f"no layout that the process tries is legal; the first, {trials[0].move}: {trials[0].problem}"
        return InfeasibleError(msg)
    item = format_bytes(states / case.question.cluster.num_devices)
    msg = (
        f"nothing that the process tries fits {format_bytes(case.question.memory_limit)}: its states alone are {item} "
        f"per device, even shared by all ({case.question.cluster.num_devices}); search tries every layout"
    )
    return InfeasibleError(msg)


def _activations_lead(case: Case) -> bool:
    """Whether activations outweigh the states once tensor parallelism fills the fast domain."""
    for tp in reversed(doubling(1, case.question.cluster.domain)):
        layout = case.filled(replace(case.start, tp=tp, zero=1))
        result = None if layout is None else case.tried("", layout)[1]
        if result is not None:
            stage = max(result.memory.stages, key=lambda stage: stage.peak_bytes)
            states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
            return stage.activations_bytes > states
    return False


def _batch(case: Case, layout: Layout) -> tuple[Step, Layout]:
    """Step 2: the largest micro-batch that pays; accumulation makes up the rest of the global batch."""
    item = case.question.workload.global_batch_size // layout.dp
    sizes = [size for size in doubling(1, item) if item % size == 0]
    trials: list[Trial] = []
    for size in sizes:
        trial, _ = case.tried(f"micro-batch of {size}", replace(layout, micro_batch_size=size))
        trials.append(trial)
        if not trial.fits:
            break
    place = min(
        (index for index, trial in enumerate(trials) if trial.fits),
        key=lambda index: trials[index].step_time_s or float("inf"),
    )
    trials[place] = selected = replace(trials[place], taken=True)
    count = microbatches_of(selected.strategy, case.question.workload)
    tokens = case.question.workload.tokens_per_step
    facts = (
        Fact(name="tokens per step", value=float(tokens), unit="token"),
        Fact(name="sequences per replica", value=float(item), unit="1"),
        Fact(name="replicas", value=float(layout.dp), unit="1"),
        Fact(name="gradient accumulation steps", value=float(count), unit="1"),
    )
    finding = (
        f"{counted(layout.dp, 'replica')} × {selected.move} × {counted(count, 'accumulation step')} make the global "
        f"batch of {case.question.workload.global_batch_size}"
    )
    return Step(
        name="batch", question=BATCH, facts=facts, trials=tuple(trials), finding=finding
    ), selected.strategy


def _throughput(case: Case, layout: Layout) -> tuple[Step, Projection]:
    """Step 3: make the best change as long as one gains."""
    _, current = case.tried("", layout)
    assert current is not None  # it was tried before
    started, trials = current.step_time_s, list[Trial]()
    for _ in range(MOST_MOVES):
        tried = _neighbours(case, current)
        trial, result = min(tried, key=_time)
        gains = trial.fits and result is not None
        if not gains or result is None or result.step_time_s > current.step_time_s * (1.0 - LEAST_GAIN):
            trials += [item for item, _ in sorted(tried, key=_time)]
            break
        trials.append(replace(trial, taken=True))
        current = result
    facts = (
        Fact(name="step before", value=started, unit="s"),
        Fact(name="step after", value=current.step_time_s, unit="s"),
        Fact(name="model FLOP utilisation after", value=current.mfu, unit="share"),
    )
    saved = 1.0 - current.step_time_s / started
    made = sum(getattr(layout, name) != getattr(current.strategy, name) for name in _CHOICES)
    finding = (
        f"{counted(made, 'change')}: a step of {format_seconds(current.step_time_s)}, {saved:.0%} shorter"
        if made
        else "no change makes it shorter"
    )
    return Step(
        name="throughput", question=THROUGHPUT, facts=facts, trials=tuple(trials), finding=finding
    ), current


def _sites(question: Question, advised: Projection) -> tuple[Step, ...]:
    """Step 4, where sites train by themselves: what they exchange, one change at a time; none is taken."""
    sites, outer = advised.sites, question.workload.outer
    if sites is None or outer is None:
        return ()
    now = Trial(move="", strategy=advised.strategy, peak_bytes=advised.memory.peak_bytes, fits=True)
    tried = [(item.change, step_of_all(item.question, sites.site_step_s)) for item in exchanged(question)]
    tried.sort(key=lambda item: item[1])
    needed = bandwidth_needed(
        outer,
        ENOUGH,
        parameters=advised.params.trained,
        num_layers=question.model.num_layers,
        step_time=sites.site_step_s,
        num_sites=sites.num_sites,
        latency=question.cluster.tiers[-1].latency,
    )
    facts: tuple[Fact, ...] = (
        Fact(name="step of a site by itself", value=sites.site_step_s, unit="s"),
        Fact(name="of the time computes", value=sites.utilisation, unit="share"),
        Fact(name="link of a site", value=8.0 * sites.bandwidth, unit="bit/s"),
    )
    if needed is not None:
        facts = (*facts, Fact(name=f"link for {ENOUGH:.0%} of the time", value=needed, unit="bit/s"))
    change, step = tried[0]
    saved = 1.0 - step / advised.step_time_s
    finding = (
        f"{change}: a step of {format_seconds(step)}, {saved:.0%} shorter; what that does to the loss is not projected"
        if saved > LEAST_GAIN
        else "they hardly wait"
    )
    trials = tuple(replace(now, move=move, step_time_s=item) for move, item in tried)
    return (Step(name="sites", question=SITES, facts=facts, trials=trials, finding=finding),)


def _neighbours(case: Case, current: Projection) -> list[tuple[Trial, Projection | None]]:
    """Try every change of the current layout; one that is faster and does not fit, also with what makes room."""
    tried = []
    for what, layout in moves(case, current.strategy):
        trial, result = case.tried(what, layout)
        tried.append((trial, result))
        if result is not None and not trial.fits and result.step_time_s < current.step_time_s:
            more = reliefs(case, layout, before=current.strategy)
            tried += [case.tried(f"{what}, {relief}", relieved) for relief, relieved in more]
    return tried


def _time(tried: tuple[Trial, Projection | None]) -> float:
    """Return the step of a trial that fits; the others come last."""
    trial = tried[0]
    return trial.step_time_s if trial.fits and trial.step_time_s is not None else float("inf")
