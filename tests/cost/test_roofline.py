"""The roofline model: its formulas against printed numbers, its limits, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from tests import toy
from tests.errors import raises

from forescale.catalogue.clusters import device_names, load_device
from forescale.cost.calibration import (
    AttentionParameters,
    GemmParameters,
    GroupedParameters,
    MemoryParameters,
    RunFactors,
    UnfusedParameters,
    load_calibration,
)
from forescale.cost.roofline import (
    Roofline,
    attention_seconds,
    attention_work,
    gemm_bytes,
    gemm_seconds,
    gemm_tile_flops,
    memory_bound_seconds,
    peak_rate,
    sustained_share,
)
from forescale.cost.tile import TileModel
from forescale.errors import SpecError
from forescale.formula import Term, as_term
from forescale.graph.ops import AttentionCore, Elementwise, Gemm, GroupedGemm

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
BIG = Gemm(m=8192.0, n=8192.0, k=8192.0)


def model(name: str) -> Roofline:
    device = load_device(name)
    return Roofline(device=device, calibration=load_calibration(device))


@pytest.fixture(name="h100")
def _h100():
    return model("h100-sxm")


def rate(roofline, op):
    return op.flops / roofline.seconds(op)


def test_gemm_bytes_give_the_printed_arithmetic_intensities():
    """NVIDIA's matrix multiplication guide: 124.1 FLOP/B for 8192 x 128 x 8192, 2730 for 8192 cubed."""
    for n, expected in ((128.0, 124.1), (8192.0, 2730.0)):
        moved = gemm_bytes(m=8192.0, n=n, k=8192.0, batch=1.0, operand_bytes=2.0, output_bytes=2.0)
        assert 2 * 8192.0 * n * 8192.0 / moved == pytest.approx(expected, rel=1e-3)


def test_tiles_are_counted_up_and_fill_the_cores():
    """NVIDIA's guide: 108 multiprocessors of an A100 take 108 tiles of 256 x 128 at once."""
    per_tile = 2.0 * 256 * 128

    def tiles(m, n, **more):
        keys = {"batch": 1.0, "tile_m": 256.0, "tile_n": 128.0, "edge": 0.0, "tail": 0.0, "num_cores": 108.0}
        return gemm_tile_flops(m=m, n=n, **{**keys, **more}) / per_tile

    assert tiles(256.0 * 12, 128.0 * 9) == 108.0
    assert tiles(256.0, 128.0) == 108.0, "one tile takes as long as a full wave"
    assert tiles(256.0 * 12 + 1, 128.0 * 9) == 117.0
    assert tiles(256.0 * 12, 128.0 * 9, batch=2.0, tail=0.5) == 216.0 + 54.0
    assert tiles(256.0, 128.0, edge=2.0) == 108.0 * (1.0 + 2.0 * (256 + 128) / (256 * 128))


def test_roofline_takes_the_slower_of_arithmetic_and_traffic():
    common = {
        "step_flops": 2e6,
        "k": 900.0,
        "fill_k": 100.0,
        "rate": 1e12,
        "bandwidth": 1e11,
        "launch_s": 1e-6,
    }
    assert gemm_seconds(num_bytes=1e8, shown_bytes=0.0, **common) == pytest.approx(1e-6 + 2e-3)
    assert gemm_seconds(num_bytes=1e9, shown_bytes=0.0, **common) == pytest.approx(1e-6 + 1e-2)
    assert gemm_seconds(num_bytes=1e8, shown_bytes=3e8, **common) == pytest.approx(1e-6 + 5e-3)
    assert attention_seconds(
        work=1e12, rate=1e14, num_bytes=1e8, bandwidth=1e12, launch_s=0.0
    ) == pytest.approx(1e-2)


