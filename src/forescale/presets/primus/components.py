"""Primus's components: parameters on a rank and activation bytes of one micro-batch, as its output lists them."""

from __future__ import annotations

from msgspec.structs import replace

from forescale.errors import unsupported_by
from forescale.formula import formula
from forescale.numeric import Numeric
from forescale.spec.attention import Attention, FullAttention, LatentAttention
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Ffn, Layer, Model, MoeFfn
from forescale.spec.workload import Workload
from forescale.struct import Struct

DOCUMENT = "Primus projection documentation"
_PARAMETERS = f"{DOCUMENT}, Per-Component Parameter Formulas"
_ACTIVATIONS = f"{DOCUMENT}, Per-Component Activation Formulas"
_PIPELINE = f"{DOCUMENT}, Pipeline Schedule Memory Scaling"
BF16 = 2.0


@formula(unit="1", source=f"{_PARAMETERS}: Attention (standard)")
def primus_attention_parameters(
    *, hidden_size: Numeric, num_heads: Numeric, num_kv_heads: Numeric, head_dim: Numeric
) -> Numeric:
    """2·H²·(1 + G/A)·P with P = head_dim·A / H."""
    ratio = head_dim * num_heads / hidden_size
    return 2.0 * hidden_size * hidden_size * (1.0 + num_kv_heads / num_heads) * ratio


@formula(unit="1", source=f"{_PARAMETERS}: Attention (MLA), terms as in its source")
def primus_latent_attention_parameters(
    *,
    hidden_size: Numeric,
    num_heads: Numeric,
    q_lora_rank: Numeric,
    kv_lora_rank: Numeric,
    nope: Numeric,
    rope: Numeric,
    v_head_dim: Numeric,
) -> Numeric:
    """Query + key/value + position + output; queries direct where q_lora_rank is 0."""
    query_width = num_heads * (nope + rope)
    query = q_lora_rank * (hidden_size + query_width + 1.0) if q_lora_rank > 0 else hidden_size * query_width
    key_value = kv_lora_rank * (hidden_size + num_heads * (nope + v_head_dim) + 1.0)
    return query + key_value + hidden_size * rope + num_heads * v_head_dim * hidden_size


@formula(unit="1", source=f"{_PARAMETERS}: Dense MLP, MoE MLP")
def primus_mlp_parameters(
    *, num_projections: Numeric, hidden_size: Numeric, ffn_hidden_size: Numeric, copies: Numeric
) -> Numeric:
    """copies·n_proj·H·FFN: 3 matrices with SwiGLU, 2 without; NE / EP copies of an expert."""
    return copies * num_projections * hidden_size * ffn_hidden_size


@formula(unit="1", source=f"{DOCUMENT}, Base Tensor (sbh)")
def primus_tokens(*, micro_batch_size: Numeric, seq_len: Numeric, tp: Numeric, cp: Numeric) -> Numeric:
    """MBS·S / TP / CP."""
    return micro_batch_size * seq_len / tp / cp


@formula(unit="byte", source=f"{_ACTIVATIONS}: LayerNorm, Residual Add, Router; Base Tensor (sbh)")
def primus_hidden_state(*, tokens: Numeric, hidden_size: Numeric) -> Numeric:
    """Tokens·H·2: sbh."""
    return tokens * hidden_size * BF16


@formula(unit="byte", source=f"{_ACTIVATIONS}: Attention (standard, Flash Attention)")
def primus_attention_activation(
    *, tokens: Numeric, query: Numeric, key: Numeric, value: Numeric, output: Numeric, softmax: Numeric
) -> Numeric:
    """tokens·(Q + K + V + output + softmax)·2, the statistics of flash attention as wide as Q."""
    return tokens * (query + key + value + output + softmax) * BF16


@formula(unit="byte", source=f"{_ACTIVATIONS}: Dense MLP (SwiGLU), MoE MLP")
def primus_mlp_activation(
    *,
    tokens: Numeric,
    choices: Numeric,
    output_copies: Numeric,
    num_projections: Numeric,
    ffn_hidden_size: Numeric,
    hidden_size: Numeric,
) -> Numeric:
    """tokens·(choices·n_proj·FFN + copies·H)·2: what the projections make, and the result.

    The documentation keeps one result per chosen expert; the source of 2026-08 one, as they are summed.
    """
    return tokens * (choices * num_projections * ffn_hidden_size + output_copies * hidden_size) * BF16


