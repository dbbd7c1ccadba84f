"""What `import forescale` offers: each function takes a `Question`, or the names, values and keywords that make one.

Keywords are the fields of `Layout` (`tp=8`, `zero=1`), of `Workload` (`seq_len`, `global_batch_size`, `tokens`), of
`Precision` in a table or by its compute type (`precision="fp8"`), of `Question` (`space`, `costs`, `max_memory`,
`preset`, `preset_options`, `objective`, `safe`), of the section `[cost]` of a plan (`compute`, `device_clock_mhz`,
`calibration`, `measurements`, `benchmarks`, `restore`, `safety_margin`), and `devices` or `nodes`; `operations` is how
the whole run is operated, a value or a table. Nothing in the package itself imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec.structs import replace

from forescale.advise import Advice, Check, Fit, Limits
from forescale.advise import advise as advised
from forescale.advise import check as checked
from forescale.advise import fit as fitted
from forescale.cost.select import Costs
from forescale.diagnose import Diagnosis, measured_of
from forescale.diagnose import diagnose as diagnosed
from forescale.diagnose.watch import Watcher
from forescale.errors import (
    UnknownKeyError,
    extra_missing,
    given_twice,
    not_one_of,
    wrong_type,
)
from forescale.explain import explain as explained
from forescale.export import Export, is_writable
from forescale.export import export as exported
from forescale.formula import TermNode
from forescale.frameworks.traces import save_trace
from forescale.io.measurements import CostSection
from forescale.io.named import cluster_given, model_given
from forescale.io.plan import spelt_out
from forescale.io.question import KINDS, build_layout, build_question
from forescale.io.space import held_space
from forescale.limits import DEVICES, SHOWN, TIME, Interval, within
from forescale.memory.timeline import MemoryTimeline
from forescale.presets import project_as
from forescale.project import memory_timeline
from forescale.projection.result import Projection
from forescale.question import Question, question_of
from forescale.records import home_of, record, same
from forescale.search import Comparison, SearchResult
from forescale.search import compare as compared
from forescale.search import search as searched
from forescale.search.solve import Watch
from forescale.spec import Cluster, Layout, Model, Workload
from forescale.spec.framework import searched as framework_space
from forescale.spec.framework import with_recipes
from forescale.spec.space import NAMES, Space
from forescale.struct import Struct

LAYOUT = tuple(item.name for item in fields(Layout))
RUN = tuple(item.name for item in fields(Workload))
COST = tuple(item.name for item in fields(CostSection))
PLAN = (
    *("devices", "nodes", "sites", "framework", "preset", "preset_options"),
    *("hardware_config", "operations"),
    *("objective", "max_memory", "safe"),
)
PARTS = {"space": Space, "costs": Costs}
WHERE = "the question"
SEVERAL = (list, tuple, range, set, frozenset)
"""Values of a dimension that a search may choose from."""
STAGES = Interval(ge=0, le=2**24)


class _Effort(Struct, frozen=True, kw_only=True):
    """What a search is told beside its question."""

    top: Annotated[int, SHOWN]
    all_variants: bool
    relax: bool
    surest: bool
    time_limit: Annotated[float, TIME] | None


def load_model(name: str | Path | Mapping[str, Any]) -> Model:
    """Return a model by its catalogue name, or from a file or folder that describes it.

    A mapping has the keys of a Hugging Face configuration, or the fields of `Model`. An address on huggingface.co means
    the catalogue's model of that name; nothing is downloaded.

    Raises
    ------
    UnknownNameError
        If it is neither; the message names the nearest catalogue models.
    ReaderError
        If it is a file that cannot be read as a model.
    """
    return model_given(_plain(name), "load_model")


def trace(
    model: Any,  # noqa: ANN401 (a torch module, which the core does not know)
    inputs: Callable[[int, int], Any] | None = None,
    *,
    seq_len: int = 4096,
    precision: str = "bf16",
    loss: Callable[[Any], Any] | None = None,
    attention: str | None = None,
    tp_plan: Mapping[str, str] | None = None,
    name: str = "",
) -> Model:
    """Return a model whose operators are recorded from its own code, on fake tensors and without a GPU.

    Needs the extra `trace` (torch and transformers).

    Parameters
    ----------
    model
        A `torch.nn.Module`, best built under `torch.device("meta")`, whose parameters are replaced by fake ones; or a
        config.json of transformers, a folder with one, or `FILE.py:FUNCTION`.
    inputs
        Function of micro-batch size and sequence length that returns the arguments of a module; by default token ids.
    seq_len
        Sequence length that the valid range of the trace includes.
    precision
        "bf16" (parameters in bf16), "autocast" (parameters in fp32 under autocast to bf16) or "fp32". Of a module, only
        whether it runs under autocast: its parameters have types already.
    loss
        Function of the module's result that returns the scalar to differentiate; by default the result's `loss`.
    attention
        Attention implementation of a Hugging Face model: "sdpa" or "eager".
    tp_plan
        Styles by which ranks of tensor parallelism split linear layers, as transformers names them, by the pattern of
        their path ({"blocks.*.qkv": "colwise"}); {} takes those of a transformers class. By default there is no split.
    name
        Name of the model; by default that of its class or file.

    Raises
    ------
    ForescaleError
        If it cannot be traced; the message names module and line.
    """
    try:
        from forescale.trace import trace as trace_of_module
        from forescale.trace import trace_source
    except ImportError as error:
        raise extra_missing("fs.trace", str(error.name), "trace") from error
    if isinstance(model, str | Path):
        result = trace_source(
            str(model), seq_len=seq_len, precisions=(precision,), attention=attention, tp_plan=tp_plan
        )
        return replace(result, name=name) if name else result
    return trace_of_module(
        model,
        inputs,
        seq_len=seq_len,
        autocast=precision == "autocast",
        loss=loss,
        tp_plan=tp_plan,
        name=name,
    )


def write_trace(model: Model, path: str | Path) -> None:
    """Write a traced model to a JSON file, which takes the place of a model's name in every function and command.

    Raises
    ------
    ForescaleError
        If the model was not traced, or the file cannot be written.
    """
    save_trace(model, Path(path))


def load_cluster(name: str | Path, devices: int) -> Cluster:
    """Return a cluster of so many devices by its catalogue name, or from a cluster file; raises as `load_model`."""
    count = within(_plain(devices), DEVICES, "load_cluster: devices", whole=True)
    return cluster_given(_plain(name), "load_cluster").sized(count)


def ask(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Question:
    """Return the question of one layout: a whole one as it is, or what names, values and keywords make.

    Data parallel follows from `devices`: what the other degrees leave. A cluster of another number gets that many,
    as `--devices` says it over a cluster file. Where nothing gives the number of devices, it is the fewest that the
    degrees occupy, and a note says so.

    Raises
    ------
    UnknownKeyError
        If there is no such keyword; it names the nearest.
    SpecError
        If something is missing, of the wrong type or impossible.
    """
    if isinstance(model, Question):
        return _whole(model, cluster, strategy, workload, words)
    words = _plain(words)
    layout = {name: words.pop(name) for name in LAYOUT if name in words}
    question, parts = _read(model, cluster, strategy, workload, words, layout=layout, laid=True)
    return replace(question, **parts)


def ask_search(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    workload: Workload | None = None,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Question:
    """Return the question of a space of layouts: degrees and choices among the keywords are held, one value or several.

    Raises as `ask` does.
    """
    if isinstance(model, Question):
        return _whole(model, cluster, None, workload, words)
    words = _plain(words)
    kept = {name: words.pop(name) for name in NAMES if name in words}
    layout = {name: words.pop(name) for name in LAYOUT if name in words}
    question, parts = _read(model, cluster, None, workload, words, layout=layout or None)
    space: Space = parts.pop("space", Space())
    if question.strategy is not None:
        space = replace(space, base=question.strategy)
    if question.framework is not None:
        space = framework_space(question.framework, space, limited=False)
    several = {name: tuple(item) if isinstance(item, SEVERAL) else (item,) for name, item in kept.items()}
    several |= {
        name: tuple(_policy(one) for one in item) for name, item in several.items() if name == "recompute"
    }
    words = {name: list(map(_word, item)) for name, item in several.items() if all(map(_is_word, item))}
    values: dict[str, Any] = {name: item for name, item in several.items() if name not in words}
    space = replace(space, **values)
    space = held_space(same(space, WHERE, "space"), words, question.model, where=f"{WHERE}:")
    if question.framework is not None:
        space = with_recipes(question.framework, space, question.model, question.cluster, question.assumed)
    return replace(question, **{**parts, "strategy": None, "space": space})


def _policy(value: object) -> object:
    """Return a recompute policy that is given by its fields as `project` takes it; all else as it is."""
    return build_layout({"recompute": value}, 1, where=WHERE).recompute if isinstance(value, dict) else value


def _is_word(value: object) -> bool:
    return isinstance(value, str | int)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def project(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Projection:
    """Return memory and step time of one layout, by our own engine or as `preset` has it; it takes what `ask` takes.

    Raises
    ------
    SpecError
        If the layout is illegal; the message names every violated constraint.
    """
    return project_as(ask(model, cluster, strategy, workload, **words))


def memory(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> MemoryTimeline:
    """Return memory over one step of one layout, rank by rank, with the peak named; it takes what `ask` takes."""
    return memory_timeline(ask(model, cluster, strategy, workload, **words))


def explain(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    *,
    quantity: str = "step_time",
    stage: int | None = None,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> TermNode:
    """Return how one number of a projection comes about: formula, inputs, units and source.

    `quantity` is a name such as "step_time", "step_time.data_comm", "memory.activations" or "mfu"; of memory that of
    the pipeline `stage`, the fullest by default. The rest is what `ask` takes.

    Raises
    ------
    UnknownNameError
        If there is no such quantity; it names the nearest ones.
    """
    if not isinstance(quantity, str):
        raise wrong_type("quantity", quantity, "a name such as step_time or memory").at("fs.explain")
    if stage is not None:
        stage = within(_plain(stage), STAGES, "fs.explain: stage", whole=True)
    return explained(ask(model, cluster, strategy, workload, **words), quantity, stage=stage)


def search(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    workload: Workload | None = None,
    *,
    top: int = 10,
    all_variants: bool = False,
    relax: bool = False,
    surest: bool = False,
    time_limit: float | None = None,
    watch: Watch | None = None,
    checkpoint: str | Path | None = None,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> SearchResult:
    """Return the best layouts, exactly: every legal one is evaluated, or proven to be no better.

    Parameters
    ----------
    top
        Layouts that are ranked.
    all_variants
        Whether layouts that differ only in how states are sharded, ranks placed, layers recomputed and the like are
        ranked each by itself, not as one.
    relax
        Whether to search also with each constraint relaxed by itself, and say what the best would gain.
    surest
        Whether to look also for the fastest layout that fits at the upper end of its range.
    time_limit
        Seconds after which the search stops with the best so far.
    watch
        Is told how far the search is, step by step; False stops it.
    checkpoint
        File that keeps what is settled; a search of the same question goes on from it.
    words
        What `ask_search` takes: degrees and choices among them are held, the rest is free.

    Raises
    ------
    InfeasibleError
        If no layout is legal, or none fits.
    """
    question = ask_search(model, cluster, workload, **words)
    explicit = {
        "top": top,
        "all_variants": all_variants,
        "relax": relax,
        "surest": surest,
        "time_limit": time_limit,
    }
    effort = _Effort(**_plain(explicit))
    if not (watch is None or callable(watch)):
        raise wrong_type("watch", watch, "a function").at("fs.search")
    if not isinstance(checkpoint, str | Path | None):
        raise wrong_type("checkpoint", checkpoint, "the name of a file").at("fs.search")
    kept = None if checkpoint is None else Path(checkpoint)
    return searched(question, watch=watch, checkpoint=kept, **asdict(same(effort, "fs.search", "")))


def export(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    *,
    to: str,
    slurm: bool = False,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Export:
    """Return a layout as a framework's own configuration (`texts` by path), and the words that it cannot say there.

    `to` is a name as `framework` takes it; `slurm` adds a script for sbatch. The rest is what `ask` takes.

    Raises
    ------
    UnknownNameError
        If there is no such framework.
    SpecError
        If nothing is written for it, or it refuses such a layout; the message says which limit.
    """
    if not isinstance(model, Question):
        words.setdefault("framework", to)
    question = ask(model, cluster, strategy, workload, **words)
    return exported(question, to, slurm=_flag(slurm, "fs.export: slurm"))


def advise(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    workload: Workload | None = None,
    *,
    exact: bool = True,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Advice:
    """Return a layout found step by step (what fits, the batch, throughput), and how far it is from the exact best.

    Raises
    ------
    InfeasibleError
        If nothing that the process tries fits.
    """
    question = ask_search(model, cluster, workload, **words)
    return advised(question, exact=_flag(exact, "fs.advise: exact"))


def fit(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    *,
    keep: Sequence[str] = (),
    pairs: bool = True,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Fit:
    """Return which changes make one layout fit, or faster, and what each costs; it takes what `ask` takes.

    `keep` names what stays as it is, such as "micro_batch_size"; `pairs` makes changes also two at a time.

    Raises
    ------
    UnknownNameError
        If `keep` names nothing that is changed.
    """
    kept = (keep,) if isinstance(keep, str) else keep
    if not (isinstance(kept, SEVERAL) and all(isinstance(item, str) for item in kept)):
        raise wrong_type("keep", keep, "names of dimensions, such as ['tp']").at("fs.fit")
    question = ask(model, cluster, strategy, workload, **words)
    return fitted(question, keep=tuple(kept), pairs=_flag(pairs, "fs.fit: pairs"), accepts=is_writable)


def check(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    *,
    limits: Limits | Mapping[str, float] = Limits(),  # noqa: B008  (frozen)
    strict: bool = False,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Check:
    """Return whether one layout is legal for its framework, fits, and keeps limits; it takes what `ask` takes.

    Parameters
    ----------
    limits
        `max_step_time_s`, `min_mfu` (of 1), `max_cost`, `deadline_days`, `price_per_device_hour`, by name.
    strict
        Whether it fails where the upper end of an interval passes a limit.

    Raises
    ------
    SpecError
        If the question cannot be read, or a limit needs what it does not say.
    """
    values = limits if isinstance(limits, Limits) else record(Limits, dict(limits), "limits", "fs.check")
    question = ask(model, cluster, strategy, workload, **words)
    return checked(
        question, values, project_as, strict=_flag(strict, "fs.check: strict"), accepts=is_writable
    )


def diagnose(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    *,
    measured: str | Path | Sequence[str | Path],
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Diagnosis:
    """Return how a measured step differs from the expected one, and the ranked causes; it takes what `ask` takes.

    `measured` is a log, a profiler trace, a folder of traces, or a figure such as "step=12.4s"; or several of these.

    Raises
    ------
    SpecError
        If nothing of it says how long a step takes.
    """
    question = ask(model, cluster, strategy, workload, **words)
    several = [measured] if isinstance(measured, str | Path) else measured
    return diagnosed(question, measured_of([str(item) for item in several], project_as(question)), project_as)


def watch(
    model: Question | Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None = None,
    strategy: Layout | None = None,
    workload: Workload | None = None,
    *,
    price_per_device_hour: float | None = None,
    fail_below: float | None = None,
    **words: Any,  # noqa: ANN401 (fields by name)
) -> Watcher:
    """Return what takes the lines of a running job's log with `feed(line)`; it takes what `ask` takes.

    Its `typical_s`, `speed` (of the expected one), `goodput`, `days_left` and `cost` are those of the lines so far.
    """
    result = project_as(ask(model, cluster, strategy, workload, **words))
    return Watcher(result, price_per_device_hour=price_per_device_hour, fail_below=fail_below)


def compare(
    a: Projection | Question | Mapping[str, Any],
    b: Projection | Question | Mapping[str, Any],
    *,
    name_a: str = "a",
    name_b: str = "b",
) -> Comparison:
    """Return how b differs from a, term by term: projections, their JSON documents, or questions."""
    one, other = (project_as(item) if isinstance(item, Question) else item for item in (a, b))
    return compared(one, other, name_a=name_a, name_b=name_b)


def _flag(value: object, name: str) -> bool:
    """Return a value that must be True or False."""
    if not isinstance(value, bool | np.bool_):
        raise not_one_of(name, value, ("True", "False"))
    return bool(value)


def _whole(
    question: Question,
    cluster: Cluster | str | Path | None,
    layout: Layout | None,
    workload: Workload | None,
    values: Mapping[str, Any],
) -> Question:
    """Return a question that came alone."""
    return question_of(question, cluster, workload, strategy=layout, **values)  # type: ignore[arg-type]


def _read(
    model: Model | str | Path | Mapping[str, Any],
    cluster: Cluster | str | Path | None,
    strategy: Layout | None,
    workload: Workload | None,
    overrides: dict[str, Any],
    *,
    layout: dict[str, Any] | None,
    laid: bool = False,
) -> tuple[Question, dict[str, Any]]:
    """Return what plain words and values ask, read as a plan file is, and the whole parts among them."""
    parts = {name: overrides.pop(name) for name in PARTS if overrides.get(name) is not None}
    for name, part in parts.items():
        if not isinstance(part, PARTS[name]):
            raise wrong_type(name, part, f"an fs.{PARTS[name].__name__}").at(WHERE)
        same(part, WHERE, name)
    run = {name: overrides.pop(name) for name in RUN if name in overrides}
    cost = {name: overrides.pop(name) for name in COST if name in overrides}
    values = {name: overrides.pop(name) for name in PLAN if name in overrides}
    for name in overrides:
        known = (*LAYOUT, *RUN, *COST, *PLAN, *PARTS)
        raise UnknownKeyError(name, WHERE, known, home_of(name, KINDS))
    for name, raw, explicit in (("layout", strategy, layout), ("workload", workload, run)):
        if raw is not None and explicit:
            fix = f"a complete {name} is given: change it with dataclasses.replace"
            raise given_twice(list(explicit), fix=fix).at(WHERE)
    if isinstance(run.get("precision"), str):
        run["precision"] = {"compute": run["precision"]}
    if layout and isinstance(layout.get("recompute"), str):
        layout["recompute"] = {"granularity": layout["recompute"]}
    values |= {"model": _plain(model), "cluster": _plain(cluster), "workload": workload or _tables(run)}
    if strategy is not None or layout is not None:
        values["strategy"] = strategy or _tables(layout or {})
    if cost:
        values["cost"] = cost
    present = {name: value for name, value in values.items() if value is not None}
    return build_question(spelt_out(present), where=WHERE, laid=laid, default_framework=True), parts


def _plain(value: Any) -> Any:  # noqa: ANN401 (any word)
    """Return a word as a file would have it: numbers and arrays of numpy as Python's, paths as text."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return words whose values are plain: specifications within as tables."""
    return {
        name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in values.items()
    }
