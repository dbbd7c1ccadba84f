"""Megatron-LM's own parser and process groups, asked about many command lines; run in a process of its own.

    python megatron_parser.py FOLDER < asked.jsonl

reads lists of {"arguments", "world", "variables"}, one a line, and prints for each a list of what Megatron understood, or
why it refused.
No device is there: process groups are torch's fake ones, kernels are never run.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import traceback
import types
import typing
import warnings
from collections.abc import Iterator
from typing import Any

ARGUMENTS = (
    "data_parallel_size", "micro_batch_size", "global_batch_size", "seq_length", "sequence_parallel", "context_parallel_size",
    "cp_comm_type", "use_distributed_optimizer", "num_distributed_optimizer_instances", "use_megatron_fsdp",
    "data_parallel_sharding_strategy", "recompute_granularity", "recompute_method", "recompute_num_layers",
    "recompute_modules", "bf16", "fp16", "fp8", "fp8_recipe", "fp8_param_gather", "accumulate_allreduce_grads_in_fp32",
    "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p_comm", "num_experts", "moe_router_topk",
    "moe_token_dispatcher_type", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "moe_ffn_hidden_size", "mtp_num_layers", "multi_latent_attention", "kv_lora_rank", "optimizer", "cuda_graph_impl",
    "cpu_offloading_num_layers", "optimizer_cpu_offload", "optimizer_offload_fraction", "quick_geglu", "glu_linear_offset",
    "activation_func_clamp_value", "position_embedding_type", "rotary_base", "rotary_scaling_factor",
    "yarn_original_max_position_embeddings", "yarn_beta_fast", "yarn_beta_slow", "yarn_correction_range_round_to_int",
    "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "mscale", "mscale_all_dim",
    "no_rope_freq", "moe_router_score_function", "moe_router_pre_softmax", "moe_router_topk_scaling_factor",
)  # fmt: skip
"""What is told of the parsed and checked arguments."""


class _Anything:
    """Stands for whatever a module without an implementation is asked for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else _Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __getitem__(self, key: Any) -> Any:
        return _Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes imports of what only kernels need work where it is not there."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        alone = name.split(".", maxsplit=1)[0] == "triton"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if alone else None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _Anything().__getattr__  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__version__ = "3.0.0"  # type: ignore[attr-defined]


def main(folder: str) -> None:
    warnings.filterwarnings("ignore")
    answered = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()):
        _import(folder)
        for line in sys.stdin:
            answers = list(map(_answer, json.loads(line)))
            print(json.dumps(answers, default=str), file=answered, flush=True)


def _answer(item: dict[str, Any]) -> dict[str, Any]:
    try:
        return _understood(item["arguments"], item["world"], item["variables"])
    except (Exception, SystemExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return {"refused": f"{type(error).__name__}: {error} ({place.name}: {place.line})"}


def _import(folder: str) -> None:
    if not hasattr(typing, "override"):
        typing.override = lambda function: function  # type: ignore[attr-defined]
    import torch._dynamo  # these look for triton themselves, and would take ours for one
    import torch._inductor.compile_fx
    import torch.distributed.tensor
    import torch.utils.flop_counter

    sys.meta_path.insert(0, _Kernels())
    sys.path.insert(0, folder)
    from megatron.core import utils
    from packaging.version import Version

    torch.cuda.get_device_capability = lambda *_: (9, 0)  # a Hopper
    utils._te_version = Version("2.9.0")  # a Transformer Engine that has all recipes
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.training import arguments

    rope_utils.fused_apply_rotary_pos_emb = _Anything()
    arguments.get_device_arch_version = lambda: 9


def _understood(names: list[str], world: int, variables: dict[str, str]) -> dict[str, Any]:
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(variables, WORLD_SIZE=str(world), RANK="0")
    from megatron.training import arguments

    sys.argv = ["pretrain_gpt.py", *names]
    args = arguments.parse_args()
    arguments.validate_args(args, {})
    config = arguments.core_transformer_config_from_args(args)
    result = {name: _plain(getattr(args, name, None)) for name in ARGUMENTS}
    with _groups(args, world) as groups:
        eps = config.layernorm_epsilon
        return {**result, **groups, "layers": _layers(args, config), "eps": eps}


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | bool | str | list | None) else str(value)


@contextlib.contextmanager
def _groups(args: Any, world: int) -> Iterator[dict[str, int]]:
    """Make the process groups that the arguments ask for and tell their sizes."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=args.tensor_model_parallel_size,
            pipeline_model_parallel_size=args.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            hierarchical_context_parallel_sizes=args.hierarchical_context_parallel_sizes,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            create_gloo_process_groups=False,
        )
        yield {
            "tp": parallel_state.get_tensor_model_parallel_world_size(),
            "pp": parallel_state.get_pipeline_model_parallel_world_size(),
            "vpp": args.virtual_pipeline_model_parallel_size or 1,
            "cp": parallel_state.get_context_parallel_world_size(),
            "dp": parallel_state.get_data_parallel_world_size(),
            "ep": parallel_state.get_expert_model_parallel_world_size(),
            "etp": parallel_state.get_expert_tensor_parallel_world_size(),
            "expert_dp": parallel_state.get_expert_data_parallel_world_size(),
        }
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _layers(args: Any, config: Any) -> list[int]:
    """Return the layers of each virtual stage, in the order of the model."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    pp, vpp = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size
    result = []
    for chunk in range(vpp or 1):
        for rank in range(pp):
            parallel_state.set_pipeline_model_parallel_rank(rank)
            result.append(get_num_layers_to_build(config, vp_stage=chunk if vpp else None, pp_rank=rank))
    return result


if __name__ == "__main__":
    main(sys.argv[1])
