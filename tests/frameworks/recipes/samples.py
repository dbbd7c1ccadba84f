"""One recipe of each trainer."""

from tests.conformance.readers import Sample

from forescale.catalogue.models import load_model
from forescale.frameworks.reading import Options

TEXTS = {
    "torchtune": """
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: [q_proj, output_proj]
  apply_lora_to_mlp: true
  lora_rank: 4
tokenizer:
  max_seq_len: 2048
batch_size: 2
gradient_accumulation_steps: 4
optimizer:
  _component_: torch.optim.AdamW
  lr: 3.0e-4
enable_activation_checkpointing: true
dtype: bf16
seed: null
""",
    "litgpt": """
checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
precision: bf16-mixed
devices: 2
num_nodes: 2
train:
  global_batch_size: 32
  micro_batch_size: 4
  max_seq_length: 1024
eval:
  interval: 100
""",
    "llm-foundry": """
max_seq_len: 512
model:
  name: mpt_causal_lm
  d_model: 128
  n_heads: 4
  n_layers: 2
  expansion_ratio: 4
  max_seq_len: ${max_seq_len}
  vocab_size: 1000
  attn_config:
    alibi: true
optimizer:
  name: decoupled_lionw
global_train_batch_size: 64
device_train_microbatch_size: 4
precision: amp_bf16
fsdp_config:
  sharding_strategy: SHARD_GRAD_OP
  activation_checkpointing: true
""",
    "olmo": """
model:
  d_model: 128
  n_heads: 4
  n_layers: 2
  mlp_ratio: 8
  rope: true
  vocab_size: 1000
  max_sequence_length: 256
  layer_norm_type: rms
global_train_batch_size: 64
device_train_microbatch_size: 2
precision: amp_bf16
fsdp:
  sharding_strategy: FULL_SHARD
optimizer:
  name: adamw
""",
    "automodel": """
step_scheduler:
  global_batch_size: 64
  local_batch_size: 2
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
  torch_dtype: bfloat16
distributed:
  strategy: fsdp2
  tp_size: 2
  cp_size: 1
  pp_size: 2
  ep_size: 4
  activation_checkpointing: true
packed_sequence:
  packed_sequence_size: 4096
optimizer:
  _target_: torch.optim.AdamW
  lr: 1.0e-4
""",
    "nemo-rl": """
grpo:
  num_prompts_per_step: 8
policy:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 64
  train_micro_batch_size: 2
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg:
    enabled: true
    cpu_offload: false
    sequence_parallel: false
    activation_checkpointing: true
    tensor_parallel_size: 2
    context_parallel_size: 1
  megatron_cfg:
    enabled: false
    activation_checkpointing: true
    tensor_model_parallel_size: 1
    pipeline_model_parallel_size: 2
    sequence_parallel: false
    optimizer:
      optimizer_cpu_offload: false
    distributed_data_parallel_config:
      grad_reduce_in_fp32: false
  dynamic_batching:
    enabled: false
    train_mb_tokens: 3072
  sequence_packing:
    enabled: false
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
  generation:
    backend: vllm
    colocated:
      enabled: true
      resources:
        num_nodes: 1
cluster:
  gpus_per_node: 8
  num_nodes: 2
""",
    "verl": """
data:
  max_prompt_length: 1024
  max_response_length: 3072
actor_rollout_ref:
  model:
    path: Qwen/Qwen3-8B
    enable_gradient_checkpointing: true
  actor:
    strategy: fsdp
    ppo_mini_batch_size: 32
    ppo_micro_batch_size_per_gpu: 2
    ulysses_sequence_parallel_size: 2
    fsdp_config:
      param_offload: true
      reshard_after_forward: true
  rollout:
    n: 4
    tensor_model_parallel_size: 4
algorithm:
  adv_estimator: grpo
trainer:
  n_gpus_per_node: 8
  nnodes: 2
""",
    "veomni": """
model:
  model_path: /models/Qwen3-8B-Base
data:
  max_seq_len: 4096
train:
  accelerator:
    ulysses_size: 2
    fsdp_config:
      fsdp_mode: fsdp2
      mixed_precision:
        enable: true
  gradient_checkpointing:
    enable: true
  global_batch_size: 16
  micro_batch_size: 1
  optimizer:
    type: muon
""",
    "gpt-neox": """
{
  "pipe_parallel_size": 2,
  "model-parallel-size": 2,
  "num_layers": 4,
  "hidden_size": 128,
  "num_attention_heads": 4,
  "seq_length": 256,
  "max_position_embeddings": 256,
  "pos_emb": "rotary",
  "no_weight_tying": true,
  "optimizer": {"type": "Adam"},
  "zero_optimization": {"stage": 1},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "checkpoint_activations": true,
  "fp16": {"enabled": true},
  "vocab_file": "data/gpt2-vocab.json",
  "merge_file": "data/gpt2-merges.txt",
  "train_iters": 10
}
""",
    "flagscale": """
system:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  sequence_parallel: true
  precision:
    bf16: true
model:
  num_layers: 4
  hidden_size: 128
  num_attention_heads: 4
  seq_length: 256
  max_position_embeddings: 256
  micro_batch_size: 2
  global_batch_size: 16
  disable_bias_linear: true
data:
  tokenizer:
    vocab_size: 1000
""",
    "nemo-1": """
trainer:
  devices: 8
  num_nodes: 2
  precision: bf16
model:
  megatron_amp_O2: true
  micro_batch_size: 2
  global_batch_size: 64
  tensor_model_parallel_size: 2
  encoder_seq_length: 256
  max_position_embeddings: 256
  num_layers: 4
  hidden_size: 128
  num_attention_heads: 4
  activation: fast-swiglu
  ffn_hidden_size: 256
  normalization: rmsnorm
  position_embedding_type: rope
  activations_checkpoint_granularity: selective
  optim:
    name: distributed_fused_adam
  tokenizer:
    library: megatron
""",
    "bridge-yaml": """
model:
  num_layers: 4
  hidden_size: 128
  num_attention_heads: 4
  vocab_size: 1000
  tensor_model_parallel_size: 2
  seq_length: 256
  recompute_granularity: selective
train:
  micro_batch_size: 2
  global_batch_size: 16
dataset:
  seq_length: 256
peft:
  dim: 4
""",
}
DEVICES = {
    "bridge-yaml": 8,
    "llm-foundry": 8,
    "olmo": 8,
    "torchtune": 4,
    "automodel": 16,
    "veomni": 8,
    "gpt-neox": 8,
    "flagscale": 8,
}
"""Devices of trainers that leave them to their launcher."""


def options_of(name):
    return Options(num_devices=DEVICES.get(name), model_of=load_model)


def _with_key(text, key):
    return text.replace("{", f'{{"{key}": 3,', 1) if text.lstrip().startswith("{") else f"{text}{key}: 3\n"


SAMPLES = {
    name: [Sample(text=text, suffix=".yaml", with_key=_with_key, options=options_of(name))]
    for name, text in TEXTS.items()
}