def test_a_loop_slows_down_to_what_the_board_sustains():
    """2 s at the full rate: of 4 s after 1 s of load 3 run at half of it."""
    limits = {"lasting": 0.5, "burst_s": 2.0}
    assert sustained_share(loaded_s=0.0, timed_s=2.0, **limits) == 1.0
    assert sustained_share(loaded_s=1.0, timed_s=4.0, **limits) == pytest.approx((1.0 + 3.0 * 0.5) / 4.0)
    assert sustained_share(loaded_s=9.0, timed_s=1.0, **limits) == 0.5
    product = Gemm(m=4096.0, n=4096.0, k=4096.0)
    kernels = toy.calibration()
    limited = replace(kernels.gemm["bf16"], lasting=0.25, burst_s=1.0)
    kernels = replace(kernels, gemm={"bf16": limited}, reference_power_w=100.0)

    def seconds(power_w=400.0, loop=(9.0, 1.0), **run):
        device = replace(toy.device(rate=product.flops / 3.0), power_w=power_w)
        calibration = replace(kernels, run=RunFactors(**run))
        return Roofline(device=device, calibration=calibration, loop=loop).seconds(product)

    alone = seconds(loop=None)
    assert seconds() == pytest.approx(alone / 0.5), "4 times the watts, twice the rate"
    assert seconds(100.0) == pytest.approx(alone / 0.25)
    assert seconds(loop=(0.0, 1.0)) == pytest.approx(alone), (
        "a short loop is over before the board slows down"
    )
    assert seconds(25.0) == pytest.approx(seconds(25.0, loop=None) / 0.25), (
        "watts that are lacking count once"
    )
    assert seconds(sustained={"bf16": 0.8}) == pytest.approx(alone / 0.8), "what runs sustain says it all"


@pytest.mark.parametrize("model", [Roofline, TileModel])
def test_rates_follow_the_clock_that_their_peaks_are_quoted_at(model):
    """A core whose peak is quoted at 0.8 of its clock multiplies 1.25 times as fast."""
    product = Gemm(m=8192.0, n=8192.0, k=8192.0)
    device = replace(load_device("h100-sxm"), l2_bytes=0.0)
    kernels = load_calibration(device)
    rated = replace(device, rated_clock_hz=0.8 * device.clock_hz)
    slower, faster = (model(device=item, calibration=kernels).seconds(product) for item in (device, rated))
    assert slower / faster == pytest.approx(1.25, rel=0.05), "but for launches, traffic and caches"
    clocked = model(device=rated, calibration=kernels, clock_hz=rated.rated_clock_hz).seconds(product)
    assert clocked == pytest.approx(slower, rel=1e-3)


@pytest.mark.parametrize("model", [Roofline, TileModel])
def test_a_kernel_that_pads_multiplies_values_as_wide_as_keys(model):
    """Latent attention: 192 of keys, 128 of values; where products set the pace they count alike."""
    device, core = load_device("b200"), AttentionCore(
        batch=1.0, heads=64.0, kv_heads=64.0, q_len=8192.0, kv_len=8192.0, pairs=8192.0**2 / 2,
        qk_dim=192.0, v_dim=128.0, causal=True, backward=True,
    )  # fmt: skip

    def seconds(core, padding):
        fits = load_calibration(device)
        tables = {
            name: {**table, "backward": replace(table["backward"], padding=padding)}
            for name, table in (("attention", fits.attention), ("tile_attention", fits.tile_attention))
        }
        return model(device=device, calibration=replace(fits, **tables)).seconds(core)

    square = replace(core, v_dim=192.0)
    assert seconds(core, 0.0) < seconds(core, 0.5) < seconds(core, 1.0)
    assert seconds(core, 1.0) == pytest.approx(seconds(square, 0.0), rel=0.02)
    assert seconds(square, 1.0) == seconds(square, 0.0)


def test_attention_work_without_losses_is_the_published_count():
    """FlashAttention-2, section 4.1: 4 · seqlen² · head dimension · heads, halved with a causal mask."""
    work = attention_work(
        batch=2.0,
        heads=16.0,
        q_len=4096.0,
        pairs=4096.0**2 / 2,
        pair_flops=4.0 * 128,
        fill=0.0,
        block_q=128.0,
        tail=0.0,
        num_cores=132.0,
    )
    assert work == 4 * 4096**2 * 128 * 16 * 2 / 2


