"""Performance recipes of training frameworks: the settings that a release uses for a model on a device.

A recipe never sets degrees, batch or length. Its settings apply where a question leaves them open and the layout allows
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeAlias

from forescale.limits import Interval
from forescale.spec.attention import FullAttention, LatentAttention
from forescale.spec.cluster import Cluster, Device
from forescale.spec.model import DenseFfn, Model
from forescale.spec.space import recompute_modules
from forescale.spec.workload import EXCEPTIONS, NARROW
from forescale.struct import Struct

Kind: TypeAlias = Literal["dense", "moe", "mla", "hybrid"]
"""Architecture of a model, as far as recipes differ: mla is latent attention with experts."""
GENERATIONS: Final = (
    ("volta", "ampere", "ada", "hopper", "blackwell", "blackwell-ultra", "rubin"),
    ("cdna1", "cdna2", "cdna3", "cdna4"),
    ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x"),
)
"""Architectures of each vendor, oldest first."""


class Recipe(Struct, frozen=True, kw_only=True):
    """Settings of one performance recipe."""

    names: Mapping[str, str]
    """Name in the framework's repository by the compute type that it trains with."""
    model: str
    """Model of the catalogue that it trains."""
    kind: Kind
    active_width: Annotated[float, Interval(gt=0)]
    """`active_width` of that model."""
    device: str
    """First characters of the names of its devices; empty for recipes of any device."""
    architecture: str
    degrees: Mapping[str, int]
    """Degrees, micro-batch and devices of the recipe, which rank recipes of one model."""
    num_layers: int
    tokens: int | None = None
    """Tokens of a micro-batch on one device, where the recipe's recompute depends on them."""
    layout: Mapping[str, Any]
    """Fields of `Layout`; tables are nested mappings."""
    workload: Mapping[str, Any] = {}
    """Fields of `Workload`."""

    @property
    def routed(self) -> bool:
        """Whether its model has experts; those of hybrids are recognised by the expert-parallel degree."""
        return self.kind in ("moe", "mla") or self.degrees.get("ep", 1) > 1

    def name(self, compute: str) -> str:
        """Return the recipe's name for a compute type, or its last one."""
        return self.names.get(compute, list(self.names.values())[-1])

    def types(self, compute: str) -> dict[str, Any]:
        """Return its fields of `Precision`; products that it leaves in 16 bits are those of its own compute types."""
        table = self.workload.get("precision", {})
        return {
            name: value for name, value in table.items() if name not in EXCEPTIONS or compute in self.names
        }


def kind_of(model: Model) -> Kind:
    """Return the architecture of a model."""
    if any(attention.recurrent for attention in model.attentions):
        return "hybrid"
    if not model.is_moe:
        return "dense"
    return "mla" if model.has_latent else "moe"


@lru_cache(maxsize=256)
def active_width(model: Model) -> float:
    """Return the weights of the layers that one token passes, in units of the hidden size (approximately).

    It orders models by active parameters without building their operators: query, key, value and output widths of
    attention, and the widths of the feed-forwards or of the selected experts.
    """
    return float(sum(_attention_width(layer.attention) + _ffn_width(layer.ffn) for layer in model.layers))


def _attention_width(attention: Any) -> float:  # noqa: ANN401 (any kind of attention, or none)
    if isinstance(attention, FullAttention):
        return 2.0 * attention.head_dim * (attention.num_heads + attention.num_kv_heads)
    if isinstance(attention, LatentAttention):
        return 2.0 * attention.num_heads * attention.v_head_dim
    return 0.0 if attention is None else 4.0 * attention.num_heads * attention.value_head_dim


def _ffn_width(ffn: Any) -> float:  # noqa: ANN401 (dense, routed or none)
    if ffn is None:
        return 0.0
    width = ffn.ffn_hidden_size if isinstance(ffn, DenseFfn) else ffn.top_k * ffn.ffn_hidden_size
    return float((3 if ffn.gated else 2) * (width + getattr(ffn, "shared_ffn_hidden_size", 0)))


def nearest(recipes: Sequence[Recipe], model: Model, device: Device) -> tuple[Recipe, ...]:
    """Return the recipes of the same kind of model, then of the nearest active parameters, then device generation.

    Of models with equal active parameters the recipes of the model itself are closest.

    Of models with experts those of models with experts are closer than others of the same kind.

    A traced model runs its own code, which no recipe of a framework is for.
    """
    if model.traces:
        return ()
    kind, width = kind_of(model), active_width(model)

    def of_device(recipe: Recipe) -> float:
        if device.name.startswith(recipe.device):
            return 0.0
        return 1.0 + _apart(device.architecture, recipe.architecture)

    routed = [recipe for recipe in recipes if recipe.routed == model.is_moe] or recipes
    same = [recipe for recipe in routed if recipe.kind == kind] or routed
    alike = _least(same, lambda recipe: round(abs(math.log(width / recipe.active_width)), 9))
    alike = [recipe for recipe in alike if recipe.model == model.name] or alike
    return tuple(_least(alike, of_device))


