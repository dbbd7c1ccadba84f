"""Merge defaults, files of frameworks, the plan, flags and `--set` to the question of a command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from math import inf, lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from forescale import wording
from forescale.cli.layout_words import layout_overrides, option_values
from forescale.cli.options import (
    Asked,
    ClusterOptions,
    CostOptions,
    OperationsOptions,
    PlanOptions,
    RunOptions,
    memory_limit,
)
from forescale.cli.required import located_facts, require
from forescale.errors import ForescaleError, MissingFact, ReaderError
from forescale.files import exists, is_file, is_folder, place_of
from forescale.limits import whole_of
from forescale.positions import COMMAND_LINE, located, said_by
from forescale.spec.operations import Operations
from forescale.spec.workload import Workload

if TYPE_CHECKING:
    from forescale.frameworks.reading import Options, ParsedFile, Variables
    from forescale.io.merge import MergedQuestion, PartialQuestion
    from forescale.projection.result import Projection
    from forescale.question import Note, Question

ENVIRONMENT = "PRIMUS_"
"""Beginning of the variables of the environment that Primus' files refer to."""
LABELS = frozenset(f"{ENVIRONMENT}{name}" for name in ("TEAM", "USER", "EXP_NAME", "WORKSPACE"))
"""Of these, variables that only name an experiment."""
NAMED_KEYS = 8
"""Ignored keys of a file that are named; the rest are counted."""


def answered(question: Question) -> Projection:
    """Return what the preset of a question says; published accounts are loaded only where one is asked."""
    if question.preset == "default":
        from forescale.project import project

        return project(question)
    from forescale.presets import project_as

    return project_as(question)


def refuse_presets(question: Question, command: str) -> None:
    """Raise unless the question is asked of our own engine: what the command does, no published analysis defines."""
    if question.preset != "default":
        fix = "it works under the preset default only"
        raise wording.unsupported_by(command, f"preset {question.preset}", fix)


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
    to_fit: bool = True,
    usual_framework: str | None = None,
) -> Question:
    """Return the question of a command line; without options of a layout it may have no strategy.

    Parameters
    ----------
    asked
        Options in groups. The sources are merged in this order: `framework`, MODEL's file, --config, the plan, flags,
        `--set`.
    framework
        Framework of the question if no source names one.
    operated
        Options of how the run is operated.
    phased
        Whether the phases of the plan are left out.
    searched
        Whether a search chooses the layout if no source sets a dimension that a search chooses.
    to_fit
        Whether a layout that does not fit takes recompute where no source names one.
    usual_framework
        Framework that is assumed where none is named; None is the usual one of the devices.
    """
    from forescale.cli.unused import framework_notes, hardware_notes, refuse_idle, unused_notes
    from forescale.io.document import is_written
    from forescale.io.merge import PartialQuestion, merge
    from forescale.io.question import read_plan
    from forescale.io.recipes import as_set_up

    request = _with_numbered_layout(_with_model(request))
    plan, layout = request.plan, request.layout
    folder = None if plan.plan is None else plan.plan.parent
    flags = PartialQuestion(values=_flag_values(request, operated))
    written = PartialQuestion(values={}) if plan.plan is None else read_plan(plan.plan)
    kept = _derived(written, request, phased=phased)
    sets = plan.sets or ()
    requested = merge(kept, flags, overrides=sets)
    parsed, notes, facts = _parsed_files(requested.values, folder, plan, layout=layout is not None)
    with located(plan.plan if requested.sources.get("preset") == written.source else None):
        assumed = _usual_values(requested.values, planned=plan.plan is not None)
    default = PartialQuestion(values=assumed if framework is None else {**assumed, "framework": framework})
    merged = merge(default, *parsed.values(), kept, flags, overrides=sets)
    values = {**merged.values, **_file_model(requested.values, folder, parsed)}
    values = {name: value for name, value in values.items() if value is not None}
    if plan.file_model is not None:
        values["model"] = _apart(plan.file_model, plan)
    laid = layout is not None and not (searched and _left_to_search(values))
    if plan.plan is None:
        require(values, folder, facts, file=next(iter(parsed), None), laid=laid)
    is_open = plan.plan is None and not any(
        {"framework", "strategy"} & one.values.keys() for one in parsed.values()
    )
    with said_by([*parsed], requested.sources):
        usual = is_open and (usual_framework or True)
        question = _built(values, written, merged, plan.plan, laid=laid, usual=usual)
    if to_fit:
        question = as_set_up(question)
    refuse_idle(request.run, operated, question)
    by_hand = written.values if plan.plan and is_written(plan.plan) else {}
    unused = unused_notes(request.run, layout, plan.sets, question, by_hand)
    notes = (*question.notes, *notes, *hardware_notes(values, folder))
    named = values.get("framework") is not None
    return replace(question, notes=(*notes, *framework_notes(question, named=named), *unused))


