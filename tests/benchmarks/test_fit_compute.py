"""The fits that come with the package are what the benchmark makes of the published tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fit_compute import (
    OUT,
    PRIORS,
    Step,
    above_rating,
    document,
    read_rows,
    recipes,
    roofline,
    tile,
    twins,
    with_priors,
)

from forescale.catalogue.clusters import load_device
from forescale.cost.calibration import calibration_of, inherited, read_calibration
from forescale.cost.timings import batches
from forescale.graph.ops import Gemm, GroupedGemm
from forescale.validation.kernels import FittedEntry, errors, fit_entry

ROOT = Path(__file__).parents[2]
TABLES = ("data/published/kernels.csv", "tests/data/kernels/cdna.csv", "tests/data/kernels/volta.csv")


@pytest.fixture(scope="module")
def rows():
    return read_rows([ROOT / path for path in TABLES])


def test_every_packaged_fit_has_a_recipe():
    documents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in OUT.glob("*.json")}
    names = {
        name
        for name, result in documents.items()
        if "doubt" in result or not result.keys() & {"gemm", "tile"}
    }
    assert set(recipes()) == documents.keys() - names - {"generic"}


def described(value, path=""):
    """Every number and text of a document, by where it stands."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, item in items for k, v in described(item, f"{path}/{key}").items()}
    return {path: value}


@pytest.mark.parametrize("name", ["gaudi2", "tpu-v6e", "cdna4", "volta"])
def test_a_fit_is_reproduced(name, rows):
    """Processors round exp and log otherwise in the last bit, which moves what rows hardly tell: seconds stay."""
    made = json.loads(json.dumps(document(name, rows)))
    packaged = json.loads((OUT / f"{name}.json").read_text(encoding="utf-8"))
    result, requested = described(made), described(packaged)
    assert result.keys() == requested.keys()
    for path, value in requested.items():
        digits = 5e-4 if "/in_sample/" in path or "/held_out/" in path else 0.0
        near = pytest.approx(value, rel=0.02, abs=digits) if isinstance(value, float) else value
        assert result[path] == near, path
    stacked = batches(row for row in rows if row.device.architecture == name)
    assert stacked or made == packaged
    for model in (roofline, tile) if stacked else ():
        ours, theirs = (
            errors(stacked, FittedEntry(calibration=calibration_of(inherited(content), where=name)), model)
            for content in (made, packaged)
        )
        assert np.max(np.abs(ours - theirs)) < 2e-3


@pytest.mark.parametrize("section", ["attention", "tile_attention"])
@pytest.mark.parametrize("key", ["forward", "backward"])
def test_a_fit_to_one_head_width_does_not_depend_on_where_it_starts(section, key, rows):
    """MI355X was timed at one head width: its rows tell the sum of products and softmax, the prior tells them apart."""
    step = next(
        with_priors("cdna4", twin)[0]
        for single in recipes()["cdna4"][1]
        for twin in twins(single)
        if isinstance(twin, Step) and (twin.entry.section, twin.entry.keys) == (section, (key,))
    )
    assert {row.ops[0].qk_dim for row in step.train.of(rows)} == {128.0}
    calibration = read_calibration("cdna4")
    result = []
    for share in (0.1, 0.9):
        starts = tuple(replace(p, start=p.low + share * (p.high - p.low)) for p in step.parameters)
        fitted = fit_entry(calibration, step.entry, batches(step.train.of(rows)), starts, step.model)
        entry = getattr(fitted.calibration, section)[key]
        result.append([getattr(entry, p.name) for p in step.parameters])
    assert result[0] == pytest.approx(result[1], rel=0.02)


def test_every_prior_has_a_source_and_a_parameter():
    for generation, sections in PRIORS.items():
        if generation in ("source", "date"):
            continue
        steps = [twin for single in recipes()[generation][1] for twin in twins(single)]
        for section, keys in sections.items():
            for key, priors in keys.items():
                (step,) = [
                    step
                    for step in steps
                    if isinstance(step, Step)
                    and step.entry.section == section
                    and key in (step.entry.keys or ("",))
                ]
                assert set(priors) <= {p.name for p in step.parameters}
                assert all(prior["source"] and prior["spread"] > 0.0 for prior in priors.values())
                assert "prior of" in with_priors(generation, step)[1]


