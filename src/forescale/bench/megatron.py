"""Layers of Megatron-Core (0.19), in its own tensor-, sequence- and expert-parallel groups."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from copy import copy
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from forescale.bench.groups import Groups
from forescale.bench.here import CPU
from forescale.bench.model import SEED, TYPES, Adapter, Blocks, quiet, untrained_types
from forescale.bench.parallel import EXPERT, in_turn, mark_partial
from forescale.catalogue.frameworks import load_framework
from forescale.errors import SpecError, required_with
from forescale.frameworks.megatron.write_layout import model_settings
from forescale.graph.layer import block_name, padded_vocab
from forescale.question import Question
from forescale.runtime.gradients import linear, store_of
from forescale.spec.attention import FullAttention, LatentAttention
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Layer, MoeFfn

FRAMEWORK = "megatron-core"
CORE_ATTENTION = ("core_attn",)
HEAD_NORMS = ("q_layernorm", "k_layernorm")
"""Norms of what each rank has its own heads of."""
FUSIONS = (
    "bias_activation_fusion", "bias_dropout_fusion", "masked_softmax_fusion", "persist_layer_norm", "moe_grouped_gemm",
)  # fmt: skip
"""What goes with Transformer Engine."""
RENAMED = {"num_experts": "num_moe_experts"}
"""Flags of Megatron-LM that Megatron-Core has under another name."""


def check(question: Question) -> None:
    """Raise unless Megatron-Core's layers can run a layout.

    Raises
    ------
    SpecError
        With what they do not do.
    ForescaleError
        If they cannot be imported.
    """
    _imported()
    model, _, layout, workload = question.parts
    types, recompute, engine = workload.precision, layout.recompute, _has_engine(question)
    reasons = {
        f"split sequences here (cp {layout.cp}): ask with --cp 1": layout.cp > 1,
        f"hold weights in shards here (zero {layout.zero}): ask with --zero 1": layout.zero > 1,
        "fuse attention without Transformer Engine and a device for it: ask with "
        "--no-flash-attention": layout.flash_attention and not engine,
        "materialise scores with Transformer Engine: ask with --flash-attention": engine
        and not layout.flash_attention,
        "run latent attention without Transformer Engine and a device for it": not engine
        and model.has_latent,
        f"recompute {recompute.granularity} {', '.join(recompute.modules)} here: ask with --recompute none or "
        "full": recompute.granularity not in ("none", "full")
        and (recompute.granularity, recompute.modules) != ("selective", CORE_ATTENTION),
        "multiply in fp8 here": types.compute == "fp8",
        **untrained_types(question),
        "split experts over tp without sp": layout.tp > 1 and model.is_moe and not layout.sp,
        f"copy key/value heads over tp {layout.tp}": any(
            attention.heads[1] % layout.tp for attention in model.attentions
        ),
        f"run {model.name} here, only layers of attention to all before, latent too, and gated feed-forwards or "
        "experts": not all(map(_plain, model.layer_kinds))
        or bool(model.patches or model.vision or model.embedding_norm or model.embedding_size)
        or model.norm == "layer_no_bias",
        "predict several tokens here": model.num_mtp_layers > 0,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SpecError(f"the classes of Megatron-Core do not {reason}")


def _plain(layer: Layer) -> bool:
    attention, ffn = layer.attention, layer.ffn
    if layer.parallel or layer.num_norms != 2 or not isinstance(ffn, DenseFfn | MoeFfn) or not ffn.gated:
        return False
    if isinstance(attention, LatentAttention):
        return attention.causal and not attention.projection_bias and not attention.top_k
    if not isinstance(attention, FullAttention) or attention.qk_norm == "hidden":
        return False
    special = attention.window or attention.sinks or attention.output_gate or attention.output_bias
    return attention.causal and attention.rotary and not special


def as_run(question: Question) -> Layout:
    """Return a layout with the kernels of these classes: without Transformer Engine, every step by itself."""
    usual, engine = load_framework(FRAMEWORK).kernels, _has_engine(question)
    kernels = replace(usual, gradient_sum="after_product", fused=engine, grouped_experts=engine)
    return replace(question.layout, kernels=kernels)


def _has_engine(question: Question) -> bool:
    on_device = question.cluster.device.vendor != CPU and torch.cuda.is_available()
    return on_device and find_spec("transformer_engine") is not None


def _imported() -> Any:  # noqa: ANN401 (a module)
    """Return Megatron-Core's process groups, once all that a model needs of it can be imported."""
    try:
        with quiet():  # of packages that it would rather have
            from megatron.core import parallel_state
            from megatron.core.models import gpt  # noqa: F401
    except ImportError as error:
        key = f"release 0.19 and what it imports ({error})"
        raise required_with(key, "blocks of Megatron-Core", fix="pip install megatron-core triton") from error
    return parallel_state


