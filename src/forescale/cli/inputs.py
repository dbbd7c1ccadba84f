"""From what was typed to specifications: the plan file, then flags, then `--set`, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescale.cli.layout_words import ROUTING, layout_overrides, names_in
from forescale.cli.options import (
    Asked,
    ClusterOptions,
    CostOptions,
    LayoutOptions,
    OperationsOptions,
    PlanOptions,
    RunOptions,
    memory_limit,
    refuse,
)
from forescale.errors import MissingError, ReaderError, SpecError
from forescale.files import exists, is_folder, place_of
from forescale.limits import whole_of
from forescale.positions import COMMAND_LINE, located, said_by

if TYPE_CHECKING:
    from forescale.frameworks.reading import Options, ParsedFile
    from forescale.projection.result import Projection
    from forescale.question import Note, Question

PRECISION_FIELDS = {
    "precision": "compute",
    "fp8_recipe": "recipe",
    "param_dtype": "parameters",
    "grad_dtype": "gradients",
    "master_dtype": "master",
    "moment_dtype": "moments",
    "activation_dtype": "activations",
    "frozen_dtype": "frozen",
}
"""Field of `Precision` by option."""
OWN_SEARCH = {"almodel": "report", "subramanian2024": "search"}
"""Command that runs the search of a preset that has one."""
NAMED_KEYS = 8
"""Ignored keys of a file that are named; the rest are counted."""


def answered(question: Question) -> Projection:
    """Return what the preset of a question says; published accounts are loaded only where one is asked."""
    if question.preset == "default":
        from forescale.project import project

        return project(question)
    from forescale.presets import project_as

    return project_as(question)


def refuse_presets(question: Question, command: str, *, works_under: str = "the preset default") -> None:
    """Raise unless the question is asked of our own engine: other accounts project, some also search."""
    if question.preset == "default":
        return
    from forescale.presets import load_preset

    name = load_preset(question.preset).name
    takers = OWN_SEARCH.get(name)
    who = "project takes" if takers is None else f"project and {takers} take"
    raise SpecError(f"{command} works under {works_under} only; {who} {name}")


def limited(question: Question, max_memory: str | None) -> Question:
    """Return the question with the limit of --max-memory, which is no more than the device has."""
    limit = memory_limit(max_memory)
    if limit is None:
        return question
    question.cluster.device.check_limit(limit, "--max-memory", max_memory)
    return replace(question, max_memory=limit)


def read_question(
    request: Asked,
    *,
    framework: str | None = None,
    operated: OperationsOptions | None = None,
    phased: bool = False,
    searched: bool = False,
) -> Question:
    """Return the question that a command asks; without options of a layout it may have no strategy.

    A framework's file gives what it says of layout and workload; the plan file, flags and `--set` go over it.
    `framework` is what trains where nothing else says so; `phased` leaves the phases of a run's plan out; `searched`
    leaves the layout to a search where nothing gives a dimension that a search chooses.
    """
    from forescale.cli.unused import hardware_notes, unused_notes
    from forescale.frameworks.reading import flat
    from forescale.io.document import is_written
    from forescale.io.question import read_plan_values, with_overrides

    request = _asked_in(request)
    plan, layout, cost = request.plan, request.layout, request.cost
    folder = None if plan.plan is None else plan.plan.parent
    plan_values = {} if plan.plan is None else read_plan_values(plan.plan)
    written = deepcopy(plan_values)
    if phased:
        written.pop("phase", None)
    _refilled(written, request)
    named = {"model": _apart(request.model, plan), "cluster": _apart(request.cluster.cluster, plan)}
    _lay(written, {**named, "framework": plan.framework, "preset": plan.preset})
    _machine(written, request.cluster)
    _run(written, request.run)
    if layout is not None:
        _layout(written, layout)
    if cost is not None:
        _section(written, "cost", cost.values() if isinstance(cost, CostOptions) else cost.measured())
    if operated is not None:
        _operations(written, operated)
    values, notes, files = _with_files(written, folder, plan, layout=layout is not None)
    if framework is not None:
        values.setdefault("framework", framework)
    values = with_overrides(values, plan.sets or ())
    laid = layout is not None and not (searched and _left_to_search(values))
    _counted(values, folder, plan, laid=laid)
    with said_by(files, dict(flat(with_overrides(written, plan.sets or ())))):
        question = _built(values, plan_values, plan.plan, laid=laid)
    if request.run.images and question.model.vision is None:
        raise SpecError(f"{question.model.name} has no vision tower to see images; leave --images out")
    if operated is not None and question.workload.tokens is None:
        refuse(operated, "is of a whole run: give its --tokens, such as 15T")
    by_hand = plan_values if plan.plan and is_written(plan.plan) else {}
    unused = unused_notes(request.run, layout, plan.sets, question, by_hand)
    notes = (*question.notes, *notes, *hardware_notes(values, folder))
    return replace(question, notes=(*notes, *_framework_notes(question), *unused))


def _left_to_search(values: dict[str, Any]) -> bool:
    """Leave the layout to a search if no dimension that a search chooses is given; what is given is its base."""
    from forescale.spec.space import NAMES

    layout, preset = values.get("strategy"), values.get("preset", "default")
    if (
        preset != "default"
        or not isinstance(layout, dict)
        or not layout.keys().isdisjoint((*NAMES, "stage_layers"))
    ):
        return False
    values["space"] = {**values.get("space", {}), "base": values.pop("strategy")}
    return True


def _built(values: dict[str, Any], explicit: dict[str, Any], plan: Path | None, *, laid: bool) -> Question:
    """Return the question of all values; what is wrong with a plan's, once it is `laid` out too, has its line."""
    from forescale.io.question import build_question, changed_keys
    from forescale.spec.constraints import check

    where, folder = (COMMAND_LINE, None) if plan is None else (str(plan), plan.parent)
    with located(plan, changed_keys(values, explicit)):
        question = build_question(values, where=where, folder=folder, laid=laid)
        # A framework's words alone are no layout: a search has yet to find one.
        if "strategy" in values and question.strategy is not None and question.preset == "default":
            check(question.model, question.cluster, question.strategy, question.workload)
            if laid and "strategy" in explicit:
                from forescale.inputs import prepare

                prepare(question)
    return question


