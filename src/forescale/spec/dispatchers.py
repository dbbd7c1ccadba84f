"""Dispatchers: the libraries that send tokens to experts and back.

A new dispatcher is a row here and an entry of `BUFFERS` in `memory/outside.py`; it passes
`tests/conformance/test_dispatchers.py`. Rates that are known of its kernels are data
(`catalogue/calibrations/time/dispatchers.json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from forescale.spec.kinds import Kind

Dispatcher: TypeAlias = Literal["all_to_all", "deepep", "hybridep"]


class DispatcherKind(Kind, frozen=True, kw_only=True):
    """What the operators, messages and memory of expert parallelism depend on."""

    name: Dispatcher
    sends_once: bool
    """Whether a token is sent once to each device and node, however many of its experts are there, rather than once for
    each expert by an all-to-all of the communication library."""
    sorts_by_expert: bool
    """Whether dispatch and combine also sort the rows by expert, so that the framework runs no kernel for it."""
    shares_routing: bool = False
    """Whether every rank gathers the routing map of all ranks (a byte per token and expert) and reads it, and each row
    that is dispatched takes the probabilities of all experts (fp32) along, as do their gradients on the way back.
    Otherwise ranks exchange the number of tokens per expert."""


ALL_TO_ALL = DispatcherKind(
    name="all_to_all",
    sends_once=False,
    sorts_by_expert=False,
    frameworks={"torchtitan": ("standard",), "megatron": ("alltoall", "allgather", "alltoall_seq")},
)
DEEPEP = DispatcherKind(
    name="deepep",
    sends_once=True,
    sorts_by_expert=False,
    frameworks={"torchtitan": ("deepep", "minimal_async_ep"), "megatron": ("deepep",)},
)
HYBRIDEP = DispatcherKind(
    name="hybridep",
    sends_once=True,
    sorts_by_expert=True,
    shares_routing=True,
    frameworks={"torchtitan": ("hybridep",), "megatron": ("hybridep",)},
)
DISPATCHERS: Mapping[Dispatcher, DispatcherKind] = {
    kind.name: kind for kind in (ALL_TO_ALL, DEEPEP, HYBRIDEP)
}


def shares_routing(name: str) -> bool:
    """Say whether rows of a dispatcher take probabilities along; a name that is none does not."""
    return any(kind.shares_routing for kind in DISPATCHERS.values() if kind.name == name)
