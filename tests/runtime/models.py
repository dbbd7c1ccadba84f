"""What ranks do in tests of users' own models: sharded stages, functions, lists, Hugging Face's classes."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from forescale.runtime import PipelineStep, as_stage, huggingface_stage, huggingface_ties, linear

WIDTH, HEADS, ROWS, TOKENS = 8, 4, 2, 6


class Layer(nn.Module):
    """Attention and a feed-forward, whose heads and width may be shards."""

    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.norm(x)
        heads = [
            item(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for item in (self.q, self.k, self.v)
        ]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(x)))


PLAN = {
    **{name: ColwiseParallel() for name in ("q", "k", "v", "up")},
    **{name: RowwiseParallel() for name in ("out", "down")},
}


def squares(y, target):
    return functional.mse_loss(y, target)


def data(num_microbatches, seed=0):
    made = torch.Generator().manual_seed(seed)
    shape = (num_microbatches * ROWS, TOKENS, WIDTH)
    return tuple(torch.randn(shape, generator=made, dtype=torch.float64) for _ in range(2))


def alone(num_stages, batches):
    """Return the layers of one process with gradients of the mean over all micro-batches of all batches."""
    layers = nn.Sequential(*(Layer(index).double() for index in range(num_stages)))
    for inputs, targets in batches:
        (squares(layers(inputs), targets) / len(batches)).backward()
    return layers


def worst_of(step, layers):
    """Return the largest error of a gradient over the largest gradient."""
    largest = max(float(p.grad.abs().max()) for p in layers.parameters())
    worst = 0.0
    for stage, module in step.stages.items():
        expected = dict(layers[stage].named_parameters())
        for name, parameter in module.named_parameters():
            full_tensor = step.runner.store.of(parameter)
            full_tensor = full_tensor.full_tensor() if isinstance(full_tensor, DTensor) else full_tensor
            worst = max(worst, float((full_tensor - expected[name].grad).abs().max()) / largest)
    return worst


def sharded(rank, schedule):
    """Run tensor-parallel, FSDP2 and DDP stages on 2 x 2 ranks; return the errors of each."""
    count = schedule.num_microbatches
    batches = [data(count), data(count, seed=9)]
    shards = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("pp", "tp"))
    errors = []

    def parallel(stage):
        return parallelize_module(Layer(stage).double(), shards["tp"], PLAN)

    step = PipelineStep(schedule, parallel, squares, pipelines=[[0, 2], [1, 3]], tp=2)
    step(*batches[0])
    apart = {str(pass_.action): pass_ for pass_ in step.passes}
    errors.append((worst_of(step, alone(2, batches[:1])), len(apart)))

    copies = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("pp", "dp"))
    replica = copies["dp"].get_local_rank()
    pipelines = [[0, 1], [2, 3]]

    def by_fsdp(stage):
        return fully_shard(Layer(stage).double(), mesh=copies["dp"])

    def by_ddp(stage):
        return DistributedDataParallel(Layer(stage).double(), process_group=copies["dp"].get_group())

    for make in (by_fsdp, by_ddp):
        step = PipelineStep(schedule, make, squares, pipelines=pipelines)
        loss = step(*batches[replica])
        errors.append((worst_of(step, alone(2, batches)), loss.item()))
    return errors


def own(rank, schedule):
    """Run stages from a list, from functions, and of Hugging Face's Llama; return the errors."""
    inputs, targets = data(schedule.num_microbatches)
    layers = alone(2, [(inputs, targets)])
    step = PipelineStep(schedule, [Layer(0).double(), Layer(1).double()], squares)
    step(inputs, targets)
    errors = [worst_of(step, layers)]
    errors += [functions(schedule, inputs, targets), builders(schedule, inputs, targets)]
    return [*errors, huggingface(schedule, tied=True), huggingface(schedule, tied=False)]