def _usual_values(requested: dict[str, Any], *, planned: bool) -> dict[str, Any]:
    """Return what the analysis that a preset reproduces states, in the sections of a plan; a plan states it itself."""
    if (name := requested.get("preset", "default")) == "default":
        return {}
    from forescale.io.named import model_of
    from forescale.presets import load_preset

    preset, model = load_preset(str(name)), requested.get("model")
    usual = {} if planned else dict(preset.usual)
    if not requested.keys().isdisjoint(("cluster", "devices", "nodes")):
        usual.pop("devices", None)
    if preset.takes_length_of_model and isinstance(model, str):
        usual["workload"] = {"seq_len": model_of(model).max_seq_len}
    return usual


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


def _built(
    values: dict[str, Any],
    written: PartialQuestion,
    merged: MergedQuestion,
    plan: Path | None,
    *,
    laid: bool,
    usual: bool | str,
) -> Question:
    """Return the question of all values; an error about a value of the plan has its line.

    `usual` is false for a plan or a framework's file, which do not take the usual framework of the devices.
    """
    from forescale.io.question import build_question
    from forescale.spec.constraints import check

    where, folder = (COMMAND_LINE, None) if plan is None else (str(plan), plan.parent)
    others = frozenset(merged.sources) - merged.keys_from((written.source,))
    with located(plan, others):
        question = build_question(values, where=where, folder=folder, laid=laid, default_framework=usual)
        # The defaults of a framework are not a layout: the search selects one.
        if "strategy" in values and question.strategy is not None and question.preset == "default":
            check(question.model, question.cluster, question.strategy, question.workload)
            if laid and "strategy" in written.values:
                from forescale.inputs import prepare

                prepare(question)
    return question


def _with_numbered_layout(question: Asked) -> Asked:
    """Return a plan, or a layout that a command printed, that was given as MODEL as the plan that it is."""
    from forescale.io.question import is_plan

    model, plan = question.model, question.plan.plan
    if model is None or not is_plan(place_of(model)):
        return question
    if plan is not None:
        raise wording.conflicts([model, f"--plan {plan}"], reason="both are whole questions")
    return replace(question, model=None, plan=replace(question.plan, plan=place_of(model)))


def _with_model(question: Asked) -> Asked:
    """Return a question in which the model of --model is MODEL, where no file is; a hub's is its configuration."""
    from forescale.cli.hub import config_on_hub

    if config := config_on_hub(question.model, download=question.plan.download):
        return replace(question, model=str(config))
    model, file_model = question.model, question.plan.file_model
    if file_model is None:
        return question
    if model is not None and not exists(place_of(model)):
        raise wording.conflicts([model, f"--model {file_model}"], fix="give one of them")
    return question if model is not None else replace(question, model=file_model)


def _derived(plan: PartialQuestion, question: Asked, *, phased: bool) -> PartialQuestion:
    """Return a plan without its phases if `phased`.

    Where flags change the degrees of a layout that a command printed, data parallelism follows from the devices.
    """
    from forescale.io.document import is_document
    from forescale.io.merge import without_data_parallel
    from forescale.io.sizes import DEGREES

    values = {name: value for name, value in plan.values.items() if not (phased and name == "phase")}
    cluster, file = question.cluster, question.plan.plan
    flags = [cluster.devices, cluster.nodes, *(getattr(question.layout, name, None) for name in DEGREES)]
    if file is not None and any(flags) and is_document(file):
        values["strategy"] = without_data_parallel(values["strategy"])
    return replace(plan, values=values)


