from __future__ import annotations

import pytest
from tests.errors import refusal
from tests.sweep.questions import TEXT

from forescale.errors import ForescaleError
from forescale.sweep import build_sweep, read_sweep
from forescale.sweep.result import answer

LINE = TEXT.count("\n") + 1
"""The first line after the base of the file."""


def written(tmp_path, text):
    file = tmp_path / "sweep.toml"
    file.write_text(text, encoding="utf-8")
    return file


CASES = [
    ("[varry]\ndevices = [1]", 0, "unknown_key varry", "unknown_key varry"),
    ("[vary]\ndevises = [1]", 1, "unknown_key devises", "unknown_key devises"),
    ("[vary]\nhbm_capacity = ['80 GXB']", 1, "not_a_quantity byte", "not_a_quantity byte"),
    ("[vary]\nhbm_capacity = ['80 GiB', 'x2']", 1, "conflicts values of hbm_capacity, factors", ""),
    ("[vary]\nhbm_capacity = 'x0'", 1, "out_of_range the factor of hbm_capacity", ""),
    ("[vary]\nhbm_capacity = []", 1, "empty hbm_capacity", ""),
    ("[vary]\nhbm_capacity = { from = 'x1', two = 'x2' }", 1, "unknown_key two", "unknown_key two"),
    ("[vary]\nhbm_capacity = { from = 'x1' }", 1, "required_with to", ""),
    (
        "[vary]\nhbm_capacity = { from = 'x1', to = '80 GiB' }",
        1,
        "conflicts a value of hbm_capacity, a factor",
        "",
    ),
    ("[vary]\nhbm_capacity = { from = 'x2', to = 'x1', steps = 3 }", 1, "out_of_range from", ""),
    (
        "[vary]\nhbm_capacity = { from = 'x1', to = 'x2', steps = 1 }",
        1,
        "wrong_type steps",
        "from 2 to 10,000",
    ),
    ("[vary]\nhbm_capacity = { from = 'x1', to = 'x2', scale = 'cubic' }", 1, "not_one_of scale", ""),
    ("[vary]\nprecision = ['bf16', 'fp9']", 1, "'fp9'", "did you mean 'fp8'?"),
    ("[vary]\nprecision = { from = 1, to = 2 }", 1, "unsupported_by precision", ""),
    ("[vary]\nscaling = ['weaker']", 1, "strong", "'weaker'"),
    ("[vary]\nmodel = ['llama-3.1-8bb']", 1, "unknown_name model", "unknown_name model"),
    ("[vary]\ncluster = ['h100-sxn']", 1, "unknown_name cluster", "unknown_name cluster"),
    ("[vary]\nflops = ['1 PFLOP/s']", 1, "wrong_type flops", "wrong_type flops"),
    ("[vary]\ncluster.tiers.nvlnk.bandwidth = 'x2'", 1, "nvlnk", "unknown_key cluster.tiers.nvlnk.bandwidth"),
    ("[vary]\ndevices = [10.5]", 1, "out_of_range devices", "out_of_range devices"),
    ("[vary]\ndevices = [16, 16]", 1, "given_twice 16 of devices", ""),
    ("[vary]\nspace.tp = [1, 'x']", 1, "space tp", "'x'"),
    ("[vary]\ndevices = [16]\n[[case]]\nname = 'a'\ndevices = 3", 1, "given_twice devices", ""),
    ("[[case]]\nname = 'a'\n[[case]]\nname = 'a'", 2, "given_twice the case 'a'", ""),
    ("[[case]]\nhbm_capacity = 'x2'", 0, "required_with a name", ""),
    ("[vary]\ndevices = [8]\n[search]\nobjetive = 1", 3, "unknown_key objetive", "unknown_key objetive"),
    ("[vary]\ndevices = [8]\n[search]\nobjective = 'mfu'", 3, "not_one_of objective", ""),
    ("[vary]\ndevices = [8]\n[search]\nmax_memory = 'lots'", 3, "max_memory", "wrong_type max_memory"),
    (
        "[vary]\ndevices = [8]\n[search]\nprice_per_device_hour = -2",
        3,
        "out_of_range price_per_device_hour",
        "",
    ),
    (
        "[vary]\ndevices = { from = 8, to = 64 }\n[sample]\npoints = 0",
        3,
        "points",
        "out_of_range sample.points",
    ),
    ("[vary]\ndevices = [8]\n[cost]\ncompute = 'exact'", 3, "'roofline'", "not_one_of compute"),
    ("[vary]\ndevices = [8]\n[cost]\nmeasurements = ['a.json']", 3, "no_effect measurements", ""),
    (
        "[vary]\ndevices = [8]\n[[plot]]\nkind = 'pie'",
        2,
        "not_one_of a plot's kind",
        "not_one_of a plot's kind",
    ),
    ("[vary]\ndevices = [8]\n[[plot]]\nkind = 'line'\nx = 'devices'\ny = 'mfuu'", 2, "mfuu", "unknown_name"),
]


