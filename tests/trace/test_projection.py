"""A saved trace in the place of a model: files, projections, errors."""

import json

import pytest
from tests.errors import raises

import forescale as fs
from forescale.cli.app import run
from forescale.errors import ReaderError, SpecError
from forescale.frameworks.traces import SCHEMA, document_of, read_trace


def written(path, document):
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def asked(model, **options):
    value = {"devices": 1, "seq_len": 64, "global_batch_size": 4, "micro_batch_size": 2, **options}
    types = {
        "parameters": "fp32",
        "gradients": "fp32",
        "master": "none",
        "activations": "fp32",
        "compute": "fp32",
    }
    return fs.ask(model, "h200-sxm", precision=types, **value)


def project(model, **options):
    return fs.project(asked(model, **options))


def test_a_file_is_read_back_as_it_was_written(tmp_path, traced):
    path = written(tmp_path / "gpt.json", document_of(traced[1]))
    assert read_trace(path) == traced[1]
    assert path.stat().st_size < 300_000


def test_a_changed_file_is_refused(tmp_path, traced):
    document = document_of(traced[1])
    document["hidden_size"] = 128
    with raises(ReaderError, "corrupted it", value="the checksum does not match the content"):
        read_trace(written(tmp_path / "gpt.json", document))


@pytest.mark.parametrize(
    ("schema", "code"),
    [("forescale.trace/2", "newer_version its schema"), ("forescale.trace/x", "not_one_of schema")],
)
def test_another_version_is_refused(tmp_path, traced, schema, code):
    with raises(ReaderError, code, value=schema):
        read_trace(written(tmp_path / "gpt.json", {**document_of(traced[1]), "schema": schema}))


def hostile(document, change):
    from forescale.checksum import CHECKSUM, checksum

    content = json.loads(json.dumps({key: value for key, value in document.items() if key != CHECKSUM}))
    change(content["traces"][0])
    return {**content, CHECKSUM: checksum(content)}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda trace: trace.update(layers=["Nothing"]), "not_one_of layers"),
        (lambda trace: trace.update(layers=[]), "out_of_range the number of layers"),
        (lambda trace: trace["head"].update(saved_bytes=[[1, 2], 1]), "coefficients"),
        (
            lambda trace: trace["blocks"]["Block"]["operators"][0].update(
                forward=[["mm", "unheard", "bf16", []]]
            ),
            "unheard",
        ),
        (
            lambda trace: trace["blocks"]["Block"]["operators"][0].update(
                forward=[["mm", "product", "bf16", []]]
            ),
            "extents",
        ),
        (lambda trace: trace.update(parameters=3), "Expected `str`"),
    ],
)
def test_a_hostile_file_is_refused_in_one_sentence(tmp_path, traced, change, problem):
    with raises(ReaderError, problem):
        read_trace(written(tmp_path / "gpt.json", hostile(document_of(traced[1]), change)))


def test_the_schema_is_frozen():
    assert SCHEMA == "forescale.trace/1"


def test_memory_holds_states_saved_tensors_and_the_loss(traced):
    model = traced[1]
    stage = project(model).memory.stages[0]
    trace = model.traces[0]
    parameters = trace.num_parameters
    assert stage.weights_bytes == stage.gradients_bytes == 4 * parameters
    assert stage.optimizer_bytes == 8 * parameters
    saved = 3 * trace.blocks["Block"].saved_bytes.at(2.0, 64.0)
    assert stage.activations_bytes >= saved


def test_recompute_keeps_the_input_of_every_block(traced):
    kept, replayed = (project(traced[1], **options) for options in ({}, {"recompute": "full"}))
    assert replayed.memory.peak_bytes < kept.memory.peak_bytes
    assert replayed.step_time_s > kept.step_time_s


def test_data_parallel_shards_the_states(traced):
    whole, sharded = (
        project(traced[1], devices=8, global_batch_size=16, dp_shard=8, zero=stage).memory.stages[0]
        for stage in (1, 3)
    )
    assert sharded.weights_bytes == pytest.approx(whole.weights_bytes / 8)


@pytest.mark.parametrize("axis", ["tp", "ep"])
def test_other_splits_of_a_block_are_refused(traced, axis):
    with pytest.raises(SpecError, match=f"{axis} 2.*trace has {axis} 1"):
        project(traced[1], devices=2, **{axis: 2})


def test_another_precision_is_refused_with_the_option(traced):
    with raises(SpecError, "differs precision", value="bf16", fix="trace it with --precision bf16"):
        fs.project(traced[1], "h200-sxm", devices=1, seq_len=64, global_batch_size=4)


def test_a_search_over_data_parallel_layouts_and_stages(tmp_path, traced, capsys):
    path = written(tmp_path / "gpt.json", document_of(traced[1]))
    options = "--cluster h200-sxm --devices 4 --seq-len 64 --global-batch-size 32 --param-dtype fp32 --grad-dtype fp32"
    assert (
        run(
            [
                "search",
                str(path),
                *options.split(),
                "--set",
                "workload.precision.activations=fp32",
                "--set",
                "workload.precision.compute=fp32",
                "--json",
            ]
        )
        == 0
    )
    best = json.loads(capsys.readouterr().out)["best"][0]["strategy"]
    assert (best["tp"], best["cp"], best["ep"]) == (1, 1, 1)


@pytest.mark.parametrize(
    "options", [{}, {"devices": 2, "pp": 2}, {"recompute": "full"}], ids=["plain", "pp", "full"]
)
def test_memory_over_time_peaks_where_the_projection_does(traced, options):
    question = asked(traced[1], **options)
    ranks, stages = fs.memory(question).ranks, fs.project(question).memory.stages
    peaks = [rank.peak.allocated_bytes for rank in ranks]
    assert peaks == pytest.approx([stage.allocated_bytes for stage in stages], rel=1e-9)


@pytest.mark.parametrize("framework", ["megatron-core", "deepspeed-zero", "nanotron"])
def test_a_traced_model_is_not_exported(traced, framework):
    with raises(SpecError, f"unsupported_by {framework}", fix="start it with its own training script"):
        fs.export(asked(traced[1]), to=framework)
