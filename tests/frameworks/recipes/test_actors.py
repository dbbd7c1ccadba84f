"""Updates of policies: NeMo RL and verl."""

import pytest
from msgspec.structs import replace
from tests.errors import raises
from tests.frameworks.recipes.samples import TEXTS, options_of

from forescale.errors import MissingError, ReaderError
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

VERL = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.nnodes=1 \\\n "
DTENSOR = ("dtensor_cfg:\n    enabled: true", "dtensor_cfg:\n    enabled: false")
MEGATRON = ("megatron_cfg:\n    enabled: false", "megatron_cfg:\n    enabled: true")


@pytest.fixture
def read(tmp_path):
    def _read(name, *changes, **more):
        text = TEXTS[name]
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "policy.yaml").write_text(text)
        return read_file(tmp_path / "policy.yaml", replace(options_of(name), strict=False, **more))

    return _read


@pytest.fixture
def start(tmp_path):
    def _start(text, **more):
        (tmp_path / "run.sh").write_text(text)
        return read_file(tmp_path / "run.sh", replace(options_of("verl"), strict=False, **more))

    return _start


def sizes_of(parsed):
    workload = parsed.workload_fields
    return (
        parsed.layout_fields["micro_batch_size"],
        workload["global_batch_size"],
        workload["seq_len"],
        workload.get("document_len"),
    )


def test_megatron_workers_take_the_degrees_of_their_table(read):
    parsed = read("nemo-rl", DTENSOR, MEGATRON)
    layout, types = parsed.strategy, parsed.workload_fields["precision"]
    assert (layout.tp, layout.pp, layout.dp, layout.zero) == (1, 2, 8, 1)
    assert layout.recompute.granularity == "full"
    assert (parsed.framework, parsed.model.name) == ("megatron-bridge@latest", "qwen2.5-1.5b")
    assert types["gradients"] == "bf16"
    assert not parsed.warnings


def test_two_kinds_of_workers_exclude_each_other(read):
    with raises(ReaderError, "conflicts") as refused:
        read("nemo-rl", MEGATRON)
    assert "policy.megatron_cfg.enabled" in refused.value.key


def test_sharded_workers_keep_weights_and_gradients_in_fp32(read):
    for name in ("nemo-rl", "verl"):
        parsed = read(name)
        assert parsed.framework == f"transformers@{name}"
        assert parsed.workload_fields["precision"] == {"compute": "bf16", "gradients": "fp32"}


def test_tensor_parallel_sequences_are_those_of_automodel(read):
    parsed = read(
        "nemo-rl", ("sequence_parallel: false\n    activation", "sequence_parallel: true\n    activation")
    )
    assert parsed.strategy.sp
    assert parsed.framework == "torch-fsdp@automodel"


@pytest.mark.parametrize(
    ("table", "sizes"),
    [
        # 8 ranks of 64 / 8 = 8 sequences of 1,024 tokens: 2,048 are two, 3,072 are ceil(8 / 3) = 3 bins
        ("sequence_packing", (2, 64, 1024, None)),
        ("dynamic_batching", (1, 24, 3072, 1024)),
    ],
)
def test_tokens_limit_a_micro_batch(read, table, sizes):
    parsed = read("nemo-rl", (f"{table}:\n    enabled: false", f"{table}:\n    enabled: true"))
    assert sizes_of(parsed) == sizes


def test_devices_that_only_sample_are_not_counted(read):
    parsed = read("nemo-rl", ("enabled: true\n      resources", "enabled: false\n      resources"))
    assert parsed.num_devices == 8


def test_pairs_of_nemo_rl_are_two_sequences(read):
    parsed = read("nemo-rl", ("grpo:\n  num_prompts_per_step: 8", "dpo:\n  sft_loss_weight: 0"))
    assert sizes_of(parsed)[:2] == (4, 128)


def test_a_file_takes_what_its_parent_sets(tmp_path):
    (tmp_path / "base.yaml").write_text(TEXTS["nemo-rl"])
    child = tmp_path / "child.yaml"
    child.write_text("defaults: base.yaml\npolicy:\n  train_micro_batch_size: 4\ncluster:\n  num_nodes: 4\n")
    parsed = read_file(child, options_of("nemo-rl"))
    assert (parsed.num_devices, *sizes_of(parsed)[:3]) == (32, 4, 64, 1024)
    (tmp_path / "base.yaml").unlink()
    with raises(ReaderError, "not_found") as refused:
        read_file(child, options_of("nemo-rl"))
    assert "base.yaml" in refused.value.key


