"""What a search may choose from: values by dimension, and what stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import field
from msgspec.structs import replace

from forescale.errors import UnknownKeyError
from forescale.spec.context import ContextKind
from forescale.spec.dispatchers import Dispatcher
from forescale.spec.layout import (
    Axis,
    LaunchGraphs,
    Layout,
    Module,
    Overlap,
    Placement,
    Recompute,
    TensorKind,
    check_order,
)
from forescale.spec.model import DenseFfn, Model
from forescale.spec.proposal import Constraint
from forescale.struct import SpecStruct

PlacementChoice: TypeAlias = Placement | Literal["orders", "all"]
"""A placement, those of the axis orders of a space, or every one there is."""
DEGREE_NAMES = ("tp", "cp", "ep", "etp", "pp", "vpp", "dp_replicate", "dp_shard", "zero", "micro_batch_size")
SETTING_NAMES = ("precision", "overlap", "dispatcher", "graphs", "optimizer_offload", "activation_offload")
"""Dimensions that a question or a flag may also fix as a field of the layout or the workload."""
ORDERS: tuple[tuple[Axis, ...], ...] = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
"""The orders Megatron-LM can express: default, and --use-tp-pp-dp-mapping."""


class Space(SpecStruct, frozen=True, kw_only=True):
    """What a search may choose from; None leaves a dimension to every value that can be legal.

    Of placements that None leaves open all are tried, and of numbers of recomputed layers the powers of two, where
    bounds settle most of them (`whole`); what evaluates every layout takes the axis orders and whole stages.
    """

    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    etp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    vpp: tuple[int, ...] | None = None
    dp_replicate: tuple[int, ...] | None = None
    dp_shard: tuple[int, ...] | None = None
    zero: tuple[int, ...] = (0, 1, 2, 3)
    micro_batch_size: tuple[int, ...] | None = None
    sp: tuple[bool, ...] | None = None
    """None tries both values; for models with experts only true, which Megatron-LM requires with tensor parallelism."""
    tp_kind: tuple[TensorKind, ...] = ("1d",)
    summa_panels: tuple[int, ...] = (1, 2, 4)
    """Tried under SUMMA only."""
    cp_kind: tuple[ContextKind, ...] = ("all_gather", "ring")
    recompute: tuple[Recompute, ...] | None = None
    axis_order: tuple[tuple[Axis, ...], ...] = ORDERS
    placement: tuple[PlacementChoice, ...] | None = None
    """Where ranks lie: as the axis orders have it, at given placements, or all there are."""
    schedule: tuple[str | None, ...] = (None,)
    """Names of the schedule library; None is (interleaved) 1F1B, in closed form."""
    precision: tuple[tuple[str, str] | None, ...] = (None,)
    """Compute type and scaling recipe of the linear layers; None is as the question says."""
    overlap: tuple[tuple[str, ...] | None, ...] = (None,)
    """Communication that runs beside compute too, by names of `Overlap`; () is none at all, None is as in `base`."""
    dispatcher: tuple[Dispatcher | None, ...] = (None,)
    """How tokens travel to experts; None is as in `base`."""
    graphs: tuple[LaunchGraphs | None, ...] = (None,)
    """What a graph launches; None is as in `base`."""
    optimizer_offload: tuple[float | None, ...] = (None,)
    """Share of the optimizer's states on the host; None is as in `base`."""
    activation_offload: tuple[int | None, ...] = (None,)
    """Layers of each stage whose saved tensors go to the host; None is as in `base`."""
    base: Layout = field(default_factory=Layout)
    """What is not searched is as here: overlap, kernels, software, offload and the like; its degrees do not count."""
    rules: tuple[Constraint, ...] = ()
    """What a layout must keep to beyond being legal, such as the limits of a framework."""
    waived: tuple[str, ...] = ()
    """Names of constraints that do not bind: layouts are priced as if such shares were whole."""

    def __post_init__(self) -> None:
        """Refuse what is no order of all axes."""
        for order in self.axis_order:
            check_order(order)

    def whole(self, model: Model) -> Space:
        """Return the space with the placements and numbers of recomputed layers that it leaves open.

        Axis orders that are held say where ranks lie.
        """
        policies = (*default_recompute(model), *partial_recompute(model))
        places: tuple[PlacementChoice, ...] = ("orders", "all") if self.axis_order == ORDERS else ("orders",)
        return replace(self, placement=self.placement or places, recompute=self.recompute or policies)

    def sequence_parallel(self, model: Model) -> tuple[bool, ...]:
        """Return the values of `sp` that are tried with tensor parallelism."""
        return self.sp or ((True,) if model.is_moe else (True, False))

    def values_of(self, name: str) -> tuple[Any, ...]:
        """Return the distinct values of a dimension, those that are as in `base` written out."""
        values = getattr(self, name)
        if name == "overlap":
            usual = self.base.overlap
            nothing = dict.fromkeys(Overlap.__dataclass_fields__, False)
            more = [
                usual if item is None else replace(usual, **(dict.fromkeys(item, True) or nothing))
                for item in values
            ]
            return tuple(dict.fromkeys(more))
        if name in ("dispatcher", "graphs"):
            values = tuple(getattr(self.base, name) if item is None else item for item in values)
        return tuple(dict.fromkeys(values))

    def fixed(self, values: Mapping[str, int | bool]) -> Space:
        """Return the space with some dimensions fixed to one value."""
        for name in values:
            if name not in NAMES:
                raise UnknownKeyError(name, "the search space", NAMES)
        kept: dict[str, Any] = {name: (value,) for name, value in values.items()}
        return replace(self, **kept)


_FIELDS = frozenset(Layout.__struct_fields__) - {*SETTING_NAMES}
NAMES = tuple(name for name in Space.__struct_fields__ if name in _FIELDS)
"""Dimensions of a search: the fields of a space that are fields of a layout."""


def default_recompute(model: Model) -> tuple[Recompute, ...]:
    """Return the policies a search tries: none, the cheap modules, the feed-forward, everything."""
    present = recompute_modules(model)
    cheap = tuple(item for item in present if item in CHEAP)
    wide: Module = "moe" if model.is_moe else "mlp"
    return (
        Recompute(),
        Recompute(granularity="selective", modules=cheap),
        Recompute(granularity="selective", modules=(*cheap, wide)),
        Recompute(granularity="full"),
    )


CHEAP: tuple[Module, ...] = ("layernorm", "mla_up_proj", "moe_act")
"""Modules that take little time to run again."""


def recompute_modules(model: Model) -> tuple[Module, ...]:
    """Return the modules of a model's layers that selective recompute can run again."""
    present: dict[Module, bool] = {
        "layernorm": True,
        "core_attn": True,
        "mla_up_proj": model.has_latent,
        "mlp": any(isinstance(kind.ffn, DenseFfn) for kind in model.layer_kinds),
        "moe_act": model.is_moe,
        "moe": model.is_moe,
        "shared_experts": model.moe is not None and model.moe.shared_ffn_hidden_size > 0,
    }
    return tuple(name for name, is_there in present.items() if is_there)


def partial_recompute(model: Model) -> tuple[Recompute, ...]:
    """Return full recompute of some layers of every virtual stage: 1, 2, 4 and so on."""
    counts = [2**power for power in range(model.num_layers.bit_length()) if 2**power < model.num_layers]
    return tuple(Recompute(granularity="full", num_layers=count) for count in counts)


def choice_word(value: object) -> str:
    """Return a value of a dimension as `--fix` takes it."""
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    if isinstance(value, Recompute):
        return str(value.policy or value.granularity)
    return "default" if value is None else str(value).lower()
