"""Fitting: known parameters are found again; published kernels of unseen machines are predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_device
from forescale.cost.calibration import RunFactors, load_calibration, read_calibration
from forescale.cost.roofline import Roofline
from forescale.cost.timings import KernelBatch, batches, read_kernels
from forescale.errors import ReaderError
from forescale.graph.ops import AttentionCore, Gemm, GroupedGemm
from forescale.validation import entries
from forescale.validation import kernels as fit

DATA = Path(__file__).parents[1] / "data" / "kernels"
MACHINES = {
    "A100-80GB SXM": "a100-sxm-80gb", "A100-80GB PCIe": "a100-pcie-80gb", "H100 SXM": "h100-sxm",
    "H200 SXM": "h200-sxm", "L40S": "l40s", "B200": "b200", "GB200": "gb200", "B300": "b300",
    "GB300": "gb300", "MI300X": "mi300x", "MI325X": "mi325x", "MI355X": "mi355x",
}  # fmt: skip


def roofline(calibration, device):
    return Roofline(device=device, calibration=calibration)


@pytest.fixture(name="rows", scope="module")
def _rows():
    machines = {hardware: load_device(name) for hardware, name in MACHINES.items()}
    return [
        row
        for name in ("sample.csv", "attention_h100_fa3_paper.csv", "cdna.csv")
        for row in read_kernels(DATA / name, machines)
    ]


def select(rows, kind, machine, *, dtype="bf16", table=None):
    return batches(
        row
        for row in rows
        if isinstance(row.ops[0], kind)
        and row.device.name == machine
        and row.ops[0].dtype == dtype
        and (table is None or row.table == table)
    )


def made_up(parameters):
    """Rows that the model itself made from `parameters`."""
    device = load_device("h100-sxm")
    rng = np.random.default_rng(1)
    m, n, k = (rng.choice([512.0, 1024.0, 2048.0, 4096.0, 8192.0], 80) for _ in range(3))
    op = Gemm(m=m, n=n, k=k)
    calibration = fit.Entry(section="gemm", keys=("bf16",)).changed(read_calibration("generic"), parameters)
    seconds = roofline(calibration, device).seconds(op)
    return KernelBatch(
        device=device, table="T", ids=("",) * 80, ops=(op,), extra=(), seconds=np.asarray(seconds)
    )


def test_known_parameters_are_found_again_despite_a_constant_per_call():
    truth = {"fraction": 0.8, "fill_k": 200.0, "tail": 0.1, "launch_s": 2e-6}
    batch = made_up(truth)
    noisy = replace(batch, seconds=batch.seconds + 4e-6)
    entry = fit.Entry(section="gemm", keys=("bf16",))
    fixed = replace(batch, table="fixed")
    result = fit.fit_entry(
        read_calibration("generic"), entry, [noisy, fixed], fit.GEMM, roofline, calls=("T",)
    )
    parameters = result.calibration.gemm["bf16"]
    for name, value in truth.items():
        assert getattr(parameters, name) == pytest.approx(value, rel=0.05), name
    assert result.call_s["T"] == pytest.approx(4e-6, rel=0.05)


def test_bounds_hold_against_impossible_rows():
    batch = made_up({"fraction": 0.9})
    impossible = replace(batch, seconds=batch.seconds / 3)
    entry = fit.Entry(section="gemm", keys=("bf16", "fp16"))
    result = fit.fit_entry(read_calibration("generic"), entry, [impossible], fit.GEMM, roofline)
    assert result.calibration.gemm["bf16"].fraction <= 1.0
    assert result.calibration.gemm["fp16"] == replace(
        result.calibration.gemm["bf16"], fit=result.calibration.gemm["fp16"].fit
    )


@pytest.mark.parametrize(
    ("train", "unseen"), [("h100-sxm", "h200-sxm"), ("h200-sxm", "h100-sxm"), ("b200", "gb200")]
)
@pytest.mark.parametrize("family", ["gemm", "attention"])
def test_an_unseen_machine_is_predicted_within_ten_per_cent(rows, train, unseen, family):
    kind, section, key, parameters, table = {
        "gemm": (Gemm, "gemm", "bf16", fit.GEMM, "AICG"),
        "attention": (AttentionCore, "attention", "forward", fit.ATTENTION, "AICA"),
    }[family]
    entry = fit.Entry(section=section, keys=(key,))
    result = fit.fit_entry(
        read_calibration("generic"),
        entry,
        select(rows, kind, train, table=table),
        parameters,
        roofline,
        calls=(table,),
    )
    logs = fit.errors(select(rows, kind, unseen, table=table), result, roofline)
    assert logs.size >= 10
    assert np.median(np.abs(logs)) <= 0.10


@pytest.mark.parametrize(
    ("kind", "machine", "table", "bound"),
    [
        (Gemm, "h100-sxm", "AICG", 0.05), (Gemm, "h200-sxm", "AICG", 0.05),
        (Gemm, "a100-pcie-80gb", "SMGEMM", 0.05),
        (Gemm, "b200", "AICG", 0.10), (Gemm, "gb300", "AICG", 0.10), (Gemm, "l40s", "AICG", 0.10),
        (AttentionCore, "a100-sxm-80gb", "FA2", 0.10), (GroupedGemm, "a100-pcie-80gb", "SMGROUP", 0.05),
        (Gemm, "mi300x", "PTG", 0.05), (Gemm, "mi355x", "HBL", 0.05), (GroupedGemm, "mi300x", "PTGG", 0.05),
        (AttentionCore, "mi300x", "PTA", 0.05),
    ],
)  # fmt: skip
def test_packaged_calibrations_reproduce_published_kernels(rows, kind, machine, table, bound):
    # Serving tables were timed for moments: what boards lose in long loops is none of theirs.
    moments = RunFactors(sustained={"bf16": 1.0} if table == "AICG" else {})
    fitted = fit.FittedEntry(calibration=load_calibration(load_device(machine)).with_run(moments))
    logs = fit.errors(select(rows, kind, machine, table=table), fitted, roofline)
    assert logs.size >= 5
    assert np.median(np.abs(logs)) <= bound


def test_products_of_mi355x_average_what_its_library_reports():
    """Primus-Turbo @23e36d65, docs/mi300x-vs-mi355x-baseline.md: 1535 TFLOP/s forward over the shapes of 7 models."""
    machines = {"MI300X": load_device("mi300x")}
    shapes = [row.ops[0] for row in read_kernels(DATA / "cdna.csv", machines) if row.table == "PTG"]
    device = load_device("mi355x")
    model = roofline(load_calibration(device), device)
    rates = [op.flops / model.seconds(op) for op in shapes]
    assert np.mean(rates) == pytest.approx(1535e12, rel=0.05)


def test_residual_and_record():
    logs = np.log([0.9, 1.0, 1.1, 1.2, 1.3])
    spread = entries.residual(logs, source="here")
    assert (spread.rows, spread.bias) == (5, pytest.approx(np.log(1.1), abs=1e-4))
    record = entries.fit_record(source="s", in_sample=spread, machines=("x",))
    assert record.low == pytest.approx(1 / 1.26, rel=0.01)
    assert record.high == pytest.approx(1 / 0.94, rel=0.01)
    assert (record.kind, record.machines) == ("fitted", ("x",))


def test_reader_turns_conventions_into_operators(rows):
    by_id = {row.id: row for row in rows}
    assert all(row.seconds > 0 for row in rows)
    both = [row for row in rows if row.table == "FA2"]
    assert all([op.backward for op in row.ops] == [False, True] for row in both)
    assert all(row.extra for row in rows if row.table == "AICA")
    quantised = [row for row in rows if row.ops[0].dtype == "fp8" and row.table == "AICG"]
    assert quantised
    reads = {round(row.extra[0].bytes_moved / (row.ops[0].m * row.ops[0].k), 6) for row in quantised}
    assert reads == {1.4, 4.2, 7.0}, "written, and read never, once or twice, at 5/7 of what our casts reach"
    paper = by_id["FA3P-0036"]
    assert paper.ops[0].flops == 2.5 * 4 * 16384**2 * 2048
    assert paper.seconds == pytest.approx(paper.ops[0].flops / 322e12)


def test_stacking_keeps_every_row_and_its_price(rows):
    calibration = load_calibration(load_device("h100-sxm"))
    local = [row for row in rows if row.device.name == "h100-sxm"]
    stacked = batches(local)
    prices = {
        name: price
        for batch in stacked
        for name, price in zip(
            batch.ids, fit.predicted(batch, roofline(calibration, batch.device)), strict=True
        )
    }
    assert len(prices) == len(local)
    for row in local[::7]:
        one = roofline(calibration, row.device)
        assert prices[row.id] == sum(one.seconds(op) for op in (*row.ops, *row.extra))


def test_a_table_without_kernels_is_refused(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("a,b\n1,2\n")
    with raises(ReaderError, "wrong_format a table of kernels", value="it lacks the column hardware, kind"):
        read_kernels(path, {})
