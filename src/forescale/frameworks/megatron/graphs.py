"""What Megatron-LM's settings of CUDA graphs capture, in every release's spelling."""

from __future__ import annotations

from collections.abc import Collection

from forescale.frameworks.megatron.settings import Settings
from forescale.spec.strategy import LaunchGraphs

NONE, WHOLE_STEP = "none", "full_iteration"
IMPLEMENTATIONS = {name: name for name in (NONE, "local", "transformer_engine", WHOLE_STEP)}
"""--cuda-graph-impl of 0.15 and later; full_iteration is one since 0.18, a scope before."""
SWITCHES = {"enable_cuda_graph": "local", "external_cuda_graph": "transformer_engine"}
"""Switches of 0.11 and later, and the implementation that each stands for."""
SCOPES = ("cuda_graph_modules", "cuda_graph_scope_deprecated", "cuda_graph_scope")
"""Keys of what is captured: modules since 0.18, a scope before; nothing, or full, is whole layers."""


def launch_graphs(implementation: str, scope: Collection[str], *, padded: bool = False) -> LaunchGraphs:
    """Return which launches are captured.

    Parameters
    ----------
    implementation
        One of `IMPLEMENTATIONS`.
    scope
        Modules that are captured.
    padded
        Experts are sent their full capacity: those of other models are never captured
        (Megatron-LM core 0.16, transformer_config.py).
    """
    if implementation == NONE:
        return "none"
    if implementation == WHOLE_STEP or WHOLE_STEP in scope:
        return "full"
    layers = not set(scope) - {"full"}
    if "moe" in scope or (layers and padded):
        return "full"
    return "partial" if layers or "attn" in scope else "none"


def read_graphs(settings: Settings) -> LaunchGraphs:
    """Return which launches the settings capture; a whole step needs no other key since 0.18."""
    scope = [word for key in SCOPES for word in settings.words(key)]
    usual = WHOLE_STEP if WHOLE_STEP in scope else NONE
    switched = [name for key, name in SWITCHES.items() if settings.flag(key)]
    if switched and (len(switched) > 1 or "cuda_graph_impl" in settings):
        settings.refuse("--enable-cuda-graph, --external-cuda-graph and --cuda-graph-impl exclude each other")
    implementation = settings.choice("cuda_graph_impl", switched[0] if switched else usual, IMPLEMENTATIONS)
    return launch_graphs(implementation, scope, padded=settings.flag("moe_pad_expert_input_to_capacity"))
