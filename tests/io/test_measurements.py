from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_device
from forescale.errors import ReaderError, SpecError
from forescale.graph.ops import AttentionCore, Elementwise, Gemm, GroupedGemm
from forescale.io.bench import SCHEMA
from forescale.io.measurements import read_measurements, read_nccl_tests

H100 = load_device("h100-sxm")
KERNELS = [
    {"op": "gemm", "m": 4096, "n": 8192, "k": 1024, "dtype": "fp8", "seconds": 1e-4},
    {"op": "gemm", "m": 4096, "n": 8192, "k": 1024, "accumulate_bytes": 4, "seconds": 3e-4},
    {"op": "grouped_gemm", "groups": 8, "m": 8192, "n": 2048, "k": 4096, "contract": "m", "seconds": 2e-4},
    {"op": "attention", "batch": 1, "heads": 32, "kv_heads": 8, "q_len": 4096, "kv_len": 4096, "qk_dim": 128,
     "v_dim": 128, "backward": True, "seconds": 9e-4},
    {"op": "elementwise", "family": "norm", "bytes_moved": 6e7, "seconds": 3e-5},
]  # fmt: skip
COLLECTIVES = [{"kind": "all_gather", "num_bytes": 1e8, "num_ranks": 8, "ranks_per_node": 8, "seconds": 5e-4}]
CONDITIONS = {"device": "H100 SXM", "software": "torch 2.8", "date": "2026-08-01"}


def write(tmp_path, name="bench.json", **changes):
    document = {"schema": SCHEMA, "kernels": KERNELS, "collectives": COLLECTIVES, "conditions": CONDITIONS}
    path = tmp_path / name
    path.write_text(json.dumps(document | changes), encoding="utf-8")
    return path


def test_an_artifact_of_kernels_alone_needs_no_run(tmp_path):
    measurements = read_measurements(write(tmp_path), H100)
    assert (measurements.source, measurements.device) == ("bench.json (torch 2.8, 2026-08-01)", "h100-sxm")
    ops = [op for op, _ in measurements.kernels]
    assert ops[0] == Gemm(m=4096.0, n=8192.0, k=1024.0, dtype="fp8")
    assert ops[1].accumulate_bytes == 4.0
    assert ops[2] == GroupedGemm(groups=8.0, m=8192.0, n=2048.0, k=4096.0, contract="m")
    assert isinstance(ops[3], AttentionCore)
    assert (ops[3].pairs, ops[3].backward) == (4096.0 * 4096.0 / 2, True)
    assert ops[4] == Elementwise(bytes_moved=6e7, family="norm")
    assert [seconds for _, seconds in measurements.kernels] == [1e-4, 3e-4, 2e-4, 9e-4, 3e-5]
    assert measurements.collectives[0].kind == "all_gather"


def test_an_artifact_with_a_run_is_of_its_device(tmp_path):
    measurements = read_measurements(write(tmp_path, config={"cluster": "mi300x"}), H100)
    assert measurements.device == "mi300x"
    with raises(SpecError, "wrong_type cluster"):
        read_measurements(write(tmp_path, config={"devices": 8}), H100)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"kernels": [{"op": "conv", "seconds": 1.0}]},
            "not_one_of op",
        ),
        ({"kernels": [{"op": "gemm", "m": 1, "n": 1, "seconds": 1.0}]}, "missing k"),
        ({"kernels": [{**KERNELS[0], "seconds": 0}]}, "out_of_range seconds"),
        ({"collectives": [{**COLLECTIVES[0], "num_ranks": 1}]}, "out_of_range num_ranks"),
        ({"kernels": [], "collectives": []}, "not_measured it"),
        (
            {"layers": [{"kind": "attention+dense", "forward_s": 1.0}]},
            "required_with config, the run that they were measured in",
        ),
    ],
)
def test_impossible_timings_are_refused_with_their_place(tmp_path, changes, text):
    with raises(SpecError, text):
        read_measurements(write(tmp_path, **changes), H100)