def test_attention_of_few_queries_leaves_cores_idle():
    keys = {
        "heads": 8.0,
        "q_len": 512.0,
        "pairs": 512.0**2,
        "pair_flops": 1.0,
        "fill": 0.0,
        "block_q": 128.0,
        "tail": 0.0,
        "num_cores": 128.0,
    }
    assert attention_work(batch=1.0, **keys) == attention_work(batch=4.0, **keys)
    assert attention_work(batch=8.0, **keys) == 2 * attention_work(batch=4.0, **keys)


def test_memory_bound_work_is_bytes_over_bandwidth_and_launches():
    """Roofline (Williams et al. 2009): at most peak bandwidth times intensity."""
    assert memory_bound_seconds(num_bytes=3e9, bandwidth=1.5e12, kernels=2.0, launch_s=3e-6) == pytest.approx(
        2.006e-3
    )


@pytest.mark.parametrize("name", device_names())
def test_no_device_exceeds_its_peaks(name):
    roofline = model(name)
    device = roofline.device
    for dtype in ("bf16", "fp16", "fp8", "nvfp4", "tf32", "fp32"):
        try:
            peak = peak_rate(device, dtype)
        except SpecError:
            continue
        assert rate(roofline, replace(BIG, dtype=dtype)) < peak
        experts = GroupedGemm(groups=8.0, m=65536.0, n=8192.0, k=8192.0, dtype=dtype)
        assert rate(roofline, experts) < peak
        assert rate(roofline, replace(experts, contract="m")) < peak
        if dtype in {"bf16", "fp16"}:
            for backward in (False, True):
                assert rate(roofline, replace(CAUSAL, dtype=dtype, backward=backward)) < peak
    traffic = Elementwise(bytes_moved=1e10)
    assert traffic.bytes_moved / roofline.seconds(traffic) < device.hbm_bandwidth


def test_experts_of_equal_rows_cost_no_less_than_one_product(h100):
    experts = GroupedGemm(groups=8.0, m=32768.0, n=4096.0, k=4096.0)
    assert h100.seconds(experts) >= h100.seconds(Gemm(m=32768.0, n=4096.0, k=4096.0))
    assert h100.seconds(replace(experts, groups=64.0)) > h100.seconds(experts)
    assert h100.seconds(replace(experts, contract="m", accumulate_bytes=6.0)) > h100.seconds(experts)


def test_accumulating_into_a_buffer_shows_whole_when_traffic_bounds_and_else_in_part(h100):
    thin = Gemm(m=8192.0, n=8192.0, k=64.0)
    assert h100.seconds(replace(thin, accumulate_bytes=8.0)) > 2 * h100.seconds(thin)
    sums = 10.0 * BIG.m * BIG.n / h100.device.hbm_bandwidth
    assert 0.0 < h100.seconds(replace(BIG, accumulate_bytes=8.0)) - h100.seconds(BIG) < sums


def test_fp8_is_faster_than_bf16_and_fp32_slower(h100):
    times = [h100.seconds(replace(BIG, dtype=dtype)) for dtype in ("fp8", "bf16", "tf32", "fp32")]
    assert times == sorted(times)
    assert times[1] / times[0] < 2.0, "an 8-bit product gains less than its peak"


def test_materialised_scores_cost_more_than_flash(h100):
    for backward in (False, True):
        op = replace(CAUSAL, backward=backward)
        assert h100.seconds(replace(op, flash=False)) > 3 * h100.seconds(op)


