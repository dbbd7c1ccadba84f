"""The words of a plan's layout that the options of a layout give."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, get_args

from forescale.cli.options import LayoutOptions
from forescale.errors import SpecError, nearest, shown
from forescale.limits import whole_of

ROUTING = ("imbalance", "capacity_factor", "balance", "pad_to_capacity")
"""Options that are fields of `Routing`: they go over those of a file one by one."""


def layout_overrides(layout: LayoutOptions) -> dict[str, Any]:
    """Return what options say of a layout; what is not given is None."""
    from forescale.io.space import placement_of

    local = ("stage_layers", "axis_order", "placement", "overlap", "reshard", *ROUTING)
    tables = ("recompute", "offload")
    names = [item.name for item in fields(layout) if not item.name.startswith(tables)]
    plain = {name: getattr(layout, name) for name in names if name not in local}
    return {
        **plain,
        "recompute": _recompute(layout),
        "offload": _offload(layout),
        "stage_layers": None
        if layout.stage_layers is None
        else _counts(layout.stage_layers, "--stage-layers", "16,15,15,15"),
        "axis_order": names_in(layout.axis_order),
        "placement": None
        if layout.placement is None
        else [asdict(share) for share in placement_of(layout.placement, where="--placement")],
        "reshard": _word_or_count(layout.reshard),
        "overlap": _overlap(layout.overlap),
    }


def _offload(layout: LayoutOptions) -> dict[str, Any] | None:
    """Return the offload table; None where no flag says anything of it."""
    values = {"optimizer": layout.offload_optimizer, "parameters": layout.offload_parameters}
    table: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    if (text := layout.offload_activations) is not None:
        from forescale.io.space import offloaded_layers

        if text == "all" or whole_of(text) is not None:
            table["activation_layers"] = offloaded_layers(text, where="--offload-activations")
        else:
            table["modules"] = _offloaded(names_in(text) or [])
    return table or None


def _offloaded(names: list[str]) -> list[str]:
    from forescale.spec.layout import OffloadName

    known = get_args(OffloadName)
    for name in names:
        if name not in known:
            close = nearest(name, known)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise SpecError(
                "--offload-activations takes a number of layers, all, or modules "
                f"({', '.join(known)}); got {name!r}{hint}"
            )
    return names


def _recompute(layout: LayoutOptions) -> dict[str, Any] | None:
    """Return the recompute table; what belongs to one granularity implies it."""
    listed = layout.recompute_layer_ids
    ids = None if listed is None else _counts(listed, "--recompute-layer-ids", "0,1,2,3")
    details: tuple[tuple[str, str, str, Any], ...] = (
        ("selective", "--recompute-modules", "modules", names_in(layout.recompute_modules)),
        ("full", "--recompute-layers", "num_layers", layout.recompute_layers),
        ("full", "--recompute-layer-ids", "layer_ids", ids),
        ("full", "--recompute-unit", "unit", layout.recompute_unit),
        ("policy", "--recompute-policy", "policy", layout.recompute_policy),
    )
    values = [detail for detail in details if detail[3] is not None]
    kind: str | None = layout.recompute or next((needed for needed, *_ in values), None)
    for needed, option, _, _ in values:
        if needed != kind:
            raise SpecError(f"{option} goes with recompute {needed}; it is {kind}")
    if kind is None:
        return None
    if kind == "selective" and not values:
        return {"granularity": kind, "modules": ["core_attn"]}
    return {"granularity": kind, **{name: value for _, _, name, value in values}}


def names_in(text: str | None) -> list[str] | None:
    """Return the names of a list with commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _word_or_count(text: str | None) -> str | int | None:
    number = None if text is None else whole_of(text)
    return text if number is None else number


def _counts(text: str, option: str, example: str) -> list[int]:
    counts = [whole_of(count) for count in text.split(",")]
    if None in counts:
        raise SpecError(f"{option} takes whole numbers such as {example}; got {shown(text)}")
    return [count for count in counts if count is not None]


def _overlap(text: str | None) -> dict[str, bool] | None:
    """Return which communication overlaps: exactly the named kinds."""
    if text is None:
        return None
    from forescale.io.space import overlap_of

    return asdict(overlap_of(names_in(text) or [], where="--overlap"))
