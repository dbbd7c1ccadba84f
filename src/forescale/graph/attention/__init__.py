"""Builders of the operators of every kind of attention."""

from collections.abc import Callable, Mapping

from forescale.graph.attention.full import full_attention
from forescale.graph.attention.latent import latent_attention
from forescale.graph.attention.linear import linear_attention
from forescale.spec.attention import AttentionKind, FullAttention, LatentAttention, LinearAttention

ATTENTIONS: Mapping[type[AttentionKind], Callable[..., None]] = {
    FullAttention: full_attention,
    LatentAttention: latent_attention,
    LinearAttention: linear_attention,
}
"""Function that appends the operators of each kind of attention to a block."""

__all__ = ["ATTENTIONS"]
