"""A model of transformers as blocks that can be run one by one: the user's own classes, one process per device."""

from __future__ import annotations

import logging
from typing import Any

import torch
import transformers
from msgspec.structs import replace
from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from forescale.bench.context import CONTEXT, DATAFLOWS, Context, attend_in_context
from forescale.bench.groups import Groups
from forescale.bench.model import IGNORED, SEED, TYPES, Adapter, Blocks, quiet, untrained_types
from forescale.bench.parallel import (
    EXPERT,
    Split,
    balance_experts,
    mark_partial,
    split_embedding,
    split_head,
    split_layer,
    split_loss,
    spread_experts,
)
from forescale.catalogue.frameworks import load_framework
from forescale.errors import SpecError, extra_missing, unsupported_by
from forescale.frameworks.huggingface.writer import config_of
from forescale.graph.layer import block_name
from forescale.question import Question
from forescale.spec.constraints import picks_keys
from forescale.spec.context import CONTEXT_KINDS
from forescale.spec.layout import Layout
from forescale.spec.model import Model

logging.disable(logging.ERROR)  # torchao tells of every kernel of its own that this machine has no use for
try:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
except ImportError:
    Float8LinearConfig = None
finally:
    logging.disable(logging.NOTSET)

RECIPES = {"current": "tensorwise"}
"""Scaling recipes of a question, by torchao's names."""
UNIT = 16
"""Both extents of a weight whose products run in 8 bits are multiples of it (cuBLASLt)."""


def multiplies_narrow(question: Question) -> bool:
    """Return whether linear layers of a question multiply in 8 bits as these do."""
    types = question.workload.precision
    return types.compute == "fp8" and types.recipe in RECIPES


def narrow_layers(layers: nn.Module, question: Question) -> None:
    """Let the linear layers within `layers` multiply in 8 bits, forward and for both gradients.

    Raises
    ------
    ForescaleError
        If torchao is not installed.
    """
    if Float8LinearConfig is None:
        raise extra_missing("products in fp8", "torchao", "bench")
    convert_to_float8_training(
        layers,
        config=Float8LinearConfig.from_recipe_name(RECIPES[question.workload.precision.recipe]),
        module_filter_fn=lambda layer, _: all(extent % UNIT == 0 for extent in layer.weight.shape),
    )


FRAMEWORK = "transformers"