@pytest.mark.parametrize(("text", "below", "said", "hint"), CASES, ids=[case[0][:40] for case in CASES])
def test_what_is_wrong_is_one_sentence_with_its_line_and_the_nearest_fix(tmp_path, text, below, said, hint):
    file = written(tmp_path, TEXT + text + "\n")
    with pytest.raises(ForescaleError) as caught:
        read_sweep(file)
    message = refusal(caught.value)
    assert f"{file}, line {LINE + below}" in message
    assert said in message
    assert hint in message


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("seq_len = 4096", "sequ_len = 4096", 6, "did you mean seq_len"),
        ("seq_len = 4096", "seq_len = -1", 6, "out_of_range seq_len"),
        ("pp = 1", "ppp = 1", 11, "unknown_key ppp"),
        ('recompute = "none"', 'recompute = "some"', 15, "not_one_of"),
        ("devices = 16", "devices = 0", 3, "out_of_range devices"),
    ],
)
def test_errors_of_the_base_have_their_line_too(tmp_path, before, after, line, said):
    file = written(tmp_path, TEXT.replace(before, after, 1) + "[vary]\nflops = 'x2'\n")
    with pytest.raises(ForescaleError) as caught:
        read_sweep(file)
    assert f"{file}, line {line}" in refusal(caught.value)
    assert said in refusal(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing [vary] or [[case]]"),
        ("[vary]\nflops = { from = 'x1', to = 'x2' }\n", "required_with [sample] points"),
        ("[vary]\ndevices = [8]\n[sample]\npoints = 3\n", "required_with [sample] points"),
        ("[vary]\ndevices = [8]\nnodes = [1]\n", "conflicts devices, nodes"),
        ("[vary]\ndomain_size = [4]\nflops = [[\n", "cannot_parse TOML"),
    ],
)
def test_what_concerns_the_whole_file_names_it(tmp_path, text, said):
    file = written(tmp_path, TEXT + text)
    with pytest.raises(ForescaleError) as caught:
        read_sweep(file)
    assert str(file) in refusal(caught.value)
    assert said in refusal(caught.value)


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


def test_a_sweep_under_a_published_analysis():
    values = {
        "model": "gpt3-1t",
        "cluster": "b200-nvs8",
        "devices": 256,
        "preset": "subramanian2024",
        "workload": {"seq_len": 2048, "global_batch_size": 4096},
        "vary": {"preset_options": {"tensor_parallel": ["1d", "summa"]}},
    }
    points = [point.question for point in build_sweep(values).asked]
    assert [point.preset_options.tensor_parallel for point in points] == ["1d", "summa"]
    rows = [answer(point, ("preset_options.tensor_parallel",)) for point in build_sweep(values).asked]
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert rows[0]["step_time_s"] == pytest.approx(116.18, abs=0.05)
