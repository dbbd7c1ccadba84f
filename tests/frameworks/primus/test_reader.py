from pathlib import Path

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError, ReaderError, UnknownKeyError
from forescale.frameworks.primus.reader import SCHEDULES, V_SCHEDULES, PrimusReader
from forescale.frameworks.reading import Options
from forescale.schedule.library import family
from forescale.spec import Recompute, Routing

BASE = """
num_layers: 2
swiglu: true
add_bias_linear: false
normalization: RMSNorm
position_embedding_type: rope
untie_embeddings_and_output_weights: true
lr: 1.0e-4
"""
SMALL = """
extends:
  - base.yaml
num_layers: 8
hidden_size: 64
ffn_hidden_size: 128
num_attention_heads: 4
group_query_attention: true
num_query_groups: 2
vocab_size: 100
num_experts: 8
moe_router_topk: 2
moe_ffn_hidden_size: 32
moe_layer_freq: "([0]*1+[1]*7)"
"""
TRAINER = """
seq_length: 4096
micro_batch_size: 2
global_batch_size: 64
bf16: true
use_distributed_optimizer: true
expert_model_parallel_size: 2
"""
EXPERIMENT = """
work_group: ${TEAM:amd}
user_name: ${USER:root}
exp_name: small
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: trainer.yaml
    model: small.yaml
    overrides:
      stderr_sink_level: DEBUG
      seq_length: ${SEQ:1024}
      tensor_model_parallel_size: ${TP:2}
      sequence_parallel: true
      expert_tensor_parallel_size: 1
      lr: 1.0e-5
"""


@pytest.fixture
def repository(tmp_path):
    """Lay files out as in Primus's repository: presets under primus/configs, the experiment elsewhere."""
    for name, text in (
        ("primus/configs/models/megatron/base.yaml", BASE),
        ("primus/configs/models/megatron/small.yaml", SMALL),
        ("primus/configs/modules/megatron/trainer.yaml", TRAINER),
        ("examples/megatron/small-pretrain.yaml", EXPERIMENT),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


TWO_CHUNKS = "\n      num_virtual_stages_per_pipeline_rank: 2\n      pipeline_model_parallel_size: 2"


def experiment(repository: Path, old: str = "", new: str = "") -> Path:
    path = repository / "examples/megatron/small-pretrain.yaml"
    assert old in EXPERIMENT
    path.write_text(EXPERIMENT.replace(old, new) if old else EXPERIMENT)
    return path


def read(path, **options):
    return PrimusReader().read(path, Options(**options))


def test_module_then_model_then_overrides(repository):
    result = read(experiment(repository), num_devices=8)
    assert result.model.name == "small"
    assert result.model.num_layers == 8
    assert [layer.ffn.ffn_hidden_size for layer in result.model.layers] == [128] + [32] * 7
    assert result.model.norm == "rms"
    assert (result.strategy.tp, result.strategy.ep, result.strategy.etp, result.strategy.dp_shard) == (
        2,
        2,
        1,
        4,
    )
    assert result.strategy.zero == 1
    assert (result.workload.seq_len, result.workload.global_batch_size) == (1024, 64)
    assert result.workload.precision.compute == "bf16"
    assert "lr" in result.ignored
    assert "stderr_sink_level" in result.ignored
    assert result.strategy.schedule is None


def test_placeholders_take_the_callers_value_and_never_the_environments(repository, monkeypatch):
    monkeypatch.setenv("TP", "4")
    path = experiment(repository)
    assert read(path, num_devices=8).strategy.tp == 2
    assert read(path, num_devices=8, variables={"TP": "4"}).strategy.tp == 4
    assert read(path, num_devices=8, variables={"TP": 4}).strategy.tp == 4


def test_a_placeholder_without_default(repository):
    path = experiment(repository, "${TP:2}", "${TP}")
    with raises(ReaderError, "unset_variable the placeholder"):
        read(path)
    assert read(path, variables={"TP": "2"}).strategy.tp == 2


def test_null_is_not_given(repository):
    result = read(
        experiment(repository, "expert_tensor_parallel_size: 1", "expert_tensor_parallel_size: null")
    )
    assert result.strategy.etp == 2


def test_image_sizes_of_presets_make_no_tower(repository):
    result = read(experiment(repository, "lr: 1.0e-5", "img_h: 224\n      img_w: 224\n      patch_dim: 16"))
    assert result.model.vision is None


def test_presets_beside_the_file_or_where_the_caller_says(tmp_path, repository):
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "x.yaml").write_text(EXPERIMENT.replace("model: small.yaml", "model: tiny"))
    with raises(ReaderError, "not_found"):
        read(alone / "x.yaml")
    (alone / "base.yaml").write_text(BASE)
    (alone / "tiny.yaml").write_text(SMALL)
    assert read(alone / "x.yaml").model.name == "tiny"
    elsewhere = tmp_path / "lonely.yaml"
    elsewhere.write_text(EXPERIMENT)
    assert read(elsewhere, folders=(repository / "primus/configs",)).model.num_layers == 8