def test_sustained_factor_slows_its_own_family_only(h100):
    run = RunFactors(sustained={"bf16": 0.5, "attention": 0.8})
    slower = replace(h100, calibration=h100.calibration.with_run(run))
    assert slower.seconds(BIG) == pytest.approx(2 * h100.seconds(BIG), rel=0.01)
    assert slower.seconds(CAUSAL) == pytest.approx(1.25 * h100.seconds(CAUSAL), rel=0.01)
    norm = Elementwise(bytes_moved=1e9, family="norm")
    assert slower.seconds(norm) == h100.seconds(norm)


def test_recorded_terms_have_the_same_value_and_name_their_formulas(h100):
    rows = np.array([4096.0, 8192.0])
    for op in (
        replace(BIG, m=rows),
        GroupedGemm(groups=8.0, m=rows, n=4096.0, k=4096.0),
        replace(CAUSAL, batch=rows),
        replace(CAUSAL, heads=rows / 256, flash=False),
        Elementwise(bytes_moved=rows),
    ):
        field = next(name for name in ("m", "batch", "bytes_moved") if hasattr(op, name))
        recorded = h100.seconds(replace(op, **{field: as_term(getattr(op, field), name=field, unit="")}))
        assert isinstance(recorded, Term)
        np.testing.assert_array_equal(recorded.value, h100.seconds(op))
        names = {node.name for node in recorded.at(1).walk()}
        assert names & {"gemm_seconds", "attention_seconds", "memory_bound_seconds"}
        assert field in names


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("h100-sxm", BIG, "fitted"),
        ("h100-sxm", CAUSAL, "fitted"),
        ("h100-sxm", replace(BIG, dtype="tf32"), "roofline"),
        ("b200", replace(CAUSAL, backward=True), "fitted"),
        ("b300", replace(CAUSAL, backward=True), "roofline"),
        ("tpu-v5p", BIG, "roofline"),
        ("h100-sxm", Elementwise(bytes_moved=1.0, family="norm"), "roofline"),
    ],
)
def test_provenance_says_what_was_fitted_and_what_was_not(name, op, kind):
    provenance = model(name).provenance(op)
    assert provenance.kind == kind
    assert ("prior" in provenance.source) is (kind == "roofline")
    assert 0.0 < provenance.low <= 1.0 <= provenance.high


def test_a_device_beside_the_fitted_ones_is_less_certain():
    fitted, beside = (model(name).provenance(BIG) for name in ("h100-sxm", "h800-sxm"))
    assert "h800-sxm itself was not measured" in beside.source
    assert beside.low == pytest.approx(fitted.low**1.5)  # half as wide again
    assert beside.high == pytest.approx(fitted.high**1.5)


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        (
            "a100-sxm-80gb",
            "fp8",
            "unsupported_by device a100-sxm-80gb | fp8",
        ),
        ("v100-sxm2-32gb", "bf16", "unsupported_by device v100-sxm2-32gb | bf16"),
        ("h100-sxm", "int4", "not_one_of compute type"),
        ("b200", "int8", "unsupported_by device b200 | int8"),
    ],
)
def test_a_type_the_device_lacks_is_refused(name, dtype, message):
    with raises(SpecError, message):
        model(name).seconds(replace(BIG, dtype=dtype))


def test_products_in_fp32_run_on_matrix_units_that_take_it():
    """MI250X: 47.9 TFLOP/s of a die in fp32 matrix products, 23.95 on its vector units, which is all that others have."""
    mi250x = load_device("mi250x-gcd")
    assert peak_rate(mi250x, "fp32") == 47.9e12
    without = replace(mi250x, matrix_flops=replace(mi250x.matrix_flops, fp32=None))
    assert peak_rate(without, "fp32") == 23.95e12


def test_attention_runs_in_the_16_bit_type_that_the_device_has():
    v100 = model("v100-sxm2-32gb")
    assert v100.seconds(CAUSAL) == v100.seconds(replace(CAUSAL, dtype="fp16"))
    unfused = replace(CAUSAL, flash=False)
    assert v100.seconds(unfused) == v100.seconds(replace(unfused, dtype="fp16"))