HEADER = (
    "id,hardware,kind,op,dtype,m,n,k,groups,batch,heads,kv_heads,qk_head_dim,v_head_dim,seq_len,causal,"
    "msg_bytes,n_gpus,nodes,measured_tflops,time_us,library,notes\n"
)
TABLE = HEADER + (
    "a-1,H100 SXM,gemm,matmul,bf16,4096,4096,4096,,,,,,,,,,,,,250,cublas,\n"
    "a-2,B200,gemm,matmul,bf16,4096,4096,4096,,,,,,,,,,,,,90,cublas,\n"
    "b-1,H100 SXM,collective,all_reduce,,,,,,,,,,,,,100000000,8,1,,500,nccl,\n"
)


def test_a_kernel_table_gives_the_rows_of_the_device(tmp_path):
    path = tmp_path / "kernels.csv"
    path.write_text(TABLE, encoding="utf-8")
    measurements = read_measurements(path, H100)
    assert measurements.kernels == ((Gemm(m=4096.0, n=4096.0, k=4096.0), 250e-6),)
    assert [row.num_bytes for row in measurements.collectives] == [1e8]
    with raises(ReaderError, "incomplete rows of mi300x"):
        read_measurements(path, load_device("mi300x"))


def test_other_files_are_refused(tmp_path):
    with raises(ReaderError, "wrong_suffix the file"):
        read_measurements(tmp_path / "bench.yaml", H100)
    path = tmp_path / "ranks.json"
    config = {
        "model": "llama-3.1-8b", "cluster": "h100-sxm", "devices": 8,
        "workload": {"seq_len": 4096, "global_batch_size": 16},
    }  # fmt: skip
    ranks = [{"peak_allocated_bytes": 1e9, "peak_reserved_bytes": 1e9}]
    path.write_text(json.dumps({"schema": SCHEMA, "config": config, "ranks": ranks}), encoding="utf-8")
    with raises(ReaderError, "incomplete kernels or collectives to look up"):
        read_measurements(path, H100)


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
    with raises(ReaderError, "incomplete num_ranks"):
        read_nccl_tests(path)
    with raises(ReaderError, "differs kind"):
        read_nccl_tests(path, kind="all_gather", num_ranks=16, ranks_per_node=8)
    empty = tmp_path / "empty.txt"
    empty.write_text("# all_reduce_perf\n")
    with raises(ReaderError, "empty the log"):
        read_nccl_tests(empty, num_ranks=8, ranks_per_node=8)


@pytest.mark.parametrize(
    ("number", "word", "text"),
    [
        (8, "all", None),
        (5, "9" * 400, "0 µs"),
        (5, "0.00", "0 µs"),
        (5, "nan", "bytes has no time"),
        (5, "-13.31", "bytes has no time"),
        (5, "13,31", "bytes has no time"),
        (5, "N/A", "bytes has no time"),
        (5, "", "bytes has no time"),
    ],
)
def test_wrong_rows_are_left_out_and_rows_without_a_time_refused(tmp_path, number, word, text):
    value = (DATA / "mi300x_1_node_all_reduce.txt").read_text(encoding="utf-8")
    whole = read_nccl_tests(DATA / "mi300x_1_node_all_reduce.txt")
    rows = [line for line in value.splitlines() if line.split()[:1] == [f"{whole.rows[-1].num_bytes:.0f}"]]
    parts = rows[0].split()
    changed = " ".join([*parts[:number], word, *parts[number + 1 :]] if word else parts[:number])
    path = tmp_path / "log.txt"
    path.write_text(value.replace(rows[0], changed), encoding="utf-8")
    if text is None:
        assert len(read_nccl_tests(path).rows) == len(whole.rows) - 1
    else:
        with pytest.raises(ReaderError, match=rf"line \d+: .*{text}"):
            read_nccl_tests(path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda log: log.replace("(us)", "(ms)"), "not_a_quantity µs"),
        (lambda _: "hello\n", "empty the log"),
    ],
)
def test_logs_of_another_unit_and_of_nothing_are_refused(tmp_path, change, text):
    path = tmp_path / "log.txt"
    path.write_text(change((DATA / "mi300x_1_node_all_reduce.txt").read_text(encoding="utf-8")))
    with raises(ReaderError, text):
        read_nccl_tests(path)