def closest(
    recipes: Sequence[Recipe],
    cluster: Cluster,
    compute: str,
    degrees: Mapping[str, Any],
    seq_len: object = None,
) -> Recipe | None:
    """Return the recipe of `nearest` ones that is closest in tokens, types and degrees, in this order; None of none.

    Closest is: the nearest tokens per device in powers of two, the nearest compute type, the most equal degrees; of
    equals the last in the file, which is the newest variant.
    """
    degrees = {**degrees, "devices": cluster.num_devices}
    length = seq_len if isinstance(seq_len, int) else 0
    tokens = length * _degree(degrees, "micro_batch_size") / _degree(degrees, "cp")

    def of_types(recipe: Recipe) -> float:
        if compute in recipe.names:
            return 0.0
        return 1.0 + ((compute in NARROW) != (next(iter(recipe.names)) in NARROW))

    if tokens > 0:
        recipes = _least(
            recipes, lambda one: round(abs(math.log2(tokens / one.tokens))) if one.tokens else 0.0
        )
    recipes = _least(recipes, of_types)
    equal = _least(
        recipes, lambda one: -sum(degrees.get(name, 1) == value for name, value in one.degrees.items())
    )
    return equal[-1] if equal else None


def _least(recipes: Sequence[Recipe], distance: Callable[[Recipe], float]) -> Sequence[Recipe]:
    """Return the recipes of the least distance, in their order."""
    if len(recipes) < 2:
        return recipes
    values = [distance(recipe) for recipe in recipes]
    least = min(values)
    return [recipe for recipe, value in zip(recipes, values, strict=True) if value == least]


def _apart(one: str, other: str) -> float:
    """Return the generations between two architectures; those of other vendors are far from all."""
    for generations in GENERATIONS:
        if one in generations and other in generations:
            return float(abs(generations.index(one) - generations.index(other)))
    return float(max(map(len, GENERATIONS)))


def settings_of(
    recipe: Recipe, model: Model, layout: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings of a recipe that suit a layout, and the names of those that do not.

    Parameters
    ----------
    layout
        Fields of the layout that the question gives.
    """
    settings = dict(recipe.layout)
    dropped = [
        name for name, suits in _SUITS.items() if name in settings and not suits(recipe, model, layout)
    ]
    for name in dropped:
        del settings[name]
    if "routing" in dropped and settings.get("graphs") == "full":
        settings["graphs"] = "partial"
        dropped.append("graphs")
    replayed = {**settings.get("recompute", {}), **_table(layout, "recompute")}
    if replayed.get("granularity") == "full" and settings.get("graphs") in ("partial", "router"):
        settings["graphs"] = "none"
        dropped.append("graphs")
    if settings.get("overlap", {}).get("expert") and not _expert_overlap_suits(model, layout, replayed):
        settings["overlap"] = {**settings["overlap"], "expert": False}
        dropped.append("overlap.expert")
    if _table(layout, "kernels").get("deferred_head_gradients") and "gradient_sum" in settings.get(
        "kernels", {}
    ):
        settings["kernels"] = {
            name: kept for name, kept in settings["kernels"].items() if name != "gradient_sum"
        }
        dropped.append("kernels.gradient_sum")
    return settings, tuple(dropped)


def _expert_overlap_suits(model: Model, layout: Mapping[str, Any], replayed: Mapping[str, Any]) -> bool:
    """Return whether expert exchanges can run behind another micro-batch (Megatron-Core, transformer_config.py)."""
    return (
        _degree(layout, "ep") > 1
        and (_degree(layout, "pp") == 1 or _degree(layout, "vpp") > 1)
        and replayed.get("granularity") != "full"
        and "moe" not in replayed.get("modules", ())
        and not _table(layout, "overlap").get("shared_experts")
        and model.num_mtp_layers <= 1
    )


def _modules_suit(recipe: Recipe, model: Model, layout: Mapping[str, Any]) -> bool:
    """Return whether a layout has the modules, the layers of a stage and the micro-batch of a recipe's recompute."""
    if "recompute" in layout:
        return False
    replayed = recipe.layout["recompute"]
    if "num_layers" in replayed:
        batch = recipe.degrees.get("micro_batch_size", 1)
        return _same_stages(recipe, model, layout) and _degree(layout, "micro_batch_size") >= batch
    return set(replayed.get("modules", ())) <= set(recompute_modules(model))


def _same_stages(recipe: Recipe, model: Model, layout: Mapping[str, Any]) -> bool:
    chunks = recipe.degrees["pp"] * recipe.degrees["vpp"]
    return recipe.num_layers == model.num_layers and chunks == _degree(layout, "pp") * _degree(layout, "vpp")


_SUITS: Final[Mapping[str, Callable[[Recipe, Model, Mapping[str, Any]], bool]]] = {
    "dispatcher": lambda _, model, layout: model.is_moe and _degree(layout, "ep") > 1,
    "routing": lambda recipe, model, layout: (
        model.is_moe
        and layout.get("dispatcher", recipe.layout.get("dispatcher", "all_to_all")) == "all_to_all"
    ),
    "recompute": _modules_suit,
    "stage_layers": lambda recipe, model, layout: (
        "schedule" not in layout and _same_stages(recipe, model, layout)
    ),
    "offload": lambda recipe, model, layout: (
        "recompute" not in layout
        and ("activation_layers" not in recipe.layout["offload"] or _same_stages(recipe, model, layout))
    ),
}
"""Conditions of the settings of a recipe by name."""


def _degree(layout: Mapping[str, Any], name: str) -> int:
    value = layout.get(name)
    return value if isinstance(value, int) and value > 0 else 1


def _table(layout: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = layout.get(name)
    return value if isinstance(value, Mapping) else {}


def graphs_of(recipes: Sequence[Mapping[str, Any]], model: Model) -> list[str]:
    """Return the graphs that recipes use and that suit a model of another recipe, in order; none may be among them."""
    unsuited = {"router", *(("full",) if model.is_moe else ())}
    return sorted({str(recipe["graphs"]) for recipe in recipes if recipe.get("graphs")} - unsuited)