def test_a_preset_alone_is_a_model(repository):
    result = read(repository / "primus/configs/models/megatron/small.yaml")
    assert result.model.num_layers == 8
    assert (result.strategy, result.workload) == (None, None)
    assert result.ignored == ("lr",)


def test_flag_spelled_keys_are_turned(repository):
    result = read(experiment(repository, "lr: 1.0e-5", "no_overlap_p2p_communication: true"))
    assert "no_overlap_p2p_communication" in result.used


def test_recompute_of_blocks(repository):
    more = "recompute_granularity: full\n      recompute_method: block\n      recompute_num_layers: 3"
    assert read(experiment(repository, "lr: 1.0e-5", more)).strategy.recompute == Recompute(
        granularity="full", num_layers=3
    )


@pytest.mark.parametrize("ids", ['"0,3,4"', "[0, 3, 4]"])
def test_recompute_of_listed_layers(repository, ids):
    more = f"recompute_granularity: full\n      recompute_layer_ids: {ids}"
    assert read(experiment(repository, "lr: 1.0e-5", more)).strategy.recompute == Recompute(
        granularity="full", layer_ids=(0, 3, 4)
    )


def test_capacity_and_dispatcher_of_experts(repository):
    more = (
        "moe_expert_capacity_factor: 1.25\n      moe_pad_expert_input_to_capacity: true\n"
        "      use_turbo_deepep: true"
    )
    result = read(experiment(repository, "lr: 1.0e-5", more)).strategy
    assert result.routing == Routing(capacity_factor=1.25, pad_to_capacity=True, balance="none")
    assert result.dispatcher == "deepep"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("moe_use_legacy_grouped_gemm", {"narrow_experts": False, "expert_kernels": "each"}),
        ("use_turbo_grouped_gemm", {"narrow_experts": True, "expert_kernels": "one"}),
    ],
)
def test_grouped_products_of_experts(repository, key, expected):
    kernels = read(experiment(repository, "lr: 1.0e-5", f"{key}: true")).strategy.kernels
    assert {name: getattr(kernels, name) for name in expected} == expected


ZERO_BUBBLE = "patch_zero_bubble: true\n      enable_zero_bubble: true"
PIPE = "patch_primus_pipeline: true"
HEURISTIC = PIPE + "\n      pp_algorithm: zero-bubble-heuristic"


@pytest.mark.parametrize(
    ("more", "schedule"),
    [
        (PIPE + "\n      pp_algorithm: zbv-formatted" + TWO_CHUNKS, "zbv"),
        (PIPE + "\n      pp_algorithm: v-half" + TWO_CHUNKS, "v-half"),
        (HEURISTIC, "zb-unlimited"),
        (HEURISTIC + "\n      pp_max_mem: 1", "zb-1p"),
        (HEURISTIC + "\n      pp_max_mem: 2", "zb-2p"),
        (PIPE, None),
        ("pp_algorithm: v-min", None),
        (ZERO_BUBBLE + "\n      zero_bubble_v_schedule: true" + TWO_CHUNKS, "v-half"),
        (ZERO_BUBBLE, "zb-1p"),
        (ZERO_BUBBLE + "\n      zero_bubble_max_pending_backward: 2", "zb-2p"),
    ],
)
def test_schedules(repository, more, schedule):
    assert read(experiment(repository, "lr: 1.0e-5", more)).strategy.schedule == schedule


