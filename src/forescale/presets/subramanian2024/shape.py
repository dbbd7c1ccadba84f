"""The few sizes that the paper's transformer has."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.errors import SpecError
from forescale.spec.model import DenseFfn, FullAttention, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """l, e, f, h, d of the paper: equal blocks of full attention and a two-matrix feed-forward."""

    seq_len: int
    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    num_layers: int

    @property
    def head_dim(self) -> int:
        """Elements per head."""
        return self.hidden_size // self.num_heads


def shape_of(model: Model, *, seq_len: int | None = None) -> Shape:
    """Return the sizes of `model`, with its own sequence length unless one is given.

    Embedding, head, final norm and the mask of causal attention do not exist in the paper's model.

    Raises
    ------
    SpecError
        If the model is not a stack of equal blocks with as many key/value heads as heads, or says no length.
    """
    length = seq_len or model.max_seq_len
    if not length:
        msg = f"model {model.name}: preset subramanian2024 takes the sequence length from the model; it says none"
        raise SpecError(msg)
    attention, ffn = model.layers[0].attention, model.layers[0].ffn
    known = (
        len(model.layer_kinds) == 1
        and isinstance(attention, FullAttention)
        and isinstance(ffn, DenseFfn)
        and not ffn.gated
        and attention.num_kv_heads == attention.num_heads
        and attention.head_dim * attention.num_heads == model.hidden_size
    )
    if not (known and isinstance(attention, FullAttention) and isinstance(ffn, DenseFfn)):
        msg = (
            f"model {model.name}: preset subramanian2024 knows only equal layers of multi-head attention and an "
            "ungated feed-forward, as in gpt3-1t, vit-era5 and gpt3-175b"
        )
        raise SpecError(msg)
    return Shape(
        seq_len=length,
        hidden_size=model.hidden_size,
        ffn_hidden_size=ffn.ffn_hidden_size,
        num_heads=attention.num_heads,
        num_layers=model.num_layers,
    )
