"""`forescale run`: the whole run on the calendar; `forescale sites`: training over slow links between sites."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from forescale.cli.console import say, show
from forescale.cli.declare import Bounded, Group, Rare, option
from forescale.cli.formats import Answer, answer_of, extended
from forescale.cli.inputs import answered, read_question, refuse_twice
from forescale.cli.options import Asked, OperationsOptions, Priced, given, price_of
from forescale.cli.output import OutputOptions, PageOptions
from forescale.cli.progress import SearchBar
from forescale.cli.project import changes_of
from forescale.cli.search import ranked
from forescale.cli.space import SpaceOptions, asked_space, spaced
from forescale.errors import (
    SpecError,
    UnknownNameError,
    out_of_range,
    required_with,
    wrong_type,
)
from forescale.files import place_of
from forescale.limits import PRICE, PUE, SEED
from forescale.positions import COMMAND_LINE, located
from forescale.spec.phrases import layout
from forescale.struct import asdict
from forescale.units import in_days

if TYPE_CHECKING:
    from forescale.projection.result import Projection
    from forescale.question import Question
    from forescale.search import SearchResult
    from forescale.whole_run import Phase, Prices

_service = partial(option, panel=Rare("Money and dice"))
EVERY_STEP = "local_sgd every=1"
"""Sites that reduce gradients in every step."""
CARBON = 100_000
"""Most kg of CO2 per MWh; coal makes some 1,000."""


class PhaseOptions(Group, frozen=True, kw_only=True):
    """What is trained one after another, and the dice."""

    phases: list[str] | None = option(
        "A phase, such as 'tokens=2.8T seq_len=8192 rampup_batch_size=256,256,2M'. Repeatable.",
        "WORDS",
        flag="--phase",
    )
    days: str | None = option("Length instead of --tokens, such as 30d.", "TIME")
    seed: int = _service("Of the runs that are drawn.", "N", check=Bounded(SEED), default=0)


class PriceOptions(Group, frozen=True, kw_only=True):
    """What it costs."""

    price: float | None = _service(
        "Of one device for one hour, such as 2.50.", "AMOUNT",
        check=Bounded(PRICE, whole=False), parse=partial(price_of, flag="--price", unit="h"),
    )  # fmt: skip
    electricity_price: float | None = _service(
        "Of one kWh, such as 0.08.", "AMOUNT",
        check=Bounded(PRICE, whole=False), parse=partial(price_of, flag="--electricity-price", unit="kWh"),
    )  # fmt: skip
    pue: float | None = _service(
        "What the data centre draws over its devices.",
        "RATIO",
        check=Bounded(PUE, whole=False),
    )
    carbon: str = _service(
        "Where the electricity is from, such as us-2023 or france-2023, or kg of CO2 per MWh.",
        "NAME|KG",
        default="us-2023",
    )
    prices: Path | None = _service(
        "Prices, PUE and intensities of one's own, over the catalogue's (JSON, TOML or YAML).", "FILE"
    )


def run_command(
    *,
    request: Priced,
    phase_options: PhaseOptions,
    operated: OperationsOptions,
    prices: PriceOptions,
    output: PageOptions,
) -> None:
    """Project a whole run: days on the calendar, failures, money, energy."""
    from forescale.cli.render.run import run_view
    from forescale.whole_run import project_days, projected_phases

    phases: list[Phase] = []
    days = _days(phase_options)
    for at, phase in enumerate(_phases(phase_options, request), 1):
        try:
            question, parts = _asked(phase, request, operated)
            phases += projected_phases(str(at), parts, _ranked, answered)
        except SpecError as error:
            message = (
                str(error)
                if phase_options.phases
                else _in_plan(error, request.plan.plan or request.model, at, phase)
            )
            raise SpecError(error).worded(f"phase {at}: {message}") from error
    operations, rates, seed = question.operations, _prices(prices), phase_options.seed
    result = project_days(phases, days, operations, rates, seed=seed)
    last = phases[-1].projection
    if days is not None:  # whose tokens follow from the days
        work = replace(last.workload, tokens=None)
        question, last = replace(question, workload=work), replace(last, workload=work)
    changes = changes_of(question, last) if question.strategy is not None else ()
    show(answer_of(result, lambda result: extended(run_view(result), changes)), output)


def sites_command(
    *,
    request: Priced,
    output: OutputOptions,
) -> None:
    """Train on sites with slow links between them: the bandwidth that each use of their devices needs."""
    from forescale.time.outer import bandwidth_needed

    given_outer = EVERY_STEP if request.run.outer == "none" else request.run.outer
    run = replace(request.run, outer=given_outer or ("diloco" if request.plan.plan is None else None))
    result = _on_sites(replace(request, run=run))
    outer, sites = result.workload.outer, result.sites
    if outer is None or sites is None:
        raise required_with("--outer", "--sites", fix="such as --outer 'diloco every=100'")
    trained: dict[str, Any] = {
        "parameters": result.params.trained,
        "num_layers": result.model.num_layers,
        "step_time": sites.site_step_s,
        "num_sites": sites.num_sites,
        "latency": result.cluster.tiers[-1].latency,
    }
    each_step = replace(outer, every=1, fragments=1, overlap=0)
    needed, of_each_step = (
        {str(share): bandwidth_needed(one, share / 100, **trained) for share in (50, 80, 90, 95, 99)}
        for one in (outer, each_step)
    )
    document = {
        "schema": "forescale.sites/1",
        "model": result.model.name,
        **asdict(sites),
        "outer": asdict(outer),
        "bandwidth_bit_per_s": needed,
        "bandwidth_of_each_step_bit_per_s": of_each_step,
    }
    from forescale.cli.render.run import sites_view

    show(Answer(view=lambda: sites_view(document), document=lambda: document), output)


def _on_sites(request: Priced) -> Projection:
    """Return the projection of a question; without a layout, and where data parallelism alone is illegal, its best."""
    try:
        return answered(read_question(request))
    except SpecError as error:
        if error.code != "illegal_layout" or given(request.layout) or request.plan.plan is not None:
            raise
    request_of = {name: getattr(request, name) for name in Asked.__struct_fields__}
    question = asked_space(read_question(Asked(**{**request_of, "layout": None})), SpaceOptions(), sized=True)
    best = _ranked(question).best[0]
    text = f"note (layout): {layout(best.strategy)}, the fastest that fits; --tp, --pp and others change it"
    say("\n".join(wrap(text, 100, break_on_hyphens=False)), error=True)
    return best


def _phases(phase_options: PhaseOptions, priced: Priced) -> list[dict[str, Any]]:
    """Return the words of every phase: as flags say, or else the plan; one without any where nothing does."""
    from forescale.io.phases import of_any_length
    from forescale.io.question import read_plan_values

    if (days := _days(phase_options)) is not None:
        others = {"--tokens": priced.run.tokens, "--phase": phase_options.phases}
        return [of_any_length(days, others, "--days")]
    if phase_options.phases:
        pairs = [[word.partition("=") for word in text.split()] for text in phase_options.phases]
        bare = [name for pair in pairs for name, equals, _ in pair if not equals]
        if bare:
            raise wrong_type("--phase", bare[0], "words such as tokens=2T")
        for pair in pairs:
            refuse_twice("--phase", [name for name, _, _ in pair])
        return [{name: value for name, _, value in pair} for pair in pairs]
    file = _plan_file(priced)
    phase = None if file is None else read_plan_values(file).get("phase")
    if phase is not None and not (isinstance(phase, list) and all(isinstance(item, dict) for item in phase)):
        with located(file):
            raise wrong_type("phases", phase, "tables, each under [[phase]]").at(f"{file}, phase")
    return phase or [{}]


def _plan_file(priced: Priced) -> Path | None:
    """Return the plan that is asked, by --plan or in the model's place."""
    from forescale.io.question import is_plan

    model = priced.model
    return priced.plan.plan or (place_of(model) if model is not None and is_plan(place_of(model)) else None)