@formula(unit="1", source=f"{_PIPELINE}: VPP Overhead")
def primus_interleaving_penalty(*, pp: Numeric, vpp: Numeric) -> Numeric:
    """1 + (PP − 1) / (PP·VPP)."""
    return 1.0 + (pp - 1.0) / (pp * vpp)


@formula(unit="1", source=f"{_PIPELINE}: Gradient Accumulation Saving")
def primus_accumulation_saving(*, accumulation: Numeric, pp: Numeric) -> Numeric:
    """1 where GA ≥ PP, else GA / PP."""
    return min(accumulation / pp, 1.0)


@formula(unit="byte", source=f"{_PIPELINE}: Final Activation Memory Formula")
def primus_total_activation(*, base: Numeric, pp: Numeric, penalty: Numeric, saving: Numeric) -> Numeric:
    """Base·PP·penalty·saving: as many micro-batches in flight on every rank as on the first."""
    return base * pp * penalty * saving


REPEATED = {"layer_norm": 3, "residual_add": 2}
"""How often a layer has a component; the others once."""
_FP32_IN_BF16 = 2.0


class Terms(Struct, frozen=True, kw_only=True):
    """What changed between the documentation's example and later sources."""

    output_per_choice: bool
    """One result of the feed-forward is kept per chosen expert, not per token."""
    penalty_without_interleaving: bool
    """1 + (PP − 1)/PP at VPP = 1 too."""
    statistics_as_query: bool
    """Flash attention's softmax statistics count as much as the queries (formula and Mixtral example), instead of
    one fp32 number per head and token (MoE 4.5T example)."""
    unfused_loss: bool
    """An unfused loss keeps its softmax in fp32."""
    per_micro_batch_accumulation: bool
    """GA = GBS / (MBS·DP) as documented; the sources leave MBS out."""
    recompute_working_memory: bool
    """Full recompute adds one layer's activations, and counts the embedding once."""


class Component(Struct, frozen=True, kw_only=True):
    """One row of Primus's component-wise output."""

    parameters: float
    """Elements on a rank."""
    activation: float
    """Bytes of one micro-batch on a rank."""


class Sizes(Struct, frozen=True, kw_only=True):
    """What the formulas need of model, layout and workload."""

    hidden: float
    vocab: float
    tokens: float
    """Tokens of one micro-batch on a rank."""
    cp_seq_len: float
    """Tokens of one sequence on a context rank."""
    tp: float
    ep: float
    flash: bool
    fused_loss: bool
    terms: Terms

    @property
    def norm_parameters(self) -> float:
        """Gamma and beta, also of models whose norm has no beta."""
        return 2.0 * self.hidden

    @property
    def hidden_state(self) -> float:
        """Bytes of sbh."""
        return float(primus_hidden_state(tokens=self.tokens, hidden_size=self.hidden))