class _Stream:
    """Stands for a stream where there is none: whatever is queued has ended."""

    def __getattr__(self, _: str) -> Any:  # noqa: ANN401
        return lambda *_: self


def _on_host(counts: Any, *, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: ANN401, ARG001
    """Return counts of tokens as a message takes them."""
    return counts.numpy() if as_numpy and isinstance(counts, Tensor) else counts


def _without_device() -> ExitStack:
    """Let Megatron-Core find a CPU where it asks for the current device, its stream and its random numbers."""
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    stream, standing = _Stream(), ExitStack()
    for module, name, result in (
        (torch.cuda, "current_device", lambda: torch.device(CPU)),
        (torch.cuda, "current_stream", lambda *_: stream),
        (torch.cuda, "stream", nullcontext),
        (random, "_get_cuda_rng_state", lambda **_: None),
        (random, "_set_cuda_rng_state", lambda *_, **__: None),
        (token_dispatcher.MoEAlltoAllTokenDispatcher, "cuda_dtoh_stream", stream),
        (token_dispatcher, "maybe_move_tensor_to_cpu", _on_host),
    ):
        standing.enter_context(patch.object(module, name, result))
    random.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)  # one that draws nothing
    return standing


class MegatronBlocks(Blocks):
    """One rank's part of a GPT of Megatron-Core."""

    def __init__(self, question: Question, groups: Groups) -> None:
        super().__init__()
        check(question)
        torch.manual_seed(SEED)
        layout, self.group = question.layout, groups.tp
        if not _on_device():
            self._standing = _without_device()
        _form_groups(layout)
        with quiet():
            self.model = _built(question)
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(TYPES[question.workload.precision.parameters])
        self.embedding, self.layers = self.model.embedding, self.model.decoder.layers
        self.norm, self.lm_head = self.model.decoder.final_layernorm, self.model.output_layer
        self.kinds = tuple(map(block_name, question.model.layers))
        self.replays = layout.recompute.granularity == "full"
        self._mark(question)
        for module in self.modules():
            if hasattr(module, "_forward_impl"):
                setattr(module, "_forward_impl", partial(_multiplied, module._forward_impl))  # noqa: B010, SLF001
            if hasattr(module, "routing") and layout.routing.imbalance == 1.0:
                module.register_forward_hook(_balanced)
        length = question.workload.seq_len
        places = torch.arange(length, device=next(self.parameters()).device)
        self.words: dict[str, Any] = {"attention_mask": None}
        if not _has_engine(question):
            self.words["attention_mask"] = (places[:, None] < places)[None, None]
        if getattr(self.model, "rotary_pos_emb", None) is not None:
            self.words["rotary_pos_emb"] = self.model.rotary_pos_emb(length)

    def _mark(self, question: Question) -> None:
        """Mark experts, and parameters of which each rank of tp has a part of the gradients."""
        heads = () if question.model.has_latent else HEAD_NORMS
        for name, parameter in self.named_parameters():
            among = name.rpartition(".")[0]
            normed = isinstance(self.get_submodule(among), nn.LayerNorm | nn.RMSNorm)
            partial_of_tokens = question.layout.sp and (
                normed or getattr(parameter, "sequence_parallel", False)
            )
            if ".experts." in name:
                setattr(parameter, EXPERT, True)
            elif self.group is not None and (partial_of_tokens or among.endswith(heads)):
                mark_partial([parameter])

    def embed(self, tokens: Tensor) -> Tensor:
        """Return hidden states of tokens, (tokens, sequences, hidden size)."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        tensor: Tensor = self.embedding(tokens, places)
        return tensor

    def run_layer(self, index: int, x: Tensor) -> Tensor:
        """Return what one layer makes of hidden states."""
        from megatron.core import tensor_parallel

        def run(tensor: Tensor) -> Tensor:
            result: Tensor = self.layers[index](tensor, **self.words)[0]
            return result

        return tensor_parallel.checkpoint(run, False, x) if self.replays else run(x)

    def loss_of(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the mean loss, by Megatron-Core's cross entropy over a split vocabulary."""
        tied = self.model.share_embeddings_and_output_weights
        weight = self.model.shared_embedding_or_output_weight() if tied else None
        scores, _ = self.lm_head(self.norm(x), weight=weight)
        tensor: Tensor = self.model.compute_language_model_loss(tokens.roll(-1, 1), scores)
        return tensor[:, :-1].sum() / (tokens.shape[0] * (tokens.shape[1] - 1))


