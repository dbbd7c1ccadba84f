"""Plan files: one question (model, cluster, layout, workload, cost models) in TOML, read and written; read in YAML too.

```toml
model = "llama-3.1-70b"        # catalogue name, Hugging Face config.json, or a table of fields (with `base`)
cluster = "h100-sxm"           # catalogue name, cluster file, or a table of fields (with `base`)
devices = 256                  # or nodes = 32
framework = "torchtitan"       # may be left out: what it does where the rest is silent, NAME or NAME@RELEASE

[strategy]                     # may be left out for a search; data parallel follows from `devices`
tp = 8

[workload]
seq_len = 8192
global_batch_size = 1024

[precision]
compute = "bf16"

[operations]                   # may be left out: how the run of `workload.tokens` is operated
failures = "llama-3"

[cost]                         # may be left out
compute = "auto"

[space]                        # may be left out: fields of `Space`, what a search may choose
pp = [1, 2, 4]
```

Beside `devices` there may be `objective`, `max_memory` and `safe`, the limits of a search. A framework completes
`[strategy]`; where that is left out and there is `[space.base]`, what a search starts from, it completes this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from msgspec.structs import replace

from forescale import wording
from forescale.catalogue.clusters import is_cluster_name
from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import model_names
from forescale.errors import ForescaleError, ReaderError, UnknownKeyError, UnknownNameError
from forescale.files import file_of, is_file, parse_json, read_text
from forescale.io.document import is_document, is_written, read_asked, toml_file
from forescale.io.measurements import artifact_notes, of_artifact, of_profile, read_costs
from forescale.io.merge import PartialQuestion, merge
from forescale.io.named import (
    build,
    build_operations,
    cluster_given,
    cluster_notes,
    model_given,
)
from forescale.io.plan import (
    check_names,
    in_todays_words,
    names_of,
    spelt_out,
    uncontradicted,
    with_fixed_vpp,
)
from forescale.io.question_values import LIMITS, UNCHANGED, changed_fields, question_values
from forescale.io.recipes import ASSUMED, completed_by, framework_of
from forescale.io.sizes import sized_cluster, with_usual
from forescale.limits import COUNT, outside
from forescale.positions import COMMAND_LINE, located, says_lines
from forescale.question import Objective, PresetOptions, Question
from forescale.records import home_of, kept_by_value
from forescale.spec import Cluster, Device, Layout, Workload
from forescale.spec.framework import Framework, rule_of
from forescale.spec.model import Layer, Model, MoeFfn
from forescale.spec.operations import Operations
from forescale.spec.proposal import Constraint
from forescale.spec.space import Space
from forescale.syntax import dump_toml, load_mapping, parse_mapping

if TYPE_CHECKING:
    from forescale.bench_transfer import Bench
    from forescale.io.bench import BenchArtifact

SECTIONS = (
    "model", "cluster", "hardware_config", "devices", "nodes", "sites", "framework", "preset", "preset_options",
    "strategy", "workload", "precision", "operations", "phase", "cost", "space", "objective", "max_memory", "safe",
    "assumed",
)  # fmt: skip
_TABLES = ("sites", "preset_options", "strategy", "workload", "precision", "operations", "cost", "space")
KINDS: tuple[tuple[str, type[Any]], ...] = tuple(
    (kind.__name__.lower(), kind) for kind in (Layout, Workload, Cluster, Model, Operations)
)
"""What tables describe; where a key is none of a plan's own, the first that has it is named."""


def read_question(path: str | Path, *, overrides: Iterable[str] = ()) -> Question:
    """Return the question that a plan file asks, after `overrides` such as "strategy.tp=4".

    Raises
    ------
    ReaderError
        If the file, or one that it names, is missing or cannot be read; the message says the line.
    SpecError
        If anything in it is unknown, missing, of the wrong type or impossible.
    """
    plan = read_plan(file := file_of(path, "read_question"))
    merged = merge(plan, overrides=overrides)
    values = merged.values
    with located(file, merged.keys_from((COMMAND_LINE,))):
        return build_question(values, where=str(file), folder=file.parent, laid="strategy" in values)


