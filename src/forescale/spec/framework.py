"""Defaults of training frameworks, and the options that they support."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, lru_cache
from typing import Any, Final, Literal, TypeAlias, TypeVar

from msgspec import field
from msgspec.structs import replace

from forescale.errors import not_one_of, unsupported_by
from forescale.limits import Devices
from forescale.numeric import all_true, truth
from forescale.records import kept_by_value
from forescale.spec.cluster import Cluster, Device
from forescale.spec.context import ContextKind
from forescale.spec.dispatchers import Dispatcher
from forescale.spec.framework_options import Limits, Variant, exchanges_whole_keys
from forescale.spec.layout import Allocator, Kernels, LaunchGraphs, Layout, Overlap, Recompute
from forescale.spec.model import Model
from forescale.spec.proposal import Constraint
from forescale.spec.proposal import Proposal as Asked
from forescale.spec.recipes import Recipe, closest, graphs_of, kind_of, nearest, settings_of
from forescale.spec.space import Space, choice_word, default_recompute, partial_recompute
from forescale.spec.stage_layers import by_cost, light_ends
from forescale.spec.workload import NARROW, QUANTISED_BYTES, ComputeType, Precision, StorageType, Workload
from forescale.struct import Struct, asdict

Words: TypeAlias = Mapping[str, Any]
"""Fields of a specification by name, as a plan file has them: tables inside are mappings."""
S = TypeVar("S")


class Framework(Struct, frozen=True, kw_only=True):
    """One framework in one release line. A plan, a file or a flag that says otherwise goes over it."""

    name: str
    release: str
    line: str = ""
    """Release line whose defaults and recipes apply, where the catalogue has none of that date; empty is the release
    itself."""
    title: str
    date: str
    """When its sources were read, or when the release line was current."""
    source: str
    """Where it comes from as a whole; `sources` says where single fields do."""
    sources: Mapping[str, str] = field(default_factory=dict)
    software: str
    """Whose fitted losses apply: a key of the run calibration's `software`; xla stands for xla-gpu on GPUs."""
    model_code: Literal["", "transformers"] = ""
    """Library of the model classes that it trains, if their operators are recorded."""
    released: str = ""
    """Year and month of its libraries ("25.02"), whose products were slower than today's; empty is the latest."""
    kernels: Kernels = field(default_factory=Kernels)
    variants: tuple[Variant, ...] = ()
    """Kernels that go over `kernels` under some types, later ones over earlier ones."""
    compute: ComputeType = "bf16"
    fp8_recipe: Literal["none", "delayed", "current", "blockwise"] = "delayed"
    """Scaling recipe of fp8 compute."""
    fp8_parameters: tuple[str, ...] = ()
    """Recipes of fp8 compute under which weights are kept and gathered in fp8, where states are sharded (Megatron-LM,
    arguments.py: --fp8-param-gather needs the distributed optimizer or FSDP)."""
    gradients: StorageType = "fp32"
    """Type of accumulated gradients under bf16 and narrower compute; under fp16 it is fp16."""
    parameters: StorageType | None = None
    """Type of the weights; None is that of the activations."""
    master: StorageType | Literal["none"] = "fp32"
    compact_master: StorageType | None = None
    """Type of the master copy of its memory-saving optimizer, for layouts that do not fit otherwise."""
    moments: StorageType = "fp32"
    fp32_frozen: Literal["none", "norms", "unquantised"] = "none"
    """What it keeps in fp32 of a model with quantised weights, below stage 3."""
    zero: Literal[0, 1, 2, 3] | None = None
    """ZeRO stage where none is given and several devices hold replicas; None is that of a layout by itself."""
    accumulation: Devices | None = None
    """Micro-batches of a step without pipeline; None leaves it to the micro-batch."""
    microbatches_per_stage: Devices | None = None
    """Micro-batches of a step for each pipeline stage; None leaves it to the micro-batch."""
    shard_group: Devices | None = None
    """Ranks that share states under hybrid sharding; None is a node."""
    always_sp: bool = False
    """Residuals are split over tp whatever is asked (sharding constraints of XLA)."""
    experts_over_tp: bool = False
    """Experts are split over tp as all else whatever is asked: etp is tp."""
    cp_kind: ContextKind = "ring"
    cp_balanced: bool = True
    """Ranks of cp take a part of the sequence from the front and one from the back; False gives out whole runs."""
    schedule: str | None = None
    """Pipeline schedule where none is named; None is 1F1B, interleaved where vpp > 1."""
    interleaves_experts: bool = False
    """Its guide has pipelines of models with experts interleaved, a middle divisor of a stage's layers deep."""
    stages: Literal["even", "by_cost", "light_ends"] = "even"
    """How layers are dealt to pipeline stages: evenly, by the weights of layers and head (nanotron), or, where they are
    not a multiple of the virtual stages, with fewer layers next to the embedding and the loss (Megatron)."""
    flash_attention: bool = True
    unfused_deterministic: tuple[str, ...] = ()
    """Architectures of devices whose attention is not fused in deterministic mode."""
    recompute: Recompute = field(default_factory=Recompute)
    stops_early: bool = False
    """Full recompute replays only what backward needs (`Recompute.stops_early`)."""
    overlap: Overlap = field(default_factory=Overlap)
    """Tensor-parallel overlap is of dense models, and not of nvfp4."""
    dispatcher: Dispatcher = "all_to_all"
    dispatchers: Mapping[str, Dispatcher] = field(default_factory=dict)
    """Dispatcher by the start of the device's name, over `dispatcher`, where ep is above 1; "" is any device."""
    dispatch: Literal["activations", "fp8"] = "activations"
    """Type in which tokens travel to experts under 8- and 4-bit compute."""
    allocator: Allocator = "segments"
    graphs: LaunchGraphs = "none"
    expert_graphs: Mapping[str, LaunchGraphs] = field(default_factory=dict)
    """The same of models with experts, by the start of the device's name, over `graphs`."""
    limits: Limits | None = None
    """The options that it supports; None where they are not recorded."""
    recipes: tuple[Recipe, ...] = ()
    """Performance recipes of the release, which fill what a question leaves open."""

    def __hash__(self) -> int:
        return hash(self.label)

    @property
    def label(self) -> str:
        """The name as `--framework` takes it."""
        return f"{self.name}@{self.release}"

    def applied(
        self, layout: Layout, workload: Workload, model: Model, cluster: Cluster
    ) -> tuple[Layout, Workload]:
        """Return a layout and a workload as the framework trains them; the ZeRO stage and changed fields stay."""
        usual = Workload(seq_len=workload.seq_len, global_batch_size=workload.global_batch_size)
        told = {"zero": layout.zero, **explicit_fields(layout, Layout())}
        parts, run = self.completed(told, explicit_fields(workload, usual), model, cluster)
        return merged(layout, parts), merged(workload, run)

    def completed(
        self, layout: Words, workload: Words, model: Model, cluster: Cluster
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the words of a layout and of a workload with what the framework does where they are silent.

        Words of the wrong kind stay as they are, for whoever checks them.
        """
        table = dict(_table(workload, "precision"))
        explicit, types = _silent(self, dict(layout), table, workload.get("seq_len"), model, cluster)
        if batch := self._micro_batch(layout, workload, cluster):
            explicit = {**explicit, "micro_batch_size": batch}
        return merge_sections(explicit, layout), merge_sections({"precision": types}, workload)

    def defaults(
        self, layout: Words, table: Words, seq_len: object, model: Model, cluster: Cluster
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the framework does of a layout where its words are silent, and all types; no batch changes it."""
        recipe = self.recipe(layout, {"precision": table, "seq_len": seq_len}, model, cluster)
        advised = {} if recipe is None else settings_of(recipe, model, layout)[0]
        states = {} if recipe is None else recipe.types(self.compute_of({"precision": table}))
        if "moments" in table:  # alone, it is the type of both
            states.pop("second_moments", None)
        zero = self._zero(layout, cluster)
        stage = layout.get("zero", zero)
        types = {**self._types(table, sharded=stage != 0), **states, **table}
        if types.get("frozen") in QUANTISED_BYTES and stage != 3:
            types.setdefault("fp32_frozen", self.fp32_frozen)
        recompute = _table(layout, "recompute") or _table(advised, "recompute")
        early = recompute.get("granularity") == "full" and self.stops_early
        parts = {
            "software": self._software(cluster),
            "zero": zero,
            "kernels": asdict(self._kernels(types, staged="zero" in layout)),
            "overlap": asdict(self._overlap(model, types)),
            "recompute": {"stops_early": early} if recompute else asdict(self._recompute(model, types)),
            "cp_kind": self.cp_kind,
            "cp_balanced": self.cp_balanced,
            "schedule": self.schedule if _count(layout, "pp") > 1 else None,
            "flash_attention": self._fuses_attention(layout, cluster),
            "allocator": self.allocator,
            "graphs": _on(self.expert_graphs, cluster, self.graphs) if model.is_moe else self.graphs,
            "dispatcher": _on(self.dispatchers, cluster, self.dispatcher)
            if _count(layout, "ep") > 1
            else self.dispatcher,
            "routing": {"dispatch": self.dispatch if types["compute"] in NARROW else "activations"},
            "sp": _count(layout, "tp") > 1 if self.always_sp else None,
            "etp": _count(layout, "tp") if self.experts_over_tp and model.is_moe else None,
            "stage_layers": self.stage_layers(model, _count(layout, "pp"), _count(layout, "vpp")),
        }
        explicit = {name: value for name, value in parts.items() if value is not None}
        return merge_sections(explicit, advised), types

    def _fuses_attention(self, layout: Words, cluster: Cluster) -> bool:
        deterministic = _table(layout, "kernels").get("deterministic", False)
        return self.flash_attention and not (
            deterministic and cluster.device.architecture in self.unfused_deterministic
        )

    def _zero(self, layout: Words, cluster: Cluster) -> int | None:
        """Return the ZeRO stage; None where the framework has no default, or no data-parallel ranks share states."""
        apart = math.prod(_count(layout, name) for name in ("tp", "pp", "dp_replicate"))
        alone = 0 if _count(layout, "dp_replicate") > 1 else None
        return self.zero if self.zero is None or apart < cluster.num_devices else alone

    def recipe(self, layout: Words, workload: Words, model: Model, cluster: Cluster) -> Recipe | None:
        """Return the performance recipe that fills what fields of a layout and a workload leave open; None without."""
        recipes = _recipes_of(self, model, cluster.device)
        return closest(recipes, cluster, self.compute_of(workload), layout, workload.get("seq_len"))

    def compute_of(self, workload: Words) -> str:
        """Return the compute type of a workload's fields, or the framework's own."""
        return str(_table(workload, "precision").get("compute", self.compute))

    def cannot(self, question: Asked) -> tuple[str, ...]:
        """Return the settings of a layout that the framework does not support; none if its options are not recorded."""
        if (limits := self.limits) is None:
            return ()
        cannot_compute = [*self.cannot_compute(question.workload.precision)]
        for name, unless in TOLD.items():
            known = limits.known(name)
            value = getattr(question.degrees, name)
            usual = value == getattr(Layout(), name)
            if known and value not in known and not usual and not unless(question):
                cannot_compute.append(_refused(name, value, known))
        cannot_compute += self._cannot_replay(question)
        broken = (rule for name, rule in limits.rules.items() if not all_true(RULES[name](question)))
        return (*cannot_compute, *broken)

    def _cannot_replay(self, question: Asked) -> list[str]:
        """Return the recompute that the framework does not have; its writer checks the names of results."""
        assert self.limits is not None
        known = self.limits.known("recompute")
        value = question.degrees.recompute
        if not known or choice_word(value) in (*map(choice_word, known), OWN_POLICY):
            return []
        return [_refused("recompute", value, known)]

    def cannot_compute(self, precision: Precision) -> tuple[str, ...]:
        """Return the type of compute that the framework does not have, where that is asked for."""
        if (known := self.limits.compute if self.limits else ()) == () or precision.compute in known:
            return ()
        return (f"compute in {precision.compute} (it has {', '.join(known)})",)

    def retyped(
        self, question: tuple[Layout, Workload, Model, Cluster], types: Words, *, sharded: bool
    ) -> tuple[Layout, Workload]:
        """Return the layout and the workload of a question, completed for sharded states, completed for others.

        What the framework does not make of their types was told, and stays.

        Parameters
        ----------
        types
            Fields of `Precision` by name; what is not among them follows from them.
        sharded
            Whether states are.
        """
        layout, workload, model, cluster = question
        precision = workload.precision
        before = self._typed(
            {"compute": precision.compute, "recipe": precision.recipe}, model, cluster, sharded=True
        )
        after = self._typed(types, model, cluster, sharded=sharded)
        return (
            _moved(layout, before[0], after[0]),
            replace(workload, precision=_moved(precision, before[1], after[1])),
        )

    def _typed(
        self, types: Words, model: Model, cluster: Cluster, *, sharded: bool
    ) -> tuple[Layout, Precision]:
        """Return what the framework alone says under some types."""
        parts, run = self.completed({"zero": int(sharded)}, {"precision": types}, model, cluster)
        return merged(Layout(), {**parts, "zero": 1}), merged(Precision(), run["precision"])

    def stage_layers(self, model: Model, pp: int, vpp: int) -> tuple[int, ...] | None:
        """Return the layers of each rank or virtual stage where they are not dealt evenly; None is an even split."""
        if pp * vpp > model.num_layers:
            return None
        if self.stages == "light_ends":
            return light_ends(model.num_layers, pp, vpp)
        return by_cost(model, pp) if self.stages == "by_cost" else None

    def microbatches(self, pp: int) -> int | None:
        """Return the micro-batches of a step where no micro-batch is given; None if that says nothing."""
        if self.accumulation and pp == 1:
            return self.accumulation
        return self.microbatches_per_stage and self.microbatches_per_stage * pp

    def _software(self, cluster: Cluster) -> str:
        on_tpu = cluster.device.architecture.startswith("tpu")
        software = "xla-gpu" if self.software == "xla" and not on_tpu else self.software
        return f"{software}@{self.released}" if self.released else software

    def _types(self, value: Words, *, sharded: bool) -> dict[str, Any]:
        """Return the types of everything under a compute type; states that are not sharded gather no weights."""
        compute = value.get("compute", self.compute)
        types = {"compute": compute, "recipe": "none", "moments": self.moments}
        if compute in ("fp32", "tf32"):
            whole = dict.fromkeys(("parameters", "gradients", "activations"), "fp32")
            return {**types, **whole, "master": "none"}
        storage: StorageType = "fp16" if compute == "fp16" else "bf16"
        recipes = {"fp8": self.fp8_recipe, "mxfp8": "mxfp8"}
        recipe = value.get("recipe", recipes.get(compute, "none"))
        narrow = sharded and compute in recipes and recipe in self.fp8_parameters
        return {
            **types,
            "recipe": recipe,
            "parameters": self.parameters or ("fp8" if narrow else storage),
            "gradients": "fp16" if storage == "fp16" else self.gradients,
            "master": self.master,
            "activations": storage,
        }

    def _kernels(self, types: Words, *, staged: bool) -> Kernels:
        """Return its kernels; where a ZeRO stage is given, gradients are reduced after each micro-batch (DeepSpeed)."""
        kernels = replace(self.kernels, keeps_whole_gradients=False) if staged else self.kernels
        for variant in self.variants:
            if all(types.get(name) in values for name, values in variant.when.items()):
                kernels = replace(kernels, **variant.kernels)
        return kernels

    def _overlap(self, model: Model, types: Words) -> Overlap:
        tensor = self.overlap.tensor and not model.is_moe and types["compute"] != "nvfp4"
        return replace(self.overlap, tensor=tensor)

    def _recompute(self, model: Model, types: Words) -> Recompute:
        """Return what is recomputed by default; products in 4 bits are none that selective checkpoint knows.

        Of a traced model, whole blocks are recomputed where the framework selects operators.
        """
        policy = self.recompute.policy
        if model.traces and self.recompute.granularity not in ("none", "full"):
            return Recompute(granularity="full", stops_early=self.stops_early)
        if policy in ("torch_per_op", "torch_per_op_compiled") and types["compute"] == "nvfp4":
            return Recompute(granularity="policy", policy="custom", kept=("context",))
        early = self.stops_early and self.recompute.granularity == "full"
        return replace(self.recompute, stops_early=early)

    def _micro_batch(self, layout: Words, workload: Words, cluster: Cluster) -> int | None:
        pp = _count(layout, "pp")
        count = self.microbatches(pp)
        batch = _count(workload, "global_batch_size")
        ranks = cluster.num_devices // (pp * _count(layout, "tp") * _count(layout, "cp"))
        return count and max(1, batch // (max(1, ranks) * count))


_silent = kept_by_value(Framework.defaults)


@lru_cache(maxsize=256)
def _recipes_of(framework: Framework, model: Model, device: Device) -> tuple[Recipe, ...]:
    """Return the recipes of a framework for the models and devices that are nearest."""
    return nearest(framework.recipes, model, device)


OWN_POLICY: Final = "custom"
"""A policy by the names of results; whether a framework has each is its writer's to say."""


def _refused(name: str, value: object, known: Iterable[object]) -> str:
    """Return what a framework refuses, with what it takes, each once and by the option that has it."""
    options: dict[str, dict[str, None]] = {"": {}}
    for item in known:
        option = "recompute_policy " if isinstance(item, Recompute) and item.policy is not None else ""
        options.setdefault(option, {})[choice_word(item)] = None
    takes = "; ".join(f"{option}{', '.join(words)}" for option, words in options.items() if words)
    return f"{name} {choice_word(value)} (it takes {takes})"


RULES: Mapping[str, Callable[[Asked], Any]] = {
    "stages 2 and 3 have no pipeline": lambda q: (_of(q, "zero") < 2) | (_of(q, "pp") == 1),
    "stage 3 has no tensor parallelism": lambda q: (_of(q, "zero") < 3) | (_of(q, "tp") == 1),
    "replicas of shards are of stage 3": lambda q: (
        (_of(q, "zero") == 3) | (_of(q, "dp_replicate") == 1) | (_of(q, "dp_shard") == 1)
    ),
    "experts under tp need sp": lambda q: (_of(q, "tp") == 1) | truth(_of(q, "sp")) | (not q.model.is_moe),
    "a key/value head for every rank of tp": lambda q: _kv_heads(q.model) % _of(q, "tp") == 0,
    "exchanged key/value heads are whole": exchanges_whole_keys,
    "sharded states have no replicas": lambda q: (_of(q, "zero") == 0) | (_of(q, "dp_replicate") == 1),
    "stage 0 is plain replication": lambda q: (
        (_of(q, "zero") > 0) | (_of(q, "cp") * _of(q, "tp") * _of(q, "pp") * _of(q, "ep") == 1)
    ),
    "stage 3 has shards": lambda q: (_of(q, "zero") < 3) | (_of(q, "dp_shard") * _of(q, "cp") > 1),
    "experts are split as all else": lambda q: (_of(q, "etp") == _of(q, "tp")) | (not q.model.is_moe),
    "experts are split as all else, or not": lambda q: (
        (_of(q, "etp") == _of(q, "tp")) | ((_of(q, "ep") > 1) & (_of(q, "etp") == 1)) | (not q.model.is_moe)
    ),
    "experts lie on shards": lambda q: (
        _of(q, "dp_shard") * _of(q, "cp") * _of(q, "tp") % (_of(q, "ep") * _of(q, "etp")) == 0
    ),
    "fp8 weights are sharded": lambda q: (_of(q, "zero") > 0) | (q.workload.precision.parameters != "fp8"),
    "tied embeddings have no pipeline": lambda q: (_of(q, "pp") == 1) | (not q.model.tied_embeddings),
    "experts are shards of stage 3": lambda q: (
        (_of(q, "ep") == 1) | (_of(q, "zero") == 3) & (_of(q, "dp_shard") % _of(q, "ep") == 0)
    ),
    "context ranks shard weights": lambda q: (_of(q, "cp") == 1) | (_of(q, "zero") == 3),
    "experts with tp or cp": lambda q: (_of(q, "ep") == 1) | (_of(q, "tp") == 1) | (_of(q, "cp") == 1),
    "delayed scales take one pass": lambda q: (
        (q.workload.precision.recipe != "delayed")
        | (_of(q, "pp") > 1)
        | (
            _of(q, "dp_replicate") * _of(q, "dp_shard") * _of(q, "micro_batch_size")
            == q.workload.global_batch_size
        )
    ),
    "equal stages": lambda q: q.model.num_layers % (_of(q, "pp") * _of(q, "vpp")) == 0,
}
"""What the limits of a framework may ask of degrees, by name."""
CHOICES: Mapping[str, tuple[str, ...]] = {"exchanged key/value heads are whole": ("cp_kind",)}
"""The choices of a search that a rule depends on, where it depends on some (`Constraint.choices`)."""


TOLD: Mapping[str, Callable[[Asked], Any]] = {
    **dict.fromkeys(("tp", "cp", "ep", "pp", "vpp"), lambda _: False),
    "zero": lambda q: _of(q, "dp_replicate") * _of(q, "dp_shard") * _of(q, "cp") == 1,
    "sp": lambda q: _of(q, "tp") == 1,
    "cp_kind": lambda q: _of(q, "cp") == 1,
    "etp": lambda q: not q.model.is_moe,
}
"""Dimensions whose value a framework may not know, unless it is as usual, and when it does not matter."""


def _on(by_device: Mapping[str, S], cluster: Cluster, usual: S) -> S:
    """Return what is said of the first start of the device's name, else what is usual."""
    name = cluster.device.name
    return next((value for start, value in by_device.items() if name.startswith(start)), usual)


def _kv_heads(model: Model) -> int:
    """Return the key/value heads that every softmax attention of a model can be divided by."""
    return math.gcd(*(attention.grouped_heads for attention in model.attentions))


def _of(question: Asked, name: str) -> Any:  # noqa: ANN401 (degrees of one layout, or of many)
    return getattr(question.degrees, name)


OWN = ("schedule", "dispatcher")
"""Dimensions of a space whose values are what a framework has."""


def searched(framework: Framework, space: Space, *, limited: bool) -> Space:
    """Return what a search may choose under a framework: what it can run, or (`limited`) only the options it writes.

    Raises
    ------
    SpecError
        If the space is limited to its options and they were not recorded.
    """
    values: dict[str, Any] = {"sp": (True,)} if framework.always_sp else {}
    if framework.schedule is not None:
        values["schedule"] = (framework.schedule,)
    limits = _limits(framework) if limited else framework.limits
    if limits is None:
        return replace(space, **values)
    values |= {name: limits.values[name] for name in OWN if name in limits.values}
    values |= limits.values if limited else _runnable(limits, space)
    rules = (rule_of(framework.name, name, rule) for name, rule in limits.rules.items())
    return replace(space, **values, rules=(*space.rules, *rules))


def _runnable(limits: Limits, space: Space) -> dict[str, tuple[Any, ...]]:
    """Return the values of a space that a framework can run, by dimension; the usual ones of degrees always are."""
    kept = {}
    for name in {*TOLD, "recompute"} & limits.values.keys():
        known = (*limits.known(name), *(() if name == "recompute" else (getattr(Layout(), name),)))
        kept[name] = tuple(item for item in getattr(space, name) or limits.values[name] if item in known)
    return {name: values for name, values in kept.items() if values}


def recipes_of_kind(framework: Framework, model: Model, cluster: Cluster) -> list[Mapping[str, Any]]:
    """Return the layouts of the recipes of the same kind of model on the same generation of devices."""
    of_run = (kind_of(model), cluster.device.architecture)
    return [recipe.layout for recipe in framework.recipes if (recipe.kind, recipe.architecture) == of_run]


def with_recipes(
    framework: Framework, space: Space, model: Model, cluster: Cluster, left_open: Sequence[str]
) -> Space:
    """Return a space with what recipes of the release use where a question leaves a setting open.

    They are those of the same kind of model on the same generation of devices; expert overlap is that of any. Graphs
    of whole iterations of models with experts need the kernels of a recipe that has them, so they are searched only
    where the closest recipe does.

    Parameters
    ----------
    left_open
        `Question.assumed`; none of a question without a layout, which leaves everything open.
    """
    base, is_moe, values = space.base, model.is_moe, dict[str, Any]()
    is_open = {name: not left_open or name in left_open for name in ("graphs", "overlap")}
    recipes = recipes_of_kind(framework, model, cluster)
    if is_open["graphs"] and space.graphs == (None,):
        values["graphs"] = (None, *(kind for kind in graphs_of(recipes, model) if kind != base.graphs))
    if is_moe and None in space.dispatcher:
        known = [recipe["dispatcher"] for recipe in recipes if recipe.get("dispatcher")]
        values["dispatcher"] = tuple(dict.fromkeys((*space.dispatcher, *known)))
    crosses = any(_table(item.layout, "overlap").get("expert") for item in framework.recipes)
    crosses = crosses and is_moe and model.num_mtp_layers <= 1
    if crosses and is_open["overlap"] and space.overlap == (None,):
        values["base"] = replace(base, overlap=replace(base.overlap, expert=False))
        values["overlap"] = (None, ("expert",))
    usual = (*default_recompute(model), *partial_recompute(model))
    if space.recompute is None and base.recompute.granularity == "selective" and base.recompute not in usual:
        values["recompute"] = (*usual, base.recompute)
    return replayed(framework, replace(space, **values), model)


def replayed(framework: Framework, space: Space, model: Model) -> Space:
    """Return a space whose full recompute ends where that of the framework does."""
    if not framework.stops_early:
        return space
    policies = space.recompute or (*default_recompute(model), *partial_recompute(model))
    early = (replace(policy, stops_early=policy.granularity == "full") for policy in policies)
    return replace(space, recompute=tuple(early))


def check_choice(framework: Framework, name: str, values: tuple[Any, ...]) -> None:
    """Refuse values of a dimension that a framework does not know.

    Raises
    ------
    SpecError
        Naming the values it knows.
    """
    limits = _limits(framework)
    if name not in limits.values:
        return
    known = limits.known(name)
    unknown = [value for value in values if value not in known]
    if unknown:
        takes = [choice_word(value) for value in known]
        key = f"{name} of {framework.name}"
        raise not_one_of(key, choice_word(unknown[0]), takes, f"see {limits.source}")


def explicit_fields(spec: Any, usual: Any) -> dict[str, Any]:  # noqa: ANN401 (any specification)
    """Return the fields of `spec` that differ from those of `usual`, dataclasses as tables."""
    result = {}
    for name in spec.__dataclass_fields__:
        value, other = getattr(spec, name), getattr(usual, name)
        if value != other:
            tables = type(value) is type(other) and is_dataclass(value)
            result[name] = explicit_fields(value, other) if tables else value
    return result


def merged(spec: S, parts: Words) -> S:
    """Return `spec` with the fields that `parts` name; tables go into the dataclasses inside, lists become tuples."""

    def laid(name: str, value: object) -> object:
        if isinstance(value, Mapping):
            return merged(getattr(spec, name), value)
        return tuple(value) if isinstance(value, list) else value

    return replace(spec, **{name: laid(name, value) for name, value in parts.items()})  # type: ignore[type-var]


def _moved(spec: S, before: S, after: S) -> S:
    """Return `spec` with what changes from `before` to `after`, but for fields that it has otherwise than `before`."""
    return merged(merged(spec, explicit_fields(after, before)), explicit_fields(spec, before))


@cache
def rule_of(framework: str, name: str, text: str) -> Constraint:
    """Return a rule of a framework's limits, one object for each: spaces that have it are equal."""
    made = rule_of, (framework, name, text)
    choices = CHOICES.get(name, ())
    return Constraint(
        name=f"{framework}: {name}", holds=RULES[name], message=lambda _: text, choices=choices, made=made
    )


def _limits(framework: Framework) -> Limits:
    if framework.limits is None:
        raise unsupported_by("--to", f"{framework.label}, whose options are not recorded", "leave it out")
    return framework.limits


def merge_sections(parts: Words, values: Words) -> dict[str, Any]:
    """Return `parts` with what is given laid over them, tables within tables included; None gives nothing."""
    merged = dict(parts)
    for name, value in values.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = merge_sections(below, value)
        elif value is not None or name not in merged:
            merged[name] = value
    return merged


def _table(parts: Words, name: str) -> Words:
    """Return a table of `parts`; whatever else stands there is left to the checks."""
    table = parts.get(name)
    return table if isinstance(table, Mapping) else {}


def _count(parts: Words, name: str) -> int:
    value = parts.get(name)
    return value if type(value) is int and value > 0 else 1
