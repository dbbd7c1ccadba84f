"""Bytes that autograd really keeps for backward against the table of saved tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.oracles import reference_blocks as reference  # noqa: E402

from forescale.graph.counts import EVERYTHING, block_flops  # noqa: E402
from forescale.graph.layer import head_block, layer_block  # noqa: E402
from forescale.graph.recompute import keep  # noqa: E402
from forescale.graph.sharding import ShardingRules, split_layout  # noqa: E402
from forescale.spec import (  # noqa: E402
    DenseFfn,
    FullAttention,
    Kernels,
    LatentAttention,
    Layout,
    Model,
    MoeFfn,
    Recompute,
    Routing,
)
from forescale.spec import Layer as LayerSpec  # noqa: E402
from forescale.spec.workload import Precision, Trainable  # noqa: E402

BATCH, SEQ_LEN, HIDDEN, VOCAB = 2, 128, 256, 1024
FULL = FullAttention(num_heads=8, num_kv_heads=2, head_dim=32)
# Head sizes are equal (32 + 16 = 48), for which the CPU has flash attention.
LATENT = LatentAttention(
    num_heads=8, q_lora_rank=96, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48
)
DENSE = DenseFfn(ffn_hidden_size=704)
ROUTED = MoeFfn(num_experts=8, top_k=2, ffn_hidden_size=192)
SHARED = MoeFfn(num_experts=8, top_k=2, ffn_hidden_size=192, shared_ffn_hidden_size=192)
TOLERANCE = 0.02


def attention(spec: FullAttention | LatentAttention) -> Any:
    if isinstance(spec, FullAttention):
        return reference.FullAttention(HIDDEN, spec.num_heads, spec.num_kv_heads, spec.head_dim)
    assert spec.q_lora_rank is not None
    dims = (spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim)
    return reference.LatentAttention(HIDDEN, spec.num_heads, (spec.q_lora_rank, spec.kv_lora_rank), dims)


def ffn(spec: DenseFfn | MoeFfn) -> Any:
    if isinstance(spec, DenseFfn):
        return reference.DenseFfn(HIDDEN, spec.ffn_hidden_size)
    return reference.MoeFfn(
        HIDDEN, spec.ffn_hidden_size, spec.num_experts, spec.top_k, spec.shared_ffn_hidden_size
    )


def saved_bytes(module: Any, run: Callable[[], Any]) -> int:
    """Return the bytes of all storages kept for backward, parameters left out; backward is run, too."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    storages: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    total = sum(storage.nbytes() for storage in storages.values())
    result.float().sum().backward()
    return total


def layout(strategy: Layout | None = None, trainable: Trainable = EVERYTHING) -> ShardingRules:
    degrees, choices = split_layout(strategy or Layout(micro_batch_size=BATCH))
    return ShardingRules(
        degrees=degrees,
        choices=choices,
        precision=Precision(),
        seq_len=float(SEQ_LEN),
        trainable=trainable,
    )


def model_of(layer: LayerSpec) -> Model:
    return Model(name="test", hidden_size=HIDDEN, layers=(layer,), vocab_size=VOCAB, vocab_multiple=1)


def hidden_states() -> Any:
    torch.manual_seed(0)
    return torch.randn(BATCH, SEQ_LEN, HIDDEN, dtype=torch.bfloat16).requires_grad_()


LAYERS = {
    "dense": (FULL, DENSE),
    "mla": (LATENT, DENSE),
    "moe": (FULL, ROUTED),
    "mla with shared and routed experts": (LATENT, SHARED),
}


@pytest.mark.parametrize("name", LAYERS)
def test_fused_layer(name: str) -> None:
    spec, feed_forward = LAYERS[name]
    x = hidden_states()
    module = reference.Layer(HIDDEN, attention(spec), ffn(feed_forward)).to(torch.bfloat16)
    rotary = spec.qk_rope_head_dim if isinstance(spec, LatentAttention) else spec.head_dim
    angles = torch.outer(torch.arange(SEQ_LEN), torch.rand(rotary // 2))
    measured = saved_bytes(module, lambda: module(x, angles))
    layer = LayerSpec(attention=spec, ffn=feed_forward)
    block = layer_block(model_of(layer), layer, layout())
    expected = float(keep(block, Recompute()).num_bytes)
    assert expected == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3])
