import math
from dataclasses import replace

import pytest
from tests.errors import raises

import forescale as fs
from forescale.errors import ReaderError, SpecError, UnknownNameError
from forescale.goodput.expected import expected
from forescale.goodput.operations import (
    checkpoint_bytes,
    load_failures,
    mean_time_to_failure,
    published,
    rates_of,
    saving,
)
from forescale.projection.result import Interval
from forescale.spec.operations import Checkpointing, Failures, Operations
from forescale.whole_run import Phase, Prices, Ramp, project_run
from forescale.whole_run.prices import Figure, PriceList, published_prices, read_prices
from forescale.whole_run.run import lost_with_a_replica

DAY = 86400.0


def phase(tokens=1e12, devices=64, name="1", **more):
    words = {"devices": devices, "seq_len": 8192, "global_batch_size": 256, **more}
    project = fs.project("llama-3.1-8b", "h100-sxm", **words)
    return Phase(name=name, projection=project, tokens=tokens)


def operations(**more):
    return Operations(failures=load_failures("llama-3"), **more)


@pytest.mark.parametrize(("devices", "hours"), [(16_384, 1.8), (131_072, 0.23), (8, 153.8 * 24)])
def test_published_mean_times_to_failure(devices, hours):
    rate = load_failures("meta-rsc-1").total
    assert mean_time_to_failure(num_devices=devices, per_device_day=rate) / 3600 == pytest.approx(
        hours, rel=0.03
    )


def test_llamas_54_days():
    failures = load_failures("llama-3")
    assert failures.total * 54 * 16_384 == pytest.approx(419)
    assert failures.planned_per_device_day * 54 * 16_384 == pytest.approx(47)
    assert failures.per_device_day["HBM3"] * 54 * 16_384 == pytest.approx(72)


def test_checkpoint_bytes_by_hand():
    assert checkpoint_bytes(parameters=1e9, weight_bytes=2.0, master_bytes=4.0, moment_bytes=4.0) == 14e9


@pytest.mark.parametrize(("mode", "blocking", "written", "reload"), [
    ("sync", 0.5 + 10.0, 0.5 + 10.0, 10.0), ("async", 0.5 + 0.2, 0.5 + 0.2 + 10.0, 10.0), ("peer", 0.5 + 0.2, 0.5 + 0.4, 0.2),
])  # fmt: skip
def test_what_a_save_takes_by_hand(mode, blocking, written, reload):
    """100 bytes of 10 parameters on 8 devices: storage takes 10 byte/s, hosts and links 62.5 byte/s of a device."""
    projection = phase().projection
    device = replace(projection.cluster.device, host_bandwidth=62.5)
    tiers = (*projection.cluster.tiers[:-1], replace(projection.cluster.tiers[-1], bandwidth=62.5))
    cluster = replace(projection.cluster.sized(8), device=device, tiers=tiers)
    explicit = Operations(checkpointing=Checkpointing(mode=mode, stall=0.5, storage_bandwidth=10.0))
    saved = saving(explicit, 100 / 14, projection.workload.precision, cluster)
    assert (saved.blocking, saved.written, saved.reload) == pytest.approx((blocking, written, reload))


def test_a_save_stops_training_as_long_as_a_published_one():
    explicit = operations(checkpointing=Checkpointing(stall=0.0))
    usual, bare = project_run([phase()], operations(), draws=10), project_run([phase()], explicit, draws=10)
    assert usual.checkpoint.blocking == bare.checkpoint.blocking + published("save_stall_s")[0]
    assert "arXiv:2407.20143" in usual.sources["stall"]
    assert bare.sources["stall"] == "given"
    assert usual.interval_s > 3.0 * bare.interval_s


def test_a_run_adds_up():
    result = project_run(
        [phase(), phase(tokens=5e11, name="2")], operations(), Prices(device_hour=2.0), draws=50
    )
    assert sum(result.parts_days.values()) == pytest.approx(result.days.expected)
    assert result.days.low < result.days.expected < result.days.high
    assert result.days.expected > result.ideal_days
    assert result.device_hours.expected == pytest.approx(result.days.expected * 24 * 64)
    assert result.money.expected == pytest.approx(2.0 * result.device_hours.expected)
    watts = result.phases[0].projection.cluster.device.power_w
    assert result.mwh == pytest.approx(result.device_hours.expected * watts * 1.08 / 1e6)
    assert sum(result.spread.values()) == pytest.approx(1.0, abs=0.05)
    assert sum(row["ideal_days"] for row in result.rows()) == pytest.approx(result.ideal_days)
    rate = result.phases[0].projection.tokens_per_s_per_device * 64
    assert result.ideal_days == pytest.approx(1.5e12 / rate / DAY)
    failed = load_failures("llama-3").total * result.device_hours.expected / 24
    assert sum(result.interruptions.values()) == pytest.approx(failed)
    document = result.to_dict()
    assert document["days"]["expected"] == result.days.expected
    assert [row["phase"] for row in document["phases"]] == ["1", "2"]
    assert "parts_days" in document


