"""Commands of Megatron-Bridge's performance scripts name a recipe and what they change of it."""

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options
from forescale.io.question import is_plan

COMMAND = (
    "python scripts/performance/run_script.py {model} --gpu gb200 --num_gpus 64 -c fp8_mx -gb 256 -mb 1 "
    "--seq_length 8192 -tp 2 -pp 4 -vp 5 ++model.sequence_parallel=true\n"
)
VALUES = "workload:\n  gpus: 32\n  image: nvcr.io/nvidia/nemo:26.02\nqueue:\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("-m llama -mr llama31_405b", "llama-3.1-405b"),
        ("--model_name llama3 --model_size 70b", "llama-3-70b"),
        ("--model_family_name wan --model_recipe_name wan_14b", None),
    ],
)
def test_a_recipe_by_its_name(tmp_path, words, name):
    path = tmp_path / "launcher.sh"
    path.write_text(COMMAND.format(model=words))
    parsed = read_file(path, Options(model_of=load_model, strict=False))
    assert (parsed.framework, parsed.num_devices) == ("megatron-bridge", 64)
    assert parsed.layout_fields == {"tp": 2, "pp": 4, "vpp": 5, "micro_batch_size": 1}
    assert parsed.workload_fields == {
        "seq_len": 8192, "global_batch_size": 256, "precision": {"compute": "mxfp8"},
    }  # fmt: skip
    assert (parsed.model and parsed.model.name, len(parsed.missing)) == (name, name is None)


def test_values_of_a_chart_start_the_script_next_to_them(tmp_path):
    (tmp_path / "values.yaml").write_text(VALUES)
    with raises(ReaderError, "not_found script launcher.sh or launch_script.sh"):
        read_file(tmp_path / "values.yaml")
    (tmp_path / "launcher.sh").write_text(COMMAND.format(model="-mr llama3_70b"))
    parsed = read_file(tmp_path / "values.yaml", Options(model_of=load_model, strict=False))
    assert (parsed.num_devices, parsed.layout_fields["tp"]) == (32, 2)
    assert not is_plan(tmp_path / "values.yaml")
