"""`import forescale`: what it offers, when it is loaded, and that it stays callable whatever was imported before."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.errors import raises
from tests.small import cluster, dense, workload

import forescale as fs
from forescale import project as engine
from forescale.errors import PhysicsError, SpecError, UnknownKeyError
from forescale.keywords import INSTEAD, renamed
from forescale.spec.space import Space
from forescale.syntax import toml_value
from scripts import api, face

WORDS = {"devices": 8, "seq_len": 2048, "global_batch_size": 64}
KEYWORDS = (*fs.Layout.__struct_fields__, *fs.Workload.__struct_fields__, "devices", "nodes", "framework")
FUNCTIONS = ("search", "project", "memory", "explain")
PACKAGES = ("forescale.search", "forescale.project", "forescale.memory.timeline", "forescale.explain")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_all_unknown_keywords_are_one_error() -> None:
    twice = {"gpu": "h100-sxm", "num_gpus": 8, "devices": 8, "batch_size": 64}
    fix = "write cluster='h100-sxm', devices=8, global_batch_size=64"
    with raises(UnknownKeyError, "unknown_key gpu, num_gpus, batch_size", fix=fix):
        fs.project("llama-3.1-8b", **twice)  # type: ignore[call-overload]
    with raises(UnknownKeyError, "unknown_key stages, foo", fix="did you mean pp for stages?"):
        fs.pipeline("1f1b", stages=4, foo=1)  # type: ignore[call-arg]
    fix = "did you mean tokens for epochs, tokens for samples?"  # which are counted otherwise
    with raises(UnknownKeyError, "unknown_key epochs, samples", fix=fix):
        fs.run("llama-3.1-8b", "h100", epochs=3, samples=1000)  # type: ignore[call-arg]
    with raises(UnknownKeyError, "unknown_key clusters", fix=INSTEAD["fs.compare"]):
        fs.compare("llama-3.1-8b", clusters=())  # type: ignore[call-arg]
    with raises(UnknownKeyError, "unknown_key max_step_time", fix="did you mean limits?"):
        fs.check("llama-3.1-8b", max_step_time=3.0)  # type: ignore[call-arg]


def test_exact_names_of_other_libraries_are_read_with_a_warning() -> None:
    unknown = {"gpu": "h100-sxm", "num_gpus": 8, "batch_size": 64}
    with pytest.warns(
        UserWarning, match=r"gpu as cluster='h100-sxm', num_gpus as devices=8, batch_size as glob"
    ):
        result = fs.project("llama-3.1-8b", **unknown)  # type: ignore[call-overload]
    assert result == fs.project("llama-3.1-8b", "h100-sxm", devices=8, global_batch_size=64)
    known = ("cluster", "lora_rank", "frozen_dtype", "zero", "recompute")
    for keyword, written in (
        ("qlora", {"lora_rank": 16, "frozen_dtype": "nf4", "recompute": "full"}),
        ("fsdp", {"zero": 3}),
        ("gradient_checkpointing", {"recompute": "full"}),
    ):
        with pytest.warns(UserWarning, match=f"fs.project reads {keyword} as"):
            assert renamed({keyword: True, "cluster": "h100"}, "fs.project", known) == {
                "cluster": "h100",
                **written,
            }
    for kept in ({"gpus": 8}, {"gpu": "b200", "cluster": "h100"}, {"gpu": "b200", "foo": 1}):
        assert renamed(kept, "fs.project", known) is kept


def test_all_missing_parts_are_one_error() -> None:
    with raises(SpecError, "missing cluster, global_batch_size"):
        fs.project("llama-3.1-8b")
    fix = "such as cluster='h100-sxm', devices=8, global_batch_size=64"
    with raises(SpecError, "missing cluster, devices, global_batch_size", fix=fix):
        fs.search("llama-3.1-8b", seq_len=4096)
    with raises(SpecError, "missing devices, global_batch_size"):
        fs.search("llama-3.1-8b", "h100-sxm")
    with raises(SpecError, "missing global_batch_size"):
        fs.search("llama-3.1-8b", "h100-sxm", nodes=1)


def test_searches_are_compared_by_their_best_and_a_cluster_has_one_node() -> None:
    words = {"devices": 8, "global_batch_size": 64, "seq_len": 4096, "tp": 1, "cp": 1, "pp": 1}
    searches = [fs.search("llama-3.1-8b", name, **words) for name in ("h100", "b200")]
    step = fs.compare(*searches).step_time
    assert (step.a, step.b) == tuple(item.best[0].step_time_s for item in searches)
    assert fs.load_cluster("h100").num_devices == fs.load_cluster("h100").devices_per_node == 8
    watcher = fs.watch("llama-3.1-8b", "h100", **words)
    list(watcher.feed("iteration 2/100 | elapsed time per iteration (ms): 4300.0 |"))
    assert "step_time_s=4.3" in repr(watcher)


def test_a_module_trains_as_it_is_or_under_autocast() -> None:
    torch = pytest.importorskip("torch")
    words = {"cluster": "h100", "devices": 8, "global_batch_size": 64, "seq_len": 128}

    def module() -> Any:
        layers = [torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(2)]
        return torch.nn.Sequential(torch.nn.Embedding(100, 64), *layers, torch.nn.Linear(64, 100))

    def precision(model: Any, **more: Any) -> tuple[str, str]:
        asked = fs.ask(model, **words, **more)
        assert fs.project(asked).step_time_s > 0.0
        return asked.workload.precision.parameters, asked.workload.precision.compute

    assert precision(module()) == precision(module(), precision="bf16") == ("fp32", "bf16")
    assert precision(module(), precision="fp32") == ("fp32", "fp32")
    assert precision(module().to(torch.bfloat16)) == ("bf16", "bf16")


def test_print_begins_with_the_headline() -> None:
    words = {"cluster": "b200", "devices": 8, "global_batch_size": 64, "seq_len": 4096}
    one, large = fs.project("llama-3.1-8b", **words), fs.fit("llama-3.1-70b", **words)
    assert str(one).splitlines()[0] == one.headline
    assert str(fs.check("llama-3.1-8b", **words)).startswith(
        "llama-3.1-8b passes: llama-3.1-8b on 8 × b200, dp 8"
    )
    assert str(fs.check("llama-3.1-70b", **words)).startswith("llama-3.1-70b fails: needs ")
    assert large.first is not None
    assert f"(OOM); with {large.first.text}: " in str(large)
    whole = fs.run("llama-3.1-8b", tokens="1T", **words)
    assert str(whole).startswith(f"{whole.days.expected:.3g} days (") and "device-hours" in str(whole)
    assert (
        repr(fs.Workload(seq_len=2048, global_batch_size=64))
        == "Workload(seq_len=2048, global_batch_size=64)"
    )


def test_everything_named_is_there_and_documented():
    for name in fs.__all__:
        assert getattr(fs, name).__doc__
    assert dir(fs) == fs.__all__
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        _ = fs.serach


def test_types_are_declared_where_they_are_loaded_from():
    tree = ast.parse(Path(fs.__file__).read_text(encoding="utf-8"))
    declared = {
        (node.module, name.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    homes = {(home, name) for home, names in fs._HOMES.items() for name in names}
    assert declared == homes
    assert {name for _, name in homes} | {"__version__"} == set(fs.__all__)


def test_the_signatures_are_current():
    assert face.FACE.read_text(encoding="utf-8") == face.generated(), "run python -m scripts.face"


@pytest.mark.parametrize("name", face.FUNCTIONS)
def test_every_keyword_is_a_named_typed_parameter(name):
    function = getattr(fs, name)
    parameters = inspect.signature(function).parameters.values()
    assert {item.name for item in parameters} >= set(KEYWORDS)
    assert not [item.name for item in parameters if item.annotation is item.empty]
    assert not [item.name for item in parameters if item.kind in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]


def test_importing_it_loads_nothing_else():
    result = run(
        "import forescale, sys; print([name for name in sys.modules if name.startswith('forescale')])"
    )
    assert ast.literal_eval(result) == ["forescale.version", "forescale"] or ast.literal_eval(result) == [
        "forescale",
        "forescale.version",
    ]
    assert run("import forescale, sys; print('numpy' in sys.modules)") == "False\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_that_were_imported_before_leave_the_functions_callable(package):
    code = f"import {package}; import forescale as fs; print([callable(getattr(fs, n)) for n in {FUNCTIONS}])"
    assert run(code) == f"{[True] * len(FUNCTIONS)}\n"


def test_packages_that_are_imported_afterwards_do_too():
    code = "import forescale as fs; fs.search; import forescale.search, forescale.project, forescale.explain.explain;"
    code += f"print([callable(getattr(fs, n)) for n in {FUNCTIONS}])"
    assert run(code) == f"{[True] * len(FUNCTIONS)}\n"
    imported = (
        "import forescale.search; from forescale import search; from forescale.search import SearchResult;"
    )
    assert run(imported + "print(search.__module__)") == "forescale.face\n"
    for package in PACKAGES:
        assert import_module(package).__name__ == package
    assert engine is fs.project


def test_a_dictionary_of_hugging_face_s_keys_is_a_model_everywhere():
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
        "num_hidden_layers": 2, "vocab_size": 1024,
    }  # fmt: skip
    model = fs.load_model(config)
    project = fs.project(config, "h100", **WORDS)
    assert project.model.layers == model.layers
    assert project.cluster.name == "h100-sxm"
    result = fs.search(config, "h100", **WORDS)
    assert result.best[0].model.layers == model.layers
    one, other = (fs.memory(item, "h100", **WORDS).to_json() for item in (config, model))
    assert one == other


def test_names_values_and_a_question_give_the_same_answer():
    by_name = fs.project("llama-3.1-8b", "h100-sxm", tp=2, **WORDS)
    model, devices = fs.load_model("llama-3.1-8b"), fs.load_cluster("h100-sxm", 8)
    work = fs.Workload(seq_len=2048, global_batch_size=64)
    layout = fs.Layout(tp=2, dp_shard=4)
    by_value = fs.project(model, devices, layout, work)
    question = fs.ask("llama-3.1-8b", devices, tp=2, workload=work)
    assert by_name == fs.project(question)
    # A layout by value leaves nothing open, which narrows the interval; all else is the same.
    assert by_value.step_time.low > by_name.step_time.low
    assert replace(by_value, step_time=by_name.step_time) == by_name
    assert question == fs.Question(model=model, cluster=devices, workload=work, strategy=layout)
    request = {"model": model, "cluster": devices, "workload": work, "tp": 2, "dp_shard": 4}
    assert fs.project(**request) == by_name


@pytest.mark.parametrize(
    "request_",
    [
        {"tp": 2},
        {"tp": 8, "micro_batch_size": 8},
        {"dp_shard": 8, "zero": 1, "preset": "playbook"},
        {
            "sites": {"count": 2, "bandwidth": "100 Gbit/s"},
            "outer": {"method": "diloco", "every": 50},
            "devices": 16,
        },
    ],
    ids=["alone", "out of memory", "preset", "sites"],
)
def test_an_estimate_has_the_figures_of_the_projection(request_):
    words = {**WORDS, **request_}
    full = fs.project("llama-3.1-8b", "h100-sxm", **words, detail=True)
    one = fs.project("llama-3.1-8b", "h100-sxm", **words, detail=False)
    assert type(one) is fs.Estimate
    document = full.to_json()
    assert one.to_json() == {
        **{name: document[name] for name in ("step_time_s", "step_time_low_s", "step_time_high_s")},
        **{name: document["memory"][name] for name in ("peak_bytes", "verdict")},
    }
    assert one.to_dict() == one.to_json() == one.rows()[0]
    assert one.verdict in one.headline and repr(one).startswith("Estimate(step_time_s=")


def test_an_estimate_raises_as_the_projection_does():
    with pytest.raises(SpecError) as full:
        fs.project("llama-3.1-8b", "h100-sxm", tp=3, **WORDS)
    with pytest.raises(SpecError) as one:
        fs.project("llama-3.1-8b", "h100-sxm", tp=3, **WORDS, detail=False)
    assert (one.value.code, one.value.key, one.value.value) == (
        full.value.code,
        full.value.key,
        full.value.value,
    )
    with pytest.raises(SpecError) as wrong:
        fs.project("llama-3.1-8b", "h100-sxm", **WORDS, detail="no")
    assert (wrong.value.code, wrong.value.key, wrong.value.value) == ("wrong_type", "detail", "no")


def test_an_estimate_refuses_what_a_law_forbids(monkeypatch):
    monkeypatch.setattr(import_module("forescale.project"), "peak_rate", lambda *_: 1.0)
    with pytest.raises(PhysicsError):
        fs.project("llama-3.1-8b", "h100-sxm", tp=2, **WORDS, detail=False)


def test_a_search_holds_the_degrees_it_is_given():
    result = fs.search("llama-3.1-8b", "h100-sxm", tp=(1, 2), pp=1, zero=1, cp=1, top=3, **WORDS)
    assert {one.strategy.tp for one in result.best} <= {1, 2}
    assert all(one.strategy.pp == one.strategy.cp == 1 for one in result.best)
    ask_search = fs.ask_search("llama-3.1-8b", "h100-sxm", tp=(1, 2), pp=1, zero=1, cp=1, **WORDS)
    assert ask_search.space == fs.Space(tp=(1, 2), pp=(1,), zero=(1,), cp=(1,))
    assert fs.search(ask_search, top=3).best == result.best
    assert fs.ask_search("llama-3.1-8b", "h100-sxm", graphs="full", **WORDS).space.base.graphs == "full"


def test_a_framework_trains_as_its_record_says():
    alone = fs.ask("llama-3.1-8b", "h100-sxm", tp=2, **WORDS)
    titan = fs.ask("llama-3.1-8b", "h100-sxm", tp=2, framework="torchtitan", **WORDS)
    assert titan.layout.software != alone.layout.software
    space = fs.ask_search("llama-3.1-8b", "h100-sxm", framework="torchtitan", **WORDS).space
    assert space.base.software == titan.layout.software


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zero": 5}, "not_one_of the question: zero"),
        ({"cp_kind": ["rong"]}, "not_one_of the question: cp_kind"),
        ({"axis_order": ("tp", "cp", "dp", "pp")}, "not_one_of the question: axis_order"),
        ({"axis_order": [("tp", "cp")]}, "wrong_type axis_order"),
        ({"tp": [2.5]}, "wrong_type space.tp.0"),
        ({"space": Space(tp=8)}, "wrong_type space.tp"),  # type: ignore[arg-type]
        ({"space": Space(cp_kind=("rong",))}, "not_one_of space.cp_kind.0"),  # type: ignore[arg-type]
    ],
)
def test_what_no_space_has_is_said(given, message):
    with raises(SpecError, message):
        fs.search("llama-3.1-8b", "h100-sxm", **WORDS, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"axis_order": "tp-cp-pp-dp"},
        {"axis_order": [("tp", "cp", "pp", "dp")]},
        {"recompute": "full"},
        {"sp": True},
    ],
)
def test_a_choice_is_held_by_its_word_or_its_value(given):
    (name, value), result = (
        *given.items(),
        fs.search(dense(4), cluster(8), workload(), **given).best[0].strategy,
    )
    assert (
        getattr(result, name) == value
        or "full" in str(getattr(result, name))
        or result.rank_order == "tp-cp-pp-dp"
    )


@pytest.mark.parametrize("name", ["torchtitan@2025-eager", "maxtext", "nanotron", "megatron-deepspeed"])
def test_a_framework_is_kept_in_the_question_and_in_its_file(tmp_path, name):
    record = fs.load_framework(name)
    names = ("llama-3.1-8b", "h100-sxm")
    one = fs.ask(*names, tp=2, framework=record, **WORDS)
    assert one == fs.ask(*names, tp=2, framework=name, **WORDS)
    for ask_search in (one, fs.ask_search(*names, framework=name, **WORDS)):
        assert ask_search.framework == record
        assert f"framework='{record.label}'" in repr(ask_search)
        fs.write_question(ask_search, tmp_path / "asked.toml")
        assert fs.read_question(tmp_path / "asked.toml") == ask_search
    with raises(fs.ForescaleError, "given_twice framework"):
        fs.project(one, framework=record)


def test_memory_explanations_and_comparisons_take_the_same_words():
    timeline = fs.memory(dense(4), cluster(8), fs.Layout(pp=2, dp_shard=4), workload())
    assert len(timeline.ranks) == 2
    one = fs.ask(dense(4), cluster(8), workload=workload(), pp=2, zero=1)
    node = fs.explain(one, quantity="memory.peak")
    assert node.value == fs.project(one).memory.peak_bytes
    other = fs.ask(dense(4), cluster(8), workload=workload(), tp=2, zero=1)
    compare = fs.compare(one, fs.project(other), name_a="pp", name_b="tp")
    assert compare.step_time.b == fs.project(other).step_time_s


def test_costs_precision_and_presets_are_words_too():
    slow = fs.ask(
        "llama-3.1-8b", "h100-sxm", device_clock_mhz=990, precision="fp8", recompute="full", **WORDS
    )
    assert (slow.costs.clock_hz, slow.workload.precision.compute) == (990e6, "fp8")
    assert slow.layout.recompute == fs.Recompute(granularity="full")
    result = fs.project("llama-3.1-8b", "h100-sxm", dp_shard=8, zero=1, preset="playbook", **WORDS)
    assert result.preset == "playbook"


def test_a_length_is_written_as_in_a_plan():
    parts = {**WORDS, "seq_len": "128k"}
    assert fs.ask("llama-3.1-8b", "h100-sxm", **parts).workload.seq_len == 131_072


def test_what_is_wrong_is_said_with_the_nearest_word():
    with raises(UnknownKeyError, "unknown_key seq_lenn"):
        fs.project("llama-3.1-8b", "h100-sxm", seq_lenn=2048, devices=8, global_batch_size=64)
    with raises(UnknownKeyError, "unknown_key granularity"):
        fs.ask("llama-3.1-8b", "h100-sxm", granularity="full", **WORDS)
    with raises(SpecError, "missing cluster"):
        fs.project("llama-3.1-8b", **WORDS)
    with raises(SpecError, "given_twice tp"):
        fs.project("llama-3.1-8b", "h100-sxm", fs.Layout(), tp=2, **WORDS)
    with raises(SpecError, "given_twice tp"):
        fs.project(fs.ask("llama-3.1-8b", "h100-sxm", **WORDS), tp=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"objective": "fast"}, "not_one_of objective"),
        ({"max_memory": "700 GiB"}, "out_of_range max_memory"),
        ({"safe": "no"}, "wrong_type safe"),
        ({"space": {"tp": [1]}}, "wrong_type space"),
        ({"top": 0}, "out_of_range top"),
        ({"top": "3"}, "wrong_type top"),
        ({"relax": "no"}, "wrong_type relax"),
        ({"time_limit": float("nan")}, "wrong_type time_limit"),
    ],
)
def test_what_a_search_cannot_take_is_said(words, message):
    with raises(SpecError, message):
        fs.search("llama-3.1-8b", "h100-sxm", **WORDS, **words)


def test_limits_are_read_as_a_plan_has_them():
    ask_search = fs.ask_search(
        "llama-3.1-8b", "h100-sxm", max_memory="70 GiB", objective="peak_memory", **WORDS
    )
    assert (ask_search.max_memory, ask_search.objective) == (70 * 2**30, "peak_memory")


@pytest.mark.parametrize(
    ("load", "given", "message"),
    [
        (fs.load_model, (3,), "wrong_type model"),
        (fs.load_cluster, ("h100-sxm", 0), "out_of_range devices"),
        (fs.load_cluster, ("h100-sxm", 2.5), "out_of_range devices"),
        (fs.compare, ("a", {}), "wrong_type a"),
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind_are_said(load, given, message):
    with raises(SpecError, message):
        load(*given)


def test_nothing_within_the_package_uses_the_face():
    for path in Path(fs.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "forescale":
                assert not {name.name for name in node.names} & set(fs.__all__), path
            if isinstance(node, ast.Import):
                assert "forescale" not in {name.name for name in node.names}, path


def test_its_page_names_every_function():
    assert set(api.FUNCTIONS) == {
        name for name in fs.__all__ if inspect.isfunction(inspect.unwrap(getattr(fs, name)))
    }


def test_what_must_be_a_name_says_so():
    of = {"devices": 8, "seq_len": 2048, "global_batch_size": 32}
    with raises(SpecError, "wrong_type load_framework"):
        fs.load_framework(3)
    with raises(SpecError, "wrong_type load_framework"):
        fs.load_framework(["megatron"])
    with raises(SpecError, "wrong_type quantity"):
        fs.explain("llama-3.2-1b", "h100-sxm", **of, quantity=3)
    with raises(SpecError, "wrong_type checkpoint"):
        fs.search("llama-3.2-1b", "h100-sxm", **of, tp=1, checkpoint=3)
    with raises(SpecError, "wrong_type watch"):
        fs.search("llama-3.2-1b", "h100-sxm", **of, tp=1, watch=3)
    with raises(SpecError, "wrong_type stage"):
        fs.explain("llama-3.2-1b", "h100-sxm", **of, quantity="memory.peak", stage="0")


@pytest.mark.parametrize(
    ("ask", "words", "message"),
    [
        (fs.fit, {"keep": 5.0}, "wrong_type keep"),
        (fs.fit, {"pairs": "no"}, "wrong_type pairs"),
        (fs.advise, {"exact": 2}, "wrong_type exact"),
        (fs.export, {"to": "megatron", "slurm": "x"}, "wrong_type slurm"),
        (fs.project, {"costs": fs.Costs(kernels=3)}, "wrong_type costs.kernels"),
        (fs.project, {"strategy": fs.Layout(overlap=fs.Overlap(tensor=np.array([1, 2])))}, "wrong_type overlap.tensor"),
    ],
)  # fmt: skip
def test_values_of_a_wrong_type_are_refused_with_their_name(ask, words, message):
    with raises(SpecError, message):
        ask("llama-3.2-1b", "h100-sxm", **WORDS, **words)


def test_numbers_of_numpy_and_paths_are_as_good_as_pythons(tmp_path):
    of = {"devices": np.int32(8), "seq_len": np.int64(2048), "global_batch_size": np.array(32)}
    plain = {"devices": 8, "seq_len": 2048, "global_batch_size": 32}
    cluster = tmp_path / "mine.toml"
    cluster.write_text('base = "h100-sxm"\n')
    value = {"tp": np.int64(2), "pp": 2, "sp": np.bool_(False), "stage_layers": np.array([8, 8])}
    question = fs.ask("llama-3.2-1b", cluster, **of, **value)
    assert question == fs.ask(
        "llama-3.2-1b", str(cluster), **plain, tp=2, pp=2, sp=False, stage_layers=[8, 8]
    )
    assert fs.load_cluster(cluster, np.int64(8)).num_devices == 8
    several = (np.array([1, 2]), range(1, 3), {1, 2}, (1, 2))
    spaces = [fs.ask_search("llama-3.2-1b", "h100-sxm", **of, tp=item).space for item in several]
    assert spaces == [spaces[0]] * 4
    changes = fs.fit("llama-3.2-1b", "h100-sxm", **plain, keep="micro_batch_size", pairs=False)
    assert changes == fs.fit("llama-3.2-1b", "h100-sxm", **plain, keep=["micro_batch_size"], pairs=False)


def test_selective_recompute_without_modules_is_that_of_the_command_line(tmp_path):
    of = {"devices": 8, "seq_len": 2048, "global_batch_size": 32}
    path = tmp_path / "plan.toml"
    fs.write_question(fs.ask("llama-3.2-1b", "h100-sxm", **of, recompute="selective"), path)
    path.write_text(path.read_text().replace('modules = ["core_attn"]', "").replace(", }", " }"))
    assert "core_attn" not in path.read_text()
    for item in (
        fs.ask("llama-3.2-1b", "h100-sxm", **of, recompute="selective", framework="torchtitan"),
        fs.read_question(path),
        fs.read_question(path, overrides=["strategy.recompute.granularity=selective"]),
    ):
        assert item.strategy.recompute.modules == ("core_attn",)
    assert (
        fs.ask(
            "llama-3.2-1b", "h100-sxm", **of, recompute={"granularity": "selective", "modules": []}
        ).strategy.recompute.modules
        == ()
    )


def test_plans_are_changed_and_written_by_what_they_are(tmp_path):
    path = tmp_path / "plan.toml"
    question = fs.ask("llama-3.2-1b", "h100-sxm", devices=8, seq_len=2048, global_batch_size=32)
    fs.write_question(question, path)
    assert fs.read_question(path, overrides="strategy.tp=2").strategy.tp == 2
    with raises(SpecError, "wrong_type the override"):
        fs.read_question(path, overrides=[3])
    with raises(SpecError, "wrong_type the override"):
        fs.read_question(path, overrides=3)
    with raises(SpecError, "wrong_type read_question"):
        fs.read_question(3)
    with raises(SpecError, "wrong_type write_question"):
        fs.write_question(fs.project(question), path)


def test_a_published_analysis_is_searched_with_its_options():
    question = {**WORDS, "devices": 256, "global_batch_size": 4096, "preset": "subramanian2024"}
    result = fs.search(
        "gpt3-1t", "b200-nvs8", **question, preset_options={"tensor_parallel": "1d", "fix": ["pp=64"]}, top=1
    )
    assert result.best[0].strategy.pp == 64
    assert result.best[0].step_time_s == pytest.approx(116.199, abs=1e-3)
    with pytest.raises(UnknownKeyError, match="did you mean tensor_parallel"):
        fs.search("gpt3-1t", "b200-nvs8", **question, preset_options={"tensor_paralell": "1d"})


def test_a_configuration_of_transformers_and_a_module_with_one_are_models():
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
        "num_hidden_layers": 2, "vocab_size": 1024,
    }  # fmt: skip
    kind = type("LlamaConfig", (), {"model_type": "llama", "to_dict": lambda _: config})
    module = type("LlamaForCausalLM", (), {"config": kind()})
    for item in (kind(), module()):
        assert fs.load_model(item).layers == fs.load_model(config).layers
        assert fs.ask(item, "h100", **WORDS).model.layers == fs.load_model(config).layers


def test_a_run_of_phases_searches_the_layout_that_is_not_given():
    phases = [{"tokens": "1B"}, {"tokens": "500M", "seq_len": 4096, "rampup_batch_size": (32, 32, 10_000)}]
    given = fs.run(dense(4), cluster(8), tp=2, phases=phases, seq_len=2048, global_batch_size=64)
    assert [phase.projection.workload.global_batch_size for phase in given.phases] == [64, 32, 64]
    assert {phase.projection.strategy.tp for phase in given.phases} == {2}
    searched = fs.run(dense(4), cluster(8), tokens="1B", seq_len=2048, global_batch_size=64, price=2.0)
    assert searched.phases[0].origin.startswith("fastest of")
    assert searched.money.expected == pytest.approx(2.0 * searched.device_hours.expected)
    with raises(UnknownKeyError, "unknown_key seqlen"):
        fs.run(dense(4), cluster(8), phases=[{"seqlen": 2048}], **WORDS)
    with raises(SpecError, "missing the number of training tokens"):
        fs.run(dense(4), cluster(8), tp=2, seq_len=2048, global_batch_size=64)


def test_a_pipeline_is_simulated_by_its_name():
    one, other = fs.pipeline("1f1b"), fs.pipeline("interleaved", vpp=2, input_grad=1.0)
    assert one.makespan == pytest.approx(3 * (8 + 3))
    assert other.makespan < one.makespan
    with pytest.raises(fs.ForescaleError, match="1f1b"):
        fs.pipeline("1f1")


def test_a_sweep_takes_a_file_or_its_content(tmp_path):
    content = {
        "model": "llama-3.2-1b", "cluster": "h100-sxm", "devices": 8,
        "workload": {"seq_len": 2048, "global_batch_size": 32}, "case": [{"name": "as it is"}],
        "space": {"tp": 1, "cp": 1, "pp": 1, "zero": 1, "micro_batch_size": 1},
    }  # fmt: skip
    file = tmp_path / "sweep.toml"
    file.write_text("\n".join(f"{key} = {toml_value(value)}" for key, value in content.items()))
    one, other = fs.sweep(content, jobs=1), fs.sweep(file, jobs=1, overrides=["devices=16"])
    assert [row["num_devices"] for row in (*one.rows(), *other.rows())] == [8, 16]
    assert list(one.to_frame()["num_devices"]) == [8]


def test_a_layout_and_a_workload_print_on_one_line():
    assert str(fs.Layout(tp=8, dp_shard=8)) == "Layout(tp=8, dp_shard=8)"
    assert (
        str(fs.Workload(seq_len=8192, global_batch_size=64)) == "Workload(seq_len=8192, global_batch_size=64)"
    )


@pytest.mark.parametrize("name", ["project", "memory", "explain", "search", "fit", "check", "run", "export"])
def test_the_example_of_help_runs(name: str) -> None:
    lines = (inspect.getdoc(getattr(fs, name)) or "").splitlines()
    [example] = [line.removeprefix(">>> ") for line in lines if line.startswith(">>> ")]
    assert example.startswith(f"fs.{name}(")
    assert eval(example, {"fs": fs}) is not None


def test_a_result_in_the_place_of_a_question_is_named() -> None:
    result = fs.project("llama-3.1-8b", "h100", devices=8, global_batch_size=64, zero=3)
    with raises(SpecError, "wrong_type model"):
        fs.explain(result, quantity="memory.activations")  # type: ignore[arg-type]
    with raises(SpecError, "wrong_type cluster", fix="write quantity='memory.activations'"):
        fs.explain("llama-3.1-8b", "memory.activations")
    with raises(SpecError, "illegal_layout global batch") as caught:
        fs.project("llama-3.1-8b", "h100", devices=8, global_batch_size=63, zero=3)
    assert [(cause.key, cause.nearest) for cause in caught.value.causes] == [("global_batch_size", (64, 56))]
    with pytest.raises(AttributeError, match="did you mean bubble_rate_makespan"):
        fs.pipeline("1f1b", pp=4, microbatches=8).bubble  # noqa: B018


@pytest.mark.parametrize("name", ["adamw_8bit", "paged_adamw_8bit", "adamw8bit", "AdamW8bit", "lion_8bit"])
def test_optimizers_of_bitsandbytes_keep_moments_of_8_bits(name: str) -> None:
    """The names are those of transformers and bitsandbytes; 8 bits are 8 bits, whatever their format."""
    question = {"devices": 1, "seq_len": 4096, "global_batch_size": 16}
    with pytest.warns(UserWarning, match="moment_dtype='fp8'"):
        named = fs.project("llama-3.2-3b", "l40s-pcie", optimizer=name, **question)
    kind = "lion" if "lion" in name else "adamw"
    typed = fs.project("llama-3.2-3b", "l40s-pcie", optimizer=kind, moment_dtype="int8", **question)
    assert named.workload == typed.workload
    assert named.workload.precision.moments == "fp8"


def test_the_type_of_an_optimizer_has_the_names_that_are_read():
    names = re.search(
        r"Literal\[([^]]+)\]", str(inspect.signature(fs.ask).parameters["optimizer"].annotation)
    )
    assert names is not None
    listed = ast.literal_eval(f"[{names[1]}]")
    assert {"adamw", "adamw_8bit", "paged_adamw_8bit", "lion_8bit"} <= {*listed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in listed:
            fs.ask("llama-3.2-1b", "h100-sxm", optimizer=name, **WORDS)


def test_types_of_instances_have_their_devices_in_python_too() -> None:
    words = {"global_batch_size": 64, "framework": "megatron-bridge"}
    one = fs.project("llama-3.1-8b", "p5.48xlarge", **words)
    assert one.cluster.num_devices == 8
    assert fs.ask("llama-3.1-8b", "p5.48xlarge", nodes=2, **words).cluster.num_devices == 16
    assert fs.ask_search("llama-3.1-8b", "g6e.12xlarge", **words).cluster.num_devices == 4