def _asked_in(question: Asked) -> Asked:
    """Return a plan, or a layout that a command printed, that was given as MODEL as the plan that it is."""
    from forescale.io.question import is_plan

    model, plan = question.model, question.plan.plan
    if model is None or not is_plan(place_of(model)):
        return question
    if plan is not None:
        raise SpecError(f"{model} asks a whole question, as --plan {plan} does; give one of them")
    return replace(question, model=None, plan=replace(question.plan, plan=place_of(model)))


def _refilled(written: dict[str, Any], question: Asked) -> None:
    """Leave data parallel to the devices where flags change the degrees of a printed layout."""
    from forescale.io.document import is_document
    from forescale.io.sizes import DEGREES

    cluster, plan = question.cluster, question.plan.plan
    flags = [cluster.devices, cluster.nodes, *(getattr(question.layout, name, None) for name in DEGREES)]
    if plan is None or not is_document(plan) or not any(flags):
        return
    from forescale.io.reading import without_data_parallel

    written["strategy"] = without_data_parallel(written["strategy"])


def _framework_notes(question: Question) -> tuple[Note, ...]:
    """Return what trains, where something names it, and what of the question it cannot run."""
    from forescale.question import Note

    framework = question.framework
    if framework is None:
        return ()
    texts = [f"where nothing else is said, as {framework.label} trains"]
    if violation := question.violation(question.strategy):
        texts.insert(0, violation)
    return tuple(Note(topic="framework", text=text) for text in texts)


def _layout(written: dict[str, Any], layout: LayoutOptions) -> None:
    """Lay how it is laid out over the plan's words."""
    _section(written, "strategy", layout_overrides(layout))
    if isinstance(written["strategy"], dict):
        _section(written["strategy"], "routing", {name: getattr(layout, name) for name in ROUTING})