def test_experts_padded_to_capacity(factor: float) -> None:
    x = hidden_states()
    experts = reference.MoeFfn(HIDDEN, ROUTED.ffn_hidden_size, ROUTED.num_experts, ROUTED.top_k, 0, factor)
    module = reference.Layer(HIDDEN, attention(FULL), experts).to(torch.bfloat16)
    angles = torch.outer(torch.arange(SEQ_LEN), torch.rand(FULL.head_dim // 2))
    measured = saved_bytes(module, lambda: module(x, angles))
    layer = LayerSpec(attention=FULL, ffn=ROUTED)
    routing = Routing(capacity_factor=factor, pad_to_capacity=True)
    padded = layout(Layout(micro_batch_size=BATCH, routing=routing))
    expected = float(keep(layer_block(model_of(layer), layer, padded), Recompute()).num_bytes)
    assert expected == pytest.approx(measured, rel=TOLERANCE)


class Adapted(torch.nn.Module):
    """A frozen linear layer with an adapter of low rank, as PEFT's lora.Linear writes it."""

    def __init__(self, base: Any, rank: int, dropout: float) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False)
        self.dropout = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(self.dropout(x))) * 2.0


FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
TRAINED = {
    "frozen": Trainable(frozen=("attention", "ffn", "norm")),
    "feed-forward frozen": Trainable(frozen=("ffn",)),
    "attention frozen": Trainable(frozen=("attention",)),
    "adapters": Trainable(lora_rank=16, lora_targets=FUSED),
    "adapters of attention": Trainable(lora_rank=16, lora_targets=("qkv_proj", "o_proj")),
    "adapters that drop out": Trainable(lora_rank=16, lora_targets=FUSED, lora_dropout=True),
}


def as_trained(module: Any, trainable: Trainable) -> Any:
    """Freeze parts of a reference layer, and put adapters beside its linear layers."""
    parts = {"attention": module.attention, "ffn": module.ffn}
    for name, part in parts.items():
        part.requires_grad_(not trainable.freezes(name))
    for name, item in module.named_children():
        if name not in parts:
            item.requires_grad_(not trainable.freezes("norm"))
    places = {"qkv_proj": "attention.qkv", "o_proj": "attention.out"}
    places |= {"gate_up_proj": "ffn.up", "down_proj": "ffn.down"}
    for target in trainable.lora_targets if trainable.lora_rank else ():
        part, _, name = places[target].partition(".")
        base = getattr(parts[part], name)
        setattr(parts[part], name, Adapted(base, trainable.lora_rank, 0.1 * trainable.lora_dropout))
    return module.to(torch.bfloat16)


@pytest.mark.parametrize("name", TRAINED)
def test_layer_that_is_frozen_or_adapted(name: str) -> None:
    """Bytes that autograd keeps, and FLOP of both passes, where some weights are not trained."""
    counter = pytest.importorskip("torch.utils.flop_counter")
    from tests.oracles.test_flops import FLASH

    trainable, x = TRAINED[name], hidden_states()
    module = as_trained(reference.Layer(HIDDEN, attention(FULL), ffn(DENSE)), trainable)
    angles = torch.outer(torch.arange(SEQ_LEN), torch.rand(FULL.head_dim // 2))
    measured = saved_bytes(module, lambda: module(x, angles))
    with counter.FlopCounterMode(display=False, custom_mapping=FLASH) as counted:
        module(x, angles).float().sum().backward()
    layer = LayerSpec(attention=FULL, ffn=DENSE)
    block = layer_block(model_of(layer), layer, layout(trainable=trainable))
    kept = keep(block, Recompute())
    masks = sum(float(tensor.num_bytes) for tensor in kept.tensors if tensor.name.endswith(".mask"))
    # The CPU's masks are of the input's type, those of a GPU's dropout are bytes.
    assert float(kept.num_bytes) + masks == pytest.approx(measured, rel=TOLERANCE)
    flops = block_flops(block, "full")
    assert flops.forward + flops.backward == counted.get_total_flops()


def test_head_keeps_an_fp32_softmax() -> None:
    x = hidden_states()
    labels = torch.randint(0, VOCAB, (BATCH, SEQ_LEN))
    module = reference.Head(HIDDEN, VOCAB).to(torch.bfloat16)
    measured = saved_bytes(module, lambda: module(x, labels))
    block = head_block(model_of(LayerSpec(attention=FULL, ffn=DENSE)), layout())
    assert float(keep(block, Recompute()).num_bytes) == pytest.approx(measured, rel=TOLERANCE)


def test_eager_layer_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=DENSE.ffn_hidden_size,
        num_hidden_layers=1,
        vocab_size=VOCAB,
    )
    config._attn_implementation = "sdpa"
    llama = transformers.models.llama.modeling_llama
    module = llama.LlamaDecoderLayer(config, 0).to(torch.bfloat16)
    x = hidden_states()
    angles = llama.LlamaRotaryEmbedding(config)(x, torch.arange(SEQ_LEN)[None])
    measured = saved_bytes(module, lambda: module(x, position_embeddings=angles))
    layer = LayerSpec(attention=FullAttention(num_heads=8, num_kv_heads=8, head_dim=32), ffn=DENSE)
    eager = Layout(micro_batch_size=BATCH, kernels=Kernels(fused=False))
    block = layer_block(model_of(layer), layer, layout(eager))
    assert float(keep(block, Recompute()).num_bytes) == pytest.approx(measured, rel=TOLERANCE)