def test_every_generation_of_attention_kernels_is_faster_than_the_last(h100):
    op = replace(CAUSAL, causal=False, pairs=8192.0**2)
    kinds = [
        h100,
        *(
            replace(h100, calibration=h100.calibration.with_attention(kind))
            for kind in ("flash-2", "flash-1")
        ),
    ]
    for backward in (False, True):
        times = [kind.seconds(replace(op, backward=backward)) for kind in kinds]
        assert times == sorted(times)
        for kind, other in (("", 0), ("flash-2", 1), ("flash-1", 2), ("flash-9", 0)):
            assert h100.seconds(replace(op, backward=backward, kernel=kind)) == times[other]
    assert kinds[2].seconds(op) > 2 * kinds[0].seconds(op)


def test_a_fused_softmax_passes_over_the_scores_as_often_as_it_says():
    """Two kernels alike but for 6 bytes of each score differ by what these take at the bandwidth of a softmax."""
    a100 = model("a100-sxm-80gb")
    few, many = (a100.seconds(replace(CAUSAL, flash=False, score_bytes=size)) for size in (4.0, 10.0))
    bandwidth = a100.device.hbm_bandwidth * a100.calibration.memory["softmax"].bandwidth
    assert many - few == pytest.approx(32 * 8192.0**2 * 6.0 / bandwidth)
    assert few < a100.seconds(replace(CAUSAL, flash=False))


def test_long_products_of_v100_reach_what_deepbench_measured():
    """5124 x 9124 x 4096 took 3.70 ms on a DGX-1 under CUDA 10.1 (baidu-research/DeepBench, DeepBench_NV_V100.xlsx)."""
    product = Gemm(m=9124.0, n=5124.0, k=4096.0, dtype="fp16")
    assert model("v100-sxm2-32gb").seconds(product) == pytest.approx(3.70e-3, rel=0.05)


@pytest.mark.parametrize(("width", "slower"), [(104.0, False), (108.0, True), (112.0, False), (150.0, True)])
def test_heads_whose_rows_are_not_16_bytes_wide_run_on_the_vector_units(width, slower):
    a100 = model("a100-sxm-80gb")
    seconds, even = (
        a100.seconds(replace(CAUSAL, q_len=2048.0, kv_len=2048.0, flash=False, qk_dim=size, v_dim=size))
        for size in (width, width + -width % 8)
    )
    assert bool(seconds > 2.0 * even) == slower


def test_unaligned_heads_among_others_cost_what_they_cost_alone():
    a100, widths = model("a100-sxm-80gb"), np.array([104.0, 108.0])
    op = replace(CAUSAL, flash=False)
    both = a100.seconds(replace(op, qk_dim=widths, v_dim=widths))
    assert both.tolist() == [a100.seconds(replace(op, qk_dim=item, v_dim=item)) for item in (104.0, 108.0)]


def test_a_transposed_copy_is_written_only_where_products_read_along_rows():
    cast = Elementwise(bytes_moved=3e9, family="cast")
    both = replace(cast, transposed_bytes=1e9)
    hopper, blackwell = model("h100-sxm"), model("b200")
    assert hopper.seconds(both) == pytest.approx(hopper.seconds(replace(cast, bytes_moved=4e9)))
    assert blackwell.seconds(both) == blackwell.seconds(cast)


LOSSES = {
    "bf16": 0.8,
    "fp8": 0.7,
    "grouped": 0.5,
    "attention": 0.6,
    "unfused": 0.25,
    "memory": 0.9,
    "permute": 0.4,
}


