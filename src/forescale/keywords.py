"""Questions from the keywords of a function of `import forescale`, read as the values of a plan file are."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from forescale import wording
from forescale.arguments import LISTS, checked_arguments, in_python
from forescale.arrays import is_numpy
from forescale.cost.select import Costs
from forescale.errors import (
    ForescaleError,
    UnknownKeyError,
    UnknownNameError,
    given_twice,
    needing,
    wrong_type,
)
from forescale.graph.traced import traced_precision
from forescale.io.measurements import CostSection
from forescale.io.named import is_uncounted
from forescale.io.option_text import text_value
from forescale.io.plan import spelt_out, with_granularity
from forescale.io.question import KINDS, build_layout, build_question
from forescale.io.recipes import as_set_up
from forescale.io.sizes import USUAL_LENGTH
from forescale.io.space import held_space
from forescale.question import Question, question_of
from forescale.records import home_of, same
from forescale.results import Result
from forescale.spec import Cluster, Layout, Model, Workload
from forescale.spec.framework import searched as framework_space
from forescale.spec.framework import with_recipes
from forescale.spec.operations import Operations
from forescale.spec.option import Declared, options
from forescale.spec.space import NAMES, Space
from forescale.synonyms import EXAMPLES, converted, meant, optimizer_called, with_value

F = TypeVar("F", bound=Callable[..., object])
Keywords: TypeAlias = Mapping[str, Any]
"""Arguments of a function of the face by name."""
LAYOUT = tuple(item.name for item in fields(Layout))
RUN = tuple(item.name for item in fields(Workload))
COST = tuple(item.name for item in fields(CostSection))
PLAN = (
    *("devices", "nodes", "sites", "framework", "preset", "preset_options"),
    *("hardware_config", "operations"),
    *("objective", "max_memory", "safe"),
)
PARTS = {"space": Space, "costs": Costs}
KEYWORDS = (*PLAN, *RUN, *LAYOUT, *COST, *PARTS)
"""Keywords that every function of a question has."""
NESTED = (Layout, Workload, Operations)
"""Tables of a question whose options are keywords too."""
WHERE = "the question"
WORDS = {"precision": "compute", "recompute": "granularity", "images": "count"}
"""The field of a table that one word or number stands for."""
INSTEAD = {
    "fs.compare": "it compares two results: fs.compare(fs.project(…), fs.project(…)); for rows of several models, "
    "clusters or batches: pandas.concat({item: fs.search(item, …, top=1).to_frame() for item in (…)})"
}
"""What to write for the keywords of a question in functions that take none."""
SEVERAL = LISTS
"""Values of a dimension that a search may choose from."""


@cache
def nested_fields(kind: type) -> dict[str, Declared]:
    """Return the fields of tables in a `kind` that have an option, by the option's name.

    Operations are a table themselves: all of their fields.
    """
    if kind is Operations:
        return {item.name: item for item in options(kind)}
    names = {item.name for item in fields(kind)}
    return {item.name: item for item in options(kind) if len(item.path) > 1 and item.name not in names}


@cache
def question_keywords() -> tuple[str, ...]:
    """Return all arguments that are parts of a question, whose values are read as those of a plan file."""
    nested = (name for kind in NESTED for name in nested_fields(kind))
    return ("model", "cluster", "strategy", "workload", *KEYWORDS, *nested)


class TransformersConfig(Protocol):
    """A configuration of transformers."""

    model_type: str

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration's keys."""


class TorchModule(Protocol):
    """A `torch.nn.Module`."""

    def parameters(self, recurse: bool = ...) -> Any:  # noqa: ANN401 (as torch has it)
        """Return the parameters."""


def question_of_layout(keywords: Keywords, *, framework: str | None = None, to_fit: bool = False) -> Question:
    """Return the question of one layout that the keywords of a function make, or the complete one among them.

    `framework` trains where no keyword names one. With `to_fit`, a layout that does not fit takes recompute where
    nothing names one.
    """
    question = _question_of_layout(keywords, framework)
    return as_set_up(question) if to_fit else question


