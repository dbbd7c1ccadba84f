"""Compare traced blocks with PyTorch itself, on the CPU: saved bytes with its hooks, FLOPs with its counter.

Saved bytes are those of tensors that autograd saves in the forward of a block, without parameters and what blocks
share (position embeddings, masks). FLOPs are those of a whole step in the operators that the counter knows.

Usage: python benchmarks/bench_blocks.py [TYPE ...]. Prints a row for each type, and fails if one differs.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from forescale.spec.trace import Trace, TracedBlock  # noqa: E402
from forescale.trace.sources import source_of_config  # noqa: E402
from forescale.trace.structure import find_blocks  # noqa: E402
from forescale.trace.tracing import trace_module  # noqa: E402

BATCH, LENGTH = 2, 64
SIZES = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "vocab_size": 200,
    "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
SHORT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 200}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "llama", "mistral", "qwen2", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "glm4", "smollm3",
            "starcoder2", "granite", "cohere", "stablelm", "apertus", "ernie4_5", "nemotron", "gpt_neox", "phi",
        ),
        SIZES,
    ),
    "seed_oss": SIZES | {"attention_dropout": 0.0, "residual_dropout": 0.0},
    "qwen3": SIZES | {"head_dim": 16},
    "opt": SIZES | {"ffn_dim": 160, "word_embed_proj_dim": 64, "dropout": 0.0},
    "gpt2": SHORT | {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "bloom": SIZES | {"n_layer": 3, "n_head": 4},
    "gptj": SHORT | {"rotary_dim": 8, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "falcon": SIZES | {"attention_dropout": 0.0, "hidden_dropout": 0.0},
    "mixtral": SIZES | EXPERTS,
    "qwen2_moe": SIZES | EXPERTS | {"shared_expert_intermediate_size": 48},
    "qwen3_moe": SIZES | EXPERTS | {"head_dim": 16},
    "olmoe": SIZES | EXPERTS,
    "gpt_oss": SIZES | EXPERTS | {"head_dim": 16},
    "deepseek_v3": SIZES | EXPERTS | LATENT,
}  # fmt: skip
EAGER = {"bloom", "deepseek_v3", "gemma2", "gpt_oss"}
"""Types that have no fused attention, or none on the CPU, which are compared with eager attention."""


def real_step(config: dict[str, Any], attention: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the bytes that each block saves, and the FLOPs of each operator, of a step that runs."""
    import transformers

    made = transformers.AutoConfig.for_model(**config, use_cache=False)
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(made, attn_implementation=attention)
    module.to(torch.bfloat16).train()
    saved = _Saved(module)
    tokens = torch.randint(1, 200, (BATCH, LENGTH))
    with FlopCounterMode(display=False) as counter:
        loss = module(input_ids=tokens, labels=tokens).loss
        saved.stop()
        loss.backward()
    flops = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    return saved.bytes(), flops


class _Saved:
    """Bytes of the storages that autograd saves in the forward of each block."""

    def __init__(self, module: nn.Module) -> None:
        self.constant = {item.untyped_storage()._cdata for item in (*module.parameters(), *module.buffers())}
        self.tensors: dict[str, list[torch.Tensor]] = {}
        self.path = ""
        self.hooks: list[Any] = []
        for path, block in find_blocks(module).items():
            self.hooks.append(block.register_forward_pre_hook(lambda _m, _a, p=path: self._enter(p)))
            self.hooks.append(block.register_forward_hook(lambda *_: self._enter("")))
        self.context = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda item: item)
        self.context.__enter__()

    def _enter(self, path: str) -> None:
        self.path = path

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.tensors.setdefault(self.path, []).append(tensor.detach())
        return tensor

    def stop(self) -> None:
        self.context.__exit__(None, None, None)

    def bytes(self) -> dict[str, int]:
        """Return the bytes of each block; what several blocks save belongs to none."""
        storages = {
            path: {item.untyped_storage()._cdata: item.untyped_storage().nbytes() for item in tensors}
            for path, tensors in self.tensors.items()
            if path
        }
        return {
            path: sum(
                size
                for key, size in sizes.items()
                if key not in self.constant
                and not any(key in other for name, other in storages.items() if name != path)
            )
            for path, sizes in storages.items()
        }


def products(block: TracedBlock) -> float:
    """Return the FLOPs of the products of a block."""
    total = 0.0
    for operator in block.operators:
        for kernel in (*operator.forward, *operator.backward, *operator.weight):
            sizes = [extent.at(float(BATCH), float(LENGTH)) for extent in kernel.extents]
            if kernel.kind.startswith("product"):
                total += 2.0 * kernel.count * sizes[0] * sizes[1] * sizes[2] * sizes[3]
    return total


def traced_step(config: dict[str, Any], attention: str) -> Trace:
    """Return the trace of a configuration."""
    source = source_of_config(config, parameters="bf16", attention=attention)
    return trace_module(source.module, source.inputs, seq_len=LENGTH, thresholds=None)


def row_of(kind: str) -> tuple[float, float]:
    """Print the row of a type; return the largest error of saved bytes, and the error of FLOPs."""
    config = {"model_type": kind, **FAMILIES[kind]}
    attention = "eager" if kind in EAGER else "sdpa"
    trace, (saved, flops) = traced_step(config, attention), real_step(config, attention)
    layers = [trace.blocks[name] for name in trace.layers if trace.blocks[name].parameters]
    pairs = [
        (float(block.saved_bytes.at(float(BATCH), float(LENGTH))), real)
        for block, real in zip(layers, saved.values(), strict=True)
    ]
    of_bytes = max(abs(ours / real - 1.0) for ours, real in pairs)
    ours = sum(map(products, (trace.embedding, trace.head, *(trace.blocks[name] for name in trace.layers))))
    real = sum(count for name, count in flops.items() if "attention" not in name)
    print(
        f"{kind:14s}{pairs[-1][0]:14,.0f}{pairs[-1][1]:14,.0f}{of_bytes:9.2%}{ours:18,.0f}{ours / real - 1:9.2%}"
    )
    return of_bytes, abs(ours / real - 1.0)


def main() -> None:
    """Print the table; exit with 1 if saved bytes differ by more than 1 %, or FLOPs at all."""
    torch.set_num_threads(1)
    print(f"{'type':14s}{'saved bytes':>14s}{'hooks':>14s}{'error':>9s}{'FLOPs':>18s}{'error':>9s}")
    rows = [row_of(kind) for kind in sys.argv[1:] or FAMILIES]
    good = [of_bytes <= 0.01 and of_flops == 0.0 for of_bytes, of_flops in rows]
    print(f"{sum(good)} of {len(good)} types agree")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
