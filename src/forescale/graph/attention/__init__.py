"""Kinds of attention: what a description of one is called, and what builds it."""

from collections.abc import Callable, Mapping
from typing import Any

from forescale.graph.attention.full import full_attention
from forescale.graph.attention.latent import latent_attention
from forescale.graph.attention.linear import linear_attention
from forescale.spec.model import FullAttention, LatentAttention, LinearAttention

ATTENTIONS: Mapping[type, tuple[str, Callable[..., Any]]] = {
    FullAttention: ("attention", full_attention),
    LatentAttention: ("mla", latent_attention),
    LinearAttention: ("linear", linear_attention),
}
"""Short name of a layer that has it, and what appends it to a block."""

__all__ = ["ATTENTIONS"]