def _question_of_layout(keywords: Keywords, framework: str | None) -> Question:
    model, cluster, strategy, workload, values = _parts(keywords)
    if isinstance(model, Question):
        return question_of(model, cluster, workload, strategy=strategy, **values)
    values.setdefault("framework", framework)
    layout = {name: values.pop(name) for name in LAYOUT if name in values}
    question, parts = _read(model, cluster, strategy, workload, values, layout=layout, laid=True)
    return replace(question, **parts)


def question_of_space(keywords: Keywords, *, limited: bool = False) -> Question:
    """Return the question of a space of layouts that the keywords of a function make, or the complete one among them.

    `limited` restricts it to what the framework supports.
    """
    model, cluster, _, workload, values = _parts(keywords)
    if isinstance(model, Question):
        return question_of(model, cluster, workload, **values)
    kept = {name: values.pop(name) for name in NAMES if name in values}
    layout = {name: values.pop(name) for name in LAYOUT if name in values}
    question, parts = _read(model, cluster, None, workload, values, layout=layout or None)
    space: Space = parts.pop("space", Space())
    if question.strategy is not None:
        space = replace(space, base=question.strategy)
    if question.framework is not None:
        space = framework_space(question.framework, space, limited=limited)
    several = {name: tuple(item) if isinstance(item, SEVERAL) else (item,) for name, item in kept.items()}
    several |= {
        name: tuple(_policy(one) for one in item) for name, item in several.items() if name == "recompute"
    }
    texts = {name: list(map(_word, item)) for name, item in several.items() if all(map(_is_word, item))}
    chosen: dict[str, Any] = {name: item for name, item in several.items() if name not in texts}
    space = replace(space, **chosen)
    space = held_space(same(space, WHERE, "space"), texts, question.model, where=f"{WHERE}:")
    if question.framework is not None:
        space = with_recipes(question.framework, space, question.model, question.cluster, question.assumed)
    return replace(question, **{**parts, "strategy": None, "space": space})


