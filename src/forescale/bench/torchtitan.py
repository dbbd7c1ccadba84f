"""A dense Llama of torchtitan (0.3), whole on every rank."""

from __future__ import annotations

from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional

from forescale.bench.groups import Groups
from forescale.bench.model import IGNORED, SEED, TYPES, Adapter, Blocks, untrained_types
from forescale.catalogue.frameworks import load_framework
from forescale.errors import SpecError, required_with
from forescale.frameworks.huggingface.writer import config_of
from forescale.graph.layer import block_name
from forescale.question import Question
from forescale.spec.attention import FullAttention
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Layer

FRAMEWORK = "torchtitan"


def check(question: Question) -> None:
    """Raise unless torchtitan's Llama can run a layout.

    Raises
    ------
    SpecError
        With what it does not do.
    ForescaleError
        If it cannot be imported.
    """
    _imported()
    model, layout, types = question.model, question.layout, question.workload.precision
    reasons = {
        f"split layers or sequences here (tp {layout.tp}, cp {layout.cp}): bench on one device": layout.tp
        * layout.cp
        > 1,
        "materialise scores: ask with --flash-attention": not layout.flash_attention,
        f"recompute parts of a layer here ({layout.recompute.granularity}): ask with --recompute none or "
        "full": layout.recompute.granularity not in ("none", "full"),
        "multiply in fp8 here": types.compute == "fp8",
        **untrained_types(question),
        f"run {model.name} here, only dense Llamas": config_of(model)["model_type"] != "llama"
        or model.patches is not None
        or model.vision is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SpecError(f"the classes of torchtitan do not {reason}")


def as_run(question: Question) -> Layout:
    """Return a layout with the kernels of these classes where nothing is compiled."""
    kernels = replace(load_framework(FRAMEWORK).kernels, cross_entropy="eager", fused=False)
    return replace(question.layout, kernels=kernels)


def _imported() -> tuple[Any, Any]:
    """Return torchtitan's modules of Llama 3, and of what models are made of."""
    try:
        from torchtitan.models import common, llama3
    except ImportError as error:
        key = f"release 0.3 and what it imports ({error})"
        raise required_with(key, "blocks of torchtitan", fix="pip install torchtitan triton") from error
    return llama3, common


class TitanBlocks(Blocks):
    """A Llama of torchtitan."""

    def __init__(self, question: Question, _: Groups) -> None:
        super().__init__()
        check(question)
        torch.manual_seed(SEED)
        llama3, common = _imported()
        from torchtitan.distributed import activation_checkpoint

        model, width = question.model, question.model.hidden_size
        config = llama3.Llama3Model.Config(
            dim=width,
            vocab_size=model.vocab_size,
            tok_embeddings=common.Embedding.Config(num_embeddings=model.vocab_size, embedding_dim=width),
            norm=common.RMSNorm.Config(normalized_shape=width),
            lm_head=common.Linear.Config(in_features=width, out_features=model.vocab_size),
            layers=[_layer(layer, width, question.workload.seq_len) for layer in model.layers],
            enable_weight_tying=model.tied_embeddings,
        )
        self.model = config.build()
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(TYPES[question.workload.precision.parameters])
        if question.layout.recompute.granularity == "full":
            activation_checkpoint.FullAC.Config(preserve_rng_state=False).build().apply(self.model)
        self.embedding, self.norm, self.lm_head = (
            self.model.tok_embeddings,
            self.model.norm,
            self.model.lm_head,
        )
        self.layers = list(self.model.layers.values())
        self.kinds = tuple(map(block_name, model.layers))

    def run_layer(self, index: int, x: Tensor) -> Tensor:
        """Return what one layer makes of hidden states."""
        tensor: Tensor = self.layers[index](x, None, None)
        return tensor

    def loss_of(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the mean loss, by torchtitan's cross entropy."""
        from torchtitan.components.loss import cross_entropy_loss

        shifted = functional.pad(tokens, (0, 1), value=IGNORED)[..., 1:]
        total: Tensor = cross_entropy_loss(self.lm_head(self.norm(x)), shifted)
        return total / (tokens.shape[0] * (tokens.shape[1] - 1))


def _layer(layer: Layer, width: int, seq_len: int) -> Any:  # noqa: ANN401 (a configuration)
    """Return the configuration of a layer; its attention is PyTorch's, which needs no compiler."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config

    llama3, common = _imported()
    attention, ffn = layer.attention, layer.ffn
    assert isinstance(attention, FullAttention) and isinstance(ffn, DenseFfn)
    norm = common.RMSNorm.Config(normalized_shape=width)
    return llama3.Llama3TransformerBlock.Config(
        attention_norm=norm,
        ffn_norm=norm,
        attention=make_gqa_config(
            dim=width, n_heads=attention.num_heads, n_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim,
            wqkv_param_init={}, wo_param_init={}, fuse_qkv=True,
            inner_attention=ScaledDotProductAttention.Config(),
            rope=common.ComplexRoPE.Config(dim=attention.head_dim, max_seq_len=seq_len),
        ),
        feed_forward=make_ffn_config(
            dim=width, hidden_dim=ffn.ffn_hidden_size, w1_param_init={}, w2w3_param_init={}
        ),
    )  # fmt: skip


ADAPTER = Adapter(
    frameworks=(FRAMEWORK,), package="torchtitan", check=check, as_run=as_run, build=TitanBlocks
)
