"""Models by configuration, file and function, and what is wrong with them."""

import importlib
import json
import sys

import pytest
from tests.errors import raises

from forescale.cli.app import run
from forescale.errors import ForescaleError, ReaderError
from forescale.frameworks.huggingface import load_huggingface
from forescale.graph.peft import AROUND
from forescale.graph.recorded import with_adapters
from forescale.spec.workload import Precision, Trainable
from forescale.trace import trace_source

transformers = pytest.importorskip("transformers")

SMALL = {
    "model_type": "smollm3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "no_rope_layer_interval": 2,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.fixture(scope="module")
def smollm3(tmp_path_factory):
    """A model type that the built-in reader refuses."""
    path = tmp_path_factory.mktemp("smollm3") / "config.json"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def traced_smollm3(smollm3):
    return trace_source(str(smollm3), seq_len=64, precisions=("bf16",))


def test_a_type_that_the_reader_does_not_know_is_traced(traced_smollm3):
    (trace,) = traced_smollm3.traces
    assert len(set(trace.layers)) == 2  # with and without rotary positions
    assert len(trace.layers) == 4
    assert trace.transformers == transformers.__version__
    assert trace.attention == "sdpa"


def test_its_parameters_are_those_of_the_meta_build(traced_smollm3):
    import torch

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**SMALL))
    assert traced_smollm3.traces[0].num_parameters == sum(
        parameter.numel() for parameter in model.parameters()
    )
    assert traced_smollm3.traces[0].tied == model.config.tie_word_embeddings


