from __future__ import annotations

import pytest
from tests.sweep.questions import TEXT

from forescale.errors import ForescaleError
from forescale.sweep import read_sweep

LINE = TEXT.count("\n") + 1
"""The first line after the base of the file."""


def written(tmp_path, text):
    file = tmp_path / "sweep.toml"
    file.write_text(text, encoding="utf-8")
    return file


CASES = [
    ("[varry]\ndevices = [1]", 0, "unknown key 'varry'", "did you mean vary?"),
    ("[vary]\ndevises = [1]", 1, "unknown key 'devises'", "did you mean devices"),
    ("[vary]\nhbm_capacity = ['80 GXB']", 1, "'80 GXB' is not a quantity in byte", "factor"),
    ("[vary]\nhbm_capacity = ['80 GiB', 'x2']", 1, "mixes values and factors", ""),
    ("[vary]\nhbm_capacity = 'x0'", 1, "a factor must be greater than 0", ""),
    ("[vary]\nhbm_capacity = []", 1, "has no values", ""),
    ("[vary]\nhbm_capacity = { from = 'x1', two = 'x2' }", 1, "unknown key 'two'", "did you mean to?"),
    ("[vary]\nhbm_capacity = { from = 'x1' }", 1, "needs to", ""),
    ("[vary]\nhbm_capacity = { from = 'x1', to = '80 GiB' }", 1, "from a value to a factor", ""),
    ("[vary]\nhbm_capacity = { from = 'x2', to = 'x1', steps = 3 }", 1, "from must be less than to", ""),
    ("[vary]\nhbm_capacity = { from = 'x1', to = 'x2', steps = 1 }", 1, "steps must be", "from 2 to 10,000"),
    ("[vary]\nhbm_capacity = { from = 'x1', to = 'x2', scale = 'cubic' }", 1, "log or linear", ""),
    ("[vary]\nprecision = ['bf16', 'fp9']", 1, "'fp9'", "did you mean 'fp8'?"),
    ("[vary]\nprecision = { from = 1, to = 2 }", 1, "list its values", ""),
    ("[vary]\nscaling = ['weaker']", 1, "strong", "'weaker'"),
    ("[vary]\nmodel = ['llama-3.1-8bb']", 1, "unknown model", "did you mean llama-3.1-8b"),
    ("[vary]\ncluster = ['h100-sxn']", 1, "unknown cluster", "did you mean h100-sxm"),
    ("[vary]\nflops = ['1 PFLOP/s']", 1, "takes factors", "flops.bf16"),
    ("[vary]\ncluster.tiers.nvlnk.bandwidth = 'x2'", 1, "nvlnk", "cluster.tiers.nvlink.bandwidth"),
    ("[vary]\ndevices = [10.5]", 1, "a whole number", "10.5"),
    ("[vary]\ndevices = [16, 16]", 1, "the value 16 twice", ""),
    ("[vary]\nspace.tp = [1, 'x']", 1, "a whole number of 1 or more", "'x'"),
    ("[vary]\ndevices = [16]\n[[case]]\nname = 'a'\ndevices = 3", 1, "varied twice", ""),
    ("[[case]]\nname = 'a'\n[[case]]\nname = 'a'", 2, "two cases are called 'a'", ""),
    ("[[case]]\nhbm_capacity = 'x2'", 0, "a case needs a name", ""),
    ("[vary]\ndevices = [8]\n[search]\nobjetive = 1", 3, "unknown key 'objetive'", "objective"),
    ("[vary]\ndevices = [8]\n[search]\nobjective = 'mfu'", 3, "step_time or peak_memory", ""),
    ("[vary]\ndevices = [8]\n[search]\nmax_memory = 'lots'", 3, "max_memory", "'x0.9'"),
    ("[vary]\ndevices = [8]\n[search]\nprice_per_device_hour = -2", 3, "must be 0 or more, got -2", ""),
    ("[vary]\ndevices = { from = 8, to = 64 }\n[sample]\npoints = 0", 3, "points", "1 or more"),
    ("[vary]\ndevices = [8]\n[cost]\ncompute = 'exact'", 3, "'roofline'", "'exact'"),
    ("[vary]\ndevices = [8]\n[cost]\nmeasurements = ['a.json']", 3, "a sweep changes it", ""),
    ("[vary]\ndevices = [8]\n[[plot]]\nkind = 'pie'", 2, "scaling, line, bars, map", "'pie'"),
    ("[vary]\ndevices = [8]\n[[plot]]\nkind = 'line'\nx = 'devices'\ny = 'mfuu'", 2, "mfuu", "mfu"),
]


@pytest.mark.parametrize(("text", "below", "said", "hint"), CASES, ids=[case[0][:40] for case in CASES])
def test_what_is_wrong_is_one_sentence_with_its_line_and_the_nearest_fix(tmp_path, text, below, said, hint):
    file = written(tmp_path, TEXT + text + "\n")
    with pytest.raises(ForescaleError) as caught:
        read_sweep(file)
    message = str(caught.value)
    assert f"{file}, line {LINE + below}" in message
    assert said in message
    assert hint in message


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("seq_len = 4096", "sequ_len = 4096", 6, "did you mean seq_len"),
        ("seq_len = 4096", "seq_len = -1", 6, "seq_len must be greater than 0"),
        ("pp = 1", "ppp = 1", 11, "did you mean pp"),
        ('recompute = "none"', 'recompute = "some"', 15, "none, selective, full"),
        ("devices = 16", "devices = 0", 3, "a whole number of 1 or more"),
    ],
)
def test_errors_of_the_base_have_their_line_too(tmp_path, before, after, line, said):
    file = written(tmp_path, TEXT.replace(before, after, 1) + "[vary]\nflops = 'x2'\n")
    with pytest.raises(ForescaleError) as caught:
        read_sweep(file)
    assert f"{file}, line {line}" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a sweep varies something"),
        ("[vary]\nflops = { from = 'x1', to = 'x2' }\n", "[sample] points"),
        ("[vary]\ndevices = [8]\n[sample]\npoints = 3\n", "[sample] points"),
        ("[vary]\ndevices = [8]\nnodes = [1]\n", "vary one of them"),
        ("[vary]\ndomain_size = [4]\nflops = [[\n", "not valid TOML"),
    ],
)
def test_what_concerns_the_whole_file_names_it(tmp_path, text, said):
    file = written(tmp_path, TEXT + text)
    with pytest.raises(ForescaleError) as caught:
        read_sweep(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


def test_what_is_varied_need_not_be_given(tmp_path):
    text = "[vary]\nmodel = ['llama-3.1-8b']\ncluster = ['b200']\ndevices = [8, 16]\nseq_len = [2048]\nglobal_batch_size = [32]\n"
    questions = [one.question for one in read_sweep(written(tmp_path, text)).asked]
    assert [one.cluster.num_devices for one in questions] == [8, 16]
    assert questions[0].workload.global_batch_size == 32


def test_overrides_are_laid_over_the_file(tmp_path):
    file = written(tmp_path, TEXT + "[vary]\nflops = ['x1', 'x2']\n")
    (result,) = read_sweep(file, overrides=["devices=32", "vary.flops=['x4']", "space.tp=2"]).asked
    assert result.question.cluster.num_devices == 32
    assert result.question.space.tp == (2,)