def write_question(question: Question, path: str | Path) -> None:
    """Write a question as a plan file in TOML that `read_question` turns into an equal one.

    Raises
    ------
    SpecError
        If a part of it has no form in a file: fits or measurements that were read from none, a framework or rules that
        have no name.
    """
    if not isinstance(question, Question):
        raise wording.wrong_type("write_question", question, "a Question, as fs.ask makes it")
    file, values = toml_file(path), question_values(question)
    if build_question(values, where=str(path)) != question:
        raise wording.cannot_write(path, "the plan read back would differ from the question")
    from forescale.atomic_write import write_text

    write_text(file, dump_toml(values))


def read_plan(path: str | Path) -> PartialQuestion:
    """Return the fields that a plan file sets, unchecked."""
    return PartialQuestion(values=read_plan_values(path), source=str(path))


@says_lines
def read_plan_values(path: str | Path) -> dict[str, Any]:
    """Return a plan file's values as they are written, unchecked; also of a layout in a document (`io/document.py`)."""
    if is_document(path):
        return read_asked(path)
    file = Path(path)
    if not is_written(file):
        allowed = (".toml", ".yaml", ".yml", ".json (what a command printed with --json)")
        raise ReaderError(file, wording.wrong_suffix("a plan", path, allowed))
    if file.suffix.lower() == ".toml":
        from forescale.catalogue.models import load_model
        from forescale.frameworks.readers import refuse_torchtitan_toml
        from forescale.frameworks.reading import Options

        refuse_torchtitan_toml(read_text(file), file, Options(model_of=load_model))
    return spelt_out(uncontradicted(file, load_mapping(file)))


def is_plan(path: str | Path) -> bool:
    """Say whether a file is one that asks a question: a plan, or what a command printed of it."""
    file = Path(path)
    if not is_written(file) or not is_file(file):
        return is_document(path)
    if file.suffix.lower() != ".toml":
        from forescale.frameworks.detect import detect

        text = read_text(file)
        return re.search(r"^workload\s*:", text, re.MULTILINE) is not None and detect(text) is None
    from forescale.frameworks.readers import is_torchtitan_toml

    return not is_torchtitan_toml(read_text(file))


def build_question(
    values: Mapping[str, Any],
    *,
    where: str,
    folder: Path | None = None,
    laid: bool = False,
    default_framework: bool | str = False,
) -> Question:
    """Return the question that `values` (the sections of a plan file) ask; reads the files that they name.

    Parameters
    ----------
    values
        Sections by name, as in the module's example; model, cluster, strategy and workload may be specifications too.
    where
        Their origin, for messages.
    folder
        Folder that relative paths in `values` start from; the working directory if None.
    laid
        Whether the strategy is a whole layout, whose degrees give the number of devices where nothing else does.
    default_framework
        Whether the usual framework of the devices, or the one of this name, trains where the question names none and
        nothing else of a stack.
    """
    if (batch := _batch_of(values)) is not None:
        tables = {**values, "workload": {**values["workload"], "global_batch_size": 1}}
        question = _of_any_batch(tables, where, folder, laid, default_framework)
        if question is not None:
            return replace(question, workload=replace(question.workload, global_batch_size=batch))
    return _build_question(values, where, folder, laid=laid, default_framework=default_framework)


BY_NAME = frozenset(
    ("model", "cluster", "devices", "nodes", "framework", "strategy", "workload", "precision")
)
"""Sections that name no file."""


def _batch_of(values: Mapping[str, Any]) -> int | None:
    """Return the batch of sections that name no file, where it is a valid one; else None."""
    work = values.get("workload")
    if type(work) is not dict or not values.keys() <= BY_NAME:
        return None
    model, cluster, batch = values.get("model"), values.get("cluster"), work.get("global_batch_size")
    if not isinstance(model, str) or not isinstance(cluster, str) or type(batch) is not int:
        return None
    names = model in model_names() and is_cluster_name(cluster)
    return batch if names and not outside(batch, COUNT) else None


@kept_by_value
def _of_any_batch(
    values: dict[str, Any],
    where: str,
    folder: Path | None,
    laid: bool,
    default_framework: bool | str,
) -> Question | None:
    """Return the question of a batch of one sequence; None where its other fields depend on the batch, or are wrong."""
    try:
        question = _build_question(values, where, folder, laid=laid, default_framework=default_framework)
    except ForescaleError:
        return None
    framework = question.framework
    accumulates = framework is not None and (framework.accumulation or framework.microbatches_per_stage)
    return None if accumulates else question


