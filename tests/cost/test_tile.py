"""The tile model: each formula against counts done by hand, and what the whole must obey."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forescale.catalogue.clusters import device_names, load_device
from forescale.cost import fit
from forescale.cost.calibration import RunFactors, load_calibration, read_calibration
from forescale.cost.kernels import batches, read_kernels
from forescale.cost.roofline import Roofline, peak_rate
from forescale.cost.tile import TileModel, tiles_of
from forescale.cost.tile_formulas import (
    attention_block_seconds,
    attention_blocks,
    attention_tile_seconds,
    systolic_seconds,
    tile_epilogue_seconds,
    tile_gemm_seconds,
    tile_step_seconds,
    tile_waves,
    wave_extent,
)
from forescale.errors import SpecError
from forescale.formula import Term, as_term
from forescale.graph.ops import AttentionCore, Elementwise, Gemm, GroupedGemm

DATA = Path(__file__).parents[1] / "data" / "kernels"
BIG = Gemm(m=8192.0, n=8192.0, k=8192.0)
CAUSAL = AttentionCore(
    batch=1.0,
    heads=32.0,
    kv_heads=8.0,
    q_len=8192.0,
    kv_len=8192.0,
    pairs=8192.0**2 / 2,
    qk_dim=128.0,
    v_dim=128.0,
)


def model(name: str) -> TileModel:
    device = load_device(name)
    return TileModel(device=device, calibration=load_calibration(device))


@pytest.fixture(name="h100")
def _h100():
    return model("h100-sxm")


def waves(m, n, *, split=1.0, batch=1.0, tail=1.0):
    return tile_waves(
        m=m, n=n, batch=batch, tile_m=256.0, tile_n=128.0, split=split, num_cores=108.0, tail=tail
    )


def test_waves_of_an_a100():
    """NVIDIA's matrix multiplication guide: 108 multiprocessors; one tile over a wave doubles the time."""
    assert waves(256.0 * 12, 128.0 * 9) == 1.0
    assert waves(256.0 * 12 + 1, 128.0 * 9) == 2.0
    assert waves(256.0 * 12 + 1, 128.0 * 9, tail=0.0) == 117 / 108
    assert waves(256.0, 128.0) == 1.0
    assert waves(256.0, 128.0, batch=108.0, split=4.0) == 4.0


def test_a_wave_reads_a_near_square_of_tiles():
    wide = wave_extent(m=1e5, n=1e5, batch=1.0, tile_m=128.0, tile_n=128.0, square=12.0, num_cores=144.0)
    assert wide == (12 + 12) * 128.0
    narrow = wave_extent(m=1e5, n=256.0, batch=1.0, tile_m=128.0, tile_n=128.0, square=12.0, num_cores=144.0)
    assert narrow == (72 + 2) * 128.0


@pytest.mark.parametrize(
    ("core_rate", "l2_rate", "bandwidth", "expected"),
    [
        (1e12, 1e15, 1e15, 2 * 256 * 128 / 1e12),
        (1e15, 1e9, 1e15, (256 + 128) * 2 / 1e9),
        (1e15, 1e15, 1e9, 3000 * 2 / 1e9),
    ],
)
def test_a_step_waits_for_its_slowest_resource(core_rate, l2_rate, bandwidth, expected):
    step = tile_step_seconds(
        tile_m=256.0, tile_n=128.0, extent=3000.0, operand_bytes=2.0, core_rate=core_rate, l2_rate=l2_rate,
        bandwidth=bandwidth,
    )  # fmt: skip
    assert step == pytest.approx(expected)


def test_split_k_pays_for_its_partial_sums():
    keys = {"m": 100.0, "n": 10.0, "batch": 2.0, "output_bytes": 2.0, "bandwidth": 1e3}
    assert tile_epilogue_seconds(split=1.0, **keys) == pytest.approx(4.0)
    assert tile_epilogue_seconds(split=4.0, **keys) == pytest.approx(4.0 + 4 * 8 * 2)