def functions(schedule, inputs, targets):
    def weight(stage):
        torch.manual_seed(stage)
        return nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))

    def make(stage):
        local = weight(stage)
        return as_stage(lambda x: torch.tanh(linear(x, local)), local)

    step = PipelineStep(schedule, make, squares)
    step(inputs, targets)
    both = [weight(0), weight(1)]
    y = functools.reduce(lambda x, w: torch.tanh(functional.linear(x, w)), both, inputs)
    squares(y, targets).backward()
    ((stage, module),) = step.stages.items()
    return float((module.own[0].grad - both[stage].grad).abs().max())


class Multiply(torch.autograd.Function):
    """x . w whose weight gradient is left to whoever asks for it."""

    @staticmethod
    def forward(ctx, x, weight, waiting):
        ctx.save_for_backward(x, weight)
        ctx.waiting = waiting
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        ctx.waiting.append((x, grad))
        return grad @ weight.T, None, None


class Building(nn.Module):
    """A stage with a `dw_builder` of its own, as torch's pipelining knows it."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(stage)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))
        self.waiting, self.built = [], 0

    def forward(self, x):
        return torch.tanh(Multiply.apply(x, self.weight, self.waiting))

    def dw_builder(self):
        x, grad = self.waiting.pop()
        self.built += 1

        def compute():
            result = x.flatten(0, -2).T @ grad.flatten(0, -2)
            self.weight.grad = result if self.weight.grad is None else self.weight.grad + result

        return compute


def builders(schedule, inputs, targets):
    step = PipelineStep(schedule, Building, squares)
    step(inputs, targets)
    both = [Building(0).weight, Building(1).weight]
    y = functools.reduce(lambda x, w: torch.tanh(x @ w), both, inputs)
    squares(y, targets).backward()
    ((stage, module),) = step.stages.items()
    assert module.built == schedule.num_microbatches
    return float((module.weight.grad - both[stage].grad).abs().max())


def llama(*, tied):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config).double()


def entropy(scores, targets):
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def huggingface(schedule, *, tied):
    made = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 32, (schedule.num_microbatches * ROWS, TOKENS), generator=made)
    whole = llama(tied=tied)
    entropy(whole(tokens).logits, tokens).backward()
    step = PipelineStep(
        schedule,
        lambda stage: huggingface_stage(llama(tied=tied), (1, 2), stage),
        entropy,
        tied=huggingface_ties(whole),
    )
    step(tokens, tokens)
    ((stage, module),) = step.stages.items()
    first = (0, 1)[stage]
    worst = 0.0
    for name, parameter in module.named_parameters():
        twin = whole.get_parameter(named(name, first, tied=tied))
        worst = max(worst, float((parameter.grad - twin.grad).abs().max()))
    return worst


def named(name, first, *, tied):
    """Return what the whole model calls a stage's parameter."""
    if name == "head.weight":
        return "model.embed_tokens.weight" if tied else "lm_head.weight"
    if not name.startswith("body.layers."):
        return name.replace("body.", "model.")
    number, rest = name.removeprefix("body.layers.").split(".", 1)
    return f"model.layers.{int(number) + first}.{rest}"


class Products(TorchDispatchMode):
    """Counts the FLOPs of plain matrix products."""

    def __init__(self):
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._overloadpacket is torch.ops.aten.mm:
            self.flops += 2 * args[0].shape[0] * args[0].shape[1] * args[1].shape[1]
        return func(*args, **(kwargs or {}))


def weights_apart(rank, schedule):
    """Return the FLOPs of products in I and in W of a stage of Hugging Face's Llama."""
    step = PipelineStep(schedule, lambda stage: huggingface_stage(llama(tied=False), (1, 2), stage), entropy)
    tokens = torch.zeros((schedule.num_microbatches * ROWS, TOKENS), dtype=torch.int64)
    return products_of(step, tokens, tokens)


def products_of(step, inputs, targets):
    """Run one step and return the FLOPs of products by kind of action."""
    result, run = {"I": 0, "W": 0, "F": 0}, step.runner._run

    def counted(action, state):
        with Products() as products:
            run(action, state)
        if action.kind.name in result:
            result[action.kind.name] += products.flops

    step.runner._run = counted
    step(inputs, targets)
    return result