def sizes(model: Model, layout: Layout, workload: Workload, *, terms: Terms, vocab_size: int) -> Sizes:
    """Return the sizes of one layout."""
    tokens = primus_tokens(
        micro_batch_size=layout.micro_batch_size, seq_len=workload.seq_len, tp=layout.tp, cp=layout.cp
    )
    return Sizes(
        hidden=float(model.hidden_size),
        vocab=float(vocab_size),
        tokens=float(tokens),
        cp_seq_len=float(-(-workload.seq_len // layout.cp)),
        tp=float(layout.tp),
        ep=float(layout.ep),
        flash=layout.flash_attention,
        fused_loss=layout.kernels.cross_entropy == "fused",
        terms=terms,
    )


def layer_components(layer: Layer, s: Sizes) -> dict[str, Component]:
    """Return the components of one transformer layer by name; norms and residual additions count once each.

    Raises
    ------
    SpecError
        If the layer lacks a half or has an attention that Primus does not describe.
    """
    if layer.attention is None or layer.ffn is None:
        raise unsupported_by("preset primus", "layers without attention or feed-forward")
    state = s.hidden_state
    parts = {
        "layer_norm": Component(parameters=s.norm_parameters, activation=state),
        "self_attention": _attention(layer.attention, s),
        "residual_add": Component(parameters=0.0, activation=state),
        "mlp": _mlp(layer.ffn, s),
    }
    if isinstance(layer.ffn, MoeFfn):
        parts["router"] = Component(parameters=s.hidden * layer.ffn.num_experts, activation=state)
    return parts


def layer_component(layer: Layer, s: Sizes) -> Component:
    """Return one transformer layer: 3 norms, attention, 2 residual additions, feed-forward, router."""
    parts = layer_components(layer, s)
    return Component(
        parameters=sum(part.parameters * REPEATED.get(name, 1) for name, part in parts.items()),
        activation=sum(kept_by_component(layer, s, selective=False).values()),
    )


def kept_by_component(layer: Layer, s: Sizes, *, selective: bool) -> dict[str, float]:
    """Return bytes that one layer keeps of a micro-batch; nothing of attention under selective recompute."""
    return {
        name: part.activation * REPEATED.get(name, 1)
        for name, part in layer_components(layer, s).items()
        if not (selective and name == "self_attention")
    }


def first_components(s: Sizes) -> dict[str, Component]:
    """Return what the first stage has besides layers."""
    return {"embedding": Component(parameters=s.vocab * s.hidden, activation=s.hidden_state)}


def last_components(s: Sizes) -> dict[str, Component]:
    """Return what the last stage has besides layers; an unfused loss keeps a softmax in fp32 (source of 2026-08)."""
    kept = s.terms.unfused_loss and not s.fused_loss
    logits = float(primus_hidden_state(tokens=s.tokens, hidden_size=s.vocab))
    return {
        "final_layernorm": Component(parameters=s.norm_parameters, activation=s.hidden_state),
        "output_layer": Component(parameters=s.vocab * s.hidden, activation=logits),
        "calc_loss": Component(parameters=0.0, activation=s.tokens * s.vocab * 4.0 if kept else 0.0),
    }


def _attention(attention: Attention, s: Sizes) -> Component:
    match attention:
        case FullAttention(num_heads=heads, num_kv_heads=kv_heads, head_dim=dim):
            parameters = primus_attention_parameters(
                hidden_size=s.hidden, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim
            )
            query = float(heads * dim)
            key = value = float(kv_heads * dim)
            output = s.hidden
            norms = 2.0 * key if attention.qk_norm != "none" else 0.0
        case LatentAttention(num_heads=heads):
            parameters = primus_latent_attention_parameters(
                hidden_size=s.hidden,
                num_heads=heads,
                q_lora_rank=attention.q_lora_rank or 0,
                kv_lora_rank=attention.kv_lora_rank,
                nope=attention.qk_nope_head_dim,
                rope=attention.qk_rope_head_dim,
                v_head_dim=attention.v_head_dim,
            )
            query = key = float(heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim))
            value = output = float(heads * attention.v_head_dim)
            norms = query + key
        case _:
            raise unsupported_by("preset primus", "linear attention")
    scores = max(1.0, heads // s.tp) * s.cp_seq_len
    statistics = query if s.terms.statistics_as_query else _FP32_IN_BF16 * heads
    activation = primus_attention_activation(
        tokens=s.tokens,
        query=query,
        key=key,
        value=value,
        output=output + norms,
        softmax=statistics if s.flash else scores,
    )
    return Component(parameters=float(parameters), activation=float(activation))


def _mlp(ffn: Ffn, s: Sizes) -> Component:
    if isinstance(ffn, DenseFfn):
        return _matrices(ffn, s)
    choices = float(ffn.top_k)
    made = {"choices": choices, "output_copies": choices if s.terms.output_per_choice else 1.0}
    routed = _matrices(ffn, s, copies=ffn.num_experts / s.ep, **made)
    if not ffn.shared_ffn_hidden_size:
        return routed
    shared = replace(ffn, ffn_hidden_size=ffn.shared_ffn_hidden_size)
    return Component(
        parameters=routed.parameters + _matrices(shared, s).parameters,
        activation=routed.activation + _matrices(ffn, s).activation,  # as wide as a routed one there
    )


def _matrices(
    ffn: Ffn, s: Sizes, *, copies: float = 1.0, choices: float = 1.0, output_copies: float = 1.0
) -> Component:
    """Return the projections of a feed-forward of which a rank holds so many copies."""
    sizes = {
        "num_projections": 3.0 if ffn.gated else 2.0,
        "hidden_size": s.hidden,
        "ffn_hidden_size": float(ffn.ffn_hidden_size),
    }
    activation = primus_mlp_activation(tokens=s.tokens, choices=choices, output_copies=output_copies, **sizes)
    return Component(
        parameters=float(primus_mlp_parameters(copies=copies, **sizes)), activation=float(activation)
    )
