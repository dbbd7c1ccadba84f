deepspeed --include localhost:3 --master_port=9901 fastchat/train/train_lora.py --model_name_or_path lmsys/vicuna-7b-v1.5 --lora_r 8 --lora_alpha 16 \
  --lora_dropout 0.05 --fp16 True --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --learning_rate 2e-5 --weight_decay 0. \
  --model_max_length ${LENGTH:-2048} --q_lora True --deepspeed ds_z2_config.json