def _in_plan(error: SpecError, plan: str | Path | None, at: int, values: dict[str, Any]) -> str:
    """Return what is wrong with a phase of a plan, with the file and the line of the word that it names."""
    from forescale.files import read_text
    from forescale.io.document import is_written
    from forescale.positions import line_of

    message = str(error)
    if not values:
        return message
    file = None if plan is None else place_of(plan)
    if file is None or not is_written(file) or re.search(r"\bline \d", message):
        return message.replace(COMMAND_LINE, str(plan), 1)
    message = re.sub(rf"^({COMMAND_LINE}|{re.escape(str(plan))})[,:] ", "", message)
    word = next((word for word in re.findall(r"[\w.]+", message) if word in values), None)
    place = ("phase", at - 1, *([] if word is None else word.split(".")))
    line = line_of(read_text(file), place, file.suffix)
    return f"{plan}, line {line}: {message}"


def _asked(
    parts: dict[str, Any], priced: Priced, operated: OperationsOptions
) -> tuple[Question, list[Question]]:
    """Return the question of a phase, and those of each batch where it grows."""
    from forescale.io.phases import RAMP, ramped

    left = dict(parts)
    ramp = left.pop(RAMP, None)
    plan = replace(priced.plan, sets=[*(priced.plan.sets or ()), *_sets(left)])
    question = read_question(replace(priced, plan=plan), operated=operated, phased=True, searched=True)
    if question.strategy is None:
        limits = None if question.framework is None else question.framework.label
        question = spaced(question, SpaceOptions(limits=limits), sized=True)
    return question, ramped(question, ramp)


