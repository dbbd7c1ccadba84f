"""Transformer blocks in torch with the fusions that training frameworks use, each named here.

- rms_norm: keeps its input and one fp32 statistic per token (Transformer Engine, Apex).
- swiglu: keeps the joint output of gate and up projections (Megatron-LM bias_swiglu fusion).
- rope: keeps nothing but the shared angles (Transformer Engine fused rotary embedding).
- one product for query, key and value; the value is copied out of it (Transformer Engine makes it contiguous).
- flash attention: keeps query, key, value, output and the log-sum-exp.
- permutation: keeps an int32 map of tokens x experts (Transformer Engine permute fusion).
- grouped product: keeps the permuted rows once for all experts.
- cross_entropy: keeps an fp32 softmax (Megatron-LM vocab_parallel_cross_entropy).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

EPSILON = 1e-6


class RmsNormFunction(Function):
    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPSILON)
        ctx.save_for_backward(x, weight, scale)
        return (x.float() * scale * weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, scale = ctx.saved_tensors
        normed, outer = x.float() * scale, gradient.float()
        inner = outer * weight.float()
        dx = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        return dx.to(x.dtype), (outer * normed).flatten(0, -2).sum(0).to(weight.dtype)


class SwiGluFunction(Function):
    @staticmethod
    def forward(ctx, joint):
        ctx.save_for_backward(joint)
        gate, up = joint.chunk(2, -1)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, gradient):
        gate, up = ctx.saved_tensors[0].chunk(2, -1)
        sigmoid = torch.sigmoid(gate)
        return torch.cat(
            [gradient * up * sigmoid * (1 + gate * (1 - sigmoid)), gradient * gate * sigmoid], -1
        )


class RopeFunction(Function):
    @staticmethod
    def forward(ctx, x, angles):
        ctx.angles = angles
        return rotate(x, angles)

    @staticmethod
    def backward(ctx, gradient):
        return rotate(gradient, -ctx.angles), None


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate halves of the last dimension of x (batch, sequence, heads, dim) by angles (sequence, dim / 2)."""
    first, second = x.chunk(2, -1)
    cos, sin = (f(angles)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class PermuteFunction(Function):
    """Copy each token to the rows of its experts; the map (experts x tokens, int32) holds rows, -1 for none."""

    @staticmethod
    def forward(ctx, x, rows, order):
        ctx.save_for_backward(rows)
        ctx.order, ctx.tokens = order, len(x)
        return x[order]

    @staticmethod
    def backward(ctx, gradient):
        zeros = gradient.new_zeros(ctx.tokens, gradient.shape[-1])
        return zeros.index_add(0, ctx.order, gradient), None, None


class UnpermuteFunction(Function):
    @staticmethod
    def forward(ctx, x, order, tokens):
        ctx.order = order
        return x.new_zeros(tokens, x.shape[-1]).index_add(0, order, x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[ctx.order], None, None


class GroupedProductFunction(Function):
    @staticmethod
    def forward(ctx, x, weight, counts):
        ctx.save_for_backward(x, weight)
        ctx.counts = counts
        return torch.cat([rows @ w.t() for rows, w in zip(x.split(counts), weight, strict=True)])

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        groups = list(zip(gradient.split(ctx.counts), x.split(ctx.counts), weight, strict=True))
        return torch.cat([g @ w for g, _, w in groups]), torch.stack([g.t() @ r for g, r, _ in groups]), None


class CrossEntropyFunction(Function):
    @staticmethod
    def forward(ctx, logits, labels):
        softmax = torch.softmax(logits.float(), -1)
        ctx.save_for_backward(softmax)
        ctx.labels, ctx.dtype = labels, logits.dtype
        return -torch.log(softmax[torch.arange(len(labels)), labels]).mean()

    @staticmethod
    def backward(ctx, gradient):
        (softmax,) = ctx.saved_tensors
        softmax[torch.arange(len(ctx.labels)), ctx.labels] -= 1.0
        return (softmax * (gradient / len(ctx.labels))).to(ctx.dtype), None


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return RmsNormFunction.apply(x, self.weight)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def flash(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Run causal attention on (batch, sequence, heads, dim) inputs; return (batch, sequence, heads·dim)."""
    heads = (x.transpose(1, 2) for x in (query, key, value))
    grouped = query.shape[2] != key.shape[2]
    output = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=grouped)
    return output.transpose(1, 2).flatten(2)


class FullAttention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, dim: int) -> None:
        super().__init__()
        self.sizes, self.dim = [heads * dim, kv_heads * dim, kv_heads * dim], dim
        self.qkv, self.out = linear(hidden, sum(self.sizes)), linear(heads * dim, hidden)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        query, key, value = (y.unflatten(-1, (-1, self.dim)) for y in self.qkv(x).split(self.sizes, -1))
        query, key = (RopeFunction.apply(y, angles) for y in (query, key))
        return self.out(flash(query, key, value.contiguous()))


class LatentAttention(nn.Module):
    def __init__(self, hidden: int, heads: int, ranks: tuple[int, int], dims: tuple[int, int, int]) -> None:
        super().__init__()
        nope, rope, v = dims
        self.heads, self.dims, self.ranks = heads, dims, ranks
        self.query_down, self.kv_down = linear(hidden, ranks[0]), linear(hidden, ranks[1] + rope)
        self.query_norm, self.kv_norm = RmsNorm(ranks[0]), RmsNorm(ranks[1])
        self.query_up, self.kv_up = (
            linear(ranks[0], heads * (nope + rope)),
            linear(ranks[1], heads * (nope + v)),
        )
        self.out = linear(heads * v, hidden)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        nope, rope, v = self.dims
        query = self.query_up(self.query_norm(self.query_down(x))).unflatten(-1, (self.heads, -1))
        latent, shared = self.kv_down(x).split([self.ranks[1], rope], -1)
        key, value = self.kv_up(self.kv_norm(latent)).unflatten(-1, (self.heads, -1)).split([nope, v], -1)
        turned = RopeFunction.apply(shared.unsqueeze(2), angles).expand(-1, -1, self.heads, -1)
        plain, rotary = query.split([nope, rope], -1)
        query = torch.cat([plain, RopeFunction.apply(rotary, angles)], -1)
        return self.out(flash(query, torch.cat([key, turned], -1), value.contiguous()))


class DenseFfn(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up, self.down = linear(hidden, 2 * width), linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(SwiGluFunction.apply(self.up(x)))


class MoeFfn(nn.Module):
    """Routed experts; routing weights scale the rows before the last product, as Megatron-LM does."""

    def __init__(
        self, hidden: int, width: int, experts: int, top_k: int, shared: int, capacity_factor: float = 0.0
    ) -> None:
        super().__init__()
        self.top_k, self.experts, self.capacity_factor = top_k, experts, capacity_factor
        self.router = linear(hidden, experts)
        self.up = nn.Parameter(torch.randn(experts, 2 * width, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * 0.02)
        self.shared = DenseFfn(hidden, shared) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        probabilities = torch.softmax(self.router(flat), -1, dtype=torch.float32)
        indices = probabilities.topk(self.top_k).indices
        routed = torch.zeros_like(probabilities, dtype=torch.bool).scatter(1, indices, value=True)
        if self.capacity_factor:  # drop the least likely beyond it, pad with any below it (drop_and_pad)
            capacity = math.ceil(len(flat) * self.top_k / self.experts * self.capacity_factor)
            best = (probabilities * routed).topk(capacity, dim=0).indices
            routed = torch.zeros_like(routed).scatter(0, best, value=True)
        expert, order = routed.t().nonzero(as_tuple=True)
        rows = torch.full((self.experts, len(flat)), -1, dtype=torch.int32)
        rows[expert, order] = torch.arange(len(order), dtype=torch.int32)
        counts = routed.sum(0).tolist()
        permuted = PermuteFunction.apply(flat, rows, order)
        up = GroupedProductFunction.apply(permuted, self.up, counts)
        activated = WeightedSwiGluFunction.apply(up, probabilities, order, expert)
        result = UnpermuteFunction.apply(
            GroupedProductFunction.apply(activated, self.down, counts), order, len(flat)
        ).view_as(x)
        return result + self.shared(x) if self.shared else result


class WeightedSwiGluFunction(Function):
    @staticmethod
    def forward(ctx, joint, probabilities, order, expert):
        ctx.save_for_backward(joint, probabilities)
        ctx.index = (order, expert)
        gate, up = joint.chunk(2, -1)
        return (F.silu(gate) * up * probabilities[ctx.index][:, None]).to(joint.dtype)

    @staticmethod
    def backward(ctx, gradient):
        joint, probabilities = ctx.saved_tensors
        with torch.enable_grad():
            inputs = joint.detach().requires_grad_(), probabilities.detach().requires_grad_()
            gate, up = inputs[0].chunk(2, -1)
            output = (F.silu(gate) * up * inputs[1][ctx.index][:, None]).to(joint.dtype)
        return *torch.autograd.grad(output, inputs, gradient), None, None


class Layer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, hidden: int, attention: nn.Module, ffn: nn.Module) -> None:
        super().__init__()
        self.norms = nn.ModuleList([RmsNorm(hidden), RmsNorm(hidden)])
        self.attention, self.ffn = attention, ffn

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x), angles)
        return x + self.ffn(self.norms[1](x))


class Head(nn.Module):
    def __init__(self, hidden: int, vocab: int) -> None:
        super().__init__()
        self.norm, self.logits = RmsNorm(hidden), linear(hidden, vocab)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return CrossEntropyFunction.apply(self.logits(self.norm(x)).flatten(0, 1), labels.flatten())
