"""What others call the fields of a question, and our commands: options of frameworks, and everyday words."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

EXAMPLES: Mapping[str, str | int] = MappingProxyType(
    {"model": "llama-3.1-8b", "cluster": "h100-sxm", "devices": 8, "seq_len": 4096, "global_batch_size": 64}
)
"""Values of the main parts of a question that an error suggests where nothing better is known."""
INFERENCE = "Forescale projects training, not inference or serving"
"""What an error says of options and commands for models that are served."""
SLIP = 0.85
"""Similarity of a misspelt option and the one that an example has instead."""
_ENDS = re.compile(r"(_(size|degree|dim|num))+$")
"""What names of degrees end in without a difference."""
_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tensor_parallel tensor_model_parallel tensor_parallelism model_parallel mp num_tp", ("tp",)),
    ("sequence_parallel sequence_parallelism seq_parallel", ("sp",)),
    ("context_parallel context_parallelism ring_attention num_cp", ("cp",)),
    ("expert_parallel expert_model_parallel expert_parallelism moe_parallel num_ep", ("ep",)),
    ("expert_tensor_parallel expert_tensor_model_parallel", ("etp",)),
    (
        "pipeline_parallel pipeline_model_parallel pipeline_parallelism pipeline_stages stages num_stages num_pp "
        "pipe_parallel pipe",
        ("pp",),
    ),
    (
        "virtual_pipeline virtual_pipeline_parallel virtual_pipeline_model_parallel interleave interleaving "
        "num_virtual_stages num_chunks chunks",
        ("vpp",),
    ),
    (
        "microbatch_group_size_per_vp_stage microbatch_group_size_per_virtual_pipeline_stage microbatch_group_size "
        "group_size",
        ("microbatch_group",),
    ),
    ("dp data_parallel data_parallel_shard data_parallelism", ("dp_shard",)),
    ("ddp data_parallel_replicate replicas num_replicas replicate dp_replicate_degree", ("dp_replicate",)),
    (
        "fsdp zero_stage zero_optimization use_distributed_optimizer sharding strategy distributed_strategy "
        "sharding_strategy parallel_strategy",
        ("zero",),
    ),
    (
        "sequence_length seq_length seqlen max_seq_len max_seq_length max_sequence_length max_position_embeddings "
        "context_length ctx_len ctx context context_window block max_length model_max_length maxlen cutoff_len seq "
        "length",
        ("seq_len",),
    ),
    ("gbs bs bsz batch batchsize train_batch global_batch", ("global_batch_size",)),
    (
        "mbs mb micro_batch microbatch local_batch per_device_train_batch per_device_batch train_micro_batch "
        "train_micro_batch_size_per_gpu batch_size_per_gpu batch_per_gpu",
        ("micro_batch_size", "microbatches"),
    ),
    (
        "ga gas gradient_accumulation gradient_accumulation_steps grad_acc grad_accum grad_accum_steps "
        "grad_accumulation accumulation accumulation_steps num_microbatches num_micro_batches microbatches",
        ("microbatches", "micro_batch_size"),
    ),
    (
        "devices gpus num_gpus n_gpus ngpus num_devices world gpu_count chips num_chips accelerators nproc_per_node "
        "gpus_per_node num_gpus_per_node ntasks_per_node devices_per_node",
        ("devices", "num_devices"),
    ),
    ("num_nodes nnodes n_nodes hosts", ("nodes",)),
    ("gpu_clock_mhz gpu_clock clock clock_mhz", ("device_clock_mhz",)),
    ("gpu gpu_arch hardware machine accelerator system", ("cluster", "device")),
    (
        "train_tokens total_tokens training_tokens num_tokens token_budget dataset_tokens samples num_samples "
        "train_samples max_samples examples num_examples epochs num_epochs num_train_epochs max_epochs dataset_size "
        "steps num_steps max_steps train_steps training_steps total_steps num_train_steps iterations iters "
        "num_iterations max_iters max_iterations train_iters",
        ("tokens",),
    ),
    ("target_time target_step_time step_time", ("target_step_time", "max_step_time", "deadline", "limits")),
    ("max_days days", ("target_days", "deadline", "days")),
    ("max_time within duration", ("deadline", "target_days", "days")),
    ("deadline target_days", ("days",)),
    ("max_step_time min_mfu max_cost", ("limits",)),
    ("budget", ("max_cost", "budget")),
    ("network interconnect fabric nic bandwidth network_bandwidth ib infiniband", ("cluster",)),
    ("mtbf mtbf_hours mttf failure_rate", ("failures",)),
    ("spare_nodes num_spares hot_spares spare", ("spares",)),
    ("checkpoint_interval checkpoint_every save_interval save_steps checkpoint_frequency", ("interval",)),
    ("energy_price electricity electricity_cost power_price price_per_kwh kwh_price", ("electricity_price",)),
    (
        "hourly_price gpu_hour_price gpu_price price_per_hour price_per_gpu price_per_gpu_hour cost_per_hour "
        "cost_per_gpu_hour hourly_rate hourly_cost gpu_cost",
        ("price", "price_per_device_hour"),
    ),
    (
        "dtype torch_dtype compute_dtype data_type fp8 bf16 fp16 mixed_precision amp",
        ("precision", "compute"),
    ),
    (
        "ac activation_checkpointing activation_recompute gradient_checkpointing "
        "grad_checkpointing grad_checkpoint checkpointing remat "
        "recompute_activations recompute_granularity recomputation",
        ("recompute", "granularity"),
    ),
    ("optim optimizer_type", ("optimizer",)),
    (
        "flash_attn use_flash_attn use_flash_attention flash_attention_2 flash_attention_3 fa2 fa3",
        ("flash_attention",),
    ),
    ("lora_target_modules target_modules", ("lora_targets",)),
    ("torch_compile", ("compile",)),
    ("topk top_k top_n limit num_results", ("top",)),
    ("minimize minimise optimize_for goal target_metric", ("objective",)),
    ("memory_limit mem_limit max_mem mem max_gpu_memory memory_budget", ("max_memory",)),
    ("find find_max maximize maximise", ("solve",)),
    ("wide_modules bf16_modules skip_modules", ("high_precision_modules",)),
    ("first_wide_layers first_layers_bf16 layers_at_start_in_bf16", ("num_layers_at_start_in_bf16",)),
    ("last_wide_layers last_layers_bf16 layers_at_end_in_bf16", ("num_layers_at_end_in_bf16",)),
    ("adapter peft lora use_peft lora_r finetune finetuning finetuning_type", ("lora_rank",)),
    (
        "qlora load_in_4bit load_in_8bit quantization quantize quantized bnb_4bit quantization_bit",
        ("frozen_dtype",),
    ),
    ("stack software backend", ("framework",)),
    ("for to emit target", ("to", "for", "format")),
    ("format output_format print_format", ("as", "to", "for", "format")),
    ("op ops operation operations collective_op", ("collectives",)),
    ("message_size message_sizes bytes", ("sizes",)),
    ("out out_file outfile out_dir save", ("output",)),
    ("forward_time fwd fwd_time t_f", ("forward",)),
    ("backward_input input_backward bwd_input dgrad t_b", ("input_grad",)),
    ("backward_weight weight_backward bwd_weight wgrad t_w", ("weight_grad",)),
    ("communication communication_time comm_time message_time p2p p2p_time", ("comm",)),
)
_COMMANDS: tuple[tuple[str, str], ...] = (
    ("plan optimize optimise tune autotune best find layout layouts", "search"),
    ("estimate predict simulate time step speed throughput mfu", "project"),
    ("mem vram oom peak", "memory"),
    ("models clusters devices frameworks presets list hardware", "catalogue"),
    ("benchmark profile measure", "bench"),
    ("diff", "compare"),
    ("schedule schedules bubble draw", "pipeline"),
    ("cost price money energy days goodput", "run"),
    ("ui web gui dashboard", "serve"),
    ("launch convert write", "export"),
    ("why", "explain"),
)
_QUANTITIES: tuple[tuple[str, str], ...] = (
    ("tp tensor_parallel tp_allreduce tp_all_reduce", "tensor"),
    ("cp context_parallel ring", "context"),
    ("ep a2a all_to_all alltoall moe_comm expert_parallel dispatch", "expert"),
    ("pp p2p pipeline_parallel send_recv", "pipeline"),
    (
        "dp ddp fsdp zero allreduce all_reduce reduce_scatter all_gather allgather data_parallel grad_reduce",
        "data",
    ),
)
"""What others call the messages of each parallelism, and the part of a step that has them."""
_LISTS: tuple[tuple[str, str], ...] = (
    ("gpus gpu hardware accelerators accelerator chips chip", "devices"),
    ("machines machine systems system nodes cloud clouds", "clusters"),
    ("software stacks trainers", "frameworks"),
    ("architectures networks llms", "models"),
)
"""What others call the lists of the catalogue."""
_VALUES: tuple[tuple[str, str], ...] = (
    ("memory mem peak", "peak_memory"),
    ("time speed fastest throughput latency mfu tokens_per_second tokens_per_s", "step_time"),
    ("a2a", "all_to_all"),
    ("a2a", "ulysses"),
    ("p2p", "ring"),
    ("a2a+p2p", "hierarchical"),
    ("flex", "deepep"),
    ("bfloat16", "bf16"),
    ("float16 half", "fp16"),
    ("float32 float", "fp32"),
    ("float8", "fp8"),
    ("adam adamw_torch adamw_torch_fused fused_adam adamw_fused distributed_adam", "adamw"),
    ("true on yes", "full"),
    ("true on yes", "always"),
    ("true on yes", "default"),
    ("false off no", "none"),
    ("false off no", "never"),
)
"""Values as frameworks and papers write them, and ours: of all that a word may mean, a field takes one at most."""
_OF_MOMENTS = ("moments", "moment_dtype", "second_moments", "second_moment_dtype")
"""Fields whose 8-bit type is fp8, as 8 bits per element are all that counts of it."""
_8_BITS = "int8 uint8 8bit"
_HYBRID = "hsdp hybrid_shard hybrid_sharding"
"""Sharding within replicas, whose number is another option."""
_WITH_VALUES: tuple[tuple[str, str], ...] = (
    ("zero1 zero_1 distributed_optimizer use_distributed_optimizer", "--zero 1"),
    ("zero2 zero_2", "--zero 2"),
    ("zero3 zero_3 fsdp fsdp2 full_shard fully_shard fully_sharded", "--zero 3"),
    (_HYBRID, "--zero 3"),
    ("ddp", "--zero 0"),
    ("bf16 bfloat16", "--precision bf16"),
    ("fp16 float16 half", "--precision fp16"),
    ("fp8 float8", "--precision fp8"),
    ("fp32", "--precision fp32"),
    ("tf32", "--precision tf32"),
    ("recompute_activations", "--recompute selective"),
    (
        "ac activation_checkpointing activation_recompute gradient_checkpointing "
        "grad_checkpointing grad_checkpoint checkpointing remat recomputation",
        "--recompute full",
    ),
    ("adapter peft lora use_peft", "--lora-rank 16"),
    ("qlora load_in_4bit 4bit int4", "--lora-rank 16 --frozen-dtype nf4 --recompute full"),
    ("load_in_8bit 8bit", "--lora-rank 16 --frozen-dtype int8 --recompute full"),
    ("cpu_offload offload optimizer_offload offload_to_cpu offload_optimizer", "--offload-optimizer 1"),
    ("lora_rank", "--lora-rank 16"),
    ("compile torch_compile", "--compile default"),
    (
        "no_recompute no_checkpointing no_gradient_checkpointing no_activation_checkpointing",
        "--recompute none",
    ),
    ("no_pp no_pipeline no_pipeline_parallel", "--pp 1"),
    ("no_tp no_tensor_parallel", "--tp 1"),
    ("no_cp no_context_parallel", "--cp 1"),
    ("no_ep no_expert_parallel", "--ep 1"),
    ("no_zero no_fsdp", "--zero 0"),
    ("no_failures", "--failures 0"),
    ("megatron megatron_lm megatron_core", "--framework megatron"),
    ("deepspeed", "--framework deepspeed"),
    ("torchtitan", "--framework torchtitan"),
    ("huggingface hf", "--framework transformers"),
    ("frozen_dtype", "--frozen-dtype nf4"),
    ("recompute", "--recompute full"),
    ("adamw adam", "--optimizer adamw"),
    ("muon", "--optimizer muon"),
    ("all_linear", "--lora-targets q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"),
    ("max_seq_len max_seq_length max_sequence_length max_context longest", "--solve seq_len"),
    ("max_batch max_batch_size max_micro_batch", "--solve micro_batch_size"),
    ("dpo ipo", "--set workload.reference=copy"),
    ("chinchilla compute_optimal chinchilla_optimal", "--tokens 20x"),
)
"""Switches of others, and the options with values that say the same."""
_TEMPLATES: tuple[tuple[str, str], ...] = (
    ("ulysses ulysses_size ulysses_degree ulysses_sequence_parallel_size", "--cp {} --cp-kind a2a"),
    ("mfu measured_mfu", "--measured mfu={}"),
    ("step_time iteration_time iter_time time_per_step", "--measured step={}"),
    ("tokens_per_sec_per_gpu tokens_per_second_per_gpu tgs tps", "--measured tokens_per_s_per_device={}"),
    ("peak_memory memory_used", "--measured memory={}"),
    ("log log_file logfile profile profiler_trace", "--measured {}"),
    ("vram gpu_memory gpu_mem device_memory hbm", "--set cluster.device.hbm_bytes={}"),
)
"""Options of others with a value, and options of ours around that value."""
_DEVICE: tuple[tuple[str, str], ...] = (
    ("memory vram hbm memory_bytes memory_size gpu_memory", "hbm_bytes"),
    ("bandwidth memory_bandwidth hbm_bw", "hbm_bandwidth"),
    ("power tdp", "power_w"),
    ("flops peak_flops tflops", "bf16"),
    ("gpus_per_node devices_per_node node_size gpus", "devices_per_node"),
    ("nvlink nvlink_bandwidth intra_node_bandwidth xgmi scale_up scale_up_bandwidth", "nvlink"),
    ("pcie pcie_bandwidth", "pcie"),
    ("infiniband ib infiniband_bandwidth", "infiniband"),
    ("nic network network_bandwidth inter_node_bandwidth roce rdma scale_out scale_out_bandwidth", "roce"),
    ("ethernet ethernet_bandwidth", "ethernet"),
)
"""Fields of a device and its node as people call them; a rate without a type is that of 16 bits."""
_LEFT_OUT: tuple[tuple[str, str, str], ...] = (
    ("", "tokens_per_day", "the answer of project has the tokens of a day"),
    ("project", "mfu utilization model_flops_utilization", "the MFU is projected, not assumed"),
    ("search", "mfu utilization model_flops_utilization", "the MFU is projected, not assumed"),
    ("run", "mfu utilization model_flops_utilization", "the MFU is projected, not assumed"),
    ("run", "goodput availability uptime", "the goodput is projected, from --failures"),
    ("", "grpo ppo rlhf reinforce", "the training step is projected, without sampling"),
    (
        "",
        "inference infer serving generate generation decode decoding prefill kv_cache kv_cache_dtype max_new_tokens "
        "output_len output_tokens prompt_len input_len concurrency requests_per_second ttft tpot",
        INFERENCE,
    ),
    (
        "",
        "full_finetune full_finetuning full_fine_tune full_ft full_parameter full_parameters sft",
        "all weights are trained unless adapters are asked for",
    ),
    (
        "",
        "slow_gpu slow_gpus slow_device slow_devices slow_rank slow_node slowest",
        "a step waits for the slowest device: --device-clock-mhz projects all devices at its clock",
    ),
    ("", "packing sample_packing pack packed", "every sequence is full of tokens, as packed ones are"),
    ("memory layout", "per_stage by_stage stages_only", "the answer has a row of each stage"),
    (
        "search",
        "max_step_time step_time_limit max_seconds",
        "the fastest layout is first, so its step time decides",
    ),
    ("compare", "budget max_cost", "the answer has the cost of a million tokens"),
    ("run", "budget max_cost", "forescale check --solve tokens finds the tokens that it pays for"),
    (
        "compare",
        "deadline target_days max_days max_time within",
        "the answer has the days of the run for --tokens",
    ),
)
"""Commands (empty: all), options of others and what the answer has in their place."""
_WITHOUT_EFFECT = (
    "lr learning_rate min_lr weight_decay warmup warmup_steps warmup_ratio lr_scheduler lr_scheduler_type "
    "lr_warmup_iters adam_beta1 adam_beta2 beta1 beta2 lora_alpha output_dir logging_steps log_interval run_name "
    "report_to wandb_project"
)
"""Options of others that change neither time nor memory."""
_MEANT = {word: fields for parts, fields in _WORDS for word in parts.split()}
_CONVERTED: tuple[tuple[str, str], ...] = (
    (
        "ga gas gradient_accumulation gradient_accumulation_steps grad_acc grad_accum grad_accum_steps "
        "grad_accumulation accumulation accumulation_steps num_microbatches num_micro_batches microbatches",
        "batch = micro-batch × accumulation × data-parallel ranks",
    ),
    (
        "samples num_samples train_samples max_samples examples num_examples dataset_size epochs num_epochs "
        "num_train_epochs max_epochs",
        "tokens = epochs × samples × tokens of a sample",
    ),
    (
        "steps num_steps max_steps train_steps training_steps total_steps num_train_steps iterations iters "
        "num_iterations max_iters max_iterations train_iters",
        "tokens = steps × sequences of a step × tokens of a sequence",
    ),
    (
        "mtbf mtbf_hours mttf",
        "failures of a node and day: 24 h / (nodes × time between failures of the job), or 24 h × devices of a node "
        "/ that of one device",
    ),
    (
        "nproc_per_node gpus_per_node num_gpus_per_node ntasks_per_node devices_per_node",
        "devices = nodes × devices of a node",
    ),
    ("sharding zero_optimization", "a stage of ZeRO, 0 to 3"),
    (
        "network interconnect fabric nic bandwidth network_bandwidth ib infiniband",
        "a cluster has its network; --set cluster.tiers.… changes it",
    ),
    ("quantization quantize quantized bnb_4bit quantization_bit", "such as nf4 or int8"),
    ("dpo ipo", "a pair is two sequences of the batch; with adapters alone, reference=shared"),
    (_HYBRID, "--dp-replicate N gives the replicas"),
    ("finetune finetuning finetuning_type", ""),
)
"""Words for our fields that count or name something else than these do, and what ours take."""


def spelling(text: str, known: Collection[object], field: str = "") -> str | None:
    """Return which of the `known` values of a `field` `text` is another spelling of; None if it is none.

    Letter case, dashes and underscores make no difference.
    """
    names = {_letters(item): item for item in known if isinstance(item, str)}
    others = (value for parts, value in _VALUES if _letters(text) in map(_letters, parts.split()))
    eight_bits = ["fp8"] if field in _OF_MOMENTS and _letters(text) in _8_BITS.split() else []
    values = (*others, *eight_bits)
    return names.get(_letters(text)) or next((value for value in values if value in known), None)


@cache
def _optimizer_table() -> Mapping[str, tuple[str, str | None]]:
    """Return the optimizer and the type of its moments by the names of transformers, bitsandbytes and torchao."""
    table = Path(__file__).with_name("frameworks") / "trainers/optimizers.json"
    return {
        name: (kind, moments)
        for name, (kind, moments) in json.loads(table.read_text("utf-8"))["names"].items()
    }


@cache
def _optimizers() -> Mapping[str, tuple[str, str | None]]:
    return {_letters(name): value for name, value in _optimizer_table().items()}


def optimizer_names() -> tuple[str, ...]:
    """Return the names of optimizers of others that have a type of the moments."""
    return tuple(sorted(name for name, (_, moments) in _optimizer_table().items() if moments))


def optimizer_called(name: str) -> tuple[str, str] | None:
    """Return the optimizer, and the type of its moments, that others call `name`; None if no name has such a type."""
    kind, moments = _optimizers().get(_letters(name.removeprefix("--")), ("", None))
    return (kind, moments) if moments else None


def _letters(text: str) -> str:
    return re.sub("[-_ ]", "", text.lower())


def command_called(name: str) -> str | None:
    """Return the command that does what others call `name`; None if it is none."""
    return next((command for parts, command in _COMMANDS if name.lower() in parts.split()), None)


def list_called(name: str) -> str | None:
    """Return the list of the catalogue that others call `name`; None if it is none."""
    return next((item for parts, item in _LISTS if name.lower() in parts.split()), None)


def with_value(name: str) -> str | None:
    """Return the options that say what a switch of others does, such as --zero 3 for fsdp; None if it is none."""
    plain = name.strip("-_").replace("-", "_").lower()
    text = next((text for parts, text in _WITH_VALUES if plain in parts.split()), None)
    if text is None and (optimizer := optimizer_called(plain)):
        text = "--optimizer {} --moment-dtype {}".format(*optimizer)
    return text


def around_value(name: str, value: str) -> str | None:
    """Return the options that say what an option of others does with its value; None if it is none of those."""
    plain = name.strip("-_").replace("-", "_").lower()
    text = next((text for parts, text in _TEMPLATES if plain in parts.split()), None)
    return None if text is None or value[:1] in ("", "-") else text.format(value)


def device_field(name: str) -> str | None:
    """Return the field of a device, or the link of its node, that people call so; None if it is none."""
    plain = name.replace("-", "_").lower()
    return next((field for parts, field in _DEVICE if plain in parts.split()), None)


def messages_called(name: str) -> str | None:
    """Return the part of a step that has the messages that others call so, such as tp_comm; None if it is none."""
    plain = re.sub(r"^(step_time|time)[._]|_(comm|communication|time)$", "", name.replace("-", "_").lower())
    part = next((part for parts, part in _QUANTITIES if plain in parts.split()), None)
    return None if part is None else f"step_time.{part}_comm"


def is_without_effect(name: str) -> bool:
    """Return whether an option of others changes neither time nor memory."""
    return name.strip("-_").replace("-", "_").lower() in _WITHOUT_EFFECT.split()


def is_per_device(name: str) -> bool:
    """Return whether an option of Hugging Face's Trainer counts the sequences of one device."""
    return name.strip("-_").replace("-", "_").lower().startswith("per_device")


