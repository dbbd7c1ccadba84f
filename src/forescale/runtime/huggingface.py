"""Models of Hugging Face's transformers cut into stages by their layers; the library itself is not imported."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from forescale.runtime.channels import RunError
from forescale.runtime.runner import Tie

TIES: tuple[Tie, ...] = (((0, "body.embed_tokens.weight"), (-1, "head.weight")),)


class HuggingFaceStage(nn.Module):
    """Some decoder layers of a causal language model; the first stage embeds, the last gives scores."""

    def __init__(self, body: nn.Module, head: nn.Module | None) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden states of tokens or hidden states, or scores; (batch, tokens, ...)."""
        value = {"inputs_embeds" if x.is_floating_point() else "input_ids": x}
        tensor: Tensor = self.body(**value, use_cache=False).last_hidden_state
        return tensor if self.head is None else self.head(tensor)


def huggingface_stage(model: Any, stage_layers: Sequence[int], stage: int) -> HuggingFaceStage:  # noqa: ANN401
    """Return one stage of a causal language model, which gives its layers up: make one for each stage.

    Parameters
    ----------
    model
        A decoder such as `LlamaForCausalLM`, whose body has `embed_tokens`, `layers` and `norm`.
    stage_layers
        Decoder layers of every stage, as `forescale pipeline partition` says.
    stage
        Which stage.

    Raises
    ------
    RunError
        If the model is built otherwise, or has another number of layers.
    """
    body = getattr(model, getattr(model, "base_model_prefix", ""), None)
    head = getattr(model, "lm_head", None)
    lacking = [name for name in ("embed_tokens", "layers", "norm") if not hasattr(body, name)]
    if lacking or head is None:
        what = ", ".join(lacking) or "lm_head"
        raise RunError(f"{type(model).__name__} has no {what}; make its stages yourself, one module each")
    assert body is not None
    if sum(stage_layers) != len(body.layers):
        msg = f"stage_layers {list(stage_layers)} are {sum(stage_layers)} layers; the model has {len(body.layers)}"
        raise RunError(msg)
    first, last = sum(stage_layers[:stage]), sum(stage_layers[: stage + 1])
    body.config = copy.copy(body.config)
    body.config.num_hidden_layers = last - first
    if getattr(body.config, "layer_types", None):
        body.config.layer_types = body.config.layer_types[first:last]
    body.layers = nn.ModuleList(list(body.layers)[first:last])
    if stage > 0:
        body.embed_tokens = nn.Identity()
    if stage < len(stage_layers) - 1:
        body.norm, head = nn.Identity(), None
    elif stage > 0:
        head.weight = nn.Parameter(head.weight.detach().clone())  # a copy of its own where it is tied
    return HuggingFaceStage(body, head)


def huggingface_ties(model: Any) -> tuple[Tie, ...]:  # noqa: ANN401
    """Return what `PipelineStep` needs as `tied`: embedding and head, where the model shares them."""
    return TIES if model.config.tie_word_embeddings else ()