@pytest.mark.parametrize(("table", "kind", "bound"), [("SMGEMM", Gemm, 0.08), ("SMGROUP", GroupedGemm, 0.10)])
def test_products_that_were_timed_in_loops_are_those_of_a_board_at_its_power(rows, table, kind, bound):
    of_table = [row for row in rows if row.table == table and row.device.name == "b200"]
    assert all(isinstance(row.ops[0], kind) for row in of_table)
    logs = errors(batches(of_table), FittedEntry(calibration=read_calibration("blackwell")), roofline)
    assert logs.size > 80
    assert np.median(np.abs(logs)) <= bound


@pytest.mark.parametrize(("kind", "bound"), [(Gemm, 0.03), (GroupedGemm, 0.09)])
def test_weight_gradients_of_blocks_take_what_deepgemm_publishes(rows, kind, bound):
    """No fit has seen them: both operands are scaled per 128 numbers, sums are read and written in fp32."""
    result = [
        row
        for row in rows
        if row.table == "DGWG" and row.device.name == "h800-sxm" and isinstance(row.ops[0], kind)
    ]
    assert {(row.ops[0].dtype, row.ops[0].accumulate_bytes) for row in result} == {("fp8_blockwise", 6.0)}
    logs = errors(batches(result), FittedEntry(calibration=read_calibration("hopper")), roofline)
    assert logs.size >= 5
    assert np.median(np.abs(logs)) <= bound


def test_products_that_were_timed_alike_sustain_alike(rows):
    """Of the same shapes on GB200, loops of a second lose what the board's power takes, a dozen calls nothing."""

    def misses(table, loops):
        of_table = [row for row in rows if row.table == table and row.device.name == "gb200" and bf16(row)]
        stacked = batches(row if loops else replace(row, loop=None) for row in of_table)
        return errors(stacked, FittedEntry(calibration=read_calibration("blackwell")), roofline)

    def bf16(row):
        return isinstance(row.ops[0], Gemm) and row.ops[0].dtype == "bf16"

    assert np.median(np.abs(misses("AICL", loops=True))) <= 0.04
    assert np.median(misses("AICL", loops=False)) < -0.10
    assert np.median(np.abs(misses("AICG", loops=True) - misses("AICG", loops=False))) < 1e-9


def test_a_serving_loop_lasts_as_its_collector_says(rows):
    """A weight of 16 MiB is copied 5 times, one of 512 MiB not: 3 replays go before 6, or before a second of them."""

    def loop(table, n, k):
        row = next(r for r in rows if r.table == table and (r.ops[0].n, r.ops[0].k) == (n, k) and r.ops[0].dtype == "bf16"
                   and r.device.name == "gb200")  # fmt: skip
        return tuple(item / row.seconds for item in row.loop), row.loop[1]

    assert loop("AICG", 2048.0, 4096.0)[0] == pytest.approx((15.0, 30.0))
    assert loop("AICG", 16384.0, 16384.0)[0] == pytest.approx((3.0, 6.0))
    before, timed_s = loop("AICL", 16384.0, 16384.0)
    assert before[0] == pytest.approx(3.0)
    assert 1.0 <= timed_s < 1.01


def test_a_sweep_loads_the_device_before_a_product_as_long_as_its_others_last(rows):
    """Of 15 products of 100 calls half come before, and 25 calls of its own; of 6 of experts, of 50 calls, 3 and 10."""
    for table, before, timed in (("SMGEMM", 725.0, 75.0), ("SMGROUP", 160.0, 40.0)):
        loops = [(row.loop, row.seconds) for row in rows if row.table == table]
        assert loops
        assert all(loop == pytest.approx((before * s, timed * s)) for loop, s in loops)


def test_a_fraction_is_of_the_rate_at_its_machines_clock():
    """Backward attention of Blackwell Ultra, whose peaks are quoted at its clock, is Blackwell's as a rate."""
    b200 = load_device("b200")
    assert above_rating(["b200"]) == b200.clock_hz / b200.rated_clock_hz
    assert above_rating(["b300", "gb300"]) == above_rating([]) == 1.0
    ours, theirs = (
        read_calibration(name).attention["backward"].fraction for name in ("blackwell-ultra", "blackwell")
    )
    assert ours == pytest.approx(theirs * above_rating(["b200"]), rel=1e-3)


def test_what_follows_another_generations_experts_has_its_figures():
    """CDNA 3 takes backward attention from CDNA 4, which copies the figures of its experts."""
    ours, theirs = (read_calibration(name).grouped for name in ("cdna4", "cdna3"))
    assert (ours.fraction, ours.group_s) == (theirs.fraction, theirs.group_s)
