import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

RECIPE = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
bf16: true
beta: 0.05
max_length: 512
per_device_train_batch_size: 2
"""


@pytest.fixture
def read(tmp_path):
    """Read a text as a file of that path."""

    def call(text, name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return read_file(path, Options(num_devices=8, model_of=load_model, strict=False))

    return call


@pytest.mark.parametrize(
    ("name", "reference", "micro"),
    [
        ("recipes/small/orpo/config_full.yaml", "none", 4),
        ("recipes/small/kto/config_full.yaml", "copy", 2),
        ("recipes/small/dpo/config_full.yaml", "copy", 4),
        ("config_cpo.yaml", "none", 4),
        ("config.yaml", "copy", 4),
    ],
)
def test_a_beta_is_that_of_the_stage_that_names_the_file(read, name, reference, micro):
    parsed = read(RECIPE, name)
    assert parsed.workload_fields.get("reference", "none") == reference
    assert parsed.layout_fields["micro_batch_size"] == micro


def test_distillation_has_a_teacher_and_no_reference(read):
    text = RECIPE.replace("beta: 0.05", "beta: 0.5\nrl: gkd\nmax_completion_length: 128")
    parsed = read(text, "config.yaml")
    assert parsed.workload_fields.get("reference", "none") == "none"
    assert [warning for warning in parsed.warnings if "teacher" in warning]


@pytest.mark.parametrize(("stage", "is_warned"), [("cls", True), ("pt", False), ("sft", False)])
def test_a_stage_that_llamafactory_lacks_is_warned_of(read, stage, is_warned):
    text = f"model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: {stage}\nfinetuning_type: full\ncutoff_len: 512\n"
    assert any("stage" in warning for warning in read(text, "train.yaml").warnings) == is_warned