TURBO = (
    "enable_primus_turbo: true\n      use_turbo_attention: true\n      offload: true\n      offload_ops: attn"
)


def test_offload_is_of_attention_under_v_schedules(repository):
    v_half = PIPE + "\n      pp_algorithm: v-half" + TWO_CHUNKS + "\n      "
    moved = read(experiment(repository, "lr: 1.0e-5", v_half + TURBO))
    assert moved.strategy.offload.modules == ("core_attn",)
    still = read(
        experiment(repository, "lr: 1.0e-5", v_half + TURBO.replace("use_turbo_attention: true", "lr: 1"))
    )
    assert still.strategy.offload.modules == ()
    assert "offload moves nothing: it takes attn of offload_ops, under use_turbo_attention" in still.notes
    with raises(ReaderError, "required_with zbv-formatted, v-half and v-min"):
        read(experiment(repository, "lr: 1.0e-5", f"{PIPE}\n      pp_algorithm: 1f1b\n      {TURBO}"))


@pytest.mark.parametrize(("algorithm", "noted"), [("zero-bubble-heuristic", True), ("zero-bubble", False)])
def test_what_the_heuristic_orders_by_is_noted_where_it_runs(repository, algorithm, noted):
    result = read(
        experiment(repository, "lr: 1.0e-5", f"{PIPE}\n      pp_algorithm: {algorithm}\n      pp_cost_f: 900")
    )
    explicit = "not expressed: pp_cost_f (passes are ordered as if all took as long)"
    assert (explicit in result.notes) is noted


def test_other_limits_of_the_heuristic_are_the_next_that_has_a_schedule(repository):
    result = read(experiment(repository, "lr: 1.0e-5", HEURISTIC + "\n      pp_max_mem: 5"))
    assert result.strategy.schedule == "zb-2p"
    assert "pp_max_mem 5 is taken as 2 micro-batches a rank" in result.notes


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        ("framework: megatron", "framework: nemo", ReaderError, "wrong_count it"),
        (
            "exp_name",
            "expname",
            UnknownKeyError,
            "unknown_key expname",
        ),
        (
            "overrides",
            "override",
            UnknownKeyError,
            "unknown_key override",
        ),
        (
            "lr: 1.0e-5",
            "num_layer: 4",
            UnknownKeyError,
            "unknown_key num_layer",
        ),
        (
            "lr: 1.0e-5",
            "num_layers: four",
            ReaderError,
            "wrong_type num_layers",
        ),
        (
            "lr: 1.0e-5",
            "pipeline_model_parallel_size: 3",
            ReaderError,
            "not_divisible num_layers",
        ),
        ("lr: 1.0e-5", "swiglu: maybe", ReaderError, "wrong_type swiglu"),
        (
            "lr: 1.0e-5",
            "global_batch_size: 63",
            ReaderError,
            "not_divisible global_batch_size",
        ),
        (
            "lr: 1.0e-5",
            "decoder_pipeline_manual_split_list: [3, 4]\n      pipeline_model_parallel_size: 2",
            ReaderError,
            "wrong_count decoder_pipeline_manual_split_list",
        ),
        ("modules:", "modules: []\nexp:", UnknownKeyError, "unknown_key exp"),
        ("    framework", "   framework", ReaderError, "cannot_parse YAML"),
    ],
)
def test_bad_experiments(repository, old, new, error, text):
    with raises(error, text) as caught:
        read(experiment(repository, old, new))
    assert "\n" not in str(caught.value)


def test_a_schedule_with_the_wrong_virtual_stages(repository):
    more = "patch_primus_pipeline: true\n      pp_algorithm: v-half\n      pipeline_model_parallel_size: 2"
    with raises(ReaderError, "wrong_type the schedule 'v-half'"):
        read(experiment(repository, "lr: 1.0e-5", more))


