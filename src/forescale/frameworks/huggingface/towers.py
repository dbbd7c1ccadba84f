"""Parts of a multimodal model beside its decoder: towers for images, video and sound, which are not projected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forescale.graph.counts import count_parameters
from forescale.spec.model import DenseFfn, FullAttention, Layer, Model, Patches
from forescale.units import format_count

WIDTH = ("embed_dim", "hidden_size", "d_model", "width", "n_embd")
DEPTH = ("num_hidden_layers", "depth", "encoder_layers", "num_layers", "n_layer", "layers")
INNER = ("intermediate_size", "encoder_ffn_dim", "ffn_dim", "mlp_dim")


def towers(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, int | None]:
    """Return those of `parts` that hold weights, each with an estimate of its parameters where it can be made."""
    return {name: _parameters(part) for name, part in parts.items() if _whole(part, *WIDTH) is not None}


def left_out(found: Mapping[str, int | None], decoder: Model) -> str:
    """Return in words what is not projected, with its share of the parameters."""
    whole = count_parameters(decoder).total + sum(count or 0 for count in found.values())
    return ", ".join(
        f"{name} (parameters unknown)"
        if count is None
        else f"{name} (about {format_count(count)} parameters, {count / whole:.1%} of the model)"
        for name, count in found.items()
    )


def _parameters(part: Mapping[str, Any]) -> int | None:
    """Return the parameters of a plain transformer encoder of these sizes; projectors and poolers are not in it."""
    width, depth = _whole(part, *WIDTH), _whole(part, *DEPTH)
    if width is None or depth is None:
        return None
    ratio = part.get("mlp_ratio")
    inner = _whole(part, *INNER) or round(width * (ratio if isinstance(ratio, int | float) else 4))
    attention = FullAttention(
        num_heads=1, num_kv_heads=1, head_dim=width, causal=False, qkv_bias=True, output_bias=True
    )
    gated = part.get("hidden_act") in ("silu", "swish")
    layer = Layer(attention=attention, ffn=DenseFfn(ffn_hidden_size=inner, gated=gated, bias=not gated))
    patch, channels = _whole(part, "patch_size"), _whole(part, "num_channels", "in_channels", "in_chans") or 3
    side = (_whole(part, "image_size") or 0) // (patch or 1)
    patches = None if patch is None else Patches(patch_elements=patch**2 * channels)
    tower = Model(
        name="",
        hidden_size=width,
        layers=(layer,) * depth,
        norm="layer",
        patches=patches,
        learned_positions=side**2 if patch else 0,
    )
    return count_parameters(tower).total


def _whole(part: Mapping[str, Any], *names: str) -> int | None:
    found = (part.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and 0 < value < 2**31), None)