def test_evaluation_and_stragglers_are_beside_what_trains():
    explicit = phase()
    case, _ = explicit.case(operations(evaluation=0.2, stragglers=0.05))
    alone, _ = explicit.case(operations())
    assert expected(case)["goodput"] == pytest.approx(expected(alone)["goodput"]) == pytest.approx(alone.work)
    assert alone.work == pytest.approx(explicit.steps * explicit.projection.step_time_s)
    assert case.work > 1.25 * 1.05 * alone.work


def test_the_seed_decides():
    first, again, other = (project_run([phase()], operations(), draws=20, seed=seed) for seed in (1, 1, 2))
    assert first.days == again.days != other.days


def test_nothing_fails():
    none = Operations(failures=Failures(name="none", source="", per_device_day={}))
    result = project_run([phase()], none, draws=20)
    assert math.isinf(result.mttf_s)
    assert result.parts_days["wasted_progress_from_disruption"] == 0.0
    assert result.goodput > 0.999


def test_more_failures_and_slower_storage_cost_days():
    few = project_run([phase()], operations(), draws=30)
    many = Failures(name="", source="", per_device_day={"all": 40 * load_failures("llama-3").total})
    assert project_run([phase()], Operations(failures=many), draws=30).goodput < few.goodput - 0.004
    sync = operations(checkpointing=Checkpointing(mode="sync", storage_bandwidth=1e9))
    assert (
        project_run([phase()], sync, draws=30).parts_days["unproductive_checkpoint_save_time"]
        > few.parts_days["unproductive_checkpoint_save_time"]
    )


@pytest.mark.parametrize(
    ("checkpointing", "rate", "sentence"),
    [
        (Checkpointing(interval=1.0), 1e-4, "out_of_range the time to write a checkpoint"),
        (Checkpointing(storage_bandwidth=1e6), 1.0, "cannot_finish the run"),
        (Checkpointing(storage_bandwidth=1e6), 1e6, "cannot_finish the run"),
    ],
)
def test_what_cannot_be(checkpointing, rate, sentence):
    failing = Failures(name="", source="", per_device_day={"all": rate})
    with raises(SpecError, sentence):
        project_run([phase()], Operations(failures=failing, checkpointing=checkpointing))
    with raises(SpecError, "empty the list of phases"):
        project_run([], Operations(failures=failing))


@pytest.mark.parametrize(
    "told",
    [
        Operations(failures=300.0),
        Operations(failures=0.5, spares=1, repair=1e6, elastic=True),  # all nodes are under repair
    ],
)
def test_what_never_ends_is_not_simulated(told, monkeypatch):
    monkeypatch.setattr("forescale.whole_run.run.simulate", None)
    with raises(SpecError, "cannot_finish the run"):
        project_run([phase()], told)


def test_llama_405b_as_published():
    """Model card of Llama 3.1: 30.84 M H100-hours for 405B; its paper: more than 90 % of the time trains."""
    layout = {"tp": 8, "pp": 16, "vpp": 8, "zero": 1}
    phases = [
        Phase(
            name=str(tokens),
            tokens=tokens,
            projection=fs.project(
                "llama-3.1-405b", "h100-sxm", devices=devices, framework="megatron-core",
                strategy={**layout, "cp": cp}, seq_len=length, global_batch_size=batch,
            ),
        )
        for tokens, length, batch, devices, cp in (
            (2.52e8, 4096, 1024, 8192, 1), (2.87e12, 8192, 1024, 8192, 1),
            (1.19e13, 8192, 2048, 16_384, 1), (8e11, 131_072, 128, 16_384, 16),
        )
    ]  # fmt: skip
    result = project_run(phases, operations(), draws=50)
    assert result.device_hours.expected == pytest.approx(30.84e6, rel=0.1)
    assert 0.90 < result.goodput < 0.95


