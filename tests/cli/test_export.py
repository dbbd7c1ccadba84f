"""`forescale export`: a layout as a framework's own configuration."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module

import pytest
from tests.cli.questions import DENSE, LAYOUT, SEARCH
from tests.export.laws import without_comments

MEGATRON = (*DENSE, *LAYOUT, "--to", "megatron")


def numbers(ran):
    document = json.loads(ran.out)
    return {name: document[name] for name in ("step_time_s", "mfu", "time_s", "memory")}


def test_the_script_alone_projects_the_same(forescale, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(without_comments(forescale("export", *MEGATRON).out))
    question = forescale("project", *DENSE, *LAYOUT, "--framework", "megatron", "--json")
    alone = forescale("project", script, "--cluster", "h100-sxm", "--json")
    assert alone.code == 0, alone.err
    assert numbers(alone) == numbers(question)


def test_the_line_in_its_head_asks_the_same(forescale):
    extra = ("--recompute", "selective", "--set", "strategy.kernels.dropout=true", "--offload-optimizer", 0.5)
    head = forescale("export", *MEGATRON, *extra, "--moment-dtype", "bf16").out
    line = re.search(r"# question:\s+forescale (.*)", head)[1]
    options = (*DENSE, *LAYOUT, *extra, "--moment-dtype", "bf16", "--framework", "megatron")
    assert forescale(*shlex.split(line), "--json").out == forescale("project", *options, "--json").out


def test_what_cannot_be_said_is_listed_with_its_cost(forescale):
    ran = forescale("export", *MEGATRON, "--recompute-policy", "minimal", "--json")
    document = json.loads(ran.out)
    (lost,) = document["unsaid"]
    assert (lost["word"], lost["read"]) == ("strategy.recompute", "none")
    change = document["read_back"]["step_time_s"] - document["projection"]["step_time_s"]
    assert lost["step_time_s"] == change < 0
    assert "strategy.recompute" in document["files"][0]["text"]


def test_words_that_a_framework_does_not_have_are_named_where_it_is_written(forescale, tmp_path):
    """DeepSpeed's runtime/config.py knows bf16 and fp16."""
    question = ("--to", "deepspeed", "--precision", "fp8", "--zero", 3, "--output", tmp_path / "out")
    message = " ".join(forescale("export", *DENSE, *question).out.split())
    assert "1 word could not be said: workload.precision.compute fp8 runs with bf16; its head" in message
    message = forescale("export", *MEGATRON, "--output", tmp_path / "run.sh").out
    assert "everything could be said" in " ".join(message.split())


def test_it_is_written_whole_and_refuses_what_exists(forescale, tmp_path):
    path = tmp_path / "run.sh"
    assert forescale("export", *MEGATRON, "--output", path).code == 0
    text = path.read_text()
    refused = forescale("export", *MEGATRON, "--output", path)
    assert (refused.code, refused.err) == (
        2,
        f"error: {path} exists; give another --output, or --force to replace it\n",
    )
    assert path.read_text() == text
    assert forescale("export", *MEGATRON, "--output", path, "--force").code == 0
    assert [item.name for item in tmp_path.iterdir()] == ["run.sh"]


@pytest.mark.parametrize(
    ("to", "name", "said"),
    [("megatron", "mine.sh", "bash mine.sh"), ("torchtitan", "mine.py", "--module mine --config plan")],
)
def test_the_file_and_the_line_that_starts_it_go_by_the_name_it_was_given(
    forescale, tmp_path, to, name, said
):
    ran = forescale("export", *DENSE, *LAYOUT, "--to", to, "--output", tmp_path / name)
    assert ran.code == 0, ran.err
    text = (tmp_path / name).read_text(encoding="utf-8")
    assert ran.out.rstrip().endswith(said)
    assert f"forescale project {name} " in text
    assert said in text.replace("\n#", "")
    assert not re.search(r"\b(?:run\.sh|plan\.py)\b", ran.out + text)


