torchrun --nproc_per_node=${GPUS:-4} --master_port=20001 fastchat/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --bf16 True \
  --per_device_train_batch_size ${BATCH:-2} --per_device_eval_batch_size 2 --gradient_accumulation_steps 16 --evaluation_strategy "no" \
  --learning_rate 2e-5 --lr_scheduler_type "cosine" --fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap 'LlamaDecoderLayer' \
  --tf32 True --model_max_length 2048 --gradient_checkpointing True --lazy_preprocess True