def test_elastic_runs_go_on_as_the_smaller_layout():
    projection = phase().projection
    lost = lost_with_a_replica(projection)
    replicas_of_a_node = max(1, 8 * projection.strategy.dp // 64)
    assert lost == pytest.approx(replicas_of_a_node / projection.strategy.dp, rel=0.5)
    case, _ = phase().case(operations(elastic=True))
    assert case.replica_share == lost
    waits, goes_on = (
        project_run([phase()], operations(spares=0, fatal=1.0, repair=30 * DAY, elastic=elastic), draws=20)
        for elastic in (False, True)
    )
    assert goes_on.days.expected < waits.days.expected


@pytest.mark.parametrize(
    ("layout", "nodes", "share"),
    [
        ({"dp_replicate": 2, "dp_shard": 32}, 4, 1 / 2),  # a copy of the shards: 32 of 64 devices
        ({"dp_shard": 2, "tp": 8, "pp": 4}, 4, 1 / 2),
        ({"dp_shard": 32, "tp": 2}, 1, 4 / 32),  # four replicas in a node, and all four go with it
        ({"dp_shard": 1, "tp": 8, "pp": 8}, 8, 1.0),
    ],
)
def test_an_elastic_run_loses_whole_replicas_and_whole_nodes(layout, nodes, share):
    one, strategy = phase(), fs.Layout(**layout)
    project = fs.project(one.projection.model, one.projection.cluster, strategy, one.projection.workload)
    case, _ = replace(one, projection=project).case(operations(elastic=True))
    assert case.replica_nodes == nodes
    assert case.replica_share == pytest.approx(share, rel=0.25)


def test_published_prices_have_a_range_and_its_cause():
    known = phase(framework="megatron-core")  # whose step is known better than that of no framework
    result = project_run([known], operations(), draws=100)
    listed, source = published_prices().price("h100-sxm")
    assert listed.low < listed.expected < listed.high
    assert "2024" in source
    assert result.money.expected == pytest.approx(listed.expected * result.device_hours.expected, rel=0.1)
    assert {*list(result.money_spread)[:2]} == {"price", "step time"}
    assert result.money_spread["price"] > 0.1
    assert result.sources["price"] == source
    assert project_run([phase()], operations(), Prices(device_hour=2.0), draws=20).sources["price"] == "given"
    assert published_prices().price("no-such-device") is None


def test_ones_own_prices_lie_over_the_catalogues(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(
        '[[device_hour.h100-sxm]]\nvalue = 1.5\nsource = "contract"\ndate = "2026-11-01"\n'
        '[carbon_kg_per_mwh.here]\nvalue = 10\nsource = "our meter"\ndate = "2026-11-01"\n'
    )
    listed = read_prices(path)
    assert listed.price("h100-sxm")[0].expected == 1.5
    assert listed.price("h200-sxm") == published_prices().price("h200-sxm")
    result = project_run([phase()], operations(), Prices(carbon="here", listed=listed), draws=20)
    assert result.money.expected == pytest.approx(1.5 * result.device_hours.expected)
    assert result.tonnes_co2 == pytest.approx(result.mwh * 0.01)
    with raises(UnknownNameError, "unknown_name carbon intensity"):
        project_run([phase()], operations(), Prices(carbon="france-2032"), draws=20)
    path.write_text('[[device_hour.h100-sxm]]\nvalue = -1\nsource = "x"\ndate = "2026-11-01"\n')
    with raises(ReaderError, "out_of_range device_hour.h100-sxm.0.value"):
        read_prices(path)


def test_the_electricity_is_priced_by_the_kilowatt_hour():
    result = project_run([phase()], operations(), Prices(electricity=0.12), draws=20)
    assert result.electricity == result.to_json()["electricity"] == pytest.approx(120.0 * result.mwh)
    assert project_run([phase()], operations(), draws=20).electricity is None


def test_rates_are_of_nodes_of_the_cluster():
    assert rates_of(Operations(failures=0.8), 8).total == pytest.approx(0.1)
    assert rates_of(Operations(failures=0.8), 4).total == pytest.approx(0.2)
    twice = rates_of(Operations(failures="meta-rsc-1", failure_factor=2.0), 8)
    assert twice.total == pytest.approx(2.0 * load_failures("meta-rsc-1").total)


def growing(**ramp):
    question = fs.ask(
        "llama-3.1-8b", "h100-sxm", devices=64, seq_len=8192, global_batch_size=1024, tokens=1e11
    )
    return Ramp(**{"start": 256, "increment": 256, "samples": 2.4e6, **ramp}).parts(question)


def test_a_batch_grows_as_megatrons():
    """Megatron-LM, num_microbatches_calculator.py: (global - start) / increment sizes, each of as many samples."""
    sizes = [(item.workload.global_batch_size, item.workload.tokens) for item in growing()]
    assert [item.workload.global_batch_size for item in growing(start=512, increment=512)] == [512, 1024]
    item = 2.4e6 / 3 * 8192
    assert sizes == [(256, item), (512, item), (768, item), (1024, pytest.approx(1e11 - 3 * item))]


@pytest.mark.parametrize(
    ("ramp", "sentence"),
    [
        ({"increment": 250}, "not_divisible"),
        ({"start": 1024}, "not_divisible"),
        ({"samples": 2e7}, "out_of_range the tokens of the phase"),
    ],
)
def test_what_no_batch_grows_by(ramp, sentence):
    with raises(SpecError, sentence):
        growing(**ramp)


def figure(value, source="a bill"):
    return Figure(value=value, source=source, date="2026")


def test_prices_by_hand():
    here = {"x": (figure(6.0, "b"), figure(1.0, "a"), figure(2.0, "c"))}
    under = PriceList(currency="EUR", device_hour={"x": (figure(9.0),), "y": (figure(4.0),)}, pue=figure(1.5),
                      carbon_kg_per_mwh={"p": figure(1.0), "q": figure(2.0)})  # fmt: skip
    over = PriceList(device_hour=here, carbon_kg_per_mwh={"p": figure(3.0)}).merged_with(under)
    assert over.price("x") == (Interval(low=1.0, expected=3.5, high=6.0), "b (2026); a (2026); c (2026)")
    assert over.price("y")[0].expected == 4.0
    assert (over.currency, over.pue.value) == ("USD", 1.5)
    assert (over.carbon("p").value, over.carbon("q").value) == (3.0, 2.0)
    assert PriceList(pue=figure(1.1)).merged_with(under).pue.value == 1.1


def test_a_place_without_a_year_is_that_of_the_newest():
    listed = published_prices()
    assert listed.carbon("France") == listed.carbon("france-2023")
    with raises(UnknownNameError, "unknown carbon intensity"):
        listed.carbon("atlantis")


def test_what_is_given_is_paid():
    listed = PriceList(pue=figure(1.5, "hall"), carbon_kg_per_mwh={"us-2023": figure(300.0, "grid")})
    assert Prices(listed=listed).energy() == ((1.5, "hall"), (300.0, "grid"))
    assert Prices(listed=listed, pue=1.2, carbon=40.0).energy() == ((1.2, "given"), (40.0, "given"))
    assert Prices(listed=PriceList(), carbon=40.0).energy() == ((1.0, "given"), (40.0, "given"))
    device = phase().projection.cluster.device
    local = replace(device, price_per_hour=3.0)
    three, five, none = (Interval(low=one, expected=one, high=one) for one in (3.0, 5.0, 0.0))
    assert Prices().of(local) == (three, "given")
    assert Prices(device_hour=5.0).of(local) == (five, "given")
    assert Prices(device_hour=0.0).of(local) == (none, "given")
    assert Prices().of(device) == published_prices().price("h100-sxm")


def test_a_run_of_two_sizes_by_hand():
    """Nothing fails, saves take no time, and every step as long as expected: ideal days, on 32 and 64 devices."""

    def certain(one):
        step = one.projection.step_time
        sure = replace(step, low=step.expected, high=step.expected)
        return replace(one, projection=replace(one.projection, step_time=sure))

    one, two = certain(phase(devices=32, tokens=2e11)), certain(phase(name="2"))
    saves = Checkpointing(stall=0.0, storage_bandwidth=1e18, interval=1e6)
    explicit = Operations(failures=Failures(planned_per_device_day=0.0), checkpointing=saves)
    paid = Prices(device_hour=2.0, pue=1.5, carbon=300.0)
    result = project_run([one, two], explicit, paid, draws=3)
    days = [item.steps * item.projection.step_time_s / DAY for item in (one, two)]
    hours = 24 * (days[0] * 32 + days[1] * 64)
    assert result.days.expected == pytest.approx(sum(days), rel=1e-4)
    assert result.device_hours.expected == pytest.approx(hours, rel=1e-4)
    assert result.money.expected == pytest.approx(2.0 * hours, rel=1e-4)
    watts = one.projection.cluster.device.power_w
    assert result.mwh == pytest.approx(hours * watts * 1.5 / 1e6, rel=1e-4)
    assert result.tonnes_co2 == pytest.approx(result.mwh * 0.3)
    assert result.mttf_s == math.inf
    assert result.closed_forms == {}
    assert result.goodput == pytest.approx(1.0, rel=1e-4)
    failing = replace(explicit, failures=Failures(per_device_day={"a": 1e-3}, planned_per_device_day=2e-3))
    failed = project_run([one, two], failing, paid, draws=3)
    assert failed.mttf_s == pytest.approx(DAY / 64 / 1e-3)  # of the longer phase
    assert failed.interruptions["a"] == pytest.approx(failed.device_hours.expected / 24 * 1e-3)
    assert failed.planned == pytest.approx(2.0 * failed.interruptions["a"])