def test_gemm_adds_launch_waves_and_epilogue():
    seconds = tile_gemm_seconds(
        waves=3.0, step_s=1e-9, k=1000.0, split=2.0, fill_s=1e-7, epilogue_s=5e-7, launch_s=2e-6
    )
    assert seconds == pytest.approx(2e-6 + 3 * (5e-7 + 1e-7) + 5e-7)


def test_a_systolic_array_pads_its_weights_and_fills_with_rows():
    keys = {
        "n": 129.0,
        "k": 128.0,
        "batch": 1.0,
        "array": 128.0,
        "rate": 1e12,
        "num_bytes": 0.0,
        "bandwidth": 1e12,
    }
    assert systolic_seconds(m=872.0, launch_s=0.0, **keys) == pytest.approx(2 * 1000 * 256 * 128 / 1e12)
    assert systolic_seconds(m=872.0, launch_s=1e-6, **{**keys, "num_bytes": 1e9}) == pytest.approx(
        1e-6 + 1e-3
    )


def test_attention_overlaps_products_and_softmax_in_part():
    keys = {"products_s": 3.0, "softmax_s": 2.0, "loads_s": 1.0}
    assert attention_block_seconds(overlap=1.0, **keys) == 3.0
    assert attention_block_seconds(overlap=0.0, **keys) == 5.0
    assert attention_block_seconds(overlap=0.0, **{**keys, "loads_s": 9.0}) == 11.0
    assert (
        attention_tile_seconds(blocks=10.0, block_s=2.0, num_bytes=5.0, bandwidth=1.0, launch_s=1.0) == 21.0
    )


def test_the_longest_workgroup_bounds_few_heads():
    keys = {"q_len": 1024.0, "kv_len": 1024.0, "keys": 512.0, "longest": 1024.0, "block_q": 128.0,
            "block_kv": 128.0, "fill": 0.0, "tail": 0.0, "num_cores": 64.0}  # fmt: skip
    assert attention_blocks(calls=1.0, **keys) == 8.0
    assert attention_blocks(calls=64.0, **keys) == 8 * 4.0
    assert attention_blocks(calls=64.0, **{**keys, "tail": 0.5}) == 8 * 4.0 + 2.0


@pytest.mark.parametrize("name", device_names())
def test_no_device_exceeds_its_peaks(name):
    tile = model(name)
    for dtype in ("bf16", "fp16", "fp8", "nvfp4", "fp32"):
        try:
            peak = peak_rate(tile.device, dtype)
        except SpecError:
            continue
        for op in (
            replace(BIG, dtype=dtype),
            GroupedGemm(groups=8.0, m=65536.0, n=8192.0, k=8192.0, dtype=dtype),
        ):
            assert (
                0.2 * peak * tile.calibration.power_factor(tile.device.power_w)
                < op.flops / tile.seconds(op)
                < peak
            )
    for backward in (False, True):
        op = replace(CAUSAL, backward=backward)
        assert op.flops / tile.seconds(op) < max(
            filter(None, (tile.device.matrix_flops.bf16, tile.device.matrix_flops.fp16))
        )


def test_the_fastest_tile_is_taken(h100):
    fitted = h100.calibration.tile["bf16"]

    def only(*tiles):
        table = {**h100.calibration.tile, "bf16": replace(fitted, tiles=tiles)}
        return replace(h100, calibration=replace(h100.calibration, tile=table))

    small = Gemm(m=512.0, n=512.0, k=16384.0)
    alone = [only(tile).seconds(small) for tile in fitted.tiles]
    assert h100.seconds(small) == min(alone)
    assert only((128, 128, 4)).seconds(small) < only((128, 128, 1)).seconds(small), (
        "few tiles gain by split k"
    )
    assert only((128, 128, 4)).seconds(BIG) > only((128, 128, 1)).seconds(BIG)


def test_tiles_carry_the_columns_of_a_square_wave(h100):
    fitted = replace(h100.calibration.tile["bf16"], tiles=((256, 128, 1), (128, 256, 2)))
    np.testing.assert_array_equal(tiles_of(fitted.tiles, 132.0), [[256, 128], [128, 256], [1, 2], [17, 9]])


