from __future__ import annotations

from pathlib import Path

import pytest

from forescale.errors import ReaderError
from forescale.io.nccl_tests import read_nccl_tests

DATA = Path(__file__).parents[1] / "data/collectives"
HEAD = "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong\n"


def test_a_log_that_lists_its_devices():
    run = read_nccl_tests(DATA / "h100_4_nodes_all_reduce.txt", kind="all_reduce")
    assert (run.device, run.num_ranks, run.ranks_per_node) == ("NVIDIA H100 80GB HBM3", 32, 8)
    assert run.rows[0].num_bytes == 8
    assert run.rows[-1].num_bytes == 17179869184
    assert run.rows[-1].seconds == pytest.approx(90986e-6)
    algorithm = run.rows[-1].num_bytes / run.rows[-1].seconds
    assert 2 * 31 / 32 * algorithm == pytest.approx(365.84e9, rel=1e-4)  # the log's own bus bandwidth


def test_rccl_says_which_test_it_ran():
    run = read_nccl_tests(DATA / "mi300x_1_node_all_reduce.txt")
    assert (run.kind, run.device, run.num_ranks, run.ranks_per_node) == (
        "all_reduce",
        "AMD Instinct MI300X",
        8,
        8,
    )


def test_prefixes_of_the_launcher_are_ignored():
    run = read_nccl_tests(DATA / "p5_2_nodes_all_reduce.txt", num_ranks=16, ranks_per_node=8)
    assert run.kind == "all_reduce"
    assert len(run.rows) == 18


@pytest.mark.parametrize(
    "line",
    [
        "  1048576  262144  float  none  -1  82.17  12.76  24.73  0  82.21  12.75  24.71  0",
        "  1048576  262144  float  none   0  82.17  12.76  24.73  0  82.21  12.75  24.71  N/A",
        "  1048576  262144  float           82.17  12.76  24.73  0e+00  82.21  12.75  24.71  1e+00",
        "  1048576  262144  float  sum  -1  82.17  12.76  24.73  0  82.21  12.75  24.71  0  Direct  LL  32",
    ],
)
def test_columns_of_all_versions(tmp_path, line):
    path = tmp_path / "log.txt"
    path.write_text(f"{HEAD}{line}\n")
    run = read_nccl_tests(path, kind="all_to_all", num_ranks=8, ranks_per_node=8)
    assert [(row.num_bytes, row.seconds) for row in run.rows] == [(1048576.0, pytest.approx(82.17e-6))]


def test_an_older_table_without_a_root(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(
        HEAD.replace("  root", "")
        + " 268435456  67108864  float  sum  122131  2.20  4.33  2e-06  122165  2.20  4.33  2e-06\n"
    )
    run = read_nccl_tests(path, kind="all_reduce", num_ranks=64, ranks_per_node=8)
    assert run.rows[0].seconds == pytest.approx(0.122131)


def test_wrong_results_are_left_out_and_counted(tmp_path):
    path = tmp_path / "log.txt"
    rows = "".join(
        f"   {size}  262144  float  sum  -1  82.17  12.76  24.73  {wrong}  82.21  12.75  24.71  0\n"
        for size, wrong in ((1024, 0), (2048, 3))
    )
    path.write_text(HEAD + rows)
    run = read_nccl_tests(path, kind="all_reduce", num_ranks=8, ranks_per_node=8)
    assert (len(run.rows), run.num_wrong) == (1, 1)


def test_what_is_missing_or_contradicts_is_an_error(tmp_path):
    path = DATA / "mi300x_2_nodes_all_reduce.txt"
    with pytest.raises(ReaderError, match=r"does not say num_ranks; .* or give --num-ranks"):
        read_nccl_tests(path)
    with pytest.raises(ReaderError, match="says kind is all_reduce, but all_gather was given"):
        read_nccl_tests(path, kind="all_gather", num_ranks=16, ranks_per_node=8)
    empty = tmp_path / "empty.txt"
    empty.write_text("# all_reduce_perf\n")
    with pytest.raises(ReaderError, match="no results"):
        read_nccl_tests(empty, num_ranks=8, ranks_per_node=8)


def test_rows_whose_errors_are_no_number_are_wrong_and_endless_ones_no_rows(tmp_path):
    text = (DATA / "mi300x_1_node_all_reduce.txt").read_text(encoding="utf-8")
    whole = read_nccl_tests(DATA / "mi300x_1_node_all_reduce.txt")
    line = next(line for line in text.splitlines() if line.split()[:1] == [f"{whole.rows[-1].num_bytes:.0f}"])
    words = line.split()
    for number, word in ((8, "all"), (5, "9" * 400)):
        changed = " ".join([*words[:number], word, *words[number + 1 :]])
        path = tmp_path / "log.txt"
        path.write_text(text.replace(line, changed), encoding="utf-8")
        assert len(read_nccl_tests(path).rows) == len(whole.rows) - 1