def lossy(**changes):
    """A device of 6 cores and 1 MFLOP/s, 200 kB/s of memory, whose kernels lose something of everything."""
    product = GemmParameters(
        fraction=0.75, fill_k=5.0, edge=2.0, tail=0.5, launch_s=3.0, bandwidth=0.5, accumulation=0.25,
        tiles=((4, 8), (16, 2)),
    )  # fmt: skip
    forward = AttentionParameters(
        fraction=0.4, softmax_flops=7.0, fill=3.0, block_q=8.0, tail=0.25, launch_s=11.0, bandwidth=0.2
    )
    backward = replace(forward, fraction=0.3, softmax_flops=13.0, block_q=4.0, launch_s=17.0, bandwidth=0.1)
    calibration = replace(
        toy.calibration(),
        gemm={"bf16": product, "fp8": product, "fp32": product},
        grouped=GroupedParameters(fraction=0.6, group_s=19.0, contract_m=0.7),
        attention={"forward": forward, "backward": backward},
        unfused=UnfusedParameters(forward_bytes=9.0, backward_bytes=15.0, launch_s=23.0),
        memory={
            "permute": MemoryParameters(bandwidth=0.35, launch_s=29.0),
            "softmax": MemoryParameters(bandwidth=0.65, launch_s=31.0),
        },
        run=RunFactors(sustained=LOSSES),
        reference_power_w=400.0,
        power_exponent=0.5,
    )
    device = replace(toy.device(rate=1e6, hbm=2e5), num_cores=6, power_w=100.0, architecture="hopper")
    return Roofline(device=device, calibration=calibration, **changes)


POWER = 0.5
"""The root of 100 W over the 400 W of the devices that were fitted."""