@pytest.mark.parametrize(
    ("to", "name", "kind", "ending", "other"),
    [
        ("megatron", "run.toml", "a shell script", ".sh", ""),
        ("torchtitan", "tt.toml", "Python", ".py", ""),
    ],
)
def test_a_file_is_not_given_the_name_of_another_kind(forescale, tmp_path, to, name, kind, ending, other):
    ran = forescale("export", *DENSE, *LAYOUT, "--to", to, "--output", tmp_path / name)
    assert (ran.code, ran.out) == (2, "")
    assert (ran.error.code, ran.error.allowed) == ("wrong_suffix", (ending,))
    assert ran.error.fix.endswith(f"reads {kind}{other}")
    assert not (tmp_path / name).exists()


def test_a_place_that_takes_none_is_refused_before_the_search(forescale, tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("forescale.search.rank"), "search", None)
    ran = forescale("search", *SEARCH, "--emit", "megatron", "--output", tmp_path / "no" / "x.sh")
    assert (ran.code, ran.out) == (2, "")
    assert "cannot write" in ran.err
    (tmp_path / "there.sh").touch()
    ran = forescale("search", *SEARCH, "--to", "megatron", "--output", tmp_path / "there.sh")
    assert (ran.code, ran.out) == (2, "")
    assert "exists; give another --output, or --force" in ran.err
    for to, name, local in (
        ("megatron", "x.toml", ".sh"),
        ("torchtitan", "x.toml", ".py"),
        ("maxtext", "-", ""),
    ):
        ran = forescale("search", *SEARCH, "--emit", to, "--output", name)
        assert (ran.code, ran.out) == (2, "")
        assert ("wrong_suffix --output" if local else "cannot_write -") in ran.refused
        assert not local or ran.error.allowed == (local,)


@pytest.mark.parametrize(
    ("to", "place", "said"),
    [
        ("megatron", "folder", "wrong_format a file"),
        ("deepspeed-zero", "file", "wrong_format a folder"),
    ],
)
def test_a_folder_for_a_file_is_refused_before_the_search(forescale, tmp_path, monkeypatch, to, place, said):
    """One is no place for the other, --force or not."""
    monkeypatch.setattr(import_module("forescale.search.rank"), "search", None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    ran = forescale("search", *SEARCH, "--emit", to, "--output", tmp_path / place, "--force")
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.refused
    assert str(tmp_path / place) in ran.err
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize(("to", "own"), [("torchtitan", "plan.py"), ("torchtitan", "mine.py")])
@pytest.mark.parametrize("there", [False, True])
def test_one_file_of_a_framework_that_may_take_several_stands_in_the_folder(
    forescale, tmp_path, to, own, there
):
    """Whether the folder is there or not; a name with an ending is the file's."""
    mine = own == "mine.py"
    place = tmp_path / own if mine else tmp_path / "job"
    if there and not mine:
        place.mkdir()
    ran = forescale("search", *SEARCH, "--emit", to, "--output", place, *["--force"] * there)
    assert ran.code == 0, ran.err
    folder = tmp_path if mine else place
    assert [item.name for item in folder.iterdir()] == [own]
    assert f"wrote {folder / own} (" in ran.out
    assert f"cd {folder} && " in ran.out


def test_a_file_is_written_beside_the_document(forescale, tmp_path):
    """What is written is said on standard error: standard output is one document."""
    searched = forescale("search", *SEARCH, "--to", "megatron", "--output", tmp_path / "a.sh", "--json")
    exported = forescale("export", *MEGATRON, "--output", tmp_path / "b.sh", "--json")
    for ran, name in ((searched, "a.sh"), (exported, "b.sh")):
        assert ran.code == 0
        json.loads(ran.out)
        assert f"wrote {tmp_path / name} " in ran.err
        assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search", *SEARCH, "--output", "x.sh"), "required_with --to"),
        (("search", *SEARCH, "--emit", "megatron", "--force"), "required_with --output"),
        (("export", *MEGATRON, "--force"), "required_with --output"),
        (("export", *MEGATRON, "--output", "."), "wrong_format a file"),
    ],
)
def test_what_writes_nothing_is_refused(forescale, words, said):
    ran = forescale(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.refused


def test_a_script_for_slurm_stands_beside_it(forescale, tmp_path):
    folder = tmp_path / "job"
    assert "give a folder" in forescale("export", *MEGATRON, "--slurm").err
    assert forescale("export", *MEGATRON, "--slurm", "--output", folder).code == 0
    assert sorted(item.name for item in folder.iterdir()) == ["run.sh", "slurm.sh"]
    assert "#SBATCH --nodes=2" in (folder / "slurm.sh").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "megatronn"), "unknown_name framework"),
        (("--to", "colossalai"), "unsupported_by export"),
        (("--to", "megatron", "--zero", 3, "--pp", 2), "stages 2 and 3 have no pipeline"),
        (("--to", "megatron", "--preset", "almodel"), "unsupported_by export"),
        (("--to", "megatron", "--tp", 3, "--devices", 48), "illegal_layout heads over tp"),
        (
            ("--to", "megatron", "--recompute-layer-ids", "0,5"),
            "this layout: full recompute takes all layers or the first of each stage",
        ),
        (("--to", "bridge", "--recompute-layer-ids", "0,5"), "listed layers are Primus'"),
    ],
)
def test_refusals(forescale, options, said):
    ran = forescale("export", *DENSE, *options)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.refused
    assert ran.err.count("\n") == 1