def _run(written: dict[str, Any], run: RunOptions) -> None:
    """Lay what is trained on over the plan's words."""
    _section(written, "workload", _workload(run))
    for name, values in (
        ("trainable", _trainable(run)),
        ("images", {"count": run.images, "size": run.image_size}),
    ):
        if any(value is not None for value in values.values()) and isinstance(written["workload"], dict):
            _section(written["workload"], name, values)
    _section(written, "precision", {name: getattr(run, option) for option, name in PRECISION_FIELDS.items()})


def _machine(values: dict[str, Any], cluster: ClusterOptions) -> None:
    """Lay --devices or --nodes over whichever of the two the plan has, and sites and nodes' networks over its own."""
    if cluster.sites is not None:
        parts = cluster.sites.replace(",", " ").split()
        if len(parts) not in (2, 3):
            raise SpecError(
                f"--sites takes how many, a link and a time, such as 2,100Gbit/s,30ms; got {cluster.sites!r}"
            )
        count, *link = parts
        values["sites"] = {"count": _amount(count), **dict(zip(("bandwidth", "latency"), link, strict=False))}
    if cluster.hardware_config is not None:
        values["hardware_config"] = str(place_of(cluster.hardware_config).absolute())
    if cluster.devices is not None and cluster.nodes is not None:
        raise SpecError("--devices and --nodes say the same thing; give one of them")
    if cluster.devices is not None or cluster.nodes is not None:
        values.pop("devices", None)
        values.pop("nodes", None)
        if isinstance(table := values.get("cluster"), dict):
            values["cluster"] = {name: value for name, value in table.items() if name != "num_devices"}
        _lay(values, {"devices": cluster.devices, "nodes": cluster.nodes})


def _with_files(
    written: dict[str, Any], folder: Path | None, plan: PlanOptions, *, layout: bool
) -> tuple[dict[str, Any], tuple[Note, ...], list[Path]]:
    """Return `written` laid over what the model's file and --config say; notes about these files, and they.

    Without `layout`, as for a search, only what is not searched counts, such as overlap and kernels.
    """
    from forescale.io.question import with_overrides

    overrides = with_overrides(written, plan.sets or ())
    path = _model_file(overrides, folder)
    files = [item for item in (path, plan.config) if item is not None]
    if not files:
        for option, model in (("--var", plan.variables), ("--primus-presets-dir", plan.presets)):
            if model:
                raise SpecError(f"{option} goes with a framework's file as MODEL or --config; there is none")
        return written, (), files
    from forescale.frameworks.readers import is_bare_model, refuse_layout_alone, refuse_unread
    from forescale.io.named import checked_model
    from forescale.io.reading import said

    if path is not None:
        refuse_layout_alone(path)
    options = _reading_options(overrides, folder, plan, layout=layout)
    pairs = [
        _read(file, overrides, folder, options, bare=file == path and is_bare_model(file)) for file in files
    ]
    readings = [reading for reading, _ in pairs]
    refuse_unread(options.variables, files)
    values: dict[str, Any] = {}
    for reading in readings:
        _over(values, said(reading, layout=layout, sized="nodes" in written))
    _over(values, written)
    if path is not None:
        if readings[0].model is None:
            raise ReaderError(
                path, f"it describes no model; give a MODEL, and this file with --config {path}"
            )
        model, result = overrides["model"], checked_model(readings[0].model, where=str(path))
        values["model"] = {**model, "base": result} if isinstance(model, dict) else result
    elif "model" not in values and readings[-1].model is not None:
        values["model"] = checked_model(readings[-1].model, where=str(plan.config))
    notes = [note for file, reading in zip(files, readings, strict=True) for note in _notes(file, reading)]
    origins = [note for _, note in pairs if note is not None and "nodes" not in written]
    return values, (*origins[-1:], *notes), files


