"""What a worker answers, as text: pages and their parts, and documents. Each gets a question, some how to tell news."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, select_autoescape

from forescale.advise import fit as fitted
from forescale.errors import ForescaleError, UnknownNameError, out_of_range
from forescale.explain import explain as explained
from forescale.export import export, is_writable
from forescale.files import shipped
from forescale.formula import TermNode
from forescale.frameworks.writers import WRITERS
from forescale.io.line import project_line
from forescale.io.question_values import question_values
from forescale.presets import estimate_as, load_preset, project_as
from forescale.projection.estimate import Estimate
from forescale.projection.result import (
    AT_RISK,
    TIME_PARTS,
    Projection,
    days_and_money,
    left_out,
    memory_and_time,
    tokens_per_device_second,
)
from forescale.question import Question
from forescale.report.drawn import drawings
from forescale.search import SearchResult, pareto_search
from forescale.search import compare as compared
from forescale.search import search as searched
from forescale.search.solve import Progress
from forescale.spec import phrases
from forescale.struct import Struct
from forescale.units import GIB, format_bytes, format_count, format_seconds, format_span
from forescale.version import __version__
from forescale.view.axes import CONFIG, colour, data_axis, value_axis
from forescale.view.lines import Dot, Line, LineChart
from forescale.view.page import figure, rasterised
from forescale.web import LEVEL
from forescale.web.asked import (
    FIELDS,
    Query,
    address,
    changed,
    form_error,
    laid_out,
    opened,
    price_of,
    question,
    search_question,
    told,
)
from forescale.web.upload import as_text, measured, measured_text, uploaded
from forescale.whole_run import Phase, Prices, project_run


class WhatIf(Struct, frozen=True, kw_only=True):
    """The layout where one quantity is multiplied by a factor."""

    what: str
    factor: float
    found: Estimate
    rate: float
    """Tokens per second and device."""
    link: str
    """Address of this question."""


def curve(points: Sequence[WhatIf], text: str) -> LineChart | None:
    """Return tokens per second and device as one quantity changes; None where nothing can be projected."""
    if not points:
        return None
    dots = tuple(map(_dot, points))
    over = tuple(dot for point, dot in zip(points, dots, strict=True) if point.found.verdict == "OOM")
    lines = (
        Line(name="this layout", dots=dots),
        *([Line(name="does not fit", dots=over, joined=False, colour=1)] if over else []),
    )
    return LineChart(
        title=f"What if: {text}",
        note="a click on a point projects it",
        x=data_axis(f"{points[0].what} ×", [dot.x for dot in dots], log=True, say="{:g}".format),
        y=value_axis("tokens/s/device", [dot.y for dot in dots], log=False, say="{:,.0f}".format, zero=True),
        lines=lines,
        height=150,
    )


def _dot(point: WhatIf) -> Dot:
    result = point.found
    remark = (
        f"× {point.factor:g}: {point.rate:,.0f} tokens/s/device, {format_seconds(result.step_time_s)} per step, "
        f"{format_bytes(result.peak_bytes)}, {result.verdict}"
    )
    return Dot(x=point.factor, y=point.rate, remark=remark, link=point.link)


Tell: TypeAlias = Callable[[object], None]
TELLING = ("search",)
"""What tells how far it is, before its answer."""
TARGETS = tuple(name for writer in WRITERS for name in writer.frameworks)
WHAT_IF = (
    ("devices", "more devices"),
    ("batch", "a larger batch"),
    ("network", "a faster network between nodes"),
)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What a curve multiplies its quantity by."""
DEPTH = 4
"""Levels of an explanation that are unfolded."""
TOP = 10
GALLERY = shipped("web/gallery")
"""Published runs: title, step time, source and the address of the question."""
TRILLION = 1e12
TABS = (
    ("layouts", "Layouts"), ("memory", "Memory"), ("time", "Time"), ("pipeline", "Pipeline"), ("network", "Network"),
    ("cost", "Cost"), ("whatif", "What-if"), ("explain", "Explanation"), ("launch", "Launch file"),
    ("compare", "Compare"),
)  # fmt: skip
"""Panels of details: name and label."""
ANALYSES = tuple(
    (name, load_preset(name).source, address([*query.items(), ("preset", name)]))
    for name, query in shipped("web/analyses").items()
)
"""Published analyses: name, source, and the address of a question that each answers."""
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=select_autoescape(default=True)
)
WRITTEN: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "count": format_count,
    "seconds": format_seconds,
    "span": format_span,
    "gib": lambda value: f"{value / GIB:z,.1f}",
    "percent": lambda value: f"{100.0 * value:.1f} %",
    "whole": "{:,.0f}".format,
    "tenths": "{:,.1f}".format,
    "short": "{:.3g}".format,
    "four": "{:.4g}".format,
    "six": "{:.6g}".format,
}
"""How templates write numbers; each stands in `data` with all its digits."""
TEMPLATES.globals |= WRITTEN
TEMPLATES.globals["of_figure"] = {
    "step_time_s": format_seconds,
    "tokens_per_s_per_device": WRITTEN["whole"],
    "training_days": WRITTEN["tenths"],
    **dict.fromkeys(("mfu", "mfu_full_attention", "hfu"), WRITTEN["percent"]),
}
"""How figures of a comparison are written that have no common unit."""
TEMPLATES.filters["layout"] = phrases.layout