def _on_device() -> bool:
    return torch.get_default_device().type != CPU


def _form_groups(layout: Layout) -> None:
    parallel_state = _imported()
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        create_gloo_process_groups=False,
    )
    if _on_device():
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(SEED)


def _built(question: Question) -> Any:  # noqa: ANN401 (a model)
    """Return the whole model with random weights."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    model, layout, workload = question.model, question.layout, question.workload
    engine = _has_engine(question)
    parts = model_settings(model, seq_len=workload.seq_len)
    kind = MLATransformerConfig if parts.get("multi_latent_attention") else TransformerConfig
    named = {RENAMED.get(name, name): value for name, value in parts.items() if value is not None}
    local = {name: value for name, value in named.items() if name in kind.__dataclass_fields__}
    local["moe_layer_freq"] = [int(isinstance(layer.ffn, MoeFfn)) for layer in model.layers]
    if kind is MLATransformerConfig:
        local["rope_type"] = "rope"
    config = kind(
        **local,
        **_of_layout(question),
        **dict.fromkeys(FUSIONS, engine),
        gated_linear_unit=True,
        activation_func=functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
        moe_token_dispatcher_type="alltoall",  # noqa: S106
        moe_router_load_balancing_type="none",
    )
    columns = padded_vocab(vocab_size=model.vocab_size, multiple=model.vocab_multiple, tp=layout.tp)
    spec = get_gpt_decoder_block_spec(
        config, use_transformer_engine=engine, normalization=config.normalization
    )
    with _norms_of_parts():
        return GPTModel(
            config,
            spec,
            vocab_size=int(columns),
            max_sequence_length=workload.seq_len,
            position_embedding_type=parts["position_embedding_type"],
            share_embeddings_and_output_weights=model.tied_embeddings,
        )


def _norms_of_parts() -> Any:  # noqa: ANN401 (a context)
    """Let PyTorch's norms see parts of a sequence, which Megatron-Core refuses: it would not sum their gradients."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    made = WrappedTorchNorm.__new__

    def of_parts(cls: type, config: Any, *args: Any, **words: Any) -> Any:  # noqa: ANN401
        config = copy(config)
        config.sequence_parallel = False
        return made(cls, config, *args, **words)

    return patch.object(WrappedTorchNorm, "__new__", of_parts)


def _of_layout(question: Question) -> dict[str, Any]:
    """Return the settings of a layout, its types and what it recomputes within layers."""
    layout, dtype = question.layout, TYPES[question.workload.precision.parameters]
    selective = layout.recompute.granularity == "selective"
    return {
        "tensor_model_parallel_size": layout.tp,
        "sequence_parallel": layout.sp and layout.tp > 1,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "use_cpu_initialization": not _on_device(),
        "recompute_granularity": "selective" if selective else None,
    }


def _multiplied(value: Any, *, input: Tensor, weight: Tensor, **words: Any) -> Tensor:  # noqa: A002, ANN401
    """Return a product as Megatron-Core makes it, or with a weight gradient that waits."""
    if store_of(weight) is None:
        return value(input=input, weight=weight, **words)  # type: ignore[no-any-return]
    from megatron.core.tensor_parallel import (
        copy_to_tensor_model_parallel_region,
        gather_from_sequence_parallel_region,
    )

    if words["sequence_parallel"]:
        input = gather_from_sequence_parallel_region(input, group=words["tp_group"])  # noqa: A001
    elif words["allreduce_dgrad"]:
        input = copy_to_tensor_model_parallel_region(input, group=words["tp_group"])  # noqa: A001
    return linear(input, weight, words["bias"])


def _balanced(_: object, __: object, tensors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Give experts tokens in turn with the weights that a router has for those it chose."""
    weights, selected = tensors
    top_k = int(selected[0].sum())
    places = in_turn(torch.empty(len(selected), top_k, device=selected.device), selected.shape[1])
    turned = torch.zeros_like(weights).scatter(1, places, weights.topk(top_k, 1).values)
    return turned, torch.zeros_like(selected).scatter(1, places, True)


ADAPTER = Adapter(
    frameworks=(FRAMEWORK,),
    package="megatron-core",
    check=check,
    as_run=as_run,
    build=MegatronBlocks,
)