def test_clock_scales_what_runs_on_the_cores(h100):
    slow = replace(h100, clock_hz=h100.device.clock_hz / 2)
    assert slow.seconds(BIG) == pytest.approx(2 * h100.seconds(BIG), rel=0.02)
    assert slow.seconds(CAUSAL) == pytest.approx(2 * h100.seconds(CAUSAL), rel=0.02)
    traffic = Elementwise(bytes_moved=1e9)
    assert slow.seconds(traffic) == h100.seconds(traffic)


def test_sustained_rates_slow_it_like_the_roofline(h100):
    slow = replace(
        h100, calibration=h100.calibration.with_run(RunFactors(sustained={"bf16": 0.5, "attention": 0.5}))
    )
    assert slow.seconds(BIG) == pytest.approx(2 * h100.seconds(BIG), rel=0.02)
    assert slow.seconds(CAUSAL) == pytest.approx(2 * h100.seconds(CAUSAL), rel=0.02)


def test_traffic_and_materialised_scores_are_left_to_the_roofline(h100):
    roofline = Roofline(device=h100.device, calibration=h100.calibration)
    for op in (Elementwise(bytes_moved=1e9, family="loss"), replace(CAUSAL, flash=False)):
        assert h100.seconds(op) == roofline.seconds(op)
        assert h100.provenance(op) == roofline.provenance(op)
    tpu = model("tpu-v5p")
    assert tpu.seconds(CAUSAL) == Roofline(device=tpu.device, calibration=tpu.calibration).seconds(CAUSAL)


def test_recorded_terms_have_the_same_value_and_name_the_tile(h100):
    rows = np.array([640.0, 8192.0, 100.0])
    for op in (
        replace(BIG, m=rows),
        GroupedGemm(groups=4.0, m=rows, n=4096.0, k=512.0),
        replace(CAUSAL, batch=rows),
    ):
        field = "batch" if isinstance(op, AttentionCore) else "m"
        recorded = h100.seconds(replace(op, **{field: as_term(rows, name=field)}))
        assert isinstance(recorded, Term)
        np.testing.assert_array_equal(recorded.value, h100.seconds(op))
        names = {node.name for node in recorded.at(1).walk()}
        assert field in names
        assert names & {"tile_gemm_seconds", "attention_tile_seconds"}
    one = h100.seconds(replace(BIG, m=as_term(640.0, name="m")))
    assert one.at().value == h100.seconds(replace(BIG, m=640.0))
    assert {"tile_m", "split"} <= {name for node in one.at().walk() for name, _ in node.inputs}


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("b200", BIG, "fitted"),
        ("b200", CAUSAL, "fitted"),
        ("b200", replace(CAUSAL, backward=True), "roofline"),
        ("mi300x", BIG, "fitted"),
        ("mi300x", replace(CAUSAL, backward=True), "roofline"),
        ("h100-sxm", GroupedGemm(groups=8.0, m=1.0, n=1.0, k=1.0), "roofline"),
    ],
)
def test_provenance_says_what_was_fitted(name, op, kind):
    assert model(name).provenance(op).kind == kind


@pytest.mark.parametrize(
    ("train", "unseen"), [("h100-sxm", "h200-sxm"), ("b200", "gb200"), ("b300", "gb300")]
)
def test_attention_of_an_unseen_machine_within_ten_per_cent(train, unseen):
    machines = {
        "H100 SXM": "h100-sxm",
        "H200 SXM": "h200-sxm",
        "B200": "b200",
        "GB200": "gb200",
        "B300": "b300",
        "GB300": "gb300",
    }
    rows = read_kernels(
        DATA / "sample.csv", {hardware: load_device(name) for hardware, name in machines.items()}
    )

    def select(machine):
        return batches(row for row in rows if row.table == "AICA" and row.device.name == machine)

    def tile(calibration, device):
        return TileModel(device=device, calibration=calibration)

    entry = fit.Entry(section="tile_attention", keys=("forward",))
    found = fit.fit_entry(
        read_calibration("generic"), entry, select(train), fit.TILE_ATTENTION, tile, calls=("AICA",)
    )
    logs = fit.errors(select(unseen), found, tile)
    assert logs.size >= 10
    assert np.median(np.abs(logs)) <= 0.10