def check(question: Question) -> None:
    """Raise unless these classes can run a layout.

    Raises
    ------
    SpecError
        With what they do not do.
    """
    model, _, layout, workload = question.parts
    split, types = layout.tp > 1, workload.precision
    usual = 1 if layout.sp and (layout.etp != layout.tp or layout.ep > 1) else layout.tp
    plain = layout.flash_attention and _sees_all(model)
    reasons = {
        "split hidden states over tp but for plain fused attention: ask with --no-sp": split
        and layout.sp
        and (model.has_latent or not plain),
        f"copy key/value heads over tp {layout.tp}": any(a.heads[1] % layout.tp for a in model.attentions),
        f"split experts over etp {layout.etp} of tp {layout.tp}: ask with --etp {usual}": model.is_moe
        and layout.etp != usual,
        f"spread experts over ep {layout.ep} of whole hidden states: ask with sp": split
        and layout.ep > 1
        and not layout.sp,
        f"pass keys and values on as {layout.cp_kind}: ask with --cp-kind {', '.join(DATAFLOWS)}": layout.cp
        > 1
        and layout.cp_kind not in DATAFLOWS,
        "pass latent attention's keys and values around a ring: ask with --cp-kind all_gather or ulysses": layout.cp
        > 1
        and model.has_latent
        and CONTEXT_KINDS[layout.cp_kind].ring,
        f"split sequences over cp {layout.cp} but for fused attention to all before": layout.cp > 1
        and not plain,
        f"recompute parts of a layer ({layout.recompute.granularity})": layout.recompute.granularity
        not in ("none", "full"),
        f"multiply in fp8 with recipe {types.recipe}: ask with --fp8-recipe {' or '.join(RECIPES)}": types.compute
        == "fp8"
        and not multiplies_narrow(question),
        "split layers that multiply in fp8: ask with --tp 1": split and multiplies_narrow(question),
        **untrained_types(question),
        "read only the keys that an indexer picks: they mask the others": picks_keys(model),
        "predict several tokens": model.num_mtp_layers > 0,
        "read patches": model.patches is not None,
        "run a vision tower here: leave it out with --images 0": model.vision is not None,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise SpecError(f"the classes of transformers do not {reason}")
    kind = config_of(model)["model_type"]
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise unsupported_by(f"transformers {transformers.__version__}", f"{model.name} ({kind})")


def _sees_all(model: Model) -> bool:
    """Whether a token sees all tokens before it, and nothing else, in every layer."""
    return all(layer.attention is not None and layer.attention.sees_all for layer in model.layer_kinds)


def as_run(question: Question) -> Layout:
    """Return a layout with the kernels that these classes train with."""
    usual = load_framework(FRAMEWORK).kernels
    kernels = replace(
        usual,
        cross_entropy="loss_parallel",
        grouped_experts=question.model.is_moe,
        pads_vocabulary=False,
    )
    return replace(question.layout, kernels=kernels)


class HuggingFaceBlocks(Blocks):
    """One rank's part of a model of transformers.

    Parameters
    ----------
    question
        With one layout, which `check` lets pass.
    groups
        Process groups of this rank; none where there is one rank.
    """

    def __init__(self, question: Question, groups: Groups = Groups()) -> None:  # noqa: B008 (frozen)
        super().__init__()
        check(question)
        torch.manual_seed(SEED)
        layout = question.layout
        self.group, self.model = groups.tp, _built(question)
        balanced = layout.cp_balanced and CONTEXT_KINDS[layout.cp_kind].exchanges is None
        self.context = Context(groups.cp, layout.cp_kind, balanced)
        body = self.model.base_model
        self.embedding, self.layers, self.norm = body.embed_tokens, body.layers, body.norm
        self.lm_head = self.model.lm_head
        self.kinds = tuple(block_name(layer) for layer in question.model.layers)
        if layout.recompute.granularity == "full":
            # no dropout draws again what it drew, so that its generator need not be kept
            replay = {"use_reentrant": False, "preserve_rng_state": False}
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=replay)
        if multiplies_narrow(question):
            narrow_layers(self.layers, question)
        self._spread(groups, even=layout.routing.imbalance == 1.0)
        if groups.tp is not None:
            self._split(Split(groups.tp, layout.sp, layout.etp > 1))
        self.train()
        self._words: dict[int, dict[str, Any]] = {}

    def _spread(self, groups: Groups, *, even: bool) -> None:
        """Mark experts, give all as many tokens if `even`, and spread them and sequences over their ranks."""
        for module in self.layers.modules():
            experts = getattr(module, "experts", None)
            for parameter in () if experts is None else experts.parameters():
                setattr(parameter, EXPERT, True)
            if experts is not None and even:
                balance_experts(experts)
            if experts is not None and groups.ep is not None:
                spread_experts(experts, groups.ep)
            if hasattr(module, "is_causal"):
                setattr(module, CONTEXT, self.context)

    def _split(self, split: Split) -> None:
        """Split layers over tensor-parallel ranks, and both ends over the vocabulary."""
        for layer in self.layers:
            split_layer(layer, split)
        split_embedding(self.embedding, split)
        split_head(self.lm_head, split)
        if split.sp:
            mark_partial(self.norm.parameters())
        self._loss = loss_parallel()
        self._loss.__enter__()

    def embed(self, tokens: Tensor) -> Tensor:
        """Return hidden states of tokens."""
        tensor: Tensor = self.embedding(self.context.own(tokens))
        return tensor

    def run_layer(self, index: int, x: Tensor) -> Tensor:
        """Return what one layer makes of hidden states; `learn` must have seen a batch of this shape."""
        value = self.layers[index](x, **self._words[index])
        tensor: Tensor = value[0] if isinstance(value, tuple) else value
        return tensor

    def loss_of(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss of the last layer's hidden states: norm, output layer and cross entropy.

        It is this rank's part of the mean over the micro-batch, which the parts of context-parallel ranks add up to.
        """
        return self._loss_of_normed(self.norm(x), tokens)

    def _loss_of_normed(self, x: Tensor, tokens: Tensor) -> Tensor:
        scores = self.lm_head(x)
        shifted = self.context.own(
            torch.nn.functional.pad(tokens, (0, 1), value=IGNORED)[..., 1:].contiguous()
        )
        count = tokens.shape[0] * (tokens.shape[1] - 1)
        if self.group is not None:
            return split_loss(scores.flatten(0, 1), shifted.flatten(), self.group) / count
        tensor: Tensor = self.model.loss_function(
            logits=scores,
            labels=None,
            shift_labels=shifted,
            vocab_size=scores.shape[-1],
            num_items_in_batch=count,
        )
        return tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """Return this rank's part of the mean loss of a micro-batch, (sequences, tokens)."""
        return self._loss_of_normed(self._normed(tokens), tokens)

    def _normed(self, tokens: Tensor) -> Tensor:
        places = self.context.own(torch.arange(tokens.shape[1], device=tokens.device))
        tensor: Tensor = self.model.base_model(
            input_ids=self.context.own(tokens), position_ids=places[None], use_cache=False
        ).last_hidden_state
        return tensor

    def learn(self, tokens: Tensor) -> None:
        """Note what the model hands to each layer beside hidden states."""
        with self.learning(lambda at, _, parts: self._words.__setitem__(at, parts)):
            self._normed(tokens)


def _built(question: Question) -> Any:  # noqa: ANN401 (a model)
    """Return the whole model with random weights."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    parts = config_of(question.model)
    kind = parts.pop("model_type")
    types, layout = question.workload.precision, question.layout
    parts["max_position_embeddings"] = max(
        parts.get("max_position_embeddings") or 0, question.workload.seq_len
    )
    attention = "sdpa" if layout.flash_attention else "eager"
    if layout.cp > 1:
        attention = CONTEXT
        transformers.AttentionInterface.register(CONTEXT, attend_in_context)
    more = {"experts_implementation": "grouped_mm"} if question.model.is_moe else {}
    try:
        with quiet():
            config = transformers.AutoConfig.for_model(kind, **parts)
            return transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, attn_implementation=attention, dtype=TYPES[types.parameters], **more
            )
    except (ValueError, KeyError, TypeError, ImportError) as error:
        raise unsupported_by(
            f"transformers {transformers.__version__}", f"{question.model.name} ({kind}): {error}"
        ) from error


ADAPTER = Adapter(
    frameworks=(FRAMEWORK,), package="transformers", check=check, as_run=as_run, build=HuggingFaceBlocks
)