def filled(name: str, **values: object) -> str:
    """Return a template with its values."""
    return TEMPLATES.get_template(name).render(**values)


def compressed(work: str, query: Query, *more: object) -> bytes:
    """Return the answer of one of these functions as it is sent."""
    return gzip.compress(globals()[work](query, *more).encode(), LEVEL)


@lru_cache(maxsize=64)
def _projected(link: tuple[tuple[str, str], ...]) -> Projection:
    return project_as(question(link))


@lru_cache(maxsize=64)
def _estimated(link: tuple[tuple[str, str], ...]) -> tuple[Estimate, float]:
    """Return what a curve shows of a question, with tokens per second and device."""
    request = question(link)
    if request.preset != "default":
        one = _projected(link)
        return Estimate.from_parts(one.step_time, one.memory, one.notes), one.tokens_per_s_per_device
    estimate, tokens = estimate_as(request), request.workload.tokens_per_step
    rate = tokens_per_device_second(
        tokens=tokens, step_time=estimate.step_time_s, num_devices=request.cluster.num_devices
    )
    return estimate, float(rate)


def _projection(query: Query) -> Projection:
    return _projected(tuple(told(query)))


def form(query: Query) -> str:
    """Return the whole page; a question that cannot be asked stands in the form with what is wrong."""
    message = told(query) if query else told(opened())
    try:
        answer = _answer(message)
    except ForescaleError as error:
        refused = form_error(error)
        answer = {"error": str(refused), "field": refused.field}
    return filled(
        "page.html",
        **answer,
        fields=FIELDS,
        tabs=TABS,
        said=dict(message),
        analyses=ANALYSES,
        version=__version__,
        config=CONFIG,
    )


def answer(query: Query) -> str:
    """Return the answer alone, after a change of the form."""
    return filled("answer.html", **_answer(told(query)))


def document(query: Query) -> str:
    """Return what `forescale project --json` prints."""
    projection, request = _projection(query), question(query)
    return json.dumps({**projection.to_json(), "question": question_values(request)})


def cost(query: Query) -> str:
    """Return the days, money and energy of the whole run; of a trillion tokens where the question gives none."""
    projection, request = _projection(query), question(query)
    tokens = request.workload.tokens or TRILLION
    phases = [Phase(name="run", projection=projection, tokens=tokens)]
    result = project_run(phases, request.operations, Prices(device_hour=price_of(query)))
    charts = [figure(chart) for chart in result.pictures()]
    return filled("cost.html", run=result, tokens=tokens, given=request.workload.tokens, charts=charts)


def card(query: Query) -> str:
    """Return the answer as a picture of 1,200 × 630 points (SVG), to share and to embed."""
    projection = _projection(query)
    document = projection.to_json()
    parts = sorted(_parts(projection), key=lambda part: -part[1])
    bars = [(name, value, colour(name, place)) for place, (name, value) in enumerate(parts)]
    return filled("card.svg", found=projection, document=document, bars=bars, version=__version__)


def card_png(query: Query) -> str:
    """Return the same picture as PNG, in base64."""
    return b64encode(rasterised(card(query))).decode()


def gallery(query: Query) -> str:
    """Return published runs next to what is projected for them, each with a link."""
    del query
    rows = [(run, _projected(tuple(told(parse_qsl(run["address"]))))) for run in GALLERY]
    return filled("gallery.html", rows=rows)