def _parts(keywords: Keywords) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Return model, cluster, layout and workload, and the keywords that have a value."""
    names = ("model", "cluster", "strategy", "workload")
    kept = {
        name: plain(keywords[name])
        for name in question_keywords()
        if name not in names and keywords.get(name) is not None
    }
    model, cluster, strategy, workload = (keywords.get(name) for name in names)
    if isinstance(model, Result):
        fix = "give what made it, or a question = fs.ask(…), which fs.project, fs.explain and others take"
        raise wrong_type("model", model, "a name, a file, a configuration or a question, not a result", fix)
    if isinstance(cluster, str) and keywords.get("quantity"):
        from forescale.explain import quantity_names

        if cluster in quantity_names():
            raise wrong_type("cluster", cluster, "a cluster", f"write quantity={cluster!r}")
    described = model_object(model, keywords)
    if isinstance(described, Model) and described is not model and workload is None:
        precision = traced_precision(described)
        if kept.get("precision") in (None, precision.compute):
            kept["precision"] = precision
    return described, cluster, strategy, workload, kept


def model_object(model: object, keywords: Keywords) -> object:
    """Return a configuration of transformers as a dictionary, and a module as what its code computes.

    A module in fp32 is taken to train under `torch.autocast` to bf16, unless another precision is given.
    """
    config = getattr(model, "config", model)
    if callable(describe := getattr(config, "to_dict", None)) and hasattr(config, "model_type"):
        return describe()
    if callable(getattr(model, "named_parameters", None)):
        is_wide = any(str(value.dtype) == "torch.float32" for _, value in model.named_parameters())  # type: ignore[attr-defined]
        autocast = is_wide and keywords.get("precision") in (None, "bf16")
        return traced_module(model, seq_len=keywords.get("seq_len") or USUAL_LENGTH, autocast=autocast)
    return model


def traced_module(model: Any, *values: Any, **options: Any) -> Model:  # noqa: ANN401 (as `trace` takes them)
    """Return a traced module; what traces is loaded first."""
    with needing("trace", "fs.trace"):
        from forescale.trace import trace
    return trace(model, *values, **options)


def refuse_unknown(keywords: Keywords, where: str, known: Sequence[str], fix: str = "") -> None:
    """Raise an error that names all keywords that are not `known`, if there are any, and those that say the same."""
    if unknown := [name for name in keywords if name not in known]:
        homes = {name: home for name in unknown if (home := home_of(name, KINDS))}
        same_as = [keywords_for(name, keywords[name], known) for name in unknown]
        texts = [f"{name}={value!r}" for values in same_as for name, value in values.items()]
        fix = fix or (f"write {', '.join(texts)}" if all(same_as) else "")
        raise UnknownKeyError.of(unknown, where, known, homes, fix)


def keywords_for(name: str, value: object, known: Sequence[str]) -> dict[str, Any]:
    """Return the `known` keywords that say what a keyword of other libraries does; none if that is open."""
    words = (with_value(name) or "").split() if value is True else []
    said = {
        flag.strip("-").replace("-", "_"): text for flag, text in zip(words[::2], words[1::2], strict=True)
    }
    if said and said.keys() <= {*known}:
        return {key: int(text) if text.isdecimal() else text for key, text in said.items()}
    field = None if converted(name) is not None else meant(name, known)
    return {} if field is None or field == "limits" else {field: value}  # limits are a table


def renamed(keywords: dict[str, Any], where: str, known: Sequence[str]) -> dict[str, Any]:
    """Return keywords in which those of other libraries are ours, with a warning that says so.

    Unknown ones that are open, or are given under our name too, stay as they are.
    """
    names = {name: keywords_for(name, keywords[name], known) for name in keywords if name not in known}
    written = [key for local in names.values() for key in local]
    if not names or not all(names.values()) or len({*written, *keywords}) < len(written) + len(keywords):
        return keywords
    read = ", ".join(
        f"{name} as {', '.join(f'{key}={value!r}' for key, value in local.items())}"
        for name, local in names.items()
    )
    warnings.warn(f"{where} reads {read}", stacklevel=3)
    kept = {name: value for name, value in keywords.items() if name not in names}
    return kept | {key: value for local in names.values() for key, value in local.items()}


def _with_moments(keywords: dict[str, Any], where: str) -> dict[str, Any]:
    """Return keywords in which an optimizer of bitsandbytes or torchao is ours with a type of its moments."""
    name = keywords.get("optimizer")
    called = optimizer_called(name) if isinstance(name, str) else None
    if called is None or "moment_dtype" in keywords:
        return keywords
    kind, moments = called
    text = f"optimizer={name!r} as optimizer={kind!r}, moment_dtype={moments!r}"
    warnings.warn(f"{where} reads {text}", stacklevel=3)
    return {**keywords, "optimizer": kind, "moment_dtype": moments}


def names_checked(function: F) -> F:
    """Return a function of the face that reads exact names of other libraries, and refuses other unknown keywords."""
    known = tuple(inspect.signature(function).parameters)
    where = f"fs.{function.__name__}"
    read_as_plans = question_keywords() if {*KEYWORDS} <= {*known} else ()

    @wraps(function)
    def call(*values: object, **keywords: object) -> object:
        keywords = renamed(_with_moments(keywords, where), where, known[len(values) :])
        refuse_unknown(keywords, where, known, INSTEAD.get(where, ""))
        places = dict(zip(known, values, strict=False))
        checked = checked_arguments(function, places | keywords, where, read_as_plans)
        left = {name: checked[name] for name in keywords}
        try:
            return function(*(checked[name] for name in places), *values[len(places) :], **left)
        except ForescaleError as error:
            error.worded(in_python(str(error), known))
            if isinstance(error, UnknownNameError) and error.fix.startswith(
                "save "
            ):  # of a model on huggingface.co
                error.worded(f"{error}, or transformers.AutoConfig.from_pretrained({error.name!r})")
            raise

    return call  # type: ignore[return-value]


def _policy(value: object) -> object:
    """Return a recompute policy that is given by its fields as `project` takes it; all else as it is."""
    return build_layout({"recompute": value}, 1, where=WHERE).recompute if isinstance(value, dict) else value


def _is_word(value: object) -> bool:
    return isinstance(value, str | int)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    run = _with_nested({name: overrides.pop(name) for name in RUN if name in overrides}, overrides, Workload)
    layout = _with_nested(layout or {}, overrides, Layout) or layout
    cost = {name: overrides.pop(name) for name in COST if name in overrides}
    if operated := _operations(overrides):
        overrides["operations"] = operated
    values = {name: overrides.pop(name) for name in PLAN if name in overrides}
    for name, raw, explicit in (("layout", strategy, layout), ("workload", workload, run)):
        if raw is not None and explicit:
            fix = f"a complete {name} is given: change it with dataclasses.replace"
            raise given_twice(list(explicit), fix=fix).at(WHERE)
    values |= {"model": plain(model), "cluster": plain(cluster), "workload": workload or _tables(run)}
    if strategy is not None or layout is not None:
        values["strategy"] = strategy or _tables(layout or {})
    if cost:
        values["cost"] = cost
    present = {name: value for name, value in values.items() if value is not None}
    _require(present, laid=laid)
    return build_question(spelt_out(present), where=WHERE, laid=laid, default_framework=True), parts


def _operations(overrides: dict[str, Any]) -> Any:  # noqa: ANN401 (a table or a value)
    """Return how a run is operated, as `operations` and the keywords of its fields say, which are taken out."""
    operations = overrides.get("operations")
    names = [name for name in nested_fields(Operations) if name in overrides]
    if operations is not None and not isinstance(operations, Mapping) and names:
        raise given_twice(
            names, fix="complete operations are given: change them with dataclasses.replace"
        ).at(WHERE)
    return _with_nested(dict(operations or {}), overrides, Operations) if names else operations


def _require(values: Keywords, *, laid: bool) -> None:
    """Refuse a question that lacks several of its main parts with all of them; of one, its reader says more."""
    work = values["workload"]
    absent = {
        "cluster": "cluster" not in values,
        "devices": not laid and is_uncounted(values),
        "global_batch_size": isinstance(work, dict) and "global_batch_size" not in work,
    }
    missing = [name for name, is_absent in absent.items() if is_absent]
    if len(missing) > 1:
        fix = "such as " + ", ".join(f"{name}={EXAMPLES[name]!r}" for name in missing)
        raise wording.missing(missing, fix).at(WHERE)


def _with_nested(values: dict[str, Any], overrides: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return the values of a `kind` with those of fields in its tables, which are taken out of `overrides`."""
    tables = {
        name: {WORDS[name]: value} if name in WORDS and isinstance(value, str | int) else value
        for name, value in values.items()
    }
    nested = {name: item for name, item in nested_fields(kind).items() if name in overrides}
    for name, item in nested.items():
        value = overrides.pop(name)
        if len(item.path) == 1:
            if name in tables:
                raise given_twice([name], fix=f"operations has {name} too").at(WHERE)
            tables[name] = value
            continue
        table, key = tables.get(item.path[0]) or {}, item.path[1]
        if not isinstance(table, Mapping):
            fix = f"a complete {item.path[0]} is given: change it with dataclasses.replace"
            raise given_twice([name], fix=fix).at(WHERE)
        if isinstance(value, str) and (item.is_list or item.option.sibling):
            key, value = text_value(item, value, where=name)
        elif item.option.sibling and not isinstance(value, int):
            key = item.option.sibling
        if key in table:
            raise given_twice([name], fix=f"{item.path[0]} has {key} too").at(WHERE)
        tables[item.path[0]] = {**table, key: value}
    details = {name: item for name, item in nested.items() if item.option.granularity}
    if details:
        tables["recompute"] = with_granularity(tables["recompute"], details)
    return tables


def plain(value: Any) -> Any:  # noqa: ANN401 (any value)
    """Return a word as a file would have it: numbers and arrays of numpy as Python's, paths as text."""
    if is_numpy(value):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def _tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return words whose values are plain: specifications within as tables."""
    return {
        name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in values.items()
    }
