"""Buffers that tokens cross on their way to experts: those of DeepEP, allocated by the driver and for good."""

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
