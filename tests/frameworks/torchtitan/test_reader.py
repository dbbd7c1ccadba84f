"""torchtitan's files: its own examples read, its words mean what they mean there, and what is wrong is said with its line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.catalogue.models import load_model
from forescale.errors import ForescaleError, ReaderError, UnknownKeyError
from forescale.frameworks.reading import Options, flat
from forescale.frameworks.torchtitan.layout import dealt
from forescale.frameworks.torchtitan.reader import TorchtitanJobReader, read_sections
from forescale.graph.counts import count_parameters
from forescale.spec.workload import ALL_LINEAR, Trainable

DATA = Path(__file__).parents[2] / "data" / "torchtitan"
REGISTRIES = sorted(DATA.glob("*.txt"))


def options(devices=None, config=None, *, strict=True):
    variables = {} if config is None else {"config": config}
    return Options(num_devices=devices, model_of=load_model, variables=variables, strict=strict)


@pytest.fixture(scope="session")
def trees(tmp_path_factory):
    """torchtitan's folders as they are: main's and the wheel's."""
    root = tmp_path_factory.mktemp("trees")
    for path in REGISTRIES:
        place = root / path.name.removesuffix(".txt").replace("__", "/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path.read_text())
    return root


def jobs(path):
    """Names of the job configurations of a file, by a look of our own."""
    tree = ast.parse(path.read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.returns and not node.name.startswith("_")
        if ast.unparse(node.returns).endswith("Config")
    ]


ALL = [(path.name, name) for path in REGISTRIES for name in jobs(path)]
OUTSIDE = ("rl__", "flux")
"""Reinforcement learning, and models of images."""


@pytest.mark.parametrize(
    ("file", "name"), [pair for pair in ALL if not any(part in pair[0] for part in OUTSIDE)]
)
def test_every_example_in_python_reads(trees, file, name):
    path = trees / file.removesuffix(".txt").replace("__", "/")
    result = TorchtitanJobReader().read(path, options(config=name))
    assert result.framework.startswith("torchtitan@0.3")
    assert result.model.num_layers >= 2
    assert result.workload_fields["global_batch_size"] >= 1


@pytest.mark.parametrize(("file", "name"), [pair for pair in ALL if any(part in pair[0] for part in OUTSIDE)])
def test_what_is_no_training_of_a_language_model_is_said(trees, file, name):
    path = trees / file.removesuffix(".txt").replace("__", "/")
    with raises(ForescaleError, "not_expressed"):
        TorchtitanJobReader().read(path, options(config=name))


def test_how_many_examples_there_are():
    main = [name for file, name in ALL if file.startswith("main__")]
    outside = [
        pair for pair in ALL if pair[0].startswith("main__") and any(part in pair[0] for part in OUTSIDE)
    ]
    assert (len(main), len(outside)) == (120, 28)


BASE = {
    "model": {"name": "llama3", "flavor": "8B"},
    "training": {"local_batch_size": 2, "seq_len": 4096},
    "parallelism": {},
    "activation_checkpoint": {"mode": "none"},
    "compile": {"enable": True},
}


@pytest.fixture
def sections(tmp_path):
    """Read sections of torchtitan 0.2, as a module of Primus contains them."""

    def reading(devices=None, *, strict=True, **changed):
        content = {name: {**BASE.get(name, {}), **changed.get(name, {})} for name in {**BASE, **changed}}
        lines = {key: line for line, (key, _) in enumerate(flat(content), 1)}
        return read_sections(content, lines, tmp_path / "primus.yaml", options(devices, strict=strict))

    return reading


JOB = """from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig({training}),
        parallelism=ParallelismConfig({parallelism}),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True),
        {more}
    )
"""


@pytest.fixture
def job(tmp_path):
    def reading(devices=None, training="", parallelism="", more="", *, text=None, strict=True, config=None):
        path = tmp_path / "job.py"
        whole = JOB.format(training=training, parallelism=parallelism, more=more) if text is None else text
        path.write_text(whole)
        return TorchtitanJobReader().read(path, options(devices, config, strict=strict))

    return reading


def test_degrees_and_shards(sections):
    result = sections(
        64,
        parallelism={
            "tensor_parallel_degree": 4,
            "context_parallel_degree": 2,
            "data_parallel_replicate_degree": 2,
        },
    ).strategy
    assert (result.tp, result.cp, result.dp_replicate, result.dp_shard, result.zero, result.sp) == (
        4,
        2,
        2,
        4,
        3,
        True,
    )
    assert sections(8, parallelism={"data_parallel_replicate_degree": 8}).strategy.zero == 0


def test_batch_is_of_a_rank_before_it_is_cut_into_micro_batches(sections):
    flat = sections(8, training={"local_batch_size": 4, "global_batch_size": 64})
    assert (flat.strategy.micro_batch_size, flat.workload_fields["global_batch_size"]) == (4, 64)
    piped = sections(8, training={"local_batch_size": 4}, parallelism={"pipeline_parallel_degree": 2})
    assert (piped.strategy.micro_batch_size, piped.workload_fields["global_batch_size"]) == (1, 16)
    assert not [note for note in piped.notes if "fills and drains" in note]
    twice = sections(
        8,
        training={"local_batch_size": 4, "global_batch_size": 32},
        parallelism={"pipeline_parallel_degree": 2},
    )
    assert any("fills and drains 2 times" in note for note in twice.notes)


def test_tokens_are_sequences_of_the_context_length(job):
    result = job(
        8,
        "num_tokens_per_microbatch_per_dp_rank=2 * 4096, num_tokens_per_train_step=64 * 4096, max_context_length=4096,"
        " disable_cuda_graphs=True",
        "pipeline_parallel_degree=2, num_pp_microbatches=4",
    )
    assert result.strategy.micro_batch_size == 2
    assert (result.workload_fields["seq_len"], result.workload_fields["global_batch_size"]) == (4096, 64)


def test_embedding_and_head_count_as_layers():
    assert dealt(4, 32) == (8, 9, 8, 7)
    assert dealt(2, 32, 0, 0) == (16, 16)
    assert dealt(1, 5) == (5,)
    assert dealt(20, 4) is None


def test_stages_and_schedules(sections):
    result = sections(
        8, parallelism={"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "interleaved1f1b"}
    )
    assert (result.strategy.schedule, result.strategy.vpp) == (None, 2)
    assert sum(result.strategy.stage_layers) == 32
    named = [["tok_embeddings", "layers.0"], [f"layers.{number}" for number in range(1, 32)]]
    value = sections(8, parallelism={"pipeline_parallel_degree": 2, "module_fqns_per_model_part": named})
    assert value.strategy.stage_layers == (1, 31)


def test_recompute_of_every_second_layer_counts_along_the_rank(sections):
    selected = {"mode": "selective", "selective_ac_option": "2"}
    flat = sections(8, activation_checkpoint=selected).strategy.recompute
    assert flat.layer_ids == tuple(range(1, 32, 2))
    assert not flat.stops_early
    piped = sections(
        8,
        activation_checkpoint=selected,
        parallelism={"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1F1B"},
    ).strategy
    assert piped.stage_layers == (16, 16)
    assert piped.recompute.layer_ids == tuple(range(1, 32, 2))
    op = sections(8, activation_checkpoint={"mode": "selective", "selective_ac_option": "op"})
    assert op.strategy.recompute.policy == "torch_per_op_compiled"
    assert sections(
        8, activation_checkpoint={"mode": "selective", "selective_ac_option": "1"}
    ).strategy.recompute.takes_all


def test_without_fsdp_a_tensor_parallel_run_of_0_2_is_in_fp32(sections, job):
    alone = sections(8, parallelism={"tensor_parallel_degree": 8})
    assert alone.workload_fields["precision"]["compute"] == "fp32"
    assert any("compute in fp32" in note for note in alone.notes)
    assert sections(16, parallelism={"tensor_parallel_degree": 8}).workload_fields["precision"] == {
        "compute": "bf16"
    }
    later = job(8, "local_batch_size=2, seq_len=4096", "tensor_parallel_degree=8")
    assert later.workload_fields["precision"] == {"compute": "bf16"}


def test_narrow_types(sections, job):
    narrow = {"converters": ["quantize.linear.float8"]}
    assert sections(8, model=narrow).workload_fields["precision"]["compute"] == "fp8"
    mx = sections(
        8, model={"converters": ["quantize.linear.mx"]}, quantize={"linear": {"mx": {"filter_fqns": ["wq"]}}}
    )
    assert mx.workload_fields["precision"]["compute"] == "mxfp8"
    assert any("quantize.linear.mx.filter_fqns (line " in note for note in mx.notes)
    local = sections(8, model={"converters": ["float9"]})
    assert any(
        note.startswith("not expressed: model.converters (line") and "float9" in note for note in local.notes
    )
    bare = sections(8, training={"dtype": "bfloat16"}).workload_fields["precision"]
    assert (bare["parameters"], bare["master"], bare["moments"]) == ("bf16", "none", "bf16")


def test_the_release_and_whether_it_is_compiled_name_the_record(sections, job):
    assert sections(8).framework == "torchtitan@0.2"
    assert sections(8, compile={"enable": False}).framework == "torchtitan@0.2-eager"
    assert job(8).framework == "torchtitan@0.3"


def test_loss_and_graphs(sections, job):
    assert sections(8).strategy.kernels.cross_entropy == "compiled"
    eager = {"compile": {"enable": False}}
    assert (
        sections(8, **eager, parallelism={"tensor_parallel_degree": 2}).strategy.kernels.cross_entropy
        == "loss_parallel"
    )
    assert sections(8, **eager).strategy.kernels.cross_entropy == "eager"
    chunked = "loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config()),"
    assert job(8, more=chunked).strategy.kernels.cross_entropy == "fused_linear"
    assert job(8).strategy.graphs == "full"
    assert job(8, "disable_cuda_graphs=True").strategy.graphs == "none"


def test_a_pipeline_keeps_cuda_graphs_off(job):
    with raises(ForescaleError, "conflicts CUDA graphs, a pipeline"):
        job(8, parallelism="pipeline_parallel_degree=2")


def test_models_without_a_catalogue_entry_are_of_torchtitans_sizes(sections):
    debug = sections(8, model={"flavor": "debugmodel"}).model
    attention, ffn = 4 * 256 * 256, 3 * 256 * 768
    assert count_parameters(debug).total == 6 * (attention + ffn + 2 * 256) + 2 * 2048 * 256 + 256
    assert sections(8, model={"name": "deepseek_v3", "flavor": "671B"}).model.num_mtp_layers == 0


def test_functions_are_followed_but_never_run(job):
    text = JOB.format(training="local_batch_size=_double(3)", parallelism="", more="") + (
        "\n\ndef _double(number):\n    return 2 * number\n"
        "\n\ndef other() -> Trainer.Config:\n    config = plan()\n    config.training.seq_len = 1024\n    return config\n"
    )
    result = job(8, text=text, config="other")
    assert (result.strategy.micro_batch_size, result.workload_fields["seq_len"]) == (6, 1024)
    with raises(ForescaleError, "choose_one 2 job configurations"):
        job(8, text=text)
    with raises(ForescaleError, "unknown_name"):
        job(8, text=text, config="plam")


BRANCH = (
    JOB.format(training="", parallelism="", more="")
    + """

def other() -> Trainer.Config:
    config = plan()
    {}
    return config
"""
)


@pytest.mark.parametrize(
    ("lines", "micro_batch"),
    [("for size in (2, 4):\n        config.training.local_batch_size = size", 4),
     ("if config.compile.enable:\n        config.training.local_batch_size = 3", 3),
     ("config.training.local_batch_size = 2\n    config.training.local_batch_size += 3", 5),
     ("config.optimizer.lr = 1\n    if config.compile.mode == 'x':\n        config.optimizer.lr = 2", 8)],
)  # fmt: skip
def test_branches_and_loops_are_followed(job, lines, micro_batch):
    assert job(8, text=BRANCH.format(lines), config="other").strategy.micro_batch_size == micro_batch


@pytest.mark.parametrize(
    ("lines", "problem"),
    [("if unknown():\n        config.training.local_batch_size = 9", "wrong_type training.local_batch_size (line 20)"),
     ("raise ValueError('no such plan')", r"job.py, line 20: the configuration stops here: ValueError no such plan"),
     ("if unknown():\n        return None", "needs_running the configuration"),
     ("config = torchtitan_base()", "needs_running the configuration"),
     ("config.training = TrainingConfig(\n        seq_len=1024,\n        seq_leen=8)", "unknown_key seq_leen"),
     ("from beside import SIZE\n    config.training.seq_len = SIZE", "wrong_type training.seq_len (line 21)"),
     ("config.model_spec = load()", "wrong_type model_spec")],
)  # fmt: skip
def test_what_only_running_it_would_show_is_not_guessed(job, lines, problem):
    with raises(ForescaleError, problem):
        job(8, text=BRANCH.format(lines), config="other")


def test_a_line_of_another_file_is_named_with_its_file(job, tmp_path):
    base = JOB.format(training="", parallelism="tensor_parallel_degree='two'", more="")
    (tmp_path / "base.py").write_text(base)
    text = "from base import plan as base\n\n\ndef plan() -> Trainer.Config:\n    return base()\n"
    with raises(ForescaleError, "wrong_type"):
        job(8, text=text)


def test_a_function_that_calls_itself_is_no_value(job):
    text = JOB.format(training="local_batch_size=_again(3)", parallelism="", more="")
    text += "\n\ndef _again(number):\n    return _again(number)\n"
    with raises(ForescaleError, "wrong_type training.local_batch_size (line 19)"):
        job(8, text=text)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"parallelism": {"tensor_paralel_degree": 2}}, "unknown_key parallelism.tensor_paralel_degree"),
        ({"model": {"flavor": "9B"}}, "unknown_name"),
        ({"model": {"flavor": ""}}, "not_one_of model.flavor (line 2)"),
        ({"model": {"name": "lama3"}}, "unknown_name"),
        ({"parallelism": {"data_parallel_shard_degree": 3}}, r"8 devices cannot be laid out"),
        ({"parallelism": {"tensor_parallel_degree": 3}}, r"8 devices cannot be laid out"),
        ({"training": {"global_batch_size": 7}}, "not_divisible training.global_batch_size (line 5)"),
        ({"parallelism": {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "2F2B"}}, "not_one_of parallelism.pipeline_parallel_schedule (line 6)"),
        ({"parallelism": {"tensor_parallel_degree": "two"}}, "wrong_type parallelism.tensor_parallel_degree (line 5)"),
        ({"activation_checkpoint": {"mode": []}}, "wrong_type activation_checkpoint.mode (line 6)"),
        ({"compile": {"enable": True, "components": ["modl"]}}, "not_one_of compile.components (line 8)"),
        ({"activation_checkpoint": {"mode": "some"}}, "not_one_of activation_checkpoint.mode (line 6)"),
        (
            {"parallelism": {"enable_async_tensor_parallel": True}, "compile": {"enable": False}},
            "required_with compile.enable with model",
        ),
        (
            {"model": {"name": "qwen3", "flavor": "30B-A3B"}, "parallelism": {"expert_parallel_degree": 16}},
            "not_a_factor parallelism.expert_parallel_degree (line 5)",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(sections, changed, text):
    with raises(ForescaleError, text):
        sections(8, **changed)


def test_what_is_wrong_in_python_is_said_with_its_line(job, tmp_path):
    with raises(ForescaleError, "unknown_key tensor_paralel_degree"):
        job(8, parallelism="tensor_paralel_degree=2")
    with raises(ForescaleError, "cannot_parse Python"):
        job(8, text="import torchtitan\ndef plan( -> Trainer.Config:\n")
    with raises(ForescaleError, "incomplete function that returns a Trainer.Config"):
        job(8, text="import torchtitan\n")
    with raises(ForescaleError, "not_found"):
        job(8, text="from torchtitan.models.llama3.config_registry import llama3_8b\n\n\n"
            "def plan() -> Trainer.Config:\n    return llama3_8b()\n")  # fmt: skip


def test_keys_of_ones_own_come_first_among_the_notes(sections):
    result = sections(8, job={"custom_config_module": "mine"}, extra={"rank": 8})
    assert result.notes[0].startswith("not expressed") or "extra.rank" in result.notes[0]
    assert any("extra.rank (line" in note for note in result.notes)


LORA = JOB.replace('registry("8B"', 'registry("8B", converters=[LoRAConverter.Config({})]').replace("{more}", "").replace(
    "({training})", "(num_tokens_per_microbatch_per_dp_rank=8192, max_context_length=8192)").replace("({parallelism})", "()")  # fmt: skip


@pytest.mark.parametrize(
    ("words", "rank", "targets"),
    [("", 8, ALL_LINEAR), ("rank=16, alpha=1.0, target_modules=['wkv', 'w2']", 16, ("k_proj", "v_proj", "down_proj")),
     ("target_modules=['wqkv', 'lm_head']", 8, ("qkv_proj",))],
)  # fmt: skip
def test_adapters(job, words, rank, targets):
    result = job(8, text=LORA.format(words))
    assert Trainable(**result.workload_fields["trainable"]) == Trainable(lora_rank=rank, lora_targets=targets)
    assert any("adapters at lm_head" in note for note in result.notes) is ("wkv'" not in words)


def test_adapters_that_cannot_be(job):
    with raises(UnknownKeyError, "unknown_key rnk"):
        job(8, text=LORA.format("rnk=4"))
    with pytest.raises(ReaderError, match="adapters at 'w9' are not counted; known places are wq_a"):
        job(8, text=LORA.format("target_modules=['w9']"))


@pytest.mark.parametrize(
    ("file", "name", "sizes"),
    [
        ("main__torchtitan__models__qwen3_5__config_registry.py.txt", "qwen35_2b", (24, 1024, 4096, 2048)),
        ("main__torchtitan__models__qwen3_5__config_registry.py.txt", "qwen35_27b", (27, 1152, 4304, 5120)),
        ("main__torchtitan__models__kimi_k2_7__config_registry.py.txt", "kimi_vl_a3b", (27, 1152, 4304, 2048)),
        ("main__torchtitan__models__kimi_k2_7__config_registry.py.txt", "kimi_k2_5", None),
    ],
)  # fmt: skip
def test_recipes_on_images_have_the_tower_of_their_flavor(trees, file, name, sizes):
    """Layers, widths, and the projector's result, as models/*/__init__.py gives them; Kimi-K2.5's recipe reads c4."""
    path = trees / file.removesuffix(".txt").replace("__", "/")
    vision = TorchtitanJobReader().read(path, options(config=name)).model.vision
    if sizes is None:
        assert vision is None
        return
    encoder = vision.encoder
    ffn = encoder.layers[0].ffn.ffn_hidden_size
    assert (encoder.num_layers, encoder.hidden_size, ffn, vision.projector[-1]) == sizes
