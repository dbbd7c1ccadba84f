"""Files of Megatron-Bridge with several recipes: one is read, and which is asked."""

import pytest
from tests.errors import raises
from tests.frameworks.bridge.checkout import START, checkout, read, read_file

from forescale.catalogue.clusters import load_cluster
from forescale.errors import ReaderError, UnknownNameError
from forescale.frameworks.bridge.reader import BridgeReader
from forescale.frameworks.reading import Options, Variables
from forescale.project import project

RECIPES = """from megatron.bridge.training.config import ConfigContainer

LENGTH = 4 * 1024


def _base():
    cfg = ConfigContainer()
    cfg.model.num_layers = 4
    cfg.model.hidden_size = 512
    cfg.model.num_attention_heads = 8
    cfg.model.vocab_size = 1024
    cfg.train.global_batch_size = 32
    cfg.train.micro_batch_size = 1
    cfg.train.manual_gc = True
    cfg.model.seq_length = LENGTH
    cfg.dataset.seq_length = cfg.model.seq_length
    return cfg


def small_config():
    cfg = _base()
    cfg.model.tensor_model_parallel_size = 2
    return cfg


def long_config():
    cfg = _base()
    cfg.model.seq_length = 128 * 1024
    cfg.dataset.seq_length = cfg.model.seq_length
    cfg.model.context_parallel_size = 4
    return cfg
"""


def read_one(tmp_path, requested=None):
    path = tmp_path / "recipes.py"
    path.write_text(RECIPES)
    value = {} if requested is None else {"config": requested}
    return BridgeReader().read(path, Options(num_devices=8, variables=Variables(value)))


@pytest.mark.parametrize(
    ("name", "tp", "cp", "length"), [("small_config", 2, 1, 4096), ("long_config", 1, 4, 131_072)]
)
def test_the_recipe_that_is_wanted_is_read_alone(name, tp, cp, length, tmp_path):
    result = read_one(tmp_path, name)
    assert (result.strategy.tp, result.strategy.cp, result.workload.seq_len) == (tp, cp, length)
    assert len(result.model.layers) == 4


def test_of_several_one_must_be_named(tmp_path):
    message = "choose_one 2 recipes"
    with raises(ReaderError, message):
        read_one(tmp_path)
    with raises(UnknownNameError, "unknown_name"):
        read_one(tmp_path, "smal_config")


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ("[1]", r"line 12, model.seq_length|seq_length"),
        (
            "4096\n    cfg.dataset.sequence_length = 4096\n    cfg.model.seq_length = 8192",
            "8192 and .* 4096 must be the same",
        ),
    ],
)
def test_lengths_that_differ_are_both_named(lengths, said, tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(
        RECIPES.partition("def small_config")[0].replace("= cfg.model.seq_length", f"= {lengths}")
    )
    with pytest.raises(ReaderError, match=said):
        BridgeReader().read(path, Options(num_devices=8))


def test_the_name_of_a_recipe_says_its_devices(tmp_path):
    assert read(tmp_path, "pass", name="mine_16gpu_config").strategy.num_devices == 16
    assert read(tmp_path, "pass", name="mine_16gpu_config", num_devices=32).strategy.num_devices == 32
    assert read(tmp_path, "pass").strategy.num_devices == 1


def test_recipes_of_another_file_by_another_name(tmp_path):
    path = checkout(tmp_path) / "recipes" / "family" / "named.py"
    path.write_text(
        "from megatron.bridge.recipes.family.h100 import deep_base_config as deep_config, small_base_config\n"
    )
    assert read_file(path, "deep_config").model.name == "deepseek-v3"
    with raises(ReaderError, "choose_one 2 recipes"):
        read_file(path)


def test_arguments_with_defaults_and_words_that_are_passed_on(tmp_path):
    path = checkout(tmp_path) / "recipes" / "mine.py"
    path.write_text("""from megatron.bridge.recipes.family import small_base_config

def _common(tp: int = 1, batch: int = 8, **more):
    cfg = small_base_config()
    cfg.model.tensor_model_parallel_size = tp
    cfg.train.global_batch_size = batch
    if tp > 1:
        cfg.model.sequence_parallel = True
    for name, value in more.items():
        setattr(cfg.model, name, value)
    return cfg

def mine_config(tp: int = 4, **user_kwargs):
    return _common(**{"tp": tp, "context_parallel_size": 2, **user_kwargs})
""")
    file = read_file(path)
    layout = file.strategy
    assert (layout.tp, layout.sp, layout.cp, file.workload.global_batch_size) == (4, True, 2, 8)


def test_what_a_function_that_is_not_read_may_set_is_noted(tmp_path):
    start = "from megatron.bridge.recipes.family import small_base_config\nfrom elsewhere import tune\n"
    (note,) = (note for note in read(tmp_path, "tune(cfg)", start=start).notes if "tune" in note)
    assert "mine.py, line 7) is not read" in note


LAYOUT = "Et|t||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|ttttmL"
GROUPS = f"""cfg.model = AutoBridge.from_hf_pretrained("zai-org/GLM-5.2").to_megatron_provider(load_weights=False)
    cfg.model.seq_length = cfg.dataset.seq_length = 4096
    cfg.model.pipeline_model_parallel_size = 13
    cfg.model.virtual_pipeline_model_parallel_size = 2
    cfg.model.pipeline_model_parallel_layout = "{LAYOUT}"
    cfg.model.expert_model_parallel_size = 32
    cfg.train.micro_batch_size = 1
    cfg.train.global_batch_size = 1024
    cfg.model.microbatch_group_size_per_vp_stage = """


def grouped(folder, group):
    return read(
        folder, GROUPS + group, start=f"from megatron.bridge import AutoBridge\n{START}", num_devices=416
    )


def test_micro_batches_of_groups_are_no_multiple_of_the_stages(tmp_path):
    """As recipes/glm/h100/glm5.py has GLM-5.2: 32 micro-batches on 13 ranks of 2 chunks, 16 at a time."""
    results_found = grouped(tmp_path, "16")
    assert (
        results_found.strategy.pp,
        results_found.strategy.vpp,
        results_found.strategy.microbatch_group,
    ) == (13, 2, 16)
    result = project(
        results_found.model, load_cluster("h100-sxm", 416), results_found.strategy, results_found.workload
    )
    assert result.num_microbatches == 32


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("None", "not_divisible num_microbatches"),
        ("13", "not_divisible num_microbatches"),
        (
            "20",
            r"model.microbatch_group_size_per_vp_stage 20 leaves 12 of 32 micro-batches over, fewer than pp 13",
        ),
    ],
)
def test_groups_that_megatron_refuses_are_refused_by_the_field(group, said, tmp_path):
    with raises(ReaderError, said):
        grouped(tmp_path, group)