def pictures(query: Query) -> str:
    """Return what takes longer to draw: what if, where ranks lie, and one step of the pipeline."""
    estimate, _ = _estimated(tuple(told(query)))
    points = list(_varied(query)) if estimate.step_time_s else []
    curves = (curve([point for point in points if point.what == what], parts) for what, parts in WHAT_IF)
    shown, request = [figure(item) for item in curves if item], question(query)
    drawn = drawings(request) if request.preset == "default" else []
    return filled("pictures.html", curves=shown, placement=drawn[:1], pipeline=drawn[1:])


def compare(query: Query, *kept: Query) -> str:
    """Return the question next to those that were kept, and how it differs from each of them."""
    queries = [*kept, query]
    found = [_projection(item) for item in queries]
    prices = [one.run_cost(price_of(item)) for item, one in zip(queries, found, strict=True)]
    columns = [(one, address(item), money) for item, one, money in zip(queries, found, prices, strict=True)]
    return filled(
        "compare.html",
        columns=columns,
        pairs=[_pair(item, query, f"question {place}") for place, item in enumerate(kept, 1)],
    )


def _pair(kept: Query, query: Query, name: str) -> dict[str, Any]:
    """Return how the question differs from one that was kept."""
    result = compared(_projection(kept), _projection(query), name_a=name, name_b="now")
    parts = result.to_json()
    memory = [parts["memory"]["peak_bytes"], *parts["memory"]["parts_bytes"]]
    return {
        "name": name,
        "found": parts,
        "charts": [figure(picture) for picture in result.pictures()],
        "tables": (
            ("Figures", [row for row in parts["figures"] if row["a"] is not None], "", WRITTEN["four"]),
            ("Time of a step, in seconds", parts["time_parts_s"], "step_time.", WRITTEN["four"]),
            ("Memory of the fullest device, in GiB", memory, "memory.", WRITTEN["gib"]),
        ),
        "kept": address(kept),
        "now": address(query),
    }


def explain(query: Query, quantity: str, stage: str) -> str:
    """Return the tree of one number."""
    request = question(query)
    return filled(
        "explain.html",
        node=_tree(request, quantity, stage, DEPTH).to_json(depth=DEPTH)["tree"],
        quantity=quantity,
        stage=stage,
        layout=phrases.layout(request.layout),
        address=address(query),
        line=_line(query, request, f"explain --stage {stage}" if stage else "explain", quantity),
    )


def explain_document(query: Query, quantity: str, stage: str) -> str:
    """Return what `forescale explain --json` prints."""
    request = question(query)
    notes = [asdict(note) for note in (*left_out(request.model), *request.notes)]
    tree = _tree(request, quantity, stage).to_json()
    return json.dumps({**tree, **({"notes": notes} if notes else {})})


def launch(query: Query, to: str) -> str:
    """Return the layout as a framework's files, to read."""
    return filled("launch.html", found=export(question(query), to), to=to, address=address(query))


def launch_file(query: Query, to: str, file: str) -> str:
    """Return one of a framework's files."""
    texts = export(question(query), to).texts
    if file not in texts:
        raise UnknownNameError("file", file[:80], tuple(texts))
    return texts[file]


def fit(query: Query) -> str:
    """Return what would make the layout fit."""
    result = fitted(question(query), pairs=False, accepts=is_writable)
    rows = [
        {**fix.row(), "verdict": fix.verdict, "address": _layout(query, fix.projection)}
        for fix in result.fixes[:TOP]
    ]
    return filled("fit.html", rows=rows, address=address(query))


def read(query: Query, name: str, data: bytes) -> str:
    """Return what a file says: fields of the form, or how the run that it measured differs from the question."""
    if (text := measured_text(name, data)) is None:
        return json.dumps(uploaded(name, as_text(data), dict(told(query))))
    result = measured(name, text, question(query))
    kind = "a profiler trace" if result.traces else "a log"
    shown = filled("diagnosis.html", found=result, file=name)
    return json.dumps({"format": kind, "fields": {}, "notes": [], "html": shown})


def search(tell: Tell, query: Query, limit: float) -> str:
    """Return the best layouts."""
    result = _searched(tell, query, limit)
    shown = [figure(picture) for picture in result.pictures()]
    rows = _ranked(query, result.best)
    risky = any(one.memory.verdict == "AT RISK" for one in result.best)
    return filled(
        "search.html",
        found=result,
        risk=AT_RISK if risky else "",
        address=address(query),
        charts=shown,
        rows=rows,
        parts=dict(_parts(result.best[0])),
    )


