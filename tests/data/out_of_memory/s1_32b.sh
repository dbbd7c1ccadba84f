torchrun --nnodes ${NODES:-1} --nproc-per-node 8 train.py --model_name Qwen/Qwen2.5-32B-Instruct --bf16 True --block_size ${BLOCK:-32768} \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --gradient_checkpointing True --fsdp "full_shard auto_wrap" --fsdp_config fsdp_qwen.json