def _build_question(
    values: Mapping[str, Any], where: str, folder: Path | None, *, laid: bool, default_framework: bool | str
) -> Question:
    _check_sections(values, where)
    cluster = cluster_given(values["cluster"], where, folder, config=values.get("hardware_config"))
    model = model_given(values["model"], where, folder)
    framework, named = framework_of(values, model, cluster, where, folder, usual=default_framework)
    strategy, space = in_todays_words(_told(values.get("strategy")), values.get("space", {}))
    strategy, notes = with_fixed_vpp(strategy)
    workload, usual = with_usual(_run_words(values), model, cluster.device, where)
    layout = strategy if laid else None
    if layout is not None and framework is not None:
        layout = framework.completed(layout, workload, model, cluster)[0]
    cluster, origin = sized_cluster(values, cluster, where, folder, layout=layout)
    stack = completed_by(framework, strategy, space, workload, (model, cluster), named=named, asks=values)
    strategy, space, workload = stack.layout, stack.space, stack.workload
    work = build(Workload, workload, where=f"{where}, workload")
    question = Question(
        model=model,
        cluster=cluster,
        workload=work,
        strategy=None
        if strategy is None
        else build_layout(strategy, cluster.num_devices, where=where, sites=_sites(work, cluster)),
        framework=framework,
        preset=str(values.get("preset", "default")),
        preset_options=_preset_options(values, where),
        costs=read_costs(values.get("cost", {}), cluster, where=where, folder=folder),
        operations=build_operations(values.get("operations", {}), f"{where}, operations", folder),
        space=_space(space, where),
        notes=(*cluster_notes(values["cluster"], where, folder), *origin, *usual, *notes, *stack.notes),
        assumed=_assumed(values, where, stack.assumed),
        **_limits(values, where, cluster.device),
    )
    if not question.costs.benchmark_files:
        return question
    from forescale.bench_transfer import anchored

    return anchored(question, benches_of(question))


def build_run(
    values: Mapping[str, Any], model: Model, cluster: Cluster, framework: Framework | None, *, where: str
) -> tuple[Layout, Workload]:
    """Return the layout and the workload of a plan's sections, as a framework completes them, and nothing else of it.

    Raises
    ------
    SpecError
        If anything in them is unknown, missing, of the wrong type or impossible.
    """
    layout, _ = with_fixed_vpp(values["strategy"])
    workload, _ = with_usual(_run_words(values), model, cluster.device, where)
    if framework is not None:
        layout, workload = framework.completed(layout, workload, model, cluster)
    work = build(Workload, workload, where=f"{where}, workload")
    return build_layout(layout, cluster.num_devices, where=where, sites=_sites(work, cluster)), work


def benches_of(question: Question) -> tuple[Bench, ...]:
    """Return what was measured in the runs whose artifacts price a question.

    Raises
    ------
    ReaderError
        If a file cannot be read, or was written by a newer version.
    SpecError
        If it is of another model, device or type.
    """
    from forescale.io.bench import BenchArtifact, is_same_run

    result = {file: _measured(file, question) for file in map(Path, question.costs.benchmark_files)}
    local = {file: item for file, item in result.items() if isinstance(item, BenchArtifact)}
    benches = []
    for file, item in result.items():
        if not isinstance(item, BenchArtifact):
            benches.append(item)
            continue
        same_run = {path: other for path, other in local.items() if is_same_run(other, item)}
        if file == [*same_run][-1]:
            benches.append(_bench(same_run, question))
    return tuple(benches)


def _measured(file: Path, target: Question) -> Bench | BenchArtifact:
    """Return what one file has: an artifact of ours, or a run that another tool measured."""
    from forescale.frameworks.primus.benchmark import is_primus_bench, primus_bench
    from forescale.io.bench import read_bench
    from forescale.profiles import is_profile

    if is_profile(file):
        return _profiled(file, target)
    document = parse_mapping(read_text(file), file, parse_json)
    if is_primus_bench(document):
        with located(file):
            return primus_bench(document, target, where=file.name)
    return read_bench(file)


