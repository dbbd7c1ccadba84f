"""A model of transformers as blocks that can be run one by one: the user's own classes, one process per device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from forescale.bench.parallel import split_embedding, split_head, split_layer, split_loss
from forescale.catalogue.frameworks import load_framework
from forescale.errors import ForescaleError, SpecError
from forescale.frameworks.huggingface.writer import config_of
from forescale.graph.layer import block_name
from forescale.question import Question

SEED = 1
FRAMEWORK = "transformers"
IGNORED = -100
"""Target of a token that has no next one (PyTorch's cross_entropy)."""
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check(question: Question) -> None:
    """Raise unless these classes can run a layout.

    Raises
    ------
    SpecError
        With what they do not do.
    """
    model, _, layout, workload = question.parts
    types = workload.precision
    reasons = {
        f"split sequences over cp {layout.cp}": layout.cp > 1,
        f"spread experts over ep {layout.ep}": layout.ep > 1,
        "split hidden states over tp: ask with --no-sp": layout.tp > 1 and layout.sp,
        f"shard their states over dp {layout.dp}": layout.dp > 1,
        f"recompute parts of a layer ({layout.recompute.granularity})": layout.recompute.granularity
        not in ("none", "full"),
        f"multiply in {types.compute}": types.compute not in (types.parameters, types.activations)
        or types.parameters not in TYPES,
        "predict several tokens": model.num_mtp_layers > 0,
        "read patches": model.patches is not None,
        "run a vision tower here: leave it out with --images 0": model.vision is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SpecError(f"the classes of transformers do not {reason}")
    kind = config_of(model)["model_type"]
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise SpecError(f"transformers {transformers.__version__} has no class for {model.name} ({kind})")


def as_run(question: Question) -> Question:
    """Return a question with the kernels that these classes train with, whatever it asks for."""
    usual = load_framework(FRAMEWORK).kernels
    kernels = replace(usual, cross_entropy="loss_parallel", grouped_experts=question.model.is_moe)
    return replace(question, strategy=replace(question.layout, kernels=kernels))


class Blocks(nn.Module):
    """One rank's part of a causal language model.

    Parameters
    ----------
    question
        With one layout, which `check` lets pass.
    group
        Process group of tensor parallelism; None where there is one rank.
    """

    def __init__(self, question: Question, group: Any = None) -> None:  # noqa: ANN401 (a process group)
        super().__init__()
        check(question)
        torch.manual_seed(SEED)
        self.group, self.model = group, _built(question)
        body = self.model.base_model
        self.embedding, self.layers, self.norm = body.embed_tokens, body.layers, body.norm
        self.lm_head = self.model.lm_head
        self.kinds = tuple(block_name(layer) for layer in question.model.layers)
        if question.layout.recompute.granularity == "full":
            self.model.gradient_checkpointing_enable()
        if group is not None:
            for layer in self.layers:
                split_layer(layer, group)
            split_embedding(self.embedding, group)
            split_head(self.lm_head, group)
            self._loss = loss_parallel()
            self._loss.__enter__()
        self.train()
        self._words: dict[int, dict[str, Any]] = {}

    def embed(self, tokens: Tensor) -> Tensor:
        """Return hidden states of tokens."""
        found: Tensor = self.embedding(tokens)
        return found

    def run_layer(self, index: int, x: Tensor) -> Tensor:
        """Return what one layer makes of hidden states; `learn` must have seen a batch of this shape."""
        given = self.layers[index](x, **self._words[index])
        found: Tensor = given[0] if isinstance(given, tuple) else given
        return found

    def loss_of(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the mean loss of the last layer's hidden states: norm, output layer and cross entropy."""
        scores = self.lm_head(self.norm(x))
        if self.group is not None:
            shifted = torch.nn.functional.pad(tokens, (0, 1), value=IGNORED)[..., 1:].flatten()
            return split_loss(scores.flatten(0, 1), shifted, self.group)
        found: Tensor = self.model.loss_function(
            logits=scores, labels=tokens, vocab_size=scores.shape[-1], num_items_in_batch=None
        )
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean loss of a micro-batch, (sequences, tokens)."""
        return self.loss_of(
            self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state, tokens
        )

    @contextmanager
    def passing(self, note: Callable[[tuple[str, str]], None]) -> Iterator[None]:
        """Tell of every block that ends meanwhile because hidden states, or their gradients, pass on to the next."""
        kinds = ("embedding", *self.kinds, "head")

        def passed(place: int, x: Tensor) -> None:
            if torch._C._current_graph_task_id() < 0:  # noqa: SLF001  (no replay inside backward)
                note((kinds[place], "forward"))
                x.register_hook(lambda _: note((kinds[place + 1], "backward")))  # type: ignore[no-untyped-call]

        hooks = [
            module.register_forward_pre_hook(lambda _, given, at=place: passed(at, given[0]))
            for place, module in enumerate((*self.layers, self.norm))
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def learn(self, tokens: Tensor) -> None:
        """Note what the model hands to each layer beside hidden states."""
        hooks = [
            layer.register_forward_pre_hook(
                lambda _, __, words, at=index: self._words.__setitem__(at, words), with_kwargs=True
            )
            for index, layer in enumerate(self.layers)
        ]
        with torch.no_grad():
            self.model.base_model(input_ids=tokens, use_cache=False)
        for hook in hooks:
            hook.remove()


def _built(question: Question) -> Any:  # noqa: ANN401 (a model)
    """Return the whole model on the CPU, with random weights."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    words = config_of(question.model)
    kind = words.pop("model_type")
    types, layout = question.workload.precision, question.layout
    words["max_position_embeddings"] = max(
        words.get("max_position_embeddings") or 0, question.workload.seq_len
    )
    attention = "sdpa" if layout.flash_attention else "eager"
    more = {"experts_implementation": "grouped_mm"} if question.model.is_moe else {}
    try:
        config = transformers.AutoConfig.for_model(kind, **words)
        return transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, attn_implementation=attention, dtype=TYPES[types.parameters], **more
        )
    except (ValueError, KeyError, TypeError, ImportError) as error:
        msg = f"transformers {transformers.__version__} has no class for {question.model.name} ({kind}): {error}"
        raise ForescaleError(msg) from error


def tensor_group(question: Question) -> Any:  # noqa: ANN401 (a process group)
    """Return this rank's process group of tensor parallelism, its neighbours, or None of one rank."""
    tp = question.layout.tp
    if tp == 1:
        return None
    groups = [dist.new_group(range(first, first + tp)) for first in range(0, dist.get_world_size(), tp)]
    return groups[dist.get_rank() // tp]
