"""`forescale compare`: two plans, term by term, two profiler traces, or one model with several values or machines."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import replace

from forescale.advise.check import ILLEGAL
from forescale.cli.advice import instead, rows_of, table
from forescale.cli.console import show
from forescale.cli.conversions import is_network
from forescale.cli.declare import Bounded, argument, option
from forescale.cli.formats import answer_of
from forescale.cli.inputs import answered, read_question, refuse_twice
from forescale.cli.options import (
    MACHINE,
    Asked,
    ClusterOptions,
    CostOptions,
    LaidOut,
    OperationsOptions,
    PlanOptions,
    Priced,
    given,
    positive,
    refuse,
)
from forescale.cli.output import PageOptions
from forescale.cli.reproduce import again, has_line
from forescale.cli.scan import amount
from forescale.cli.space import SpaceOptions, asked_space
from forescale.cli.words import option_value, with_option
from forescale.errors import (
    ReaderError,
    SpecError,
    missing,
    no_effect,
    unknown_key,
    wrong_format,
    wrong_type,
)
from forescale.files import is_file, is_folder
from forescale.io.document import is_written, numbered, read_layout
from forescale.io.machine import OF_DEVICE
from forescale.io.recipes import alike, other_frameworks, set_up_alike
from forescale.limits import DEVICES, JOBS, Interval, whole_of, within
from forescale.positions import COMMAND_LINE
from forescale.question import Note, Question
from forescale.search.machines import Machine, Machines
from forescale.synonyms import device_field, with_value
from forescale.units import in_thousands, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forescale.projection.result import Projection

Variant: TypeAlias = tuple[tuple[str, str], ...]
"""Names of options, or keys of `--set`, with their values."""
COSTS = "forescale.cli.options:CostOptions"
"""Group of the options of the section `[cost]` of a plan."""
KINDS = (
    "a plan (.toml, .yaml), what project or search printed with --json (.json, FILE#2 is the second layout), or a "
    "profiler trace (or a folder of them, one per rank)"
)


class SeveralClusters(ClusterOptions, frozen=True, kw_only=True):
    """Machines that one question is asked of."""

    cluster: str | None = option("Names or files, as h100,b200 or 8xb200,16xh100.", "A,B", panel=MACHINE)
    devices: str | None = option("Devices of each, such as 64,128.", "N,N", panel=MACHINE)  # type: ignore[assignment]


class OnMachines(LaidOut, frozen=True, kw_only=True):
    """One question of several machines; without a layout each has its best."""

    model: str | None = argument(
        "A MODEL; or a plan, JSON (FILE#2: the second layout), or a trace.",
        "A",
    )
    cluster: SeveralClusters = msgspec.field(default_factory=SeveralClusters)
    operated: OperationsOptions = msgspec.field(default_factory=OperationsOptions)


def compare_command(
    *,
    request: OnMachines,
    b: str | None = argument("What A is compared with: the same kind.", "B"),
    equal_budget: str | None = option("Soonest run of two plans for it, such as 10M.", "AMOUNT"),
    vary: list[str] | None = option(
        "Values to compare, such as zero=2,3. Repeatable.",
        "NAME=A,B",
    ),
    price: str | None = option("Of a device-hour on each cluster, such as 2,4.", "A,B"),
    jobs: int | None = option("Processes; one per core by default.", check=Bounded(JOBS)),
    cost: CostOptions,
    output: PageOptions,
) -> None:
    """Compare two plans, projections or traces, or one model on several machines."""
    from forescale.search.compare import compare

    if request.model is None and request.plan.plan is None and request.plan.config is None:
        raise missing("A", "give two plans or projections, or a MODEL with --cluster A,B")
    if models := _models(request, b):
        _compare_machines(request, _variants([f"model={models}", *(vary or ())]), cost, output, price, jobs)
        return
    if b is None:
        _compare_machines(request, _variants(vary or ()), cost, output, price, jobs)
        return
    _refuse_machines(request)
    for flag, value in (("--vary", vary), ("--price", price)):
        if value:
            raise no_effect(flag, "plans A and B say everything", "leave B out to compare values")
    a, budget = request.model or "", amount("--equal-budget", equal_budget)
    if any(map(_is_profile, (a, b))):
        _compare_profiles(Path(a), Path(b), output)
        return
    if budget is not None:
        from forescale.cli.render.run import equal_budget_view
        from forescale.whole_run.plans import at_equal_budget

        questions = {name: _question(name, cost) for name in (a, b)}
        show(answer_of(at_equal_budget(questions, budget), equal_budget_view), output)
        return
    result = compare(_projection(a, cost), _projection(b, cost), name_a=a, name_b=b)
    from forescale.cli.render.compare import comparison_view

    show(answer_of(result, comparison_view), output)


def _models(request: OnMachines, b: str | None) -> str:
    """Return the models of A and B, or of A alone, with commas between them; empty where there is one, or a file."""
    names = [name for text in (request.model, b) for name in (text or "").split(",") if name]
    are_files = any(is_file(Path(name)) or is_folder(Path(name)) or _is_answer(name) for name in names)
    return ",".join(names) if len(names) > 1 and not are_files else ""


def _is_answer(text: str) -> bool:
    """Return whether a text is the name of a plan or of what a command printed."""
    return numbered(text)[0].suffix.lower() in (".json", ".toml", ".yaml", ".yml")


def _is_profile(text: str) -> bool:
    from forescale.profiles import is_trace

    path = Path(text)
    return is_folder(path) or (is_file(path) and is_trace(path))


def _compare_profiles(a: Path, b: Path, output: PageOptions) -> None:
    from forescale.cli.progress import ReadingBar
    from forescale.cli.render.changes import changes_view
    from forescale.diagnose import compare_profiles

    for path in (a, b):
        if not _is_profile(str(path)):
            fix = "compare two traces; forescale diagnose --measured compares a trace with a projection"
            raise ReaderError(path, wrong_format("a profiler trace", "", fix))
    with ReadingBar(max(1, *(path.stat().st_size for path in (a, b)))) as progress:
        result = compare_profiles(a, b, progress)
    show(answer_of(result, changes_view), output)


def _refuse_machines(request: OnMachines) -> None:
    """Refuse flags of a question next to two plans, which say everything."""
    for group in (request.cluster, request.run, request.layout, request.operated):
        refuse(group, "plans A and B have it", "leave B out to compare machines")


def _compare_machines(
    request: OnMachines,
    variants: Sequence[Variant],
    cost: CostOptions,
    output: PageOptions,
    price: str | None,
    jobs: int | None,
) -> None:
    from forescale.cli.render.compare import machines_view
    from forescale.search.machines import on_machines
    from forescale.whole_run.plans import hourly_price

    asked = [
        (variant, replace(one, cluster=cluster))
        for variant in variants
        for one in [_varied(request, variant)]
        for cluster in _machines(one.cluster)
    ]
    if len(asked) < 2:
        raise missing(
            "machines or values to compare",
            "give several machines (--cluster h100,b200 or --devices 64,128), several values (--vary zero=2,3), "
            "or plans A and B",
        )
    questions = _questions(asked, cost)
    clusters = {item.cluster.name: item.cluster for item in questions if isinstance(item, Question)}
    given_prices = _prices(price, list(clusters))
    prices = {name: hourly_price(item, given_prices.get(name)) for name, item in clusters.items()}
    prices |= {name: None for name in _changed(questions) if name not in given_prices}
    varied = [" · ".join(map(" ".join, variant)) for variant, _ in asked]
    result = on_machines(questions, _best, answered, prices, varied=varied, jobs=jobs)
    result = replace(result, priced=bool(given_prices), operated=any(given(one.operated) for _, one in asked))
    view = partial(machines_view, again=_fastest_again(questions, result))
    show(answer_of(result, view), output)


def _changed(questions: Sequence[Question | Machine]) -> set[str]:
    """Return the clusters that differ between rows in more than their size: a list price is of one of them only."""
    clusters = [item.cluster for item in questions if isinstance(item, Question)]
    machines = {(item.name, item.device, item.tiers) for item in clusters}
    names = [name for name, _, _ in machines]
    return {name for name in names if names.count(name) > 1}


def _fastest_again(questions: Sequence[Question | Machine], result: Machines) -> str:
    """Return the line that projects the fastest row again; empty where none fits, or options cannot ask for it."""
    for question, machine in zip(questions, result.machines, strict=True):
        found = machine.projection
        if machine is result.fastest and found is not None and not isinstance(question, Machine):
            return again("project", question, found, saved="") if has_line(question, found) else ""
    return ""


def _prices(text: str | None, clusters: Sequence[str]) -> dict[str, float]:
    """Return the prices of `--price`: one of all clusters, or one of each."""
    if text is None:
        return {}
    words = text.split(",")
    values = [positive("--price", word, lambda text: parse(text, "money/h")) for word in words]
    if len(values) not in (1, len(clusters)):
        raise wrong_type("--price", text, f"one price, or one of each cluster: {', '.join(clusters)}")
    return {
        name: value
        for name, value in zip(clusters, values * (len(clusters) // len(values)), strict=True)
        if value is not None
    }


def _variants(vary: Sequence[str]) -> list[Variant]:
    """Return every combination of the values of `--vary`."""
    each = []
    for text in vary:
        name, equals, values = text.partition("=")
        if not (name and equals and values):
            raise wrong_type("--vary", text, "a name and its values, such as zero=2,3")
        each.append([(name.strip("-"), value.strip()) for value in values.split(",")])
    refuse_twice("--vary", [several[0][0].replace("_", "-") for several in each])
    for several in each:
        refuse_twice(f"--vary {several[0][0]}", [value for _, value in several])
    return list(product(*each))


def _varied(request: OnMachines, variant: Variant) -> OnMachines:
    """Return the options with other values: of an option of this command, or what --set takes."""
    group = table()["commands"]["compare"]["request"]
    rows = dict(rows_of(table()["groups"][group]))
    for name, text in variant:
        field = name.replace("-", "_")
        if (row := rows.get(field)) is not None:
            for key, value in _as_ours(field, text, row["kind"]):
                request = with_option(request, group, key, option_value(rows[key], f"--vary {name}", value))
        elif (called := field if field in OF_DEVICE else device_field(name)) in OF_DEVICE:
            sets = [*(request.plan.sets or ()), f"cluster.device.{called}={text}"]
            request = replace(request, plan=replace(request.plan, sets=sets))
        elif "." in name or field in table()["groups"][COSTS]:
            key = name if "." in name else f"cost.{field}"
            sets = [*(request.plan.sets or ()), f"{key}={text}"]
            request = replace(request, plan=replace(request.plan, sets=sets))
        elif is_network(name):
            raise wrong_type(
                f"--vary {name}", text, "rates, such as 400G or 50GB/s, or factors, such as x0.5"
            )
        else:
            raise unknown_key(
                f"--vary {name}", "the options of compare", (), instead(name, "compare").strip("; ")
            )
    return request


def _as_ours(field: str, text: str, kind: object) -> list[tuple[str, str]]:
    """Return the options and values that a value means: of a word that others use, such as adamw_8bit, several."""
    words = [] if not isinstance(kind, list) or text in kind else (with_value(text) or "").split()
    if words[:1] != [f"--{field.replace('_', '-')}"]:
        return [(field, text)]
    names = (name[2:].replace("-", "_") for name in words[::2])
    return list(zip(names, words[1::2], strict=True))


def _best(question: Question, jobs: int) -> Projection:
    from forescale.search.rank import search

    return search(question, top=1, gains=False, jobs=jobs).best[0]


def _machines(cluster: SeveralClusters) -> list[ClusterOptions]:
    """Return every cluster with every number of devices; without numbers, names may have them, such as 8xb200."""
    names = [name.strip() for name in (cluster.cluster or "").split(",")]
    if cluster.devices is not None:
        machines = [(name, count.strip()) for name in names for count in cluster.devices.split(",")]
    elif cluster.nodes is None:
        machines = [_counted(name) for name in names]
    else:
        machines = [(name, "") for name in names]
    values = {name: getattr(cluster, name) for name in ClusterOptions.__struct_fields__}
    return [
        ClusterOptions(
            **{
                **values,
                "cluster": name or None,
                "devices": whole_in(count, DEVICES, "--devices") if count else None,
            }
        )
        for name, count in machines
    ]


def _counted(name: str) -> tuple[str, str]:
    """Return a cluster and the number of its devices, empty where the name has none."""
    from forescale.catalogue.clusters import counted_cluster, is_cluster_name

    return (name, "") if is_cluster_name(name) else counted_cluster(name) or (name, "")


def whole_in(text: str, allowed: Interval, flag: str) -> int:
    """Return a whole number of a list on the command line."""
    if (number := in_thousands(flag, text) or whole_of(text)) is None:
        raise wrong_type(flag, text, "whole numbers, such as 64,128")
    return int(within(number, allowed, flag))


def _on_machine(request: OnMachines, cost: CostOptions, usual: str | None = None) -> Question:
    one = Asked(**{**{item: getattr(request, item) for item in Asked.__struct_fields__}, "cost": cost})
    sets = request.plan.sets
    if given(request.layout) or any(text.startswith(("layout.", "strategy.")) for text in sets or ()):
        return read_question(one, operated=request.operated, usual_framework=usual)
    question = read_question(replace(one, layout=None), operated=request.operated, usual_framework=usual)
    return asked_space(question, SpaceOptions(), sized=True, sets=sets)


def _questions(asked: Sequence[tuple[Variant, OnMachines]], cost: CostOptions) -> list[Question | Machine]:
    """Return the question of each row; of values that are illegal together, the row that says why.

    Raises
    ------
    SpecError
        If no row has a question; an error that is not of these values is in all of them.
    """
    questions: list[Question | Machine] = []
    errors: list[SpecError] = []
    for _, one in asked:
        try:
            questions.append(_on_machine(one, cost))
        except SpecError as error:
            if len(asked) == len(errors) + 1 or error.code not in ILLEGAL:
                raise
            errors.append(error)
            problem = str(error).removeprefix(f"{COMMAND_LINE}, strategy: ")
            name, devices = one.cluster.cluster or "", int(one.cluster.devices or 0)
            questions.append(Machine(cluster=name, devices=devices, problem=problem))
    for at, label in other_frameworks(questions).items():
        alone, labelled = questions[at], _on_machine(asked[at][1], cost, label)
        questions[at] = alike(labelled, alone) if isinstance(alone, Question) else labelled
    (_, first), *others = asked
    if all(one.layout == first.layout and one.plan == first.plan for _, one in others):
        for at, question in set_up_alike(questions).items():
            questions[at] = question
    questions = _searched_to_fit(asked, questions, cost)
    pairs = zip(asked, questions, strict=True)
    names = {one.cluster.cluster: item.cluster.name for (_, one), item in pairs if isinstance(item, Question)}
    return [
        replace(item, cluster=names.get(item.cluster, item.cluster)) if isinstance(item, Machine) else item
        for item in questions
    ]


def _searched_to_fit(
    asked: Sequence[tuple[Variant, OnMachines]], questions: list[Question | Machine], cost: CostOptions
) -> list[Question | Machine]:
    """Return the questions; of values of degrees alone with none of which the model fits, those of the best layouts."""
    held = table()["held_by_fix"]
    names = [[name.replace("-", "_") for name, _ in variant] for variant, _ in asked]
    alone = all(
        several
        and {*several} <= {*held}
        and {*given(one.layout)} == {f"--{name.replace('_', '-')}" for name in several}
        for several, (_, one) in zip(names, asked, strict=True)
    )
    if not alone or any(isinstance(item, Machine) or _fits(item) for item in questions):
        return questions
    text = "the model fits with none of these values alone: each row is the fastest layout that has them"
    note = Note(topic="layout", text=text)
    result: list[Question | Machine] = []
    for several, (variant, one) in zip(names, asked, strict=True):
        fix = [f"{name}={value}" for name, (_, value) in zip(several, variant, strict=True)]
        options = {name: getattr(one, name) for name in Asked.__struct_fields__}
        question = read_question(Asked(**{**options, "cost": cost, "layout": None}), operated=one.operated)
        question = asked_space(question, SpaceOptions(fix=fix), sized=True, sets=one.plan.sets)
        result.append(replace(question, notes=(note, *question.notes)))
    return result


def _fits(question: Question) -> bool:
    """Return whether a question is answered by a layout that fits, or leaves its layout to a search."""
    return question.strategy is None or answered(question).memory.verdict != "OOM"


def _projection(text: str, cost: CostOptions) -> Projection | dict[str, Any]:
    """Return what a file holds: a plan is projected, a document taken as it is."""
    path, place = numbered(text)
    if is_written(path) and place is None:
        return answered(_asked(path, cost))
    if path.suffix.lower() != ".json":
        raise ReaderError(text, f"compare takes {KINDS}")
    return _checked(read_layout(text), path)


def _checked(document: Any, path: Path) -> dict[str, Any]:  # noqa: ANN401 (JSON)
    """Return a projection whose question could have been asked; the rest is left to the comparison."""
    from forescale.io.named import build
    from forescale.spec import Layout, Workload

    kinds: dict[str, type[Any]] = {"strategy": Layout, "workload": Workload}
    for name, kind in kinds.items():
        if isinstance(document, dict) and isinstance(document.get(name), dict):
            build(kind, document[name], where=f"{path}, {name}")
    return document  # type: ignore[no-any-return]


def _asked(path: Path, cost: CostOptions) -> Question:
    return read_question(Priced(plan=PlanOptions(plan=path), cost=cost))


def _question(text: str, cost: CostOptions) -> Question:
    path, place = numbered(text)
    if not is_written(path) or place is not None:
        raise ReaderError(text, "--equal-budget takes two plans (.toml, .yaml): layouts are searched")
    return _asked(path, cost)
