"""`forescale check`: the gate before a run, with an exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from forescale.advise.check import Check, Checks, Limits, check, on_more, refused
from forescale.advise.solve import Solved, fewest, longest, solve, solve_replayed
from forescale.cli.codes import FAILED, ILLEGAL, USAGE_ERROR, Exit
from forescale.cli.console import say, show
from forescale.cli.declare import Bounded, Group, Rare, argument, option
from forescale.cli.formats import answer_of
from forescale.cli.inputs import answered, limited, read_question
from forescale.cli.options import OperationsOptions, Priced, complete_models, given, positive, price_of
from forescale.cli.output import OutputOptions
from forescale.cli.reproduce import again, has_line
from forescale.cli.scan import amount, span_of
from forescale.errors import ForescaleError, MissingError, SpecError, out_of_range, required_with, wrong_type
from forescale.io.sizes import is_fewest
from forescale.limits import PRICE

if TYPE_CHECKING:
    from forescale.question import Objective, Question

PANEL, REPORTS, WHOLE_RUN = "Limits", Rare("Solve, reports"), Rare("Whole run")
CODES = {"passes": 0, "fails": FAILED, "illegal": ILLEGAL, "unreadable": USAGE_ERROR}
CONFIGURATIONS = (".yaml", ".yml", ".json", ".sh", ".slurm", ".sbatch", ".toml")
"""Endings of the files of a folder that are looked at."""


class Checked(Priced, frozen=True, kw_only=True):
    """One layout of each of several models or files."""

    model: list[str] | None = argument(
        "Catalogue names, config.json, frameworks' own files.", "MODEL|FILE...", complete=complete_models
    )  # type: ignore[assignment]


class LimitOptions(Group, frozen=True, kw_only=True):
    """What a run may take."""

    max_memory: str | None = option("Peak per device, such as 70GiB.", "SIZE", panel=PANEL)
    max_step_time: str | None = option("Time per step, such as 12s.", "TIME", panel=PANEL)
    min_mfu: str | None = option("Least MFU, such as 35%.", "SHARE", panel=PANEL)
    max_cost: str | None = option("Dearest whole run, such as 10M.", "AMOUNT", panel=WHOLE_RUN)
    deadline: str | None = option("Longest whole run, such as 90d.", "TIME", panel=WHOLE_RUN)
    price_per_device_hour: float | None = option(
        "Price for --max-cost, in any currency; the device's own by default.",
        "PRICE",
        flag="--price-per-device-hour --price",
        check=Bounded(PRICE, whole=False),
        parse=partial(price_of, flag="--price-per-device-hour", unit="h"),
        panel=WHOLE_RUN,
    )
    solve: Literal["micro_batch_size", "devices", "seq_len", "tokens"] | None = option(
        "Find the largest (fewest devices) that passes.", panel=REPORTS
    )


def check_command(
    *,
    request: Checked,
    limit: LimitOptions,
    operated: OperationsOptions,
    folder: Path | None = option("Also all configurations in a folder.", "DIR", panel=REPORTS, flag="--all"),
    junit: Path | None = option("Write the findings as JUnit XML.", "FILE.xml", panel=REPORTS),
    github: bool = option("Print findings as annotations of GitHub Actions.", default=False, panel=REPORTS),
    output: OutputOptions,
) -> None:
    """Check runs before they start; exit code 0 passes, 3 fails, 4 is illegal."""
    from forescale.cli.render.check import check_view, junit_xml, solved_view, workflow_commands

    subjects: Sequence[str | None] = request.model or ()
    skipped: list[str] = []
    if folder is not None:
        files = list(_configurations(folder, skipped))
        subjects = (*subjects, *files)
    elif not subjects:
        subjects = (None,)
    if limit.solve is not None:
        solved, question = _solved(request, limit, operated, subjects, strict=request.plan.strict)
        solved = replace(solved, with_margin=_with_margin(solved, request, limit, operated, subjects))
        show(answer_of(solved, partial(solved_view, again=_again(question, solved))), output)
        return
    checks = tuple(_checked(request, limit, operated, subject) for subject in subjects)
    result = Checks(checks=checks, skipped=tuple(skipped))
    if junit is not None:
        from forescale.atomic_write import write_text

        write_text(junit, junit_xml(result))
    if github:
        say("\n".join(workflow_commands(result)))
    else:
        show(answer_of(result, check_view), output)
    raise Exit(CODES[result.status])


def _checked(
    request: Checked, limit: LimitOptions, operated: OperationsOptions, subject: str | None
) -> Check:
    """Return the check of one subject; what cannot be read is a finding, as others are still to be looked at."""
    name = subject or str(request.plan.plan or "the question")
    try:
        question = _question(request, limit, operated, subject)
        gate = partial(_gate, limit=limit, subject=name, strict=request.plan.strict)
        result = gate(question)
        lacks = result.status == "fails" and any(item.code == "memory" for item in result.findings)
        is_open = lacks and not request.plan.strict and is_fewest(question.notes)
        resized = partial(_resized, request, limit, operated, subject)
        return on_more(question, result, resized, gate) if is_open else result
    except ForescaleError as error:
        return refused(name, error)


def _resized(
    request: Checked, limit: LimitOptions, operated: OperationsOptions, subject: str | None, devices: int
) -> Question:
    """Return the question on so many devices; a batch per device follows them."""
    machine = replace(request.cluster, devices=devices)
    return _question(replace(request, cluster=machine), limit, operated, subject)


def _question(
    request: Checked,
    limit: LimitOptions,
    operated: OperationsOptions,
    subject: str | None,
    *,
    searched: bool = False,
) -> Question:
    one = Priced(**{item: getattr(request, item) for item in Priced.__struct_fields__})
    question = read_question(replace(one, model=subject), operated=operated, searched=searched)
    return limited(question, limit.max_memory)


def _best(question: Question, *, objective: Objective, framework: str | None) -> Question:
    """Return a question without a layout with the fastest one that fits, or the one of least memory.

    Of the fastest, one that fits with margin, if there is one; only such as a named framework can run.
    """
    from forescale.cli.space import SpaceOptions, spaced
    from forescale.errors import InfeasibleError
    from forescale.search.rank import search

    space = replace(spaced(question, SpaceOptions(limits=framework), sized=True), objective=objective)
    result = search(space, top=1, gains=False)
    if result.best[0].memory.verdict != "FITS" and objective == "step_time":
        with suppress(InfeasibleError):
            result = search(replace(space, safe=True), top=1, gains=False)
    return question.with_layout(result.best[0].strategy)


def _gate(
    question: Question, limit: LimitOptions, subject: str, *, strict: bool, named: bool = True
) -> Check:
    limits = Limits(
        max_step_time_s=positive("--max-step-time", limit.max_step_time, _seconds),
        min_mfu=None if limit.min_mfu is None else _share("--min-mfu", limit.min_mfu),
        max_cost=amount("--max-cost", limit.max_cost),
        deadline_days=positive("--deadline", limit.deadline, span_of),
        price_per_device_hour=_price(question, limit),
    )
    return check(question, limits, answered, subject=subject, strict=strict, refusal=_refusal, named=named)


def _price(question: Question, limit: LimitOptions) -> float | None:
    """Return the price of a device and hour, where one is given or asked for."""
    if limit.max_cost is None and limit.price_per_device_hour is None:
        return None
    from forescale.whole_run.plans import hourly_price

    return hourly_price(question.cluster, limit.price_per_device_hour)


def _refusal(question: Question) -> str:
    from forescale.export import refusal_of

    return refusal_of(question)


def _with_margin(
    solved: Solved,
    request: Checked,
    limit: LimitOptions,
    operated: OperationsOptions,
    subjects: Sequence[str | None],
) -> Solved | None:
    """Return the micro-batch or length that fits at the upper end of its range, where the one that passes may not."""
    one = solved.check.projection
    if limit.solve not in ("micro_batch_size", "seq_len") or one is None or one.memory.verdict != "AT RISK":
        return None
    with suppress(SpecError):
        return _solved(request, limit, operated, subjects, strict=True)[0]
    return None


def _solved(
    request: Checked,
    limit: LimitOptions,
    operated: OperationsOptions,
    subjects: Sequence[str | None],
    *,
    strict: bool,
) -> tuple[Solved, Question]:
    """Return the answer, and the question of which a quantity was varied."""
    if len(subjects) != 1:
        raise required_with("one MODEL or file", f"--solve {limit.solve}")
    assert limit.solve is not None
    searched = limit.solve != "micro_batch_size"
    machine = request.cluster
    if limit.solve == "devices" and machine.devices is None and not given(request.layout):
        request = replace(request, cluster=replace(machine, nodes=machine.nodes or 1))
    try:
        question, is_open = _question(request, limit, operated, subjects[0], searched=searched), False
    except MissingError as error:
        if searched or error.missing != ("--global-batch-size",):
            raise
        batch = int(error.facts[0].example.split()[-1])
        request = replace(request, run=replace(request.run, global_batch_size=batch))
        question, is_open = _question(request, limit, operated, subjects[0], searched=searched), True
    name = subjects[0] or question.model.name
    gate = partial(_gate, limit=limit, subject=name, strict=strict)
    if question.strategy is not None:
        return solve_replayed(question, limit.solve, gate, batch_is_open=is_open), question
    from forescale.catalogue.frameworks import NONE

    framework = None if request.plan.framework == NONE else request.plan.framework
    fastest = partial(_best, objective="step_time", framework=framework)
    gate = partial(gate, named=framework is not None)
    if limit.solve == "devices":
        return fewest(question, fastest, gate, least=_least_devices(question, limit)), question
    if limit.solve == "seq_len":
        smallest = partial(_best, objective="peak_memory", framework=framework)
        return longest(question, smallest, gate), question
    return solve(fastest(question), limit.solve, gate, batch_is_open=is_open), question


def _again(question: Question, solved: Solved) -> str:
    """Return the command that projects the layout of an answer; "" where options cannot ask it."""
    one = solved.check.projection
    if one is None or not has_line(question, one):
        return ""
    return again("project", question, one, saved="")


def _least_devices(question: Question, limit: LimitOptions) -> float:
    """Return the devices that the peak rate requires for the limits of time."""
    from forescale.search.scan import Target, least_step

    step = positive("--max-step-time", limit.max_step_time, _seconds)
    days = positive("--deadline", limit.deadline, span_of)
    if step is None and (days is None or question.workload.tokens is None):
        return 1.0
    longest = Target(step_time_s=step, days=days).limit(question.workload)
    return max(1.0, least_step(question) * question.cluster.num_devices / longest)


def _configurations(folder: Path, skipped: list[str]) -> Iterator[str]:
    """Yield the files below a folder that configure a training run; others are added to `skipped`."""
    from forescale.files import is_folder
    from forescale.frameworks.readers import configures_training

    if not is_folder(folder):
        raise wrong_type("--all", str(folder), "a folder")
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix not in CONFIGURATIONS or hidden or not path.is_file():
            continue
        if configures_training(path):
            yield str(path)
        else:
            skipped.append(str(path))


def _seconds(text: str) -> float:
    from forescale.units import parse

    return parse(text, "second")


def _share(flag: str, text: str) -> float:
    from forescale.units import share_of

    if (share := share_of(text)) is None:
        raise out_of_range(flag, text, "between 0 and 100 %", "write 35% or 0.35")
    return share
