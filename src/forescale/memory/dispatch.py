"""Buffers that tokens cross on their way to experts: those of DeepEP and HybridEP, allocated by the driver for good."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from forescale.formula import formula, value_of
from forescale.numeric import Array, Numeric

DEEPEP = "DeepEP, csrc/legacy/config.hpp"
HEADER_BYTES = 4.0
"""Counters and offsets of a channel are int32."""
ALIGNMENT = 128.0


@cache
def _table() -> Any:  # noqa: ANN401  (JSON)
    place = resources.files("forescale.catalogue") / "calibrations" / "memory" / "deepep.json"
    return json.loads(place.read_text("utf-8"))


def expert_buffer_bytes(*, ranks: Numeric, hidden_bytes: float) -> Numeric:
    """Return what DeepEP allocates on one of `ranks` expert-parallel ranks; a single rank needs none [byte].

    Parameters
    ----------
    ranks
        Expert-parallel ranks.
    hidden_bytes
        Bytes of one token as it travels back, in 16 bits at least.
    """
    table = _table()
    sizes = table["token_bytes"]
    inside = hidden_bytes + sizes["source"] + sizes["choices"] + sizes["weights"] + sizes["scales"]
    peers, channels = float(table["peers"]), float(table["channels"])
    nvlink = nvlink_buffer_bytes(
        ranks=ranks, peers=peers, channels=channels, tokens=_chunk(ranks, "nvlink"), token_bytes=inside
    )
    rdma = rdma_buffer_bytes(
        ranks=ranks,
        peers=peers,
        channels=channels,
        tokens=_chunk(ranks, "rdma"),
        token_bytes=inside + sizes["rdma"],
    )
    several = np.minimum(ranks - 1.0, 1.0)
    return several * (nvlink + rdma + float(table["workspace_bytes"]))


def _chunk(ranks: Numeric, link: str) -> Array:
    """Return the tokens that one channel takes at once on so many ranks; beyond the table as its last."""
    rows = _table()["chunks"]
    upper = np.array([row["ranks"] for row in rows], dtype=np.float64)
    place = np.minimum(np.searchsorted(upper, np.asarray(value_of(ranks))), len(rows) - 1)
    return np.array([row[link] for row in rows], dtype=np.float64)[place]


@formula(unit="byte", source=f"{DEEPEP} get_nvl_buffer_size_hint")
def nvlink_buffer_bytes(
    *, ranks: Numeric, peers: float, channels: float, tokens: Numeric, token_bytes: float
) -> Numeric:
    """Channels · min(ranks, peers) · ((2 · nodes + 3) · 4 + tokens · bytes of one), rounded up to 128."""
    nodes = np.maximum(ranks // peers, 1.0)
    near = np.minimum(ranks, peers)
    size = channels * near * ((2.0 * nodes + 3.0) * HEADER_BYTES + tokens * token_bytes)
    return np.ceil(size / ALIGNMENT) * ALIGNMENT


@formula(unit="byte", source=f"{DEEPEP} get_rdma_buffer_size_hint")
def rdma_buffer_bytes(
    *, ranks: Numeric, peers: float, channels: float, tokens: Numeric, token_bytes: float
) -> Numeric:
    """Two buffers (to send, to receive) per channel and node: (2 · peers + 2) · 4 + tokens · bytes of one.

    Where several nodes take part; rounded up to 128.
    """
    several = np.minimum(np.maximum(ranks - peers, 0.0), 1.0)
    per_node = (2.0 * peers + 2.0) * HEADER_BYTES + tokens * token_bytes
    size = several * channels * (ranks // peers) * 2.0 * per_node
    return np.ceil(size / ALIGNMENT) * ALIGNMENT


HYBRID = "DeepEP, branch hybrid-ep @94a9f8f, csrc/hybrid_ep/buffer"
PROBABILITY_BYTES = 4.0
SCALES_PER_NUMBER = 1.0 / 128.0
"""One fp32 scale per 128 numbers of a token, allocated whether tokens travel in 8 bits or not."""


def hybrid_buffer_bytes(
    *, ranks: Numeric, near: Numeric, tokens: Numeric, hidden: float, experts: Numeric
) -> Numeric:
    """Return what HybridEP allocates on one of `ranks` expert-parallel ranks; a single rank needs none [byte].

    Parameters
    ----------
    ranks
        Expert-parallel ranks.
    near
        Those that share one domain of fast links.
    tokens
        Of one micro-batch on one rank.
    hidden
        Numbers of a token, which travels in 16 bits.
    experts
        On one rank.
    """
    several = np.minimum(ranks - 1.0, 1.0)
    fast = hybrid_fast_bytes(ranks=ranks, near=near, tokens=tokens, hidden=hidden, experts=experts)
    slow = hybrid_slow_bytes(ranks=ranks, near=near, tokens=tokens, hidden=hidden, experts=experts)
    return several * (fast + slow)


@formula(
    unit="byte", source=f"{HYBRID}/intranode.cu allocate_combine_buffers, allocate_dispatch_buffers (shared)"
)
def hybrid_fast_bytes(
    *, ranks: Numeric, near: Numeric, tokens: Numeric, hidden: float, experts: Numeric
) -> Numeric:
    """Tokens of all ranks · (2 bytes · h + 4 bytes per expert of the domain + scales of 4 bytes)."""
    scales = PROBABILITY_BYTES * hidden * SCALES_PER_NUMBER
    return tokens * ranks * (2.0 * hidden + PROBABILITY_BYTES * experts * near + scales)


@formula(
    unit="byte", source=f"{HYBRID}/internode_doca.cu allocate_dispatch_buffers, allocate_combine_buffers"
)
def hybrid_slow_bytes(
    *, ranks: Numeric, near: Numeric, tokens: Numeric, hidden: float, experts: Numeric
) -> Numeric:
    """Of several domains: tokens sent with probabilities of all experts, and three buffers per other domain.

    These are tokens that arrive, sums within the domain that leave, and those that arrive, with probabilities of
    the domain's experts; tokens that arrive have scales, too.
    """
    others = np.maximum(ranks / near - 1.0, 0.0)
    scales = PROBABILITY_BYTES * hidden * SCALES_PER_NUMBER
    sent = 2.0 * hidden + PROBABILITY_BYTES * experts * ranks + scales
    each = 3.0 * (2.0 * hidden + PROBABILITY_BYTES * experts * near) + scales
    return tokens * (np.minimum(others, 1.0) * sent + others * each)