def test_a_command_changes_its_file_and_what_that_takes_from_its_parent(tmp_path):
    folder = tmp_path / "examples" / "configs"
    folder.mkdir(parents=True)
    (folder / "base.yaml").write_text(TEXTS["nemo-rl"])
    (folder / "dpo.yaml").write_text("defaults: base.yaml\npolicy:\n  max_total_sequence_length: 2048\n")
    for config in ("--config examples/configs/dpo.yaml ", ""):
        (tmp_path / "run.sh").write_text(f"uv run examples/run_dpo.py {config}cluster.num_nodes=1\n")
        parsed = read_file(tmp_path / "run.sh", options_of("nemo-rl"))
        assert (parsed.num_devices, parsed.strategy.tp, *sizes_of(parsed)[:3]) == (8, 2, 2, 64, 2048)


def test_answers_multiply_the_prompts_of_an_update(start):
    parsed = start(VERL + "data.max_prompt_length=512 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
        "actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4\n")  # fmt: skip
    assert (parsed.format, parsed.num_devices, sizes_of(parsed)) == ("launch", 8, (4, 512, 1024, None))
    assert parsed.strategy.recompute.granularity == "full"
    assert any("critic" in text for text in parsed.warnings)


def test_no_more_answers_than_are_sampled_are_one_update(start):
    text = VERL + ("data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=64 "
        "actor_rollout_ref.rollout.n_agent=2 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1\n")  # fmt: skip
    assert start(text).workload_fields["global_batch_size"] == 16


def test_a_program_that_only_validates_is_refused(start):
    with raises(ReaderError, "not_expressed"):
        start(VERL + "trainer.val_only=True actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1\n")


def test_programs_built_on_verl_may_train_more(start):
    text = VERL + "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1\n"
    warned = "is not verl's own program"
    assert not any(warned in item for item in start(text).warnings)
    other = start(text.replace("verl.trainer.main_ppo", "recipe.spin.main_spin"))
    assert any(warned in item for item in other.warnings)


def test_keys_of_an_earlier_release_come_first(read):
    parsed = read(
        "nemo-rl",
        ("  dtensor_cfg:\n    enabled: true", "  dtensor_cfg:\n    enabled: false\n  dtensor_v2_cfg:"),
    )
    assert (parsed.strategy.tp, parsed.unknown) == (2, ())


def test_an_open_micro_batch_is_asked_for(start):
    parsed = start(VERL + "actor_rollout_ref.rollout.n=8\n")
    assert [fact.part for fact in parsed.missing] == ["strategy.micro_batch_size"]


def test_a_micro_batch_of_all_ranks_is_divided(start):
    parsed = start(VERL + "actor_rollout_ref.actor.ppo_micro_batch_size=32\n")
    assert parsed.layout_fields["micro_batch_size"] == 4


