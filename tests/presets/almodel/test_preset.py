"""Every printed figure of the five detailed configurations and of both tables."""

from __future__ import annotations

import pytest
from tests.presets.almodel.published import CLUSTER, GB, MODEL, WORKLOAD, columns, layout, rows
from tests.small import asked

from forescale.presets import project_as
from forescale.presets.almodel import ALMODEL, Almodel, Quirks, first_table_terms
from forescale.presets.almodel.step import sequence_flops
from forescale.spec import Recompute

FIRST = Almodel(terms=first_table_terms())


def ranked(row, preset=ALMODEL):
    return preset.rank(asked(MODEL, CLUSTER, layout(row), WORKLOAD))


@pytest.mark.parametrize("row", rows("detailed"), ids=lambda row: f"fsdp{row['fsdp']}-cp{row['cp']}")
class TestDetailed:
    def test_memory(self, row):
        result = columns(ranked(row))
        for name in ("weights", "optimizer", "gradients", "buffer", "activations", "reserve", "total"):
            assert result[f"{name}_gb"] == pytest.approx(float(row[f"{name}_gb"]), rel=1.5e-3, abs=0.005)

    def test_flops(self, row):
        one = ranked(row)
        assert one.projection.model_flops_full_attention_per_step / 1e15 == pytest.approx(
            float(row["useful_pflop"]), rel=1e-3
        )
        assert one.projection.hardware_flops_per_step / 1e15 == pytest.approx(
            float(row["actual_pflop"]), rel=1e-3
        )
        assert round(100 * one.flops.overhead) == int(row["remat_percent"])

    def test_batch(self, row):
        one = ranked(row)
        assert (one.per_device_batch, one.strategy.micro_batch_size) == (int(row["pdb"]), int(row["mb"]))
        assert one.projection.num_microbatches == int(row["ga"])

    def test_volumes(self, row):
        step = ranked(row).step
        for name in ("tp", "ep", "fsdp", "dp", "cp", "pp"):
            assert getattr(step, name).volume / GB == pytest.approx(float(row[f"{name}_gb"]), abs=0.0501)
        assert step.optimizer.volume / GB == pytest.approx(float(row["optimizer_traffic_gb"]), abs=0.0501)

    def test_times(self, row):
        step = ranked(row).step
        for name in ("tp", "ep", "fsdp", "dp", "cp", "pp"):
            assert getattr(step, name).seconds == pytest.approx(float(row[f"{name}_s"]), abs=0.0051)
        assert step.fsdp_exposed == pytest.approx(float(row["fsdp_exposed_s"]), abs=0.0051)
        assert step.compute == pytest.approx(float(row["compute_s"]), abs=0.002)
        assert step.communication == pytest.approx(float(row["communication_s"]), abs=0.002)
        assert step.optimizer.seconds == pytest.approx(float(row["optimizer_s"]), abs=0.0005)

    def test_performance(self, row):
        projection = project_as(asked(MODEL, CLUSTER, layout(row), WORKLOAD, preset="almodel"))
        assert projection.step_time_s == pytest.approx(float(row["step_s"]), abs=0.0006)
        assert 100 * projection.mfu_full_attention == pytest.approx(float(row["mfu_percent"]), abs=0.06)
        assert sum(projection.time_s.values()) == pytest.approx(projection.step_time_s, rel=1e-12)


TOLERANCE = {"gb": 0.1, "pflop": 0.15, "percent": 0.6, "s": 0.012}
"""A last digit and what FLOP differ by, by unit of the column."""


@pytest.mark.parametrize(
    ("row", "preset"),
    [*((row, ALMODEL) for row in rows("slowest")), *((row, FIRST) for row in rows("first_table"))],
)
def test_every_column_of_both_tables(row, preset):
    for name, value in columns(ranked(row, preset)).items():
        assert value == pytest.approx(float(row[name]), abs=TOLERANCE[name.rpartition("_")[2]]), name


def test_printed_rates_do_not_give_the_first_table():
    row = rows("first_table")[0]
    assert ranked(row).step.total < 0.8 * float(row["step_s"])


def test_flops_of_one_sequence():
    """13.33 forward, 26.63 backward, 39.96 TFLOP together; replaying all of it adds 33.4 %."""
    flops = sequence_flops(MODEL, seq_len=4096, recompute=Recompute(granularity="full"), quirks=Quirks())
    assert flops.forward / 1e12 == pytest.approx(13.33, abs=0.02)
    assert flops.backward / 1e12 == pytest.approx(26.63, abs=0.005)
    assert flops.useful / 1e12 == pytest.approx(39.96, abs=0.025)
    assert 100 * flops.overhead == pytest.approx(33.4, abs=0.1)


def test_a_policy_replays_less_the_more_it_keeps():
    def replayed(policy, quirks):
        recompute = Recompute(granularity="policy", policy=policy)
        return sequence_flops(MODEL, seq_len=4096, recompute=recompute, quirks=quirks).replayed

    names = ("minimal_with_context", "minimal", "save_dot_except_mlp", "save_qkv_proj", "save_out_proj")
    for quirks in (Quirks(), Quirks.none()):
        values = [replayed(name, quirks) for name in names]
        assert values == sorted(values)
    assert all(replayed(name, Quirks.none()) < replayed(name, Quirks()) for name in names)


@pytest.mark.parametrize(
    ("quirk", "part", "ratio"),
    [
        ("gib_as_gb", lambda step: step.fsdp.seconds, 2**30 / 1e9),
        ("gathers_fp32", lambda step: step.fsdp.volume, 2 / 3),
        ("reduces_over_dp_only", lambda step: step.dp.volume, 1.5),
    ],
)
def test_what_a_quirk_changes(quirk, part, ratio):
    row = next(row for row in rows("detailed") if (row["dp"], row["cp"]) == ("2", "2"))
    usual = ALMODEL.terms
    changed = Almodel(terms=type(usual)(**{**_fields(usual), "quirks": Quirks(**{quirk: False})}))
    assert part(ranked(row, changed).step) == pytest.approx(ratio * part(ranked(row).step), rel=1e-12)


def test_scores_of_whole_keys():
    row = rows("slowest")[0]
    usual = ALMODEL.terms
    meant = Almodel(terms=type(usual)(**{**_fields(usual), "quirks": Quirks(scores_shrink_twice=False)}))
    one_rank = next(other for other in rows("slowest") if other["cp"] == "1")
    assert ranked(row, meant).memory.activations == ranked(one_rank).memory.activations


def _fields(terms):
    return {name: getattr(terms, name) for name in type(terms).__dataclass_fields__}
