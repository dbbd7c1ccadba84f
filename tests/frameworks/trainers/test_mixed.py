"""The Trainer's type is DeepSpeed's where accelerate's file has none (Accelerate's set_mixed_precision)."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

ACCELERATE = """distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3}
num_processes: 8
num_machines: 1
"""


@pytest.mark.parametrize(
    ("mixed", "flag", "types"),
    [
        ("", "--bf16", ("bf16", "bf16")),
        ("mixed_precision: 'no'\n", "--fp16", ("fp16", "fp16")),
        ("mixed_precision: bf16\n", "--bf16", ("bf16", "bf16")),
        ("mixed_precision: 'no'\n", "", ("tf32", "fp32")),
    ],
)
def test_deepspeed_under_accelerate_takes_the_type_of_the_trainer(tmp_path, mixed, flag, types):
    (tmp_path / "ds.yaml").write_text(ACCELERATE + mixed)
    file = tmp_path / "run.sh"
    file.write_text(
        "#!/bin/bash\naccelerate launch --config_file ds.yaml run_clm.py --model_name_or_path Qwen/Qwen3-8B "
        f"--per_device_train_batch_size 1 --max_length 512 --output_dir out {flag}\n"
    )
    parsed = read_file(file, Options(model_of=load_model, strict=False))
    precision = parsed.workload_fields["precision"]
    assert (precision["compute"], precision["parameters"]) == types
    assert parsed.layout_fields["zero"] == 3
