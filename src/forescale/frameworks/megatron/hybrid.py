"""Megatron's hybrid stacks: one letter a layer, each layer one part (`hybrid_layer_allocation.py`).

`M-M*-|M-E` has Mamba-2 (M), softmax attention (*), dense (-) and routed (E) feed-forward layers; bars cut it
into pipeline stages, a slash starts the pattern of multi-token prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forescale.frameworks.megatron.settings import Settings
from forescale.spec.model import Attention, Ffn, Layer, LinearAttention

KEYS = ("hybrid_layer_pattern", "hybrid_override_pattern")
EXPANSION = 2
"""Inner width of Mamba-2 over the hidden size, where its heads are not counted."""


def hybrid_segments(settings: Settings) -> tuple[str, ...]:
    """Return the letters of each pipeline segment; empty if the model is no hybrid."""
    key = next((key for key in KEYS if settings.get(key)), None)
    if key is None:
        return ()
    main, *more = str(settings.get(key)).strip().split("/")
    if any(more):
        settings.refuse(f"{settings.spell(key)} has multi-token prediction, which cannot be expressed")
    segments = tuple(main.split("|"))
    unknown = sorted({letter for segment in segments for letter in segment} - set("M*-E"))
    if unknown or not all(segments):
        what = f"the letter {unknown[0]!r}" if unknown else "an empty stage"
        settings.refuse(f"{settings.spell(key)} has {what}; M, *, - and E can be expressed, cut by |")
    stated = settings.count("num_layers")
    found = sum(map(len, segments))
    if stated not in (None, found):
        settings.refuse(f"{settings.spell('num_layers')} {stated} is not the {found} of the pattern")
    return segments


def hybrid_layers(
    settings: Settings,
    segments: tuple[str, ...],
    *,
    hidden: int,
    attention: Callable[[], Attention],
    dense: Callable[[], Ffn],
    routed: Callable[[], Ffn],
) -> tuple[Layer, ...]:
    """Return the layers of a pattern; each part is made only if the pattern has it."""
    makers: Mapping[str, Callable[[], Layer]] = {
        "M": lambda: Layer(attention=mamba(settings, hidden), ffn=None, num_norms=1),
        "*": lambda: Layer(attention=attention(), ffn=None, num_norms=1),
        "-": lambda: Layer(attention=None, ffn=dense(), num_norms=1),
        "E": lambda: Layer(attention=None, ffn=routed(), num_norms=1),
    }
    letters = "".join(segments)
    kinds = {letter: makers[letter]() for letter in dict.fromkeys(letters)}
    return tuple(kinds[letter] for letter in letters)


def mamba(settings: Settings, hidden: int) -> LinearAttention:
    """Return Mamba-2 as a linear attention: B and C are keys and queries, x the values, dt the decay."""
    head_dim = settings.count("mamba_head_dim", 64)
    heads = settings.count("mamba_num_heads") or EXPANSION * hidden // head_dim
    return LinearAttention(
        num_heads=heads,
        num_key_heads=settings.count("mamba_num_groups", 8),
        key_head_dim=settings.count("mamba_state_dim", 128),
        value_head_dim=head_dim,
        conv_kernel=4,
        conv_bias=True,
        num_head_parameters=3,
        fused_scan=True,
        output_norm="hidden",
        chunk_size=128,
    )
