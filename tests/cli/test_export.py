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
    message = " ".join(ran.err.split())
    assert f"reads {kind}: give a name that ends in {ending}, got {name}" in message
    assert other in message
    assert not (tmp_path / name).exists()


def test_a_place_that_takes_none_is_refused_before_the_search(forescale, tmp_path, monkeypatch):
    monkeypatch.setattr(import_module("forescale.search.rank"), "search", None)
    ran = forescale("search", *SEARCH, "--emit", "megatron", "--output", tmp_path / "no" / "x.sh")
    assert (ran.code, ran.out) == (2, "")
    assert "cannot write" in ran.err
    (tmp_path / "there.sh").touch()
    ran = forescale("search", *SEARCH, "--emit", "megatron", "--output", tmp_path / "there.sh")
    assert (ran.code, ran.out) == (2, "")
    assert "exists; give another --output, or --force" in ran.err
    for to, name, local in (
        ("megatron", "x.toml", ".sh"),
        ("torchtitan", "x.toml", ".py"),
        ("maxtext", "-", ""),
    ):
        ran = forescale("search", *SEARCH, "--emit", to, "--output", name)
        assert (ran.code, ran.out) == (2, "")
        assert (f"give a name that ends in {local}, got {name}" if local else "cannot write -") in ran.err


@pytest.mark.parametrize(
    ("to", "place", "said"),
    [
        ("megatron", "folder", "is a folder; one file is written for megatron"),
        ("deepspeed-zero", "file", "is a file; several are written for deepspeed-zero: give a folder's name"),
    ],
)
def test_a_folder_for_a_file_is_refused_before_the_search(forescale, tmp_path, monkeypatch, to, place, said):
    """One is no place for the other, --force or not."""
    monkeypatch.setattr(import_module("forescale.search.rank"), "search", None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    ran = forescale("search", *SEARCH, "--emit", to, "--output", tmp_path / place, "--force")
    assert (ran.code, ran.out) == (2, "")
    assert f"{tmp_path / place} {said}" in ran.err
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
    searched = forescale("search", *SEARCH, "--emit", "megatron", "--output", tmp_path / "a.sh", "--json")
    exported = forescale("export", *MEGATRON, "--output", tmp_path / "b.sh", "--json")
    for ran, name in ((searched, "a.sh"), (exported, "b.sh")):
        assert ran.code == 0
        json.loads(ran.out)
        assert f"wrote {tmp_path / name} " in ran.err
        assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search", *SEARCH, "--output", "x.sh"), "--output is where --emit writes"),
        (("search", *SEARCH, "--emit", "megatron", "--force"), "--force replaces what --output names"),
        (("export", *MEGATRON, "--force"), "--force replaces what --output names"),
        (("export", *MEGATRON, "--output", "."), "is a folder; one file is written for megatron"),
    ],
)
def test_what_writes_nothing_is_refused(forescale, words, said):
    ran = forescale(*words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_a_script_for_slurm_stands_beside_it(forescale, tmp_path):
    folder = tmp_path / "job"
    assert "give a folder" in forescale("export", *MEGATRON, "--slurm").err
    assert forescale("export", *MEGATRON, "--slurm", "--output", folder).code == 0
    assert sorted(item.name for item in folder.iterdir()) == ["run.sh", "slurm.sh"]
    assert "#SBATCH --nodes=2" in (folder / "slurm.sh").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "megatronn"), "did you mean megatron"),
        (("--to", "colossalai"), "nothing is written for colossalai"),
        (("--to", "megatron", "--zero", 3, "--pp", 2), "stages 2 and 3 have no pipeline"),
        (("--to", "megatron", "--preset", "almodel"), "export works under the preset default only"),
        (("--to", "megatron", "--tp", 3, "--devices", 48), "attention heads"),
        (
            ("--to", "megatron", "--recompute-layer-ids", "0,5"),
            "megatron-core refuses this layout: full recompute takes all layers or the first of each stage",
        ),
        (("--to", "bridge", "--recompute-layer-ids", "0,5"), "listed layers are Primus'"),
    ],
)
def test_refusals(forescale, options, said):
    ran = forescale("export", *DENSE, *options)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
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
    assert refused.err.startswith("error: --emit writes the best layout of one ranking")