@pytest.mark.parametrize(
    ("tokens", "sizes"),
    [
        # per rank of 4: 128 sequences of 1,024; with two ranks of a sequence 2 x 4,096 tokens are 8 of them
        (4096, (8, 512, 1024, None)),
        (1280, (1, 208, 2560, 1024)),  # ceil(128 x 1,024 / 2,560) = 52 bins of each
        (10**6, (128, 512, 1024, None)),
    ],
)
def test_tokens_of_a_device_count_for_all_ranks_of_a_sequence(start, tokens, sizes):
    parsed = start(VERL + "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=8 "
        "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 "
        f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={tokens}\n")  # fmt: skip
    assert (parsed.strategy.cp, parsed.strategy.cp_kind) == (2, "ulysses")
    assert sizes_of(parsed) == sizes


def test_groups_of_shards_are_replicas(read):
    parsed = read("verl", ("      reshard", "      fsdp_size: 4\n      reshard"))
    assert (parsed.strategy.dp_replicate, parsed.strategy.dp_shard) == (2, 4)


def test_states_that_move_between_phases_are_on_the_device(read):
    offload = read("verl").strategy.offload
    assert (offload.parameters, offload.optimizer) == (False, 0.0)


def test_megatron_workers_of_verl(start):
    parsed = start(VERL + "--config-name=ppo_megatron_trainer actor_rollout_ref.rollout.n=2 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
        "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 +actor_rollout_ref.model.lora.rank=8 "
        "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full\n")  # fmt: skip
    layout = parsed.strategy
    assert (parsed.framework, layout.tp, layout.pp, layout.dp, layout.sp) == ("megatron-core", 2, 2, 2, True)
    assert parsed.workload_fields["trainable"]["lora_rank"] == 8
    assert layout.recompute.granularity == "full"


def test_fine_tuning_by_verl_runs_on_what_starts_it(start):
    parsed = start("torchrun --nnodes=1 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer "
        "data.train_batch_size=64 data.micro_batch_size_per_gpu=2 data.max_length=2048 model.lora_rank=16 "
        "model.partial_pretrain=Qwen/Qwen3-8B\n")  # fmt: skip
    assert (parsed.num_devices, sizes_of(parsed)) == (4, (2, 64, 2048, None))
    assert parsed.workload_fields["trainable"]["lora_rank"] == 16


def test_a_frozen_tower_is_not_trained_and_images_are_asked_for(start):
    parsed = start(VERL.replace("Qwen3-8B", "Qwen2.5-VL-7B-Instruct")
        + "actor_rollout_ref.actor.freeze_vision_tower=True "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1\n")  # fmt: skip
    assert parsed.workload_fields["trainable"] == {"frozen": ("vision", "projector")}
    assert [fact.part for fact in parsed.missing] == ["workload.images.count"]
    text = VERL.replace("Qwen3-8B", "Qwen2.5-VL-7B-Instruct") + "actor_rollout_ref.actor.strategy=megatron "
    parsed = start(text + "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1\n")
    assert ([fact.part for fact in parsed.missing], parsed.workload_fields.get("images")) == (
        ["workload.images.count"],
        None,
    )


def test_a_value_that_names_a_file_is_no_configuration_of_the_program(start):
    parsed = start(VERL + "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools/gsm8k.yaml "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1\n")  # fmt: skip
    assert parsed.num_devices == 8


def test_variables_that_decide_are_asked_for(tmp_path):
    (tmp_path / "run.sh").write_text(
        VERL.replace("nnodes=1", "nnodes=$NODES") + "trainer.n_gpus_per_node=8\n"
    )
    with pytest.raises(MissingError) as refused:
        read_file(tmp_path / "run.sh", Options(strict=False))
    assert [fact.flag for fact in refused.value.facts] == ["--var NODES=VALUE"]


def test_a_fork_with_keys_of_its_own(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "worker:\n  actor:\n    global_batch_size: 64\n    fsdp:\n      enable_full_shard: false\n"
        "    model:\n      model_path: Qwen/Qwen3-8B\n  rollout:\n    n: 4\ntrainer:\n  n_gpus_per_node: 4\n"
    )
    (tmp_path / "run.sh").write_text(
        "python3 -m verl.trainer.main config=config.yaml data.max_response_length=1536 "
        "worker.actor.micro_batch_size_per_device_for_update=2\n"
    )
    parsed = read_file(tmp_path / "run.sh", replace(options_of("verl"), strict=False))
    assert (parsed.num_devices, parsed.strategy.zero, *sizes_of(parsed)) == (4, 2, 2, 256, 2048, None)
    assert read_file(tmp_path / "config.yaml", options_of("verl")).format == "verl"


def test_moments_of_megatron_workers_have_the_types_that_are_set(start):
    parsed = start(VERL + "model_engine=megatron actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
        "actor_rollout_ref.actor.optim.use_precision_aware_optimizer=True "
        "actor_rollout_ref.actor.optim.exp_avg_dtype=bf16\n")  # fmt: skip
    assert parsed.framework == "megatron-core"
    assert parsed.workload_fields["precision"]["moments"] == "bf16"


def test_a_micro_batch_of_all_ranks_gives_way_to_one_of_each(start):
    text = (
        "torchrun --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen3-8B "
    )
    both = start(text + "data.micro_batch_size_per_gpu=1 data.micro_batch_size=8\n")
    whole, neither = start(text + "data.micro_batch_size=8\n"), start(text + "data.max_length=512\n")
    sizes = [parsed.layout_fields["micro_batch_size"] for parsed in (both, whole, neither)]
    assert sizes == [1, 2, 4]