def lossy_product(rows, columns, k, batch, *, rate, size, written, added=0):
    """Seconds but for launches: tiles of 4 x 8 or of 16 x 2, 2 more products for each of their rows and columns.

    Where sums are `added` to, a quarter of their traffic shows.
    """

    def steps(high, wide):
        tiles = -(-rows // high) * -(-columns // wide) * batch
        return (max(tiles, 6) + 0.5 * 6) * 2 * (high * wide + 2 * (high + wide))

    arithmetic = min(steps(4, 8), steps(16, 2)) * (k + 5) / (rate * 0.75 * POWER)
    bandwidth = 2e5 * 0.5 * 0.9
    traffic = batch * ((rows + columns) * k * size + rows * columns * (written + added)) / bandwidth
    shown = 0.25 * batch * rows * columns * (written + added) / bandwidth if added else 0.0
    return max(arithmetic + shown, traffic)


@pytest.mark.parametrize("clock", [None, 0.25e9])
@pytest.mark.parametrize(("m", "n", "k"), [(33, 17, 400), (3, 2, 4000), (64, 100, 2)])
def test_every_loss_of_a_product(m, n, k, clock):
    """Of 1 GHz, at a quarter of it multiplications take four times as long; the last shape is bound by traffic."""
    speed = 0.25 if clock else 1.0
    result = lossy(clock_hz=clock)
    op = Gemm(m=float(m), n=float(n), k=float(k), batch=3.0, accumulate_bytes=6.0)
    expected = lossy_product(m, n, k, 3, rate=1e6 * speed * 0.8, size=2, written=2, added=6)
    assert result.seconds(op) == pytest.approx(3 + expected)
    narrow = lossy_product(m, n, k, 1, rate=2e6 * speed * 0.7, size=1, written=2)
    assert result.seconds(replace(op, batch=1.0, accumulate_bytes=0.0, dtype="fp8")) == pytest.approx(
        3 + narrow
    )
    wide = lossy_product(m, n, k, 1, rate=0.25e6 * speed, size=4, written=4)
    assert result.seconds(replace(op, batch=1.0, accumulate_bytes=0.0, dtype="fp32")) == pytest.approx(
        3 + wide
    )


@pytest.mark.parametrize(("n", "k"), [(17, 400), (300, 2)])
def test_every_loss_of_experts(n, k):
    """99 rows of 3 experts; 0.6 of a product's rate, in a run 0.5 of that at 6 tiles of 4 x 8 for 6 cores, so that as
    much again as these 6 take is lost; of weight gradients 0.7 of it again.
    """

    def rate(rows: int, experts: int = 1) -> float:
        tiles = math.ceil(rows / 4) * math.ceil(n / 8) * experts
        return 1e6 * 0.8 * 0.6 * tiles / (tiles + 6)

    op = GroupedGemm(groups=3.0, m=99.0, n=float(n), k=float(k))
    expected = lossy_product(33, n, k, 3, rate=rate(33), size=2, written=2)
    assert lossy().seconds(op) == pytest.approx(3 + 3 * 19 + expected)
    together = lossy_product(33, n, k, 3, rate=rate(33, 3), size=2, written=2)
    assert lossy().seconds(replace(op, together=True)) == pytest.approx(3 + 3 * 19 + together)
    summed = lossy_product(k, n, 33, 3, rate=rate(k) * 0.7, size=2, written=2, added=6)
    gradient = replace(op, contract="m", accumulate_bytes=6.0)
    assert lossy().seconds(gradient) == pytest.approx(3 + 3 * 19 + summed)


def test_the_product_of_one_expert_is_a_dense_one():
    """What several lose beside each other it does not; of what starts it the table of groups stays."""
    op, dense = GroupedGemm(groups=1.0, m=99.0, n=17.0, k=400.0), Gemm(m=99.0, n=17.0, k=400.0)
    assert lossy().seconds(op) == pytest.approx(lossy().seconds(dense) + 19)
    groups = np.array([1.0, 3.0])
    both = lossy().seconds(replace(op, groups=groups))
    assert both.tolist() == [lossy().seconds(replace(op, groups=item)) for item in groups]


LOSSY_CORE = AttentionCore(
    batch=2.0, heads=3.0, kv_heads=1.0, q_len=21.0, kv_len=35.0, pairs=30000.0, qk_dim=16.0, v_dim=24.0
)  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
def test_every_loss_of_attention(causal):
    """6 calls of 3 blocks of 8 queries, or of 6 of 4; with a mask half a block more per query is in vain."""
    op = replace(LOSSY_CORE, causal=causal)
    rate = 1e6 * 0.6 * POWER
    pair = 2 * 16 + 2 * 24 + 7
    waste = (3 + (4 if causal else 0)) * 21
    forward = 6 * (30000 + waste) * pair * (18 + 0.25 * 6) / 18 / (rate * 0.4)
    assert lossy().seconds(op) == pytest.approx(11 + forward)
    pair, waste = 6 * 16 + 4 * 24 + 13, (3 + (2 if causal else 0)) * 21
    backward = 6 * (30000 + waste) * pair * (36 + 0.25 * 6) / 36 / (rate * 0.3)
    assert lossy().seconds(replace(op, backward=True)) == pytest.approx(17 + backward)


def test_attention_of_few_pairs_is_bound_by_its_traffic():
    """Queries and outputs of 6 heads, keys and values of 2, in 2 bytes; gradients of all beside them in backward."""
    op = replace(LOSSY_CORE, pairs=1.0, causal=False, q_len=2000.0)
    moved = 2 * (6 * 2000 + 2 * 35) * (16 + 24)
    swift = replace(lossy(), device=replace(lossy().device, matrix_flops=toy.device(rate=1e12).matrix_flops))
    assert swift.seconds(op) == pytest.approx(11 + moved / (2e5 * 0.2 * 0.9))
    assert swift.seconds(replace(op, backward=True)) == pytest.approx(17 + 2 * moved / (2e5 * 0.1 * 0.9))
    grouped = replace(op, batch=1.0, heads=6.0, kv_heads=2.0)
    assert swift.seconds(grouped) == pytest.approx(swift.seconds(op))


def test_softmax_in_products_of_another_rate_takes_as_long_as_ever():
    """In fp32, at a quarter of the rate: 7 FLOP of a pair in 16 bits are a quarter as many."""
    op = replace(LOSSY_CORE, causal=False, dtype="fp32")
    pair = 2 * 16 + 2 * 24 + 7 / 4
    expected = 6 * (30000 + 3 * 21) * pair * (18 + 1.5) / 18 / (0.25e6 * 0.6 * POWER * 0.4)
    assert lossy().seconds(op) == pytest.approx(11 + expected)


def test_every_loss_of_materialised_scores():
    """Two products forward, four backward, of 6 calls; and passes over 6 x 21 x 35 scores."""
    op = replace(LOSSY_CORE, flash=False)

    def product(width):
        return 3 + lossy_product(21, 35, width, 6, rate=1e6 * 0.8, size=2, written=2)

    rate = 2e5 * 0.65 * 0.9 * 0.25
    scores = 6 * 21 * 35
    assert lossy().seconds(op) == pytest.approx(product(16) + product(24) + 23 + scores * 9 / rate)
    backward = 2 * product(16) + 2 * product(24) + 23 + scores * 15 / rate
    assert lossy().seconds(replace(op, backward=True)) == pytest.approx(backward)


def test_every_loss_of_a_pass_over_memory():
    op = Elementwise(bytes_moved=7000.0, family="permute", kernels=2.0, transposed_bytes=500.0)
    assert lossy().seconds(op) == pytest.approx(2 * 29 + 7500 / (2e5 * 0.35 * 0.9 * 0.4))


def test_cores_that_few_queries_leave_idle():
    """One call of 2 blocks on 8 cores: each pair costs as if all 8 and a quarter more waited; of 9 blocks a ninth."""
    keys = {"heads": 1.0, "pair_flops": 10.0, "fill": 2.0, "block_q": 100.0, "tail": 0.25, "num_cores": 8.0}
    few = attention_work(batch=1.0, q_len=150.0, pairs=1000.0, **keys)
    assert few == (1000 + 2 * 150) * 10 * (8 + 0.25 * 8) / 2
    many = attention_work(batch=3.0, q_len=201.0, pairs=1000.0, **keys)
    assert many == pytest.approx(3 * (1000 + 2 * 201) * 10 * (9 + 0.25 * 8) / 9)


@pytest.mark.parametrize(("device", "share"), [("h100-sxm", 1.0), ("b200", 0.53)])
def test_kernels_of_mamba_gain_less_from_blackwell_than_attention(device: str, share: float) -> None:
    """state-spaces/mamba issue 904: 1.51 times as fast on GB200 as on H200."""
    machine = load_device(device)
    model = Roofline(device=machine, calibration=load_calibration(machine))
    product = Gemm(m=128, n=64, k=128, batch=8192.0)
    core = AttentionCore(
        batch=64,
        heads=64,
        kv_heads=64,
        q_len=128,
        kv_len=128,
        pairs=128**2,
        qk_dim=128,
        v_dim=64,
        chunked=True,
    )
    for op in (product, core):
        assert model.seconds(op) / model.seconds(structs.replace(op, kernel="ssd")) == pytest.approx(share)


def test_a_delta_rule_multiplies_more_than_it_counts() -> None:
    """flashinfer pull request 2742: 1.49 ms forward on B200 for 8,192 tokens of 96 heads of 128."""
    machine = load_device("b200")
    model = Roofline(device=machine, calibration=load_calibration(machine))
    core = AttentionCore(
        batch=128,
        heads=96,
        kv_heads=96,
        q_len=64,
        kv_len=64,
        pairs=64**2,
        qk_dim=128,
        v_dim=128,
        chunked=True,
        kernel="delta",
    )
    state = Gemm(m=64, n=128, k=128, batch=2 * 128 * 96, kernel="delta")
    assert model.seconds(core) + model.seconds(state) == pytest.approx(1.49e-3, rel=0.03)


def test_a_device_without_tf32_multiplies_in_fp32():
    assert peak_rate(load_device("t4"), "tf32") == peak_rate(load_device("t4"), "fp32")
    assert peak_rate(load_device("a100-sxm-80gb"), "tf32") > peak_rate(load_device("a100-sxm-80gb"), "fp32")