def _ranked(question: Question) -> SearchResult:
    """Return the best layout; only where memory counts as expected, an error says what would fit."""
    from forescale.search import search

    if not question.safe:
        return ranked(question, top=1, all_variants=False)
    with SearchBar() as bar:
        return search(question, top=1, gains=False, watch=bar)


def _sets(values: dict[str, Any]) -> list[str]:
    """Return the overrides that a phase's words stand for."""
    from forescale.io.phases import RAMP
    from forescale.spec import Layout, Workload
    from forescale.syntax import toml_value

    homes = {item.name: "workload" for item in fields(Workload)}
    homes |= {item.name: "strategy" for item in fields(Layout)}
    result = []
    for name, value in values.items():
        text = value if isinstance(value, str) else toml_value(value)
        home = homes.get(name.split(".")[0])
        if name in ("devices", "nodes"):
            result.append(f"{name}={text}")
            continue
        if home is None:
            raise UnknownNameError("word of a phase", name, [*homes, RAMP, "devices", "nodes"])
        result.append(f"{home}.{name}={text}")
    return result


def _prices(price_options: PriceOptions) -> Prices:
    from forescale.whole_run import Prices
    from forescale.whole_run.prices import published_prices, read_prices

    carbon = _number(price_options.carbon)
    if carbon is not None and not 0.0 <= carbon <= CARBON:
        most = f"{CARBON:,} kg of CO2 per MWh at most"
        raise out_of_range("--carbon", price_options.carbon, f"0 or more, {most}, or the name of a place")
    return Prices(
        device_hour=price_options.price,
        pue=price_options.pue,
        electricity=price_options.electricity_price,
        carbon=price_options.carbon if carbon is None else carbon,
        listed=published_prices() if price_options.prices is None else read_prices(price_options.prices),
    )


def _days(phase_options: PhaseOptions) -> float | None:
    """Return the length of the run in days, if it is given."""
    try:
        return None if phase_options.days is None else in_days(phase_options.days)
    except SpecError as error:
        raise error.at("--days") from error


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