@pytest.mark.parametrize("name", [*SCHEDULES.values(), *V_SCHEDULES.values()])
def test_every_schedule_is_in_the_library(name):
    assert family(name).name == name


def test_stages_listed_by_hand(repository):
    more = "decoder_pipeline_manual_split_list: [3, 5]\n      pipeline_model_parallel_size: 2"
    assert read(experiment(repository, "lr: 1.0e-5", more)).strategy.stage_layers == (3, 5)


def test_presets_that_extend_each_other_or_nothing(repository):
    models = repository / "primus/configs/models/megatron"
    (models / "base.yaml").write_text("extends: small.yaml\n")
    with raises(ReaderError, "circular extends"):
        read(experiment(repository))
    (models / "base.yaml").write_text("bases:\n  - gone.yaml\n")
    with raises(ReaderError, "not_found file"):
        read(experiment(repository))


TITAN = """
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: llama3.1_8B.yaml
    overrides:
      training: {local_batch_size: 4, seq_len: 4096, mock_data: true}
      parallelism: {tensor_parallel_degree: 2}
      primus_turbo: {use_turbo_attention: true}
"""
MAXTEXT = """
env: {NCCL_DEBUG: WARN}
modules:
  pre_trainer:
    framework: maxtext
    model: llama3_8B.yaml
    overrides:
      ici_fsdp_parallelism: 8
      dcn_data_parallelism: -1
      per_device_batch_size: 2
      max_target_length: 4096
"""


def test_modules_of_other_backends_are_in_their_own_keys(tmp_path):
    """Presets lie in a folder of the backend's name; Primus's own keys are noted, or change nothing."""
    presets = {
        "modules/torchtitan/pre_trainer.yaml": "trainable: true\ncompile: {enable: true}\n"
        "experimental: {custom_import: ''}\n",
        "models/torchtitan/llama3.1_8B.yaml": "model: {name: llama3, flavor: 8B, converters: [primus_turbo]}\n",
        "models/maxtext/llama3_8B.yaml": "model_name: llama3-8b\n",
    }
    for name, text in presets.items():
        path = tmp_path / "primus" / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    options = Options(num_devices=16, model_of=load_model)

    def read(text):
        (tmp_path / "run.yaml").write_text(text)
        return PrimusReader().read(tmp_path / "run.yaml", options)

    titan = read(TITAN)
    assert (titan.framework, titan.model.num_layers) == ("torchtitan@0.2", 32)
    assert (titan.strategy.tp, titan.strategy.dp_shard, titan.strategy.micro_batch_size) == (2, 8, 4)
    assert any("primus_turbo" in note for note in titan.notes)
    text = read(MAXTEXT)
    assert (text.framework, text.strategy.dp_replicate, text.strategy.dp_shard) == ("maxtext", 2, 8)
    with raises(UnknownKeyError, "unknown_key parallelism.tensor_parallel_degre"):
        read(
            TITAN.replace("{tensor_parallel_degree: 2}", "{tensor_parallel_degre: 2}").replace(
                "local_batch_size: 4, ", ""
            )
        )
    with raises(ReaderError, "wrong_count it"):
        read(MAXTEXT.replace("framework: maxtext", "framework: nemo_automodel"))


BRIDGE = """
modules:
  post_trainer:
    framework: megatron_bridge
    overrides:
      recipe: llama.llama3
      flavor: llama31_70b_finetune_config
      hf_path: meta-llama/Meta-Llama-3.1-70B
      tensor_model_parallel_size: 8
      peft: lora
      peft_dim: 16
      global_batch_size: 128
      micro_batch_size: 1
      seq_length: 2048
      precision_config: bf16_mixed
"""


def bridge(tmp_path, old="", new=""):
    path = tmp_path / "run.yaml"
    path.write_text(BRIDGE.replace(old, new) if old else BRIDGE)
    return PrimusReader().read(path, Options(num_devices=16, model_of=load_model))