def is_hybrid(text: str) -> bool:
    """Return whether others call hybrid sharding so."""
    return text.strip("-_").replace("-", "_").lower() in _HYBRID.split()


def left_out(name: str, command: str) -> str | None:
    """Return what an answer of a command has in place of an option of others; None where it has nothing."""
    plain = name.strip("-_").replace("-", "_").lower()
    return next(
        (text for path, parts, text in _LEFT_OUT if path in ("", command) and plain in parts.split()), None
    )


def meant(name: str, known: Collection[str]) -> str | None:
    """Return which of the `known` fields others call `name`, with dashes or underscores; None if it is none."""
    plain = name.strip("-_").replace("-", "_").lower()
    short = _ENDS.sub("", plain)
    fields = _MEANT.get(plain) or _MEANT.get(short, (short,))
    return next((field for field in fields if field in known), None)


def converted(name: str) -> str | None:
    """Return how a value of an option of others becomes one of ours, empty if unsaid; None if it is the same."""
    how = remark(name)
    switch = with_value(name)
    return "" if how is None and switch is not None and "--solve" not in switch else how


def remark(name: str) -> str | None:
    """Return what to say of a value of an option of others that counts or names something else; None for nothing."""
    plain = name.strip("-_").replace("-", "_").lower()
    return next((text for parts, text in _CONVERTED if plain in parts.split()), None)


def is_slip(name: str, option: str) -> bool:
    """Return whether a name hardly differs from an option, or is a part of it, so that an example may have it."""
    from difflib import SequenceMatcher

    plain = name.strip("-")
    return plain in option or SequenceMatcher(None, plain, option.strip("-")).ratio() >= SLIP