def _bench(files: Mapping[Path, BenchArtifact], target: Question) -> Bench:
    """Return one run that was measured in several files."""
    from forescale.bench_transfer import Bench
    from forescale.io.bench import merged

    file, names = next(iter(files)), ", ".join(file.name for file in files)
    artifact = merged({str(item): file for item, file in files.items()})
    where = artifact.conditions
    tracked = "tracked on fake tensors" if where.tracked else ""
    texts = [text for text in (where.software, where.date, tracked) if text]
    return Bench(
        question=measured_question(artifact, target, where=names, folder=file.parent),
        source=f"{names} ({', '.join(texts)})" if texts else names,
        is_tracked=where.tracked,
        blocks=artifact.blocks,
        steps=artifact.steps,
        ranks=artifact.ranks,
        layers=artifact.layers,
        profile=artifact.profile,
        measurements=of_artifact(artifact, file) if artifact.kernels or artifact.collectives else None,
        notes=artifact_notes(artifact, names),
    )


def _profiled(file: Path, target: Question) -> Bench:
    """Return what torch recorded of a run of the question itself."""
    from forescale.bench_transfer import WHOLE, Bench
    from forescale.cost.timings import BlockTiming, StepTiming
    from forescale.io.recorded import check_device, check_run
    from forescale.profiles import read_profile

    if target.strategy is None:
        raise wording.incomplete("layout", file.name, "a search needs one: project the layout that was run")
    profile = read_profile(file, devices_per_node=target.cluster.devices_per_node)
    device = target.cluster.device
    notes = check_device(profile, device, file)
    check_run(profile, target, file)
    update, step = profile.update_s, profile.step_s
    count = target.workload.global_batch_size // (target.layout.dp * target.layout.micro_batch_size)
    return Bench(
        question=target.simulated,
        source=file.name,
        blocks=() if update is None else (BlockTiming(kind=WHOLE, part="update", seconds=update),),
        steps=() if step is None else (StepTiming(num_microbatches=count, seconds=step),),
        ranks=profile.ranks,
        measurements=of_profile(profile, device, file) if profile.kernels or profile.collectives else None,
        notes=notes,
    )


def measured_question(bench: BenchArtifact, target: Question, *, where: str, folder: Path) -> Question:
    """Return the question whose run an artifact measured, if it says something of the target.

    Layers, experts and vocabulary may be fewer; what one layer of a kind is, the device and the types of compute and
    activations must be the target's.

    Raises
    ------
    SpecError
        If it measured no run, or one of another model, device or type.
    """
    if bench.config is None:
        raise wording.incomplete("run", where, "it has timed kernels only")
    ran = build_question({"strategy": {}, **bench.config}, where=f"{where}, config", folder=folder)
    if _each_layer(ran.model) != _each_layer(target.model):
        fix = "measure its layers; their number and that of their experts may differ"
        raise wording.other_run(where, ran.model.name, target.model.name, fix)
    for what, measured, question in (
        ("", ran.cluster.device.name, target.cluster.device.name),
        ("compute in ", ran.workload.precision.compute, target.workload.precision.compute),
        ("activations in ", ran.workload.precision.activations, target.workload.precision.activations),
    ):
        if measured != question:
            raise wording.other_run(where, f"{what}{measured}", f"{what}{question}", "measure there")
    return ran


def _each_layer(model: Model) -> tuple[int, frozenset[Layer]]:
    """Return the width of a model and its kinds of layers, whatever the number of experts and what costs nothing."""
    kinds = (
        replace(layer, ffn=replace(layer.ffn, num_experts=layer.ffn.top_k, num_groups=0, top_groups=0))
        if isinstance(layer.ffn, MoeFfn)
        else layer
        for layer in model.shape.layer_kinds
    )
    return model.hidden_size, frozenset(kinds)


def build_layout(values: Mapping[str, Any], num_devices: int, *, where: str, sites: int = 1) -> Layout:
    """Return the layout that `values` describe on `num_devices` devices.

    What is not given of dp_replicate and dp_shard follows from the devices that are left; all of it is
    dp_shard if states are sharded (zero of 1 or more) or experts fold over it, else dp_replicate, which is at least the
    number of `sites` that train by themselves.
    """
    value = build(Layout, values, where=f"{where}, strategy")
    fixed = value.tp * value.cp * value.pp
    if "dp_replicate" in values and "dp_shard" in values:
        return value
    shards = value.zero > 0 or value.ep * value.etp > 1
    free = "dp_shard" if "dp_replicate" in values or ("dp_shard" not in values and shards) else "dp_replicate"
    least = 1 if "dp_replicate" in values else sites
    fixed *= value.dp * least
    if num_devices % fixed:
        below, above = num_devices // fixed * fixed, -(-num_devices // fixed) * fixed
        nearest = f"are {below} or {above}" if below else f"is {above}"
        terms = f"tp {value.tp} × cp {value.cp} × pp {value.pp} × the data-parallel degree"
        fix = f"the nearest {nearest}"
        key = "the number of devices"
        raise wording.not_divisible(key, num_devices, fixed, terms, fix).at(f"{where}, strategy")
    result: dict[str, Any] = {"dp_replicate": value.dp_replicate * least}
    result[free] = num_devices // fixed * (least if free == "dp_replicate" else 1)
    try:
        return replace(value, **result)
    except ForescaleError:  # which names the place
        return build(Layout, {**values, **result}, where=f"{where}, strategy")


