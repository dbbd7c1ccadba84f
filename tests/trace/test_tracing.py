"""A trace against PyTorch itself: parameters, FLOPs, saved bytes, structure."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from forescale.errors import ForescaleError
from forescale.graph.counts import count_parameters, model_flops
from forescale.trace import trace

from .conftest import Block, Gpt, gpt


def test_blocks_are_found_and_their_parameters_add_up(traced):
    module, model = traced
    assert model.traces[0].layers == ("Block",) * 3
    total = sum(parameter.numel() for parameter in module.parameters())
    assert model.traces[0].num_parameters == total
    assert count_parameters(model).total == total
    assert (model.hidden_size, model.vocab_size) == (64, 512)


def test_products_are_those_of_the_flop_counter(traced):
    _, model = traced
    real = Gpt(dropout=0.0)
    tokens = torch.zeros(2, 48, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        real(tokens, tokens).backward()
    attention = 3 * 2 * 4 * 16 * 48 * 48 * 2 * 2 * 3.5
    products = counter.get_total_flops() - counted_attention(counter)
    pairs = 48 * 49 / 2
    expected = products + 3 * 2 * 4 * pairs * 2 * 32 * 3
    assert attention > 0
    assert 2 * model_flops(model, 48).masked == pytest.approx(expected, rel=1e-12)


def counted_attention(counter):
    whole = counter.get_flop_counts()["Global"]
    return sum(flops for operator, flops in whole.items() if "attention" in str(operator))


def test_saved_bytes_are_those_of_the_hooks():
    model = trace(gpt(dropout=0.0), seq_len=64)
    saved = {}
    block = Block(64)
    x = torch.zeros(2, 32, 64, requires_grad=True)

    def pack(tensor):
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = block(x * 1.0)
    _cdatas = {parameter.untyped_storage()._cdata for parameter in block.parameters()}
    expected = sum(size for key, size in saved.items() if key not in _cdatas)
    assert kept.shape == x.shape
    statistics = 2 * 4 * 32 * 4  # the CPU's attention keeps one number per query and head, as CUDA's does
    formula = model.traces[0].blocks["Block"].saved_bytes
    assert formula.at(2.0, 32.0) == pytest.approx(expected, abs=statistics)


def test_one_block_of_each_kind_stands_for_all_of_them():
    few, many = (trace(gpt(layers=layers), seq_len=64).traces[0] for layers in (2, 6))
    assert few.blocks == many.blocks
    assert (few.embedding, few.head) == (many.embedding, many.head)


def kernels(model, name):
    block = model.traces[0].blocks[name]
    return [
        item
        for operator in block.operators
        for item in (*operator.forward, *operator.backward, *operator.weight)
    ]


def test_cuda_runs_dropout_in_one_kernel_and_attention_in_another(traced):
    names = [kernel.operator for kernel in kernels(traced[1], "Block")]
    assert names.count("native_dropout") == 1
    assert names.count("native_dropout_backward") == 1
    assert names.count("attention") == 1
    assert names.count("attention_backward") == 1
    assert "bernoulli_" not in names


def test_autocast_casts_weights_and_runs_layer_norm_in_fp32(autocast):
    result = {(kernel.operator, kernel.dtype) for kernel in kernels(autocast, "Block")}
    assert ("native_layer_norm", "fp32") in result
    assert ("attention", "bf16") in result
    assert {dtype for operator, dtype in result if operator in ("mm", "addmm")} == {"bf16"}
    assert any(kernel.kind == "narrowed" for kernel in kernels(autocast, "Block"))


def test_kernels_are_attributed_to_modules(traced):
    block = traced[1].traces[0].blocks["Block"]
    modules = {operator.module: operator for operator in block.operators}
    assert {"norm", "qkv", "out", "up", "down", ""} <= set(modules)
    assert [item.kind for item in modules["down"].weight if item.kind == "product"] == ["product"]


class Chunked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)[: int(self.layer(x).sum().item())].sum()


def test_control_flow_on_values_is_refused_with_module_and_line():
    with torch.device("meta"):
        module = Chunked()
    with pytest.raises(ForescaleError, match=r"test_tracing\.py, line \d+: .*values.*_local_scalar_dense"):
        trace(module, lambda b, s: (torch.empty(b, s, 8),), seq_len=64)


def test_a_module_without_repeated_blocks_is_one_block():
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
    model = trace(module, lambda b, s: (torch.empty(b, s, 8),), seq_len=64)
    assert model.traces[0].layers == ("model",)
    assert count_parameters(model).total == 8 * 16 + 16 + 16 * 8 + 8
