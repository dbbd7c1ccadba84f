"""Peak of a real training step on the CPU against the peak that the operator list predicts.

A dispatch mode adds up every storage that is alive. What happens inside a fused function (see `reference_blocks`)
is one kernel on a device, so only its results and what it keeps count. Parameters and their gradients exist
before the step; the gradient of one product at a time exists beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.oracles import reference_blocks as reference  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from forescale.graph.layer import head_block, layer_block  # noqa: E402
from forescale.graph.recompute import keep  # noqa: E402
from forescale.graph.sharding import ShardingRules, split_layout  # noqa: E402
from forescale.memory.liveness import block_moments  # noqa: E402
from forescale.spec import (  # noqa: E402
    DenseFfn,
    FullAttention,
    Kernels,
    LatentAttention,
    Layout,
    Model,
    MoeFfn,
    Recompute,
)
from forescale.spec import Layer as LayerSpec  # noqa: E402
from forescale.spec.workload import Precision  # noqa: E402

BATCH, SEQ_LEN, HIDDEN, VOCAB, NUM_LAYERS = 2, 256, 128, 512, 2
FULL = FullAttention(num_heads=4, num_kv_heads=2, head_dim=32)
LATENT = LatentAttention(
    num_heads=4, q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48
)
DENSE = DenseFfn(ffn_hidden_size=512)
ROUTED = MoeFfn(num_experts=4, top_k=2, ffn_hidden_size=256)
TOLERANCE = 0.01
NONE, FULL_RECOMPUTE = Recompute(), Recompute(granularity="full")
CORE = Recompute(granularity="selective", modules=("core_attn",))
MLP = Recompute(granularity="selective", modules=("mlp",))
MOE = Recompute(granularity="selective", modules=("moe",))


class Tracker(TorchDispatchMode):
    """Bytes of the storages made under it that are alive; the largest sum so far."""

    def __init__(self, ignored: set[int]) -> None:
        super().__init__()
        self.ignored, self.peak, self.paused = ignored, 0, 0
        self.live: dict[int, tuple[Any, int]] = {}
        self.held: list[Any] = []
        """What a kernel reads, which exists until it ends."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.paused:
            self.held.append(args)
        else:
            self.add(result)
        return result

    def add(self, tensors: Any) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.ignored:
                    self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))

    @contextmanager
    def fused(self) -> Iterator[None]:
        self.paused += 1
        yield
        self.paused -= 1


def fuse(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every custom function of the reference count as one kernel."""

    def wrapped(method: Any, *, forward: bool) -> Any:
        def run(ctx: Any, *args: Any) -> Any:
            with tracker.fused():
                result = method(ctx, *args)
            kept = getattr(ctx, "to_save", None) or () if forward else ()
            tracker.add((result, kept))
            tracker.held.clear()
            return result

        return staticmethod(run)

    for function in vars(reference).values():
        if isinstance(function, type) and issubclass(function, torch.autograd.Function):
            if function is torch.autograd.Function:
                continue
            monkeypatch.setattr(function, "forward", wrapped(function.forward, forward=True))
            monkeypatch.setattr(function, "backward", wrapped(function.backward, forward=False))


def modules(layer: LayerSpec) -> Any:
    spec, feed_forward = layer.attention, layer.ffn
    if isinstance(spec, FullAttention):
        attention: Any = reference.FullAttention(HIDDEN, spec.num_heads, spec.num_kv_heads, spec.head_dim)
    else:
        assert isinstance(spec, LatentAttention)
        assert spec.q_lora_rank is not None
        dims = (spec.qk_nope_head_dim, spec.qk_rope_head_dim, spec.v_head_dim)
        ranks = (spec.q_lora_rank, spec.kv_lora_rank)
        attention = reference.LatentAttention(HIDDEN, spec.num_heads, ranks, dims)
    if isinstance(feed_forward, DenseFfn):
        return reference.Layer(HIDDEN, attention, reference.DenseFfn(HIDDEN, feed_forward.ffn_hidden_size))
    assert isinstance(feed_forward, MoeFfn)
    sizes = (feed_forward.ffn_hidden_size, feed_forward.num_experts, feed_forward.top_k)
    return reference.Layer(HIDDEN, attention, reference.MoeFfn(HIDDEN, *sizes, 0))


def recomputed(module: Any) -> Any:
    forward = module.forward
    module.forward = lambda *args: checkpoint(forward, *args, use_reentrant=True, preserve_rng_state=False)
    return module


def measured(layer: LayerSpec, recompute: Recompute, monkeypatch: pytest.MonkeyPatch) -> int:
    torch.manual_seed(0)
    stack = torch.nn.ModuleList(modules(layer) for _ in range(NUM_LAYERS)).to(torch.bfloat16)
    head = reference.Head(HIDDEN, VOCAB).to(torch.bfloat16)
    if recompute.granularity == "full":
        for module in stack:
            recomputed(module)
    elif recompute == CORE:
        whole = reference.flash
        again = lambda *args: checkpoint(whole, *args, use_reentrant=True, preserve_rng_state=False)  # noqa: E731
        monkeypatch.setattr(reference, "flash", again)
    elif recompute.modules:
        for module in stack:
            recomputed(module.ffn)
    parameters = [*stack.parameters(), *head.parameters()]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    x = torch.randn(BATCH, SEQ_LEN, HIDDEN, dtype=torch.bfloat16)
    rotary = layer.attention.qk_rope_head_dim if isinstance(layer.attention, LatentAttention) else 32
    angles = torch.outer(torch.arange(SEQ_LEN), torch.rand(rotary // 2))
    labels = torch.randint(0, VOCAB, (BATCH, SEQ_LEN))
    fixed = [*parameters, *(parameter.grad for parameter in parameters), angles, labels]
    tracker = Tracker({tensor.untyped_storage().data_ptr() for tensor in fixed})
    fuse(tracker, monkeypatch)
    with tracker:
        tracker.add(x)
        stream = x.requires_grad_()
        for module in stack:
            stream = module(stream, angles)
        loss = head(stream, labels)
        del stream
        loss.backward()
    return tracker.peak


def predicted(layer: LayerSpec, recompute: Recompute) -> float:
    kernels = Kernels(gradient_sum="after_product")
    degrees, choices = split_layout(Layout(micro_batch_size=BATCH, kernels=kernels))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(SEQ_LEN))
    model = Model(name="test", hidden_size=HIDDEN, layers=(layer,), vocab_size=VOCAB, vocab_multiple=1)
    block, head = layer_block(model, layer, layout), head_block(model, layout)
    kept = keep(block, recompute)
    inside, loss = block_moments(block, kept), block_moments(head, keep(head, NONE))
    working = inside.backward_bytes - kept.num_bytes
    return float(NUM_LAYERS * kept.num_bytes + max(working, loss.forward_bytes, loss.backward_bytes))


CASES = {
    "dense": (FULL, DENSE, [NONE, CORE, MLP, FULL_RECOMPUTE]),
    "mla": (LATENT, DENSE, [NONE, CORE, FULL_RECOMPUTE]),
    "moe": (FULL, ROUTED, [NONE, MOE, FULL_RECOMPUTE]),
}


@pytest.mark.parametrize(
    ("name", "recompute"),
    [(name, recompute) for name, (_, _, policies) in CASES.items() for recompute in policies],
)
def test_peak(name: str, recompute: Recompute, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LayerSpec(attention=CASES[name][0], ffn=CASES[name][1])
    assert predicted(layer, recompute) == pytest.approx(
        measured(layer, recompute, monkeypatch), rel=TOLERANCE
    )