def _reading_options(
    values: dict[str, Any], folder: Path | None, plan: PlanOptions, *, layout: bool
) -> Options:
    """Return what readers are told: devices, shell variables, presets, and what goes over their files."""
    from forescale.catalogue.models import load_model, vocabulary_of
    from forescale.frameworks.reading import Options, Variables

    sections = (values.get(name) for name in ("strategy", "workload"))
    over = {
        name: value for section in sections if isinstance(section, dict) for name, value in section.items()
    }
    model = values.get("model")
    vocabulary = model.get("vocab_size") if isinstance(model, dict) else None
    variables = [text.partition("=") for text in plan.variables or ()]
    wrong = next((name for name, equals, _ in variables if not name or not equals), None)
    if wrong is not None:
        raise SpecError(f"--var must look like NAME=VALUE, such as TP=8; got {wrong!r}")
    if missing := [preset for preset in plan.presets or () if not is_folder(preset)]:
        raise ReaderError(missing[0], "there is no such folder (--presets)")
    return Options(
        num_devices=_known_devices(values, folder),
        layout=layout,
        over=over,
        vocab_size=vocabulary if isinstance(vocabulary, int) else None,
        vocabulary_of=vocabulary_of,
        model_of=load_model,
        variables=Variables({name: value for name, _, value in variables}),
        folders=tuple(plan.presets or ()),
    )


def _read(
    file: Path, values: dict[str, Any], folder: Path | None, options: Options, *, bare: bool
) -> tuple[ParsedFile, Note | None]:
    """Return what a file says, and the origin of its number of devices where that is inferred.

    Where nothing gives the number, it is that of the fewest whole nodes that the degrees occupy.
    """
    from forescale.frameworks.readers import HuggingFaceReader, read_file
    from forescale.io.sizes import size_note

    if bare:
        return HuggingFaceReader().read(file, options), None
    reading = read_file(file, options)
    if options.num_devices is not None:
        return reading, None
    if reading.num_devices is not None:
        return reading, size_note(reading.num_devices, file.name)
    if not options.layout or reading.strategy is None:
        return reading, None
    devices, origin = _least_nodes(reading, values, folder)
    return read_file(file, replace(options, num_devices=devices)), size_note(
        devices, f"{origin} that the degrees in {file.name} occupy; give --devices or --nodes for more"
    )