def test_a_recipe_of_megatron_bridge_has_a_model_of_hugging_faces(tmp_path):
    result = bridge(tmp_path)
    assert (result.format, result.framework, result.model.name) == (
        "primus",
        "megatron-bridge@latest",
        "llama-3.1-70b",
    )
    assert (result.strategy.tp, result.strategy.dp, result.strategy.zero) == (8, 2, 1)
    adapters = result.workload.trainable
    assert (adapters.lora_rank, adapters.lora_targets) == (
        16,
        ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    )
    assert any("llama31_70b_finetune_config sets beside the file is Python" in note for note in result.notes)
    assert bridge(tmp_path, "peft: lora", "peft: none").workload.trainable.is_all


@pytest.mark.parametrize(
    ("old", "new", "error", "text"),
    [
        (
            "hf_path: meta-llama/Meta-Llama-3.1-70B",
            "seed: 1",
            ReaderError,
            "not_expressed a model made by the recipe llama.llama3 of Megatron-Bridge",
        ),
        (
            "peft: lora",
            "peft: dora",
            ReaderError,
            "not_expressed peft (line 10)",
        ),
        (
            "peft_dim",
            "peft_dmi",
            UnknownKeyError,
            "unknown_key peft_dmi",
        ),
        (
            "bf16_mixed",
            "fp7",
            ReaderError,
            "not_one_of precision_config (line 15)",
        ),
    ],
)
def test_bad_recipes(tmp_path, old, new, error, text):
    with raises(error, text):
        bridge(tmp_path, old, new)


def test_tables_of_the_container_beside_modules_go_over_the_recipe(tmp_path):
    path = tmp_path / "bridge.yaml"
    path.write_text(
        BRIDGE + "peft:\n  dim: 4\n  alpha: 32\nmodel:\n  moe_router_force_load_balancing: true\n"
    )
    result = PrimusReader().read(path, Options(model_of=load_model))
    assert result.workload.trainable.lora_rank == 4
    path.write_text(BRIDGE + "peft: lora\n")
    with raises(ReaderError, "wrong_type peft"):
        PrimusReader().read(path, Options(model_of=load_model))


def test_a_flavor_of_torchtitan_may_have_fewer_layers(tmp_path):
    path = tmp_path / "titan.yaml"
    parts = "model:\n        name: llama3\n        flavor: 8B\n        n_layers: 4\n"
    path.write_text(f"modules:\n  pre_trainer:\n    framework: torchtitan\n    overrides:\n      {parts}")
    assert PrimusReader().read(path, Options(model_of=load_model)).model.num_layers == 4


LORA = "\n      lora: {enabled: true, dim: 8, dropout: 0.1, target_modules: [linear_qkv, linear_proj]}"


def test_adapters_among_the_overrides(repository):
    words = read(experiment(repository, "\n      lr: 1.0e-5", LORA)).workload_fields["trainable"]
    assert words["lora_rank"] == 8
    assert words["lora_dropout"]
    assert words["lora_targets"] == ("qkv_proj", "o_proj")
    off = LORA.replace("enabled: true", "enabled: false")
    assert (
        read(experiment(repository, "\n      lr: 1.0e-5", off)).workload_fields["trainable"]["lora_rank"] == 0
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [("lora: 8", "lora must be a table"), ("lora: {enabled: true, dim: 0}", "lora.dim"),
     ("lora: {enabled: true, target_modules: [everything]}", "adapters at 'everything' are not counted"),
     ("lora: {enabled: true, target_modules: all}", "target_modules must be a list")],
)  # fmt: skip
def test_adapters_that_cannot_be(changed, says, repository):
    with pytest.raises(ForescaleError, match=says):
        read(experiment(repository, "\n      lr: 1.0e-5", f"\n      {changed}"))


def test_settings_outside_modules_change_nothing_as_in_primus(repository):
    path = experiment(
        repository, "exp_name: small\n", "exp_name: small\nmicro_batch_size: 9\nlora: {enabled: true}\n"
    )
    result = read(path, num_devices=8)
    assert result.strategy.micro_batch_size == 2
    assert result.workload_fields["trainable"]["lora_rank"] == 0
    assert "ignored, as Primus ignores it: micro_batch_size, lora (outside modules)" in result.notes
