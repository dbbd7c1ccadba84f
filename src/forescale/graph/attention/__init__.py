"""Attention blocks: full (MHA, GQA, MQA, windowed), latent (MLA), linear; residual layout in and out."""

from forescale.graph.attention.core import attention_pairs
from forescale.graph.attention.full import full_attention
from forescale.graph.attention.latent import latent_attention
from forescale.graph.attention.linear import linear_attention

__all__ = ["attention_pairs", "full_attention", "latent_attention", "linear_attention"]
