"""Adapters beside the recorded layers of a frozen model, compared with modules of PyTorch that have them."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from forescale.graph.counts import count_trained
from forescale.graph.recorded import traced_config, with_adapters
from forescale.spec.workload import Precision, Trainable

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
CONFIGS = {
    "llama": {"model_type": "llama", **SIZES},
    "lfm2": {
        "model_type": "lfm2",
        **SIZES,
        "layer_types": ["conv", "full_attention", "full_attention"],
        "block_auto_adjust_ff_dim": False,
    },
    "gemma4": {
        "model_type": "gemma4_text",
        **SIZES,
        "num_hidden_layers": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 32,
    },
}
LAYERS = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "self_attn.out_proj",
}  # fmt: skip
RANK, BATCH, LENGTH = 4, 2, 64


class Adapted(nn.Module):
    """A linear layer with an adapter, in fp32 as PEFT keeps it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, bias=False, dtype=torch.float32)
        self.up = nn.Linear(RANK, base.out_features, bias=False, dtype=torch.float32)

    def forward(self, x):
        result = self.base(x)
        return (result + self.up(self.down(x.float()))).to(result.dtype)


def adapted_module(config):
    import transformers

    made = transformers.AutoConfig.for_model(**config)
    made.use_cache = False
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = transformers.AutoModelForCausalLM.from_config(made)
    finally:
        torch.set_default_dtype(torch.float32)
    model.requires_grad_(False)
    model.enable_input_require_grads()
    for parent_path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            path = f"{parent_path}.{name}"
            if isinstance(child, nn.Linear) and any(path.endswith(f".{layer}") for layer in LAYERS):
                setattr(parent, name, Adapted(child))
    return model.train()


def products(trace, part):
    """Return the FLOP of the matrix products of one pass of all blocks."""
    blocks = [*(trace.blocks[name] for name in trace.layers), trace.embedding, trace.head]
    total = 0
    for kernel in (
        item for block in blocks for operator in block.operators for item in getattr(operator, part)
    ):
        if kernel.kind.startswith("product"):
            m, n, k, batch = (float(extent.at(BATCH, LENGTH)) for extent in kernel.extents)
            total += 2 * m * n * k * batch * kernel.count
    return total


@pytest.mark.parametrize("kind", CONFIGS)
def test_trained_parameters_and_products_are_those_that_autograd_runs(kind):
    trainable = Trainable(lora_rank=RANK)
    frozen = traced_config(CONFIGS[kind], name=kind, seq_len=LENGTH, precision="bf16", frozen=True)
    model = with_adapters(frozen, trainable, Precision())
    module = adapted_module(CONFIGS[kind])
    tokens = torch.randint(0, 255, (BATCH, LENGTH))
    with FlopCounterMode(display=False) as counter:
        result = module(input_ids=tokens, labels=tokens)
        forward = _products_of(counter)
        result.loss.backward()
    (trace,) = model.traces
    trained = sum(item.numel() for item in module.parameters() if item.requires_grad)
    assert count_trained(model, trainable) == trained
    assert products(trace, "forward") == forward
    assert products(trace, "backward") + products(trace, "weight") == _products_of(counter) - forward


def _products_of(counter):
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operator, count in counts.items() if "mm" in str(operator))


def test_a_frozen_model_has_gradients_of_inputs_in_every_block_and_none_of_weights():
    model = traced_config(CONFIGS["llama"], name="llama", seq_len=LENGTH, precision="bf16", frozen=True)
    (trace,) = model.traces
    assert trace.has_frozen
    assert products(trace, "weight") == 0
    assert products(trace, "backward") == products(trace, "forward")