def _least_nodes(reading: ParsedFile, values: dict[str, Any], folder: Path | None) -> tuple[int, str]:
    """Return the devices of the fewest whole nodes that hold a layout, and that in words.

    Where the batch is not divisible by their data-parallel ranks, they are the fewest devices.
    """
    from forescale.io.named import cluster_given

    layout, workload = reading.strategy, reading.workload
    assert layout is not None
    fewest, devices_per_node = layout.num_devices, 1
    if "cluster" in values:
        devices_per_node = cluster_given(values["cluster"], COMMAND_LINE, folder).devices_per_node
    nodes = (
        lcm(fewest, devices_per_node)
        if fewest >= devices_per_node or devices_per_node % fewest == 0
        else fewest
    )
    step = layout.dp * layout.micro_batch_size * (nodes // fewest)
    if nodes > fewest and (workload is None or workload.global_batch_size % step == 0):
        return nodes, f"the fewest whole nodes of {devices_per_node} devices"
    return fewest, "the fewest"


def _model_file(written: dict[str, Any], folder: Path | None) -> Path | None:
    """Return the file that the model's name means, or that a table of its fields is based on, if it is one."""
    from forescale.catalogue.models import model_names
    from forescale.frameworks.readers import training_file
    from forescale.io.named import file_of

    model = written.get("model")
    text = model.get("base") if isinstance(model, dict) else model
    path = file_of(text, folder, known=text in model_names()) if isinstance(text, str) else None
    return (training_file(path) or path) if path is not None and is_folder(path) else path


def _over(values: dict[str, Any], more: dict[str, Any]) -> None:
    """Lay `more` over `values`, section by section."""
    for name, section in more.items():
        both = isinstance(section, dict) and isinstance(values.get(name), dict)
        values[name] = {**values[name], **section} if both else section


def _known_devices(values: dict[str, Any], folder: Path | None) -> int | None:
    """Return the devices that flags or plan give, for readers that leave them to the launcher."""
    from forescale.io.named import cluster_of, devices_told

    devices, nodes, cluster = devices_told(values, folder), values.get("nodes"), values.get("cluster")
    if isinstance(devices, int) and devices > 0:
        return devices
    if isinstance(nodes, int) and nodes > 0 and isinstance(cluster, str):
        return nodes * cluster_of(cluster, folder=folder).devices_per_node
    return None


def _notes(path: Path, reading: ParsedFile) -> tuple[Note, ...]:
    from forescale.question import Note

    texts = [f"{path.name}: {note}" for note in reading.notes]
    if reading.ignored:
        shown = ", ".join(reading.ignored[:NAMED_KEYS])
        more = f" and {len(reading.ignored) - NAMED_KEYS} more" if len(reading.ignored) > NAMED_KEYS else ""
        texts.append(f"{path.name}: keys that do not change the projection: {shown}{more}")
    return tuple(Note(topic="reader", text=text) for text in texts)


def _apart(text: str | None, plan: PlanOptions) -> str | None:
    """Return a file given as a flag so that it is not looked for beside the plan file."""
    if text is None or plan.plan is None or not exists(place_of(text)):
        return text
    return str(place_of(text).absolute())


def _lay(values: dict[str, Any], raw: dict[str, Any]) -> None:
    values.update({name: value for name, value in raw.items() if value is not None})


def _section(values: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    """Lay what was given over a section of the plan; a section that is no table is left to the checks."""
    section = values.setdefault(name, {})
    if isinstance(section, dict):
        values[name] = section = dict(section)
        _lay(section, value)


def _operations(written: dict[str, Any], operated: OperationsOptions) -> None:
    """Lay how the run is operated over the plan's words."""
    value = operated.values()
    saved = value.pop("checkpointing")
    _section(written, "operations", value)
    if isinstance(written["operations"], dict):
        _section(written["operations"], "checkpointing", saved)


RUN = ("seq_len", "global_batch_size", "tokens", "document_len", "optimizer")
"""Options that are fields of `Workload`."""


def _workload(run: RunOptions) -> dict[str, Any]:
    return {
        **{name: getattr(run, name) for name in RUN},
        "outer": None if run.outer is None else _outer(run.outer),
    }


def _outer(text: str) -> dict[str, Any]:
    """Return the table that a method and its settings, such as `diloco every=100 bits=4`, stand for."""
    method, *settings = text.replace(",", " ").split() or [""]
    pairs = [word.partition("=") for word in settings]
    refuse_twice("--outer", [name for name, _, _ in pairs])
    return {"method": method, **{name: _amount(value) for name, _, value in pairs}}


def refuse_twice(option: str, names: Sequence[str]) -> None:
    """Raise if an option whose value is words says one of them twice."""
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise SpecError(f"{option} says {twice[0]} twice; give it once")


def _amount(text: str) -> float | str:
    """Return a number, or text that is none for the checks to name."""
    number = whole_of(text)
    try:
        return float(text) if number is None else number
    except ValueError:
        return text


def _trainable(run: RunOptions) -> dict[str, Any]:
    return {
        "frozen": names_in(run.freeze),
        "lora_rank": run.lora_rank,
        "lora_targets": names_in(run.lora_targets),
    }


def _require(values: dict[str, Any], *, uncounted: bool) -> None:
    """Refuse a question without its main parts, in the words of the command line."""
    from forescale.presets import load_preset

    explicit = values["workload"]
    workload = explicit if isinstance(explicit, dict) else {"seq_len": 1, "global_batch_size": 1}
    missing = [
        *(["MODEL"] if "model" not in values else []),
        *(["--cluster"] if "cluster" not in values else []),
        *(["--devices (or --nodes)"] if uncounted else []),
        *(["--seq-len"] if "seq_len" not in workload else []),
        *(["--global-batch-size"] if "global_batch_size" not in workload else []),
    ]
    if missing:
        if isinstance(preset := values.get("preset"), str):  # it may be why so little was given
            load_preset(preset)
        raise MissingError(missing, f"{', '.join(missing)} must be given, here or in a plan file (--plan)")


def _counted(values: dict[str, Any], folder: Path | None, plan: PlanOptions, *, laid: bool) -> None:
    """Refuse a question whose main parts no plan and no flag gives."""
    from forescale.io.named import devices_told

    if plan.plan is None:
        uncounted = values.get("nodes") is None and devices_told(values, folder) is None
        _require(values, uncounted=uncounted and not laid)
