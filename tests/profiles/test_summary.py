"""Traces as torch.profiler writes them, with times set by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.profiles import part_of, stream, summarise
from forescale.profiles.summary import union


def kernel(name: str, start: float, length: float, stream: int = 7, **more: object) -> dict:
    args = {"stream": stream, "External id": 1, "grid": [1, 2, 3], "nested": {"a": [{"b": 1}, {"c": 2}]}}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": length,
        "args": args,
        **more,
    }


def step(number: int, start: float, length: float) -> dict:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": length,
    }


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
    *(
        event
        for n in range(2)
        for event in (
            step(n, 1000.0 * n, 1000.0),
            kernel("nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NNT", 1000.0 * n, 300.0),
            kernel("flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", 1000.0 * n + 300, 100.0),
            kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 1000.0 * n + 350, 150.0, stream=9),
            kernel("multi_tensor_apply_kernel", 1000.0 * n + 600, 100.0),
            {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
             "pid": 1, "tid": 1, "ts": 1000.0 * n + 800, "dur": 50.0},
        )
    ),
]  # fmt: skip
DOCUMENT = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0}, {"id": 1}],
    "traceEvents": EVENTS,
    "traceName": "x",
}


def written(path: Path, *, indent: int | None = 2, compress: bool = False) -> Path:
    text = json.dumps(DOCUMENT, indent=indent).encode()
    path.write_bytes(gzip.compress(text) if compress else text)
    return path


@pytest.mark.parametrize("chunk", [97, 1000, 1 << 20])
@pytest.mark.parametrize(("indent", "compress"), [(2, False), (None, True)])
def test_a_trace_in_chunks(tmp_path, monkeypatch, chunk, indent, compress):
    monkeypatch.setattr(stream, "CHUNK", chunk)
    result = summarise(written(tmp_path / "trace.json", indent=indent, compress=compress))
    assert (result.steps, result.step_s, result.on_device, result.truncated) == (2, 1e-3, True, False)
    assert result.parts_s == pytest.approx(
        {"gemm": 3e-4, "attention": 1e-4, "reduce_scatter": 1.5e-4, "optimizer": 1e-4}
    )
    assert result.exposed_s == pytest.approx({"reduce_scatter": 1e-4})
    assert (result.computing_s, result.busy_s, result.idle_s) == pytest.approx((5e-4, 6e-4, 4e-4))
    assert (result.data_s, result.launches) == (pytest.approx(5e-5), 4)
    assert [item.part for item in result.kernels[:2]] == ["gemm", "reduce_scatter"]


def test_a_truncated_trace_is_read_up_to_the_break(tmp_path):
    whole = summarise(written(tmp_path / "whole.json"))
    text = json.dumps(DOCUMENT, indent=2).encode()
    for name, content in (
        ("cut.json", text[: len(text) * 2 // 3]),
        ("cut.json.gz", gzip.compress(text)[:-200]),
    ):
        (tmp_path / name).write_bytes(content)
        result = summarise(tmp_path / name)
        assert result.truncated
        assert result.kernels[0].name == whole.kernels[0].name


def test_numbers_that_are_none(tmp_path):
    text = json.dumps(DOCUMENT, indent=2).replace('"stream": 9', '"stream": 9, "occupancy": NaN')
    (tmp_path / "trace.json").write_text(text)
    assert summarise(tmp_path / "trace.json").launches == 4


def test_a_trace_of_the_host_counts_each_operator_by_itself(tmp_path):
    def operator(name: str, start: float, length: float) -> dict:
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}

    events = [
        operator("aten::linear", 0, 100),
        operator("aten::addmm", 10, 80),
        operator("aten::gelu", 150, 50),
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    result = summarise(tmp_path / "trace.json")
    assert {item.name: item.seconds for item in result.kernels} == pytest.approx(
        {"aten::linear": 2e-5, "aten::addmm": 8e-5, "aten::gelu": 5e-5}
    )
    assert (result.on_device, result.idle_s) == (False, pytest.approx(5e-5))


def test_the_scatter_of_steps(tmp_path):
    events = [*EVENTS, step(2, 2000.0, 1300.0)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert summarise(tmp_path / "trace.json").step_error_s == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}", "wrong_format"),
        ("nothing", "wrong_format"),
        ('{"traceEvents": []}', "not_measured"),
        ('{"traceEvents": [{"ph": "X", "cat": "python_function", "ts": 1, "dur": 2}]}', "not_measured"),
    ],
)
def test_files_that_hold_nothing(tmp_path, text, error):
    (tmp_path / "trace.json").write_text(text)
    with raises(ReaderError, error):
        summarise(tmp_path / "trace.json")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ("all_gather", True)),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", ("point_to_point", True)),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90>>", ("attention", False)),
        ("fmha_v2_flash_attention_bf16_64_128_S_q_k_v_128_sm90", ("attention", False)),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", ("gemm", False)),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64", ("gemm", False)),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", ("optimizer", False)),
        ("void at::native::vectorized_elementwise_kernel<4, silu>", ("elementwise", False)),
        ("Memcpy DtoD (Device -> Device)", ("copy", False)),
        ("mystery", ("other", False)),
    ],
)
def test_kernels_by_name(name, part):
    assert part_of(name) == part


def test_unions_of_intervals():
    one, other = np.array([[0.0, 2.0], [5.0, 6.0]]), np.array([[1.0, 3.0], [6.0, 7.0], [9.0, 10.0]])
    assert union([one, other]).tolist() == [[0.0, 3.0], [5.0, 7.0], [9.0, 10.0]]
    assert union([]).tolist() == []


def test_an_event_of_another_type_is_an_error_and_no_break(tmp_path):
    text = json.dumps(DOCUMENT).replace('"dur": 300.0', '"dur": [300.0]', 1)
    (tmp_path / "trace.json").write_text(text)
    with raises(ReaderError, "wrong_format a chrome trace"):
        summarise(tmp_path / "trace.json")


def test_factors_that_are_no_numbers_count_nothing(tmp_path):
    product = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 5.0}
    dims = ([[2, 3], [3, 4]], [["a", 3], [3, 4]], [[[2], [3]], [3, 4]])
    events = [{**product, "args": {"Input Dims": one, "Input type": ["float", "float"]}} for one in dims]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert summarise(tmp_path / "trace.json").shapes.flops == {"fp32": 48.0}
