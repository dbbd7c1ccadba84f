"""Efficiencies of timed kernels: found again, held where nothing tells, never above 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_device
from forescale.cost.calibration import load_calibration
from forescale.cost.measured import Measurements
from forescale.cost.roofline import Roofline
from forescale.cost.select import Calibrations, Costs, read_calibrations
from forescale.errors import ReaderError, SpecError
from forescale.graph.ops import AttentionCore, Elementwise, Gemm
from forescale.validation.kernels import Entry, fit_kernels, rows_of

H100 = load_device("h100-sxm")
BASE = load_calibration(H100)
ALLOWED = {"name": "own", "date": "2026-01-01"}


def gemms(count=60):
    rng = np.random.default_rng(1)
    extents = rng.choice([512.0, 1024.0, 2048.0, 4096.0, 8192.0], (count, 3))
    return [Gemm(m=m, n=n, k=k) for m, n, k in extents.tolist()]


def streams(family="norm"):
    return [Elementwise(family=family, bytes_moved=2.0**power) for power in range(16, 32)]


def attention(*, backward=False):
    return [
        AttentionCore(
            batch=batch, heads=32.0, kv_heads=8.0, q_len=length, kv_len=length, pairs=length * length / 2,
            qk_dim=128.0, v_dim=128.0, causal=True, flash=True, backward=backward,
        )
        for batch in (1.0, 4.0)
        for length in (1024.0, 2048.0, 4096.0, 8192.0)
    ]  # fmt: skip


def timed(ops, truth, source="bench.json", factor=1.0):
    model = Roofline(device=H100, calibration=truth)
    return Measurements(
        source=source, device=H100.name, kernels=tuple((op, float(model.seconds(op)) * factor) for op in ops)
    )


def fitted(*measured, **more):
    return fit_kernels(rows_of(measured, H100), BASE, H100, **ALLOWED, **more)


def entry(fits, ending):
    return next(one for one in fits.entries if one.path.endswith(ending))


def test_efficiencies_that_made_the_times_are_found_again():
    truth = Entry(section="gemm", keys=("bf16",)).changed(
        BASE, {"fraction": 0.6, "fill_k": 300.0, "launch_s": 4e-6}
    )
    truth = Entry(section="memory", keys=("norm",)).changed(truth, {"bandwidth": 0.5, "launch_s": 6e-6})
    result = fitted(timed([*gemms(), *streams()], truth))
    product, norm = result.calibration.gemm["bf16"], result.calibration.memory["norm"]
    assert product.fraction == pytest.approx(0.6, rel=0.03)
    assert product.fill_k == pytest.approx(300.0, rel=0.15)
    assert (norm.bandwidth, norm.launch_s) == pytest.approx((0.5, 6e-6), rel=0.05)
    report = entry(result, "gemm.bf16")
    assert report.before.median_abs > 0.2 > 0.02 > report.after.median_abs
    assert report.held_out.median_abs < 0.02
    moved = {move.path: move.after for move in report.moves}
    assert moved["kernels.h100-sxm.gemm.bf16.fraction"] == product.fraction
    assert product.fit.in_sample == report.after
    assert product.fit.held_out == (report.held_out,)
    assert product.fit.machines == ("h100-sxm",)


def test_what_no_row_times_stays_as_it_was():
    calibration = fitted(timed(streams(), BASE, factor=1.5)).calibration
    assert (calibration.gemm, calibration.attention, calibration.tile) == (
        BASE.gemm,
        BASE.attention,
        BASE.tile,
    )
    assert {key for key in BASE.memory if calibration.memory[key] != BASE.memory[key]} == {"norm"}


def test_times_that_break_the_peak_do_not_make_an_efficiency_above_1():
    result = fitted(timed([*gemms(), *streams(), *attention()], BASE, factor=0.2))
    calibration = result.calibration
    shares = [
        calibration.gemm["bf16"].fraction,
        calibration.tile["bf16"].fraction,
        calibration.memory["norm"].bandwidth,
    ]
    shares += [calibration.attention["forward"].fraction, calibration.tile_attention["forward"].fraction]
    assert max(shares) == pytest.approx(1.0, abs=0.01)
    assert max(shares) <= 1.0
    assert entry(result, "gemm.bf16").after.bias > 0.5  # and the rest of the error is not hidden


def test_few_rows_move_less_than_many():
    truth = Entry(section="gemm", keys=("bf16",)).changed(BASE, {"fraction": 0.4})
    few, many = (fitted(timed(gemms()[:count], truth)).calibration.gemm["bf16"] for count in (3, 60))
    assert 0.4 < many.fraction < few.fraction < BASE.gemm["bf16"].fraction
    assert entry(fitted(timed(gemms()[:3], truth)), "gemm.bf16").held_out is None


def test_fewer_rows_than_a_fit_needs_are_named_and_left():
    result = fitted(timed([*gemms()[:2], *streams()], BASE, factor=2.0))
    assert result.calibration.gemm == BASE.gemm
    assert [(one.path, one.rows) for one in result.left] == [("kernels.h100-sxm.gemm.bf16", 2)]


def test_files_are_predicted_from_each_other():
    result = fitted(timed(gemms(), BASE), timed(gemms(), BASE, source="other.json", factor=1.5))
    report = entry(result, "gemm.bf16")
    assert report.held_out.source == "each file predicted from the others"
    assert report.held_out.median_abs > 2 * report.after.median_abs > 0.1


def test_a_constant_per_call_is_fitted_and_dropped():
    measured = timed(streams(), BASE)
    slow = replace(measured, kernels=tuple((op, seconds + 2e-5) for op, seconds in measured.kernels))
    launch = BASE.memory["norm"].launch_s
    assert fitted(slow).calibration.memory["norm"].launch_s > 4 * launch
    assert fitted(slow, per_call=True).calibration.memory["norm"].launch_s < 2 * launch


def test_measured_attention_is_that_of_older_software_too():
    calibration = fitted(timed(attention(), BASE, factor=2.0)).calibration
    assert "forward flash-2" in BASE.attention
    assert (
        calibration.attention["forward flash-2"]
        == calibration.attention["forward"]
        != BASE.attention["forward"]
    )
    assert calibration.attention["backward flash-2"] == BASE.attention["backward flash-2"]


def test_other_devices_and_types_that_it_lacks_are_refused():
    with raises(SpecError, "other_run x"):
        rows_of([Measurements(source="x", device="b200")], H100)
    narrow = [replace(op, dtype="nvfp4") for op in gemms()]
    measurements = Measurements(source="x", kernels=tuple((op, 1e-3) for op in narrow))
    with raises(SpecError, "unsupported_by device h100-sxm"):
        fitted(measurements)
    with raises(SpecError, "not_measured the table"):
        fitted()


def test_a_document_gives_back_what_was_fitted(tmp_path):
    import json

    calibration = fitted(timed(gemms(), BASE, factor=1.5)).calibration
    path = tmp_path / "own.json"
    path.write_text(json.dumps(Calibrations(kernels={"h100-sxm": calibration}).to_json()), encoding="utf-8")
    again = read_calibrations(path)
    assert again.kernels == {"h100-sxm": calibration}
    assert again.runs is None
    costs = Costs(kernels=again.kernels)
    assert costs.kernel_calibration(H100) == calibration
    assert costs.kernel_calibration(load_device("h200-sxm")) == BASE
    generation = Costs(kernels={"hopper": calibration})
    assert generation.kernel_calibration(load_device("h200-sxm")) == calibration


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[]", "incomplete table"),
        ('{"schema": "forescale.calibrations/9"}', "wrong_type its schema"),
        ('{"schema": "forescale.calibrations/1"}', "empty it"),
        ('{"schema": "forescale.calibrations/1", "kernel": {}}', "unknown_key kernel"),
        ('{"schema": "forescale.calibrations/1", "kernels": {"h100-sxm": {"base": "x"}}}', "not_one_of the base of kernels.h100-sxm"),
        ('{"schema": "forescale.calibrations/1", "kernels": {"a": {"base": "generic", "gemms": 1}}}', "unknown_key gemms"),
        ('{"schema": "forescale.calibrations/1", "links": {"a": 1}}', "links a list of tables"),
        ('{"schema": "forescale.calibrations/1", "links": [{"name": "a"}]}', "missing network calibration.protocols"),
        (
            '{"schema": "forescale.calibrations/1", "kernels": {"a": {"base": "hopper", '
            '"memory": {"norm": {"bandwidth": 1.2, "launch_s": 1e-6}}}}}',
            "out_of_range kernels.a.memory.norm.bandwidth",
        ),
        ("{", "cannot_parse JSON"),
    ],
)  # fmt: skip
def test_documents_that_cannot_be_are_refused(tmp_path, content, problem):
    path = tmp_path / "own.json"
    path.write_text(content, encoding="utf-8")
    with raises(ReaderError, problem):
        read_calibrations(path)
