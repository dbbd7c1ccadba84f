"""Every kind of attention as a small module of PyTorch, written from its paper and run with autograd.

A module takes the normed hidden states of one sequence, (tokens, hidden size), and returns what a step differentiates.
Queries meet exactly the keys that the mask leaves, one query at a time, so that PyTorch counts no masked pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from forescale.spec.attention import (
    AttentionKind,
    FullAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
)


def attended(query: Tensor, key: Tensor, value: Tensor, *, window: int | None = None) -> Tensor:
    """Return the causal attention of one head; shapes (tokens, width)."""
    rows = []
    for place in range(len(query)):
        first = 0 if window is None else max(0, place + 1 - window)
        keys, values = key[first : place + 1], value[first : place + 1]
        rows.append(torch.softmax(query[place : place + 1] @ keys.T, -1) @ values)
    return torch.cat(rows)


class Full(nn.Module):
    """Vaswani et al. 2017 with grouped heads (Ainslie et al. 2023), norms of queries and keys, sinks and a gate."""

    def __init__(self, spec: FullAttention, hidden: int) -> None:
        super().__init__()
        self.spec, inner = spec, spec.num_heads * spec.head_dim
        shared = spec.num_kv_heads * spec.head_dim
        self.query = nn.Linear(hidden, inner, bias=spec.qkv_bias)
        self.key, self.value = (nn.Linear(hidden, shared, bias=spec.qkv_bias) for _ in range(2))
        self.output = nn.Linear(inner, hidden, bias=spec.output_bias)
        self.gate = nn.Linear(hidden, inner, bias=spec.qkv_bias) if spec.output_gate else None
        if spec.qk_norm != "none":
            per_head = spec.qk_norm == "head"
            self.query_norm = nn.RMSNorm(spec.head_dim if per_head else inner)
            self.key_norm = nn.RMSNorm(spec.head_dim if per_head else shared)
        if spec.sinks:
            self.sinks = nn.Parameter(torch.zeros(spec.num_heads))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output projection of all heads."""
        heads, groups = self.spec.num_heads, self.spec.num_kv_heads
        queries = self.query(x).chunk(heads, -1)
        keys, values = self.key(x).chunk(groups, -1), self.value(x).chunk(groups, -1)
        item = heads // groups
        results = [
            attended(query, keys[at // item], values[at // item], window=self.spec.window)
            for at, query in enumerate(queries)
        ]
        joined = torch.cat(results, -1)
        return self.output(joined if self.gate is None else joined * torch.sigmoid(self.gate(x)))


class Latent(nn.Module):
    """DeepSeek-V2, section 2.1, and attention to picked keys as in DeepSeek-V3.2, section 2.1, with absorbed weights."""

    def __init__(self, spec: LatentAttention, hidden: int) -> None:
        super().__init__()
        self.spec, heads = spec, spec.num_heads
        width, biased = spec.qk_nope_head_dim + spec.qk_rope_head_dim, spec.projection_bias
        rank = spec.q_lora_rank
        self.query_down = None if rank is None else nn.Linear(hidden, rank, bias=biased)
        self.query_norm = None if rank is None else nn.RMSNorm(rank)
        self.query_up = nn.Linear(rank or hidden, heads * width, bias=False)
        self.down = nn.Linear(hidden, spec.kv_lora_rank + spec.qk_rope_head_dim, bias=biased)
        self.norm = nn.RMSNorm(spec.kv_lora_rank)
        self.up = nn.Linear(spec.kv_lora_rank, heads * (spec.qk_nope_head_dim + spec.v_head_dim), bias=False)
        self.output = nn.Linear(heads * spec.v_head_dim, hidden, bias=biased)
        self.indexer = None if spec.indexer is None else Picker(spec.indexer, hidden, rank or hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output projection of all heads."""
        spec, latent = self.spec, x
        if self.query_down is not None and self.query_norm is not None:
            latent = self.query_norm(self.query_down(x))
        queries = self.query_up(latent).chunk(spec.num_heads, -1)
        compressed, turned = self.down(x).split([spec.kv_lora_rank, spec.qk_rope_head_dim], -1)
        compressed = self.norm(compressed)
        if self.indexer is not None:
            with torch.no_grad():
                self.indexer(x, latent)
        results = (
            self._picked(queries, compressed, turned)
            if spec.top_k
            else self._all(queries, compressed, turned)
        )
        return self.output(torch.cat(results, -1))

    def _all(self, queries: tuple[Tensor, ...], compressed: Tensor, turned: Tensor) -> list[Tensor]:
        widths = [self.spec.qk_nope_head_dim, self.spec.v_head_dim]
        pairs = [item.split(widths, -1) for item in self.up(compressed).chunk(self.spec.num_heads, -1)]
        return [
            attended(query, torch.cat([key, turned], -1), value)
            for query, (key, value) in zip(queries, pairs, strict=True)
        ]

    def _picked(self, queries: tuple[Tensor, ...], compressed: Tensor, turned: Tensor) -> list[Tensor]:
        spec, results = self.spec, []
        both = torch.cat([compressed, turned], -1)
        for query, weight in zip(queries, self.up.weight.chunk(spec.num_heads, 0), strict=True):
            plain, rotated = query.split([spec.qk_nope_head_dim, spec.qk_rope_head_dim], -1)
            absorbed = torch.cat([plain @ weight[: spec.qk_nope_head_dim], rotated], -1)
            latents = attended(absorbed, both, compressed, window=spec.top_k)  # as many keys as are picked
            results.append(latents @ weight[spec.qk_nope_head_dim :].T)
        return results


class Picker(nn.Module):
    """The indexer of DeepSeek-V3.2: scores of all keys before a query, summed over its heads."""

    def __init__(self, spec: Indexer, hidden: int, rank: int) -> None:
        super().__init__()
        self.spec = spec
        self.query = nn.Linear(rank, spec.num_heads * spec.head_dim, bias=False)
        self.key, self.key_norm = nn.Linear(hidden, spec.head_dim, bias=False), nn.LayerNorm(spec.head_dim)
        self.weights = nn.Linear(hidden, spec.num_heads, bias=False)

    def forward(self, x: Tensor, latent: Tensor) -> None:
        """Score all keys of every query."""
        self.weights(x)
        key = self.key(x)
        for query in self.query(latent).chunk(self.spec.num_heads, -1):
            for place in range(len(x)):
                query[place : place + 1] @ key[: place + 1].T


class Linear(nn.Module):
    """Gated linear attention in chunks (Yang et al. 2023, arXiv:2312.06635, section 3): a state for every value head."""

    def __init__(self, spec: LinearAttention, hidden: int) -> None:
        super().__init__()
        self.spec = spec
        keys, values = spec.num_key_heads * spec.key_head_dim, spec.num_heads * spec.value_head_dim
        self.query, self.key = (nn.Linear(hidden, keys, bias=False) for _ in range(2))
        self.value, self.output = nn.Linear(hidden, values, bias=False), nn.Linear(values, hidden, bias=False)
        self.gate = nn.Linear(hidden, values, bias=False) if spec.output_gate else None
        decays = spec.num_heads * spec.num_gates_per_head
        self.decay = nn.Linear(hidden, decays, bias=False) if decays else None
        low = spec.gate_lora_rank
        self.low = (
            nn.Sequential(nn.Linear(hidden, low, bias=False), nn.Linear(low, keys, bias=False))
            if low
            else None
        )
        if spec.conv_kernel:
            self.convolution = nn.Conv1d(
                2 * keys + values,
                2 * keys + values,
                spec.conv_kernel,
                groups=2 * keys + values,
                bias=spec.conv_bias,
            )
        self.per_head = nn.Parameter(torch.zeros(spec.num_heads * spec.num_head_parameters))
        norms = {"head": spec.value_head_dim, "hidden": values}
        if spec.output_norm in norms:
            self.norm = nn.RMSNorm(norms[spec.output_norm])

    def forward(self, x: Tensor) -> Tensor:
        """Return the output projection of all heads, with what keeps every part in the graph added in."""
        spec, results, states = self.spec, [], torch.zeros((), dtype=x.dtype)
        queries, keys = (item(x).chunk(spec.num_key_heads, -1) for item in (self.query, self.key))
        shared = spec.num_heads // spec.num_key_heads
        for at, value in enumerate(self.value(x).chunk(spec.num_heads, -1)):
            state = torch.zeros(spec.key_head_dim, spec.value_head_dim, requires_grad=True)
            chunks = []
            for q, k, v in zip(
                *(item.split(spec.chunk_size) for item in (queries[at // shared], keys[at // shared], value)),
                strict=True,
            ):
                chunks.append(((q @ k.T).tril()) @ v + q @ state)
                state = state + k.T @ v
            results.append(torch.cat(chunks))
            states = states + state.sum()
        output = torch.cat(results, -1)
        if self.gate is not None:
            output = output * torch.sigmoid(self.gate(x))
        for gates in (self.decay, self.low):
            states = states + (gates(x).sum() if gates is not None else 0.0)
        return self.output(output) + states


ORACLES: Mapping[type[AttentionKind], Callable[..., nn.Module]] = {
    FullAttention: Full,
    LatentAttention: Latent,
    LinearAttention: Linear,
}
"""Module of each kind; every kind has one."""
EXAMPLES: Mapping[type[AttentionKind], tuple[AttentionKind, ...]] = {
    FullAttention: (
        FullAttention(num_heads=4, num_kv_heads=2, head_dim=8),
        FullAttention(num_heads=4, num_kv_heads=4, head_dim=8, window=5, qkv_bias=True, output_bias=True),
        FullAttention(num_heads=4, num_kv_heads=2, head_dim=8, qk_norm="head", sinks=True, output_gate=True),
        FullAttention(num_heads=2, num_kv_heads=1, head_dim=16, qk_norm="hidden", rotary=False),
    ),
    LatentAttention: (
        LatentAttention(
            num_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5
        ),
        LatentAttention(
            num_heads=2, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, projection_bias=True
        ),
        LatentAttention(
            num_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5,
            top_k=4, indexer=Indexer(num_heads=2, head_dim=4, trained=False),
        ),
        LatentAttention(
            num_heads=4, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5, top_k=4
        ),
    ),
    LinearAttention: (
        LinearAttention(num_heads=4, num_key_heads=4, key_head_dim=4, value_head_dim=8, num_gates_per_head=0,
                        chunk_size=8),
        LinearAttention(num_heads=4, num_key_heads=2, key_head_dim=4, value_head_dim=8, conv_kernel=4, conv_bias=True,
                        num_gates_per_head=2, num_head_parameters=2, chunk_size=4),
        LinearAttention(num_heads=2, num_key_heads=2, key_head_dim=4, value_head_dim=8, gate_lora_rank=4,
                        output_gate=False, output_norm="hidden", chunk_size=4),
    ),
}  # fmt: skip
"""Small descriptions of each kind, the first of them plain; they cover every field that adds parameters or products."""
