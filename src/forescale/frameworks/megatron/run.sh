#!/usr/bin/env bash
set -euo pipefail
MEGATRON=${MEGATRON:-$HOME/Megatron-LM}  # {{todo}}: where Megatron-LM lies
DATA_PATH=${DATA_PATH:-$HOME/data/my_text_document}  # {{todo}}: prefix of the .bin and .idx files
TOKENIZER_MODEL=${TOKENIZER_MODEL:-$HOME/tokenizer}  # {{todo}}: folder or name of a Hugging Face tokenizer
CHECKPOINTS=${CHECKPOINTS:-$PWD/checkpoints}  # {{todo}}
TRAIN_ITERS=${TRAIN_ITERS:-{{steps}}}{{open}}
{{exports}}
{{arrays}}RATES=(  # {{todo}}: learning rates are yours; none of them changes step time or memory
    --lr 3e-4
    --min-lr 3e-5
    --lr-decay-style cosine
    --lr-warmup-iters 500
    --weight-decay 0.1
    --clip-grad 1.0
)
DATA=(
    --data-path "$DATA_PATH"
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model "$TOKENIZER_MODEL"
    --split 99,1,0
    --train-iters "$TRAIN_ITERS"
    --save "$CHECKPOINTS"
    --load "$CHECKPOINTS"
    --save-interval 1000
    --eval-interval 1000
    --eval-iters 10
    --log-interval 10
)

{{torchrun}} "$MEGATRON/{{program}}" {{words}}