FALCON_MAMBA = {
    "model_type": "falcon_mamba",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "vocab_size": 64,
    "state_size": 4,
    "time_step_rank": 4,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def falcon_mamba(tmp_path_factory):
    """A type that neither layers nor a recording describe."""
    path = tmp_path_factory.mktemp("falcon_mamba") / "config.json"
    path.write_text(json.dumps(FALCON_MAMBA), encoding="utf-8")
    return path


def projected(path, capsys, *options):
    sizes = ["--devices", "1", "--micro-batch-size", "2", "--global-batch-size", "2"]
    code = run(["project", str(path), "--cluster", "h100-sxm", *sizes, "--json", *options])
    out, err = capsys.readouterr()
    return code, json.loads(out) if not code else err


def test_project_traces_a_type_that_nothing_describes(falcon_mamba, capsys):
    code, result = projected(falcon_mamba, capsys, "--seq-len", "40")
    assert code == 0
    assert result["step_time_s"] > 0.0


def operators(model):
    return {
        kernel.operator
        for block in model.traces[0].blocks.values()
        for operator in block.operators
        for kernel in (*operator.forward, *operator.backward)
    }


EXTERNAL = {"mamba_selective_scan", "mamba_selective_scan_backward", "causal_conv1d_fn"}


def test_kernels_of_other_libraries_are_one_operator(falcon_mamba):
    model = load_huggingface(falcon_mamba).model
    assert operators(model) >= EXTERNAL
    assert model.traces[0].kernels == "causal_conv1d, mamba_ssm"


def test_what_runs_without_these_libraries_is_traced_where_asked(falcon_mamba):
    model = trace_source(str(falcon_mamba), seq_len=8, precisions=("bf16",), kernels="torch")
    assert not operators(model) & EXTERNAL
    assert model.traces[0].kernels == "torch"


def test_adapters_take_the_host_as_long_as_those_of_a_recording(smollm3):
    frozen = trace_source(str(smollm3), seq_len=64, precisions=("bf16",), frozen=True)
    model = with_adapters(frozen, Trainable(lora_rank=4, lora_targets=("q_proj",)), Precision())
    block = next(iter(model.traces[0].blocks.values()))
    (layer,) = (item for item in block.operators if item.module == "self_attn.q_proj")
    assert sum(kernel.count for kernel in layer.forward if kernel.kind == "host") == AROUND.count


def test_blocks_that_run_again_or_share_parameters_count_them_once():
    import torch

    from forescale.trace import trace

    class Looped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
            self.blocks[1].inner.weight = self.blocks[0].inner.weight

        def forward(self, x):
            for _ in range(3):
                for block in self.blocks:
                    x = block(x)
            return x

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.outer(self.inner(x).relu())

    with torch.device("meta"):
        module = Looped()
    model = trace(module, lambda b, s: (torch.empty(b, s, 8),), seq_len=16)
    assert model.num_layers == 6
    assert model.traces[0].num_parameters == 4 * 8 + 3 * 64


def test_without_the_extra_the_error_names_it_and_the_type(falcon_mamba, monkeypatch):
    monkeypatch.setitem(sys.modules, "forescale.trace", None)
    with raises(ReaderError, "extra_missing model_type 'falcon_mamba' | trace"):
        load_huggingface(falcon_mamba)


def test_experts_are_one_grouped_product_per_matrix(tmp_path):
    local = {
        **SMALL,
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(local), encoding="utf-8")
    model = trace_source(str(path), seq_len=64, precisions=("bf16",))
    (block,) = model.traces[0].blocks.values()
    kinds = [
        item.kind
        for operator in block.operators
        for item in (*operator.forward, *operator.backward, *operator.weight)
    ]
    assert kinds.count("grouped") == 4
    assert kinds.count("grouped_weight") == 2
    assert model.traces[0].experts == "grouped_mm"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "cannot_parse JSON"),
        ("[]", "missing model_type"),
        ('{"model_type": "unheard_of"}', "unsupported_by"),
        (json.dumps({**SMALL, "num_attention_heads": 0}), "not_traceable"),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path, content, problem):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with raises(ForescaleError, problem):
        trace_source(str(path), seq_len=64, precisions=("bf16",))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def build():\n    return 1\n", "wrong_type the result of build()"),
        ("import nothing_of_the_kind\n", "line 1: ModuleNotFoundError"),
        ("def build(:\n", "line 1: SyntaxError"),
        ("def build():\n    x = {}\n    return x['a']\n", "line 3: KeyError"),
        ("def other():\n    return 1\n", "unknown_name function"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(tmp_path, text, problem):
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    with raises(ForescaleError, problem):
        trace_source(f"{path}:build", seq_len=64, precisions=("bf16",))


def test_the_command_writes_nothing_if_it_fails(tmp_path, capsys):
    target = tmp_path / "out.json"
    assert run(["trace", str(tmp_path / "absent.json"), "-o", str(target)]) == 2
    assert "absent.json" in capsys.readouterr().err
    assert not target.exists()


def test_an_unknown_precision_is_refused(smollm3):
    with raises(ForescaleError, "not_one_of precision", value="fp8", allowed=("bf16", "autocast", "fp32")):
        trace_source(str(smollm3), seq_len=64, precisions=("fp8",))


@pytest.mark.parametrize(("positions", "seq_len"), [(96, 48), (-1, 4096)])
def test_the_default_length_is_half_of_the_positions(monkeypatch, positions, seq_len):
    trace = importlib.import_module("forescale.trace")

    def traced(_source, length, **_options):
        raise LookupError(length)

    monkeypatch.setattr(trace, "_traced", traced)
    with pytest.raises(LookupError, match=f"^{seq_len}$"):
        trace.trace_config({**SMALL, "max_position_embeddings": positions}, name="smollm3")


def test_attention_to_the_best_keys_ends_the_valid_range():
    from forescale.trace.sources import _thresholds

    assert _thresholds({"index_topk": 16}) == (16,)
    assert _thresholds({"index_topk": 16, "compress_rates": {"a": 4, "b": 128}, "window_size": 32}) == (
        32,
        64,
    )


def test_defaults_that_do_not_run_are_completed_unless_a_configuration_has_the_keys():
    from forescale.trace.sources import RUNNABLE, completed, source_of_config

    more = RUNNABLE["glm4v"]
    assert completed({"text_config": {"head_dim": 64}}, more)["text_config"] == {
        "head_dim": 64,
        "partial_rotary_factor": 0.5,
    }
    layers = {"num_hidden_layers": 1, "vocab_size": 64, "pad_token_id": 0}
    tower = {"vision_config": {"depth": 1}}
    source = source_of_config({"model_type": "glm4v", "text_config": layers, **tower}, parameters="bf16")
    rotary = source.module.model.language_model.rotary_emb
    assert rotary.inv_freq.numel() == sum(rotary.mrope_section)