def _preset_options(values: Mapping[str, Any], where: str) -> PresetOptions:
    """Return the options of a preset, which refuses those that it does not have."""
    options = build(PresetOptions, values.get("preset_options", {}), where=f"{where}, preset_options")
    if options != PresetOptions():
        from forescale.presets import load_preset

        load_preset(str(values.get("preset", "default"))).with_options(options)
    return options


def _assumed(values: Mapping[str, Any], where: str, left_open: tuple[str, ...]) -> tuple[str, ...]:
    """Return the settings that were left open when a question was asked: as it was written, or as it is."""
    if "assumed" not in values:
        return left_open
    names = names_of(values["assumed"], f"{where}: assumed")
    for name in names:
        if name not in ASSUMED:
            raise wording.not_one_of("assumed", name, ASSUMED).at(where)
    return tuple(names)


def _limits(values: Mapping[str, Any], where: str, device: Device) -> dict[str, Any]:
    result = dict(LIMITS) | {name: values[name] for name in LIMITS if name in values}
    if result["objective"] not in get_args(Objective):
        raise wording.not_one_of("objective", result["objective"], get_args(Objective)).at(where)
    if not isinstance(result["safe"], bool):
        raise wording.wrong_type("safe", result["safe"], "true or false").at(where)
    if (limit := result["max_memory"]) is not None:
        result["max_memory"] = device.limit_of(limit, f"{where}: max_memory")
    return result


def _space(values: Mapping[str, Any], where: str) -> Space:
    """Return the space of a plan; rules are named as frameworks have them."""
    raw = {
        name: [None if item == UNCHANGED else item for item in value] if isinstance(value, list) else value
        for name, value in values.items()
    }
    rules = tuple(map(_rule, names_of(raw.pop("rules", None), f"{where}, space: rules")))
    space = build(Space, raw, where=f"{where}, space")
    return replace(space, rules=rules) if rules else space


def _rule(name: str) -> Constraint:
    framework, _, rule = name.partition(": ")
    limits = load_framework(framework).limits
    if limits is None or rule not in limits.rules:
        raise UnknownNameError(
            "rule", name, [] if limits is None else [f"{framework}: {rule}" for rule in limits.rules]
        )
    return rule_of(framework, rule, limits.rules[rule])


def _sites(work: Workload, cluster: Cluster) -> int:
    """Return the sites that train by themselves."""
    return 1 if work.outer is None else max(1, cluster.num_sites)


def _run_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of a workload, with the types of the section of their own."""
    workload = {**(_told(values["workload"]) or {})}
    if "precision" in values:
        workload["precision"] = {**workload.get("precision", {}), **values["precision"]}
    return workload


def _told(value: Any) -> Any:  # noqa: ANN401 (a section of a plan)
    """Return the words of a specification; what is none stays as it is."""
    if isinstance(value, Layout):
        degrees = {name: getattr(value, name) for name in ("vpp", "dp_replicate", "dp_shard")}
        return {**degrees, **changed_fields(value)}
    return changed_fields(value) if isinstance(value, Workload) else value


def _check_sections(values: Mapping[str, Any], where: str) -> None:
    for key in values:
        if key not in SECTIONS:
            raise UnknownKeyError(key, where, SECTIONS, home_of(key, KINDS))
    if "phase" in values:
        reason = "it is of a whole run, which `forescale run` projects"
        raise wording.no_effect("[[phase]]", reason, "leave it out here").at(where)
    if missing := [key for key in ("model", "cluster", "workload") if key not in values]:
        raise wording.missing(missing).at(where)
    for key in _TABLES:
        if key in values and not isinstance(values[key], Mapping | Layout | Workload | Operations):
            raise wording.wrong_type(key, values[key], f"a table ([{key}])").at(where)
    check_names(values, where)