def test_the_best_of_a_search_is_written(forescale, tmp_path):
    result = forescale("search", *SEARCH, "--for", "megatron", "--json")
    best = json.loads(result.out)["best"][0]
    script = tmp_path / "best.sh"
    script.write_text(without_comments(forescale("search", *SEARCH, "--emit", "megatron").out))
    alone = forescale("project", script, "--cluster", "h100-sxm", "--json")
    assert json.loads(alone.out)["step_time_s"] == best["step_time_s"]


def test_emit_writes_beside_the_ranking(forescale, tmp_path):
    path = tmp_path / "best.sh"
    ran = forescale("search", *SEARCH, "--emit", "megatron", "--output", path)
    assert ran.code == 0, ran.err
    assert f"wrote {path}" in ran.out
    assert "layouts" in ran.out
    refused = forescale("search", *SEARCH, "--emit", "megatron", "--pareto")
    assert "no_effect --emit" in refused.refused


def test_execution_traces_of_ranks(forescale, tmp_path):
    chakra = (*DENSE, *LAYOUT, "--to", "chakra")
    ran = forescale("export", *chakra, "--ranks", "0,3", "--output", tmp_path / "traces")
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["rank.0.et", "rank.3.et"]
    assert forescale("export", *chakra).refused.startswith("missing --output")
    place = ("--output", tmp_path / "others")
    assert forescale("export", *chakra, "--ranks", "x", *place).refused.startswith("wrong_type --ranks")
    assert forescale("export", *chakra, "--ranks", "99999", *place).refused.startswith("out_of_range --ranks")


def test_several_files_need_the_name_of_a_folder(forescale, tmp_path):
    asked = ("llama-3.1-8b", "--to", "deepspeed", "--cluster", "a100", "--devices", 8, "--global-batch-size", 64, "--zero", 3)  # fmt: skip
    ran = forescale("export", *asked, "--output", tmp_path / "ds.json")
    assert ran.refused.startswith("wrong_format")
    assert f"such as {tmp_path / 'ds'}" in " ".join(ran.err.split())
    assert not (tmp_path / "ds.json").exists()
    assert forescale("export", *asked, "--output", tmp_path / "ds").code == 0
    assert (tmp_path / "ds" / "ds_config.json").exists()


def test_keys_of_a_source_that_are_not_carried_over_are_listed(forescale, tmp_path):
    """A converted script loses its learning rate and paths, which no projection depends on: its head lists all of them."""
    script, recipe = tmp_path / "run.sh", tmp_path / "nemo.py"
    machine = ("--cluster", "h100", "--devices", 8)
    forescale("export", *DENSE, "--to", "megatron", "--output", script)
    answer = forescale("export", script, *machine, "--to", "nemo", "--output", recipe)
    head = " ".join(recipe.read_text().replace("\n# ", " ").split())
    _, found, keys = head.partition("not carried over: run.sh: ")
    assert found
    assert {"--lr", "--min-lr", "--weight-decay", "--tokenizer-model"} <= set(keys.replace(",", " ").split())
    assert "not carried over" in answer.out