def _flag_values(question: Asked, operated: OperationsOptions | None) -> dict[str, Any]:
    """Return the fields that flags set, in the sections of a plan."""
    plan, run, layout, cost = question.plan, question.run, question.layout, question.cost
    values: dict[str, Any] = {
        "model": _apart(question.model, plan),
        "cluster": _apart(question.cluster.cluster, plan),
        "framework": plan.framework,
        "preset": plan.preset,
        "preset_options": {"tensor_parallel": plan.tensor_parallel, "without_quirks": plan.without_quirk},
        **_machine(question.cluster),
        **_run_values(run),
    }
    if layout is not None:
        values["strategy"] = layout_overrides(layout)
    if cost is not None:
        values["cost"] = cost.values() if isinstance(cost, CostOptions) else cost.measured()
    if operated is not None:
        values["operations"] = _operations(operated)
    return {
        name: _set_fields(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None
    }


def _set_fields(table: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a table that are set, without empty tables inside."""
    fields = {name: _set_fields(value) if isinstance(value, dict) else value for name, value in table.items()}
    return {name: value for name, value in fields.items() if value is not None and value != {}}


def _machine(cluster: ClusterOptions) -> dict[str, Any]:
    """Return the number of devices, the sites and the network of the nodes."""
    if cluster.devices is not None and cluster.nodes is not None:
        raise wording.conflicts(["--devices", "--nodes"])
    if cluster.nodes is not None and cluster.cluster is not None:
        from forescale.catalogue.clusters import refuse_parts

        refuse_parts(cluster.cluster, cluster.nodes)
    config = cluster.hardware_config
    return {
        "hardware_config": None if config is None else str(place_of(config).absolute()),
        "sites": None if cluster.sites is None else _sites(cluster.sites),
        **{name: value for name in ("devices", "nodes") if (value := getattr(cluster, name)) is not None},
    }


def _sites(text: str) -> dict[str, Any]:
    parts = text.replace(",", " ").split()
    if len(parts) not in (2, 3):
        allowed = "how many, a link and a time, such as 2,100Gbit/s,30ms"
        raise wording.wrong_type("--sites", text, allowed)
    count, *link = parts
    return {"count": _amount(count), **dict(zip(("bandwidth", "latency"), link, strict=False))}


def _parsed_files(
    requested: dict[str, Any], folder: Path | None, plan: PlanOptions, *, layout: bool
) -> tuple[dict[Path, PartialQuestion], tuple[Note, ...], tuple[MissingFact, ...]]:
    """Return what the model's file and --config set, notes about these files, and the facts that they leave open.

    Without `layout`, as for a search, dimensions that are searched are left out; overlap and kernels stay.
    """
    path = _model_file(requested, folder)
    files = [file for file in (path, plan.config) if file is not None]
    if not files:
        flags = ("--var", plan.variables), ("--args", plan.passed), ("--primus-presets-dir", plan.presets)
        for option, values in flags:
            if values:
                raise wording.required_with("a framework's file as MODEL or --config", option)
        return {}, (), ()
    from forescale.frameworks.readers import (
        read_file,
        refuse_unread,
        starts_trainer,
        takes_arguments,
    )
    from forescale.io.merge import partial_question
    from forescale.io.named import devices_of_node
    from forescale.io.sizes import is_fewest

    options = _reading_options(requested, folder, plan, layout=layout)
    if path is not None and plan.config is not None and starts_trainer(path, plan.config):
        files = [path]
        options = replace(options, launch=read_file(plan.config, options))
    with located_facts(files[-1], requested):
        pairs = _read_all(files, path, requested, folder, options)
        stated = any(parsed.num_devices and not is_fewest(filter(None, [note])) for parsed, note in pairs)
        size = None if stated or options.num_devices else devices_of_node(requested)
        if size:  # no file says how many, the cluster's name does
            pairs = _read_all(files, path, requested, folder, replace(options, num_devices=size))
    refuse_unread(options.variables, files)
    if plan.passed is not None and not any(takes_arguments(file) for file in files):
        raise wording.no_effect("--args", f"{' or '.join(file.name for file in files)} takes no arguments")
    counted = "nodes" in requested or "devices" in requested
    parts = {
        file: partial_question(parsed, file, layout=layout)
        for file, (parsed, _) in zip(files, pairs, strict=True)
    }
    notes = [note for file, (parsed, _) in zip(files, pairs, strict=True) for note in _notes(file, parsed)]
    origins = [note for _, note in pairs if note is not None and not counted]
    facts = tuple(fact for parsed, _ in pairs for fact in parsed.missing)
    return parts, (*origins[-1:], *_environment_notes(options.variables), *notes), facts


def _environment_notes(variables: Variables) -> tuple[Note, ...]:
    """Return a note that names the variables of the environment that a file's placeholders took."""
    from forescale.question import Note

    used = ", ".join(f"{name}={value}" for name, value in variables.from_environment.items())
    text = f"{used}; --var NAME=VALUE takes precedence"
    return (Note(topic="environment", text=text),) if used else ()


def _file_model(
    values: dict[str, Any], folder: Path | None, parsed: dict[Path, PartialQuestion]
) -> dict[str, Any]:
    """Return the model of the file that MODEL names, or that a table of its fields is based on."""
    if (path := _model_file(values, folder)) is None:
        return {}
    model, table = parsed[path].values.get("model"), values["model"]
    return {"model": {**table, "base": model} if isinstance(table, dict) and model else model}


def _reading_options(
    values: dict[str, Any], folder: Path | None, plan: PlanOptions, *, layout: bool
) -> Options:
    """Return what readers are told: devices, shell variables, presets, and what goes over their files."""
    from forescale.catalogue.models import load_model, vocabulary_of
    from forescale.frameworks.reading import Options, Variables
    from forescale.io.named import model_of

    sections = (values.get(name) for name in ("strategy", "workload"))
    over = {
        name: value for section in sections if isinstance(section, dict) for name, value in section.items()
    }
    if isinstance(precision := values.get("precision"), dict):
        over["precision"] = {**(over.get("precision") or {}), **precision}
    model = values.get("model")
    vocabulary = model.get("vocab_size") if isinstance(model, dict) else None
    variables = [text.partition("=") for text in plan.variables or ()]
    wrong = next((name for name, equals, _ in variables if not name or not equals), None)
    if wrong is not None:
        raise wording.wrong_type("--var", wrong, "like NAME=VALUE, such as TP=8")
    if missing := [preset for preset in plan.presets or () if not is_folder(preset)]:
        raise ReaderError(missing[0], wording.not_found("folder (--primus-presets-dir)"))
    return Options(
        num_devices=_known_devices(values, folder),
        layout=layout,
        over=over,
        vocab_size=vocabulary if isinstance(vocabulary, int) else None,
        vocabulary_of=vocabulary_of,
        model_of=load_model,
        model=None if plan.file_model is None else model_of(plan.file_model),
        variables=Variables({name: value for name, _, value in variables}, primus_environment()),
        folders=tuple(plan.presets or ()),
        has_bf16=_has_bf16(values.get("cluster"), folder),
        strict=plan.strict,
        arguments=None if plan.passed is None else tuple(plan.passed.split()),
    )


def primus_environment() -> dict[str, str]:
    """Return the environment's PRIMUS_* variables that can change a projection."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT) and name not in LABELS
    }


def _read_all(
    files: Sequence[Path], model: Path | None, values: dict[str, Any], folder: Path | None, options: Options
) -> list[tuple[ParsedFile, Note | None]]:
    from forescale.frameworks.readers import is_bare_model

    return [
        _read(file, values, folder, options, bare=file == model and is_bare_model(file)) for file in files
    ]


def _read(
    file: Path, values: dict[str, Any], folder: Path | None, options: Options, *, bare: bool
) -> tuple[ParsedFile, Note | None]:
    """Return what a file says, and the origin of its number of devices where that is inferred.

    Where nothing gives the number, it is that of the fewest whole nodes that the degrees occupy.
    """
    from forescale.frameworks.readers import read_file, read_model
    from forescale.io.sizes import FOR_MORE, size_note

    if bare:
        return read_model(file, options), None
    reading = read_file(file, options)
    if options.num_devices is not None:
        return reading, None
    if reading.num_devices is not None:
        return reading, size_note(reading.num_devices, file.name)
    is_asked = any(fact.part == "devices" for fact in reading.missing)
    if not options.layout or reading.strategy is None or is_asked:
        return reading, None
    at_nodes, origin = _at_least_nodes(file, reading, options, _node_size(values, folder))
    devices = (at_nodes.strategy or reading.strategy).num_devices
    return at_nodes, size_note(
        devices, f"{origin} that the degrees in {file.name} occupy; give --devices or --nodes {FOR_MORE}"
    )


def _node_size(values: dict[str, Any], folder: Path | None) -> int:
    from forescale.io.named import cluster_given

    if "cluster" not in values:
        return 1
    return cluster_given(values["cluster"], COMMAND_LINE, folder).devices_per_node


def _at_least_nodes(file: Path, reading: ParsedFile, options: Options, node: int) -> tuple[ParsedFile, str]:
    """Return what a file says on the fewest whole nodes that hold its layout, and that in words.

    Where the batch is not divisible by their data-parallel ranks, they are the fewest devices. The file is read anew,
    as a batch per device, or an axis that takes what is left, follows the number of devices.
    """
    from forescale.frameworks.readers import read_file

    assert reading.strategy is not None
    fewest = reading.strategy.num_devices
    nodes = lcm(fewest, node) if fewest >= node or node % fewest == 0 else fewest
    if nodes > fewest:
        with suppress(ForescaleError):
            at_nodes = read_file(file, replace(options, num_devices=nodes))
            layout, batch = at_nodes.strategy, at_nodes.workload_fields.get("global_batch_size")
            if layout is not None and (batch is None or batch % (layout.dp * layout.micro_batch_size) == 0):
                return at_nodes, f"the fewest whole nodes of {node} devices"
    return read_file(file, replace(options, num_devices=fewest)), "the fewest"


def _model_file(written: dict[str, Any], folder: Path | None) -> Path | None:
    """Return the file that the model's name means, or that a table of its fields is based on, if it is one."""
    from forescale.catalogue.models import model_names
    from forescale.io.named import file_of

    model = written.get("model")
    text = model.get("base") if isinstance(model, dict) else model
    path = file_of(text, folder, known=text in model_names()) if isinstance(text, str) else None
    if path is None or not is_folder(path):
        return path
    from forescale.frameworks.readers import training_file

    return training_file(path) or path


def _has_bf16(cluster: object, folder: Path | None) -> bool:
    """Return whether the devices of a cluster compute in bf16, as far as it is known."""
    from forescale.io.named import cluster_of

    with suppress(ForescaleError):
        return not isinstance(cluster, str) or bool(
            cluster_of(cluster, folder=folder).device.matrix_flops.bf16
        )
    return True


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
    from forescale.question import IGNORED, Note

    left_out = (*reading.warnings, *filter(None, [reading.phase]))
    warnings = [Note(topic="left out", text=f"{path.name}: {text}") for text in left_out]
    texts = [f"{path.name}: {note}" for note in reading.notes]
    warned = " ".join(reading.warnings)
    if unknown := [key for key in reading.unknown if key not in warned]:
        texts.append(f"{path.name}: keys that are not known, without effect here: {_listed(unknown)}")
    ignored = f"{path.name}: keys that do not change the projection: {', '.join(reading.ignored)}"
    idle = (Note(topic=IGNORED, text=ignored),) if reading.ignored else ()
    topic = "sizes" if reading.format == "described" else "reader"
    return (*warnings, *(Note(topic=topic, text=text) for text in texts), *idle)


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - NAMED_KEYS} more" if len(keys) > NAMED_KEYS else ""
    return f"{', '.join(keys[:NAMED_KEYS])}{more}"


def _apart(text: str | None, plan: PlanOptions) -> str | None:
    """Return a file given as a flag so that it is not looked for beside the plan file."""
    if text is None or plan.plan is None or not exists(place_of(text)):
        return text
    return str(place_of(text).absolute())


def _run_values(run: RunOptions) -> dict[str, Any]:
    """Return the sections workload and precision that flags set."""
    values = option_values(run, Workload)
    precision = values.pop("precision", {})
    if "outer" in values:
        values["outer"] = _outer(values["outer"])
    return {"workload": values, "precision": precision}


def _operations(operated: OperationsOptions) -> dict[str, Any]:
    """Return how the run is operated, as flags set it."""
    values = option_values(operated, Operations)
    if "failures" in values:
        values["failures"] = _rate(values["failures"])
    return values


def _rate(text: str) -> str | float:
    """Return failures per node and day, or the name of published rates, or the file that counts them."""
    try:
        rate = float(text)
    except ValueError:
        return str(place_of(text).absolute()) if is_file(place_of(text)) else text
    if not 0.0 <= rate < inf:
        raise wording.out_of_range("--failures", text, "0 or more per node and day, or a name")
    return rate


def _outer(text: str) -> dict[str, Any]:
    """Return the table that a method and its settings, such as `diloco every=100 bits=4`, stand for."""
    method, *settings = text.replace(",", " ").split() or [""]
    pairs = [word.partition("=") for word in settings]
    refuse_twice("--outer", [name for name, _, _ in pairs])
    return {"method": method, **{name: _amount(value) for name, _, value in pairs}}


def refuse_twice(option: str, names: Sequence[str]) -> None:
    """Raise if an option whose value is words says one of them twice."""
    if twice := [name for at, name in enumerate(names) if name in names[:at]]:
        raise wording.given_twice(f"{twice[0]} in {option}")


def _amount(text: str) -> float | str:
    """Return a number, or text that is none for the checks to name."""
    number = whole_of(text)
    try:
        return float(text) if number is None else number
    except ValueError:
        return text