def front(query: Query) -> str:
    """Return the layouts none of which is beaten in step time and memory, beside that of the question."""
    price = price_of(query)
    result = pareto_search(search_question(query))
    try:
        projection = _projection(query)
    except ForescaleError:  # it cannot be laid out so
        projection = None
    ranked = _ranked(query, result.front)
    links = {id(one): link for one, link, _ in ranked} | {id(projection): address(query)}
    note = "none of them is beaten in both"
    charts = [
        memory_and_time(
            result.front,
            note=f"{note}; a click takes one",
            chosen=projection,
            link=lambda one: links[id(one)] and f"/?{links[id(one)]}",
        ),
        *days_and_money(result.front, note=note, price=price),
    ]
    shown = [figure(chart) for chart in charts]
    return filled("front.html", found=result, charts=shown, rows=ranked)


def _ranked(query: Query, projections: Sequence[Projection]) -> list[tuple[Projection, str, float | None]]:
    """Return the rows of a table of layouts: each with its address, and what it costs where that is known."""
    price = price_of(query)
    return [(one, _layout(query, one), one.run_cost(price)) for one in projections]


def search_document(query: Query, limit: float) -> str:
    """Return what `forescale search --json` prints."""
    result = _searched(lambda _: None, query, limit)
    return json.dumps({**result.to_json(), "question": question_values(result.question)})


def _searched(tell: Tell, query: Query, limit: float) -> SearchResult:
    def watch(progress: Progress) -> bool:
        names = ("num_legal", "num_evaluated", "num_pruned", "gap", "elapsed_s", "best")
        tell({name: getattr(progress, name) for name in names if name != "best" or progress.gap < 1.0})
        return True

    price = price_of(query)
    result = searched(search_question(query), top=TOP, surest=True, time_limit=limit, watch=watch)
    return replace(result, price_per_device_hour=price)


def _tree(request: Question, quantity: str, stage: str, depth: int | None = None) -> TermNode:
    if stage and not (stage.isdecimal() and len(stage) < 10):
        raise out_of_range("stage", stage[:20], "a number from 0")
    return explained(request, quantity, stage=int(stage) if stage else None, depth=depth)


def _line(query: Query, request: Question, command: str, *more: str) -> str | None:
    """Return the command line that asks the same; None where the model or the cluster has no name."""
    if any(name in ("config", "hbm_gib", "network") for name, _ in query):
        return None
    return " ".join(("forescale", command, project_line(request), *more))


def _answer(query: Query) -> dict[str, Any]:
    projection = _projection(query)
    parts = _parts(projection)
    return {
        "found": projection,
        "document": projection.to_json(),
        "parts": sorted(parts, key=lambda part: -part[1]),
        "query": query,
        "cost": projection.run_cost(price_of(query)),
        "address": address(query),
        "line": _line(query, question(query), "project"),
        "frameworks": TARGETS if projection.preset == "default" else (),
        "source": load_preset(projection.preset).source,
        "charts": [figure(chart) for chart in projection.pictures()],
    }


def _parts(projection: Projection) -> list[tuple[str, float]]:
    """Return the parts of a step that take time."""
    return [(name, projection.time_s[name]) for name in TIME_PARTS if projection.time_s[name]]


def _layout(query: Query, one: Projection) -> str:
    """Return the address of the same question with another layout; empty where it has none."""
    result = laid_out(query, one)
    return "" if result is None else address(result)


def _varied(query: Query) -> Iterator[WhatIf]:
    """Return the layout as devices, batch and network change."""
    request = question(query)
    batch, devices = request.workload.global_batch_size, request.cluster.num_devices
    network = float(dict(told(query)).get("network", "1"))
    kinds: dict[str, Callable[[float], dict[str, str]]] = {
        "devices": lambda factor: {"devices": str(round(devices * factor))},
        "batch": lambda factor: {"global_batch_size": str(round(batch * factor))},
        "network": lambda factor: {"network": f"{network * factor:g}"},
    }
    for kind, change in kinds.items():
        for factor in FACTORS:
            try:
                result = changed(query, **change(factor))
                estimate, rate = _estimated(tuple(told(result)))
                link = f"/?{address(result)}"
                yield WhatIf(what=kind, factor=factor, found=estimate, rate=rate, link=link)
            except ForescaleError:  # a layout that this many do not make has no point
                continue
