deepspeed --num_gpus 1 --module openrlhf.cli.train_sft --pretrain meta-llama/Meta-Llama-3-8B --dataset Open-Orca/OpenOrca --max_len 128 \
  --train_batch_size 1 --micro_train_batch_size 1 --zero_stage 2 --bf16 --flash_attn --packing_samples --gradient_checkpointing ${OFFLOAD}
