from dataclasses import replace
from pathlib import Path

import pytest

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.models import load_model
from forescale.errors import ReaderError, SpecError, UnknownKeyError, UnknownNameError
from forescale.io.plan import build_strategy, read_plan, with_overrides, write_plan
from forescale.spec import DenseFfn, Overlap, Precision, Recompute, Share, Strategy, Workload

PLAN = """
model = "llama-3.1-70b"
cluster = "h100-sxm"
devices = 256

[strategy]
tp = 8
pp = 4
recompute = { granularity = "selective", modules = ["core_attn"] }

[workload]
seq_len = 8192
global_batch_size = 1024
tokens = "15T"

[precision]
compute = "fp8"
recipe = "delayed"
"""


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(PLAN)
    return file


def edited(plan: Path, old: str, new: str) -> Path:
    assert old in PLAN
    plan.write_text(PLAN.replace(old, new))
    return plan


def test_reads_every_section(plan):
    found = read_plan(plan)
    assert found.model == load_model("llama-3.1-70b")
    assert found.cluster == load_cluster("h100-sxm", 256)
    assert found.workload == Workload(
        seq_len=8192,
        global_batch_size=1024,
        tokens=15e12,
        precision=Precision(compute="fp8", recipe="delayed"),
    )
    assert found.strategy == Strategy(
        tp=8, pp=4, dp_shard=8, recompute=Recompute(granularity="selective", modules=("core_attn",))
    )
    assert found.preset == "default"


def test_nodes_instead_of_devices(plan):
    assert read_plan(edited(plan, "devices = 256", "nodes = 32")).cluster.num_devices == 256
    with pytest.raises(SpecError, match="exactly one of devices and nodes"):
        read_plan(edited(plan, "devices = 256", "devices = 256\nnodes = 32"))
    with pytest.raises(SpecError, match="exactly one of devices and nodes"):
        read_plan(edited(plan, "devices = 256", ""))


def test_a_plan_without_strategy_is_for_a_search(plan):
    cut = PLAN[: PLAN.index("[strategy]")] + PLAN[PLAN.index("[workload]") :]
    plan.write_text(cut)
    assert read_plan(plan).strategy is None


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("strategy.tp=4", lambda p: p.strategy.tp == 4 and p.strategy.dp_shard == 16),
        ("workload.tokens = 2T", lambda p: p.workload.tokens == 2e12),
        ("strategy.recompute.granularity=none", lambda p: p.strategy.recompute.granularity == "none"),
        ("strategy.stage_layers=[20, 20, 20, 20]", lambda p: p.strategy.stage_layers == (20, 20, 20, 20)),
        ("strategy.sp=false", lambda p: not p.strategy.sp),
        ("model=llama-3.1-8b", lambda p: p.model == load_model("llama-3.1-8b")),
        ("devices=512", lambda p: p.cluster.num_devices == 512),
        ("precision.master=none", lambda p: p.workload.precision.master == "none"),
        ("model.vocab_size=1000", lambda p: p.model == replace(load_model("llama-3.1-70b"), vocab_size=1000)),
        ("cluster.device.hbm_bytes=96 GiB", lambda p: p.cluster.device.hbm_bytes == 96 * 2**30),
        (
            "cluster.device.matrix_flops.bf16=800 TFLOP/s",
            lambda p: (
                (p.cluster.device.matrix_flops.bf16, p.cluster.device.matrix_flops.fp8) == (800e12, 1979e12)
            ),
        ),
    ],
)
def test_overrides(plan, override, value):
    assert value(read_plan(plan, overrides=[override]))


def test_later_overrides_win_and_the_input_is_left_alone():
    values = {"strategy": {"tp": 8}}
    assert with_overrides(values, ["strategy.tp=2", "strategy.tp=4"])["strategy"]["tp"] == 4
    assert values == {"strategy": {"tp": 8}}


@pytest.mark.parametrize(
    ("override", "error", "text"),
    [
        ("strategy.tp", SpecError, "must look like section.key=value"),
        ("=4", SpecError, "must look like section.key=value"),
        ("strategy..tp=4", SpecError, "must look like section.key=value"),
        ("strategy.tpp=4", UnknownKeyError, r"unknown key 'tpp' in .*plan.toml, strategy; did you mean tp"),
        ("strategi.tp=4", UnknownKeyError, r"unknown key 'strategi' in .*; did you mean strategy"),
        ("devices.x=4", SpecError, "goes through 'devices', which holds 256 and no table"),
        ("strategy.tp=four", SpecError, "tp must be a whole number, got 'four'"),
        ("strategy.zero=4", SpecError, "zero must be 3 or less, got 4"),
        ("devices=0", SpecError, "devices must be a whole number of 1 or more, got 0"),
        ("devices=many", SpecError, "devices must be a whole number of 1 or more, got 'many'"),
        ("workload=big", SpecError, "workload must be a table"),
        ("model=7", SpecError, "model must be a name, a file or a table, got 7"),
        ("model=llama-3.1-70bb", UnknownNameError, "llama-3.1-70b"),
        ("cluster=h100sxm", UnknownNameError, "did you mean h100-sxm"),
        (
            "devices=100",
            SpecError,
            r"the number of devices, 100, is no multiple of the 32 .* the nearest are 96 or 128",
        ),
        ("devices=8", SpecError, "the nearest are 32"),
    ],
)
def test_bad_overrides(plan, override, error, text):
    with pytest.raises(error, match=text) as caught:
        read_plan(plan, overrides=[override])
    assert "\n" not in str(caught.value)


def test_a_missing_section(plan):
    with pytest.raises(SpecError, match="model must be given"):
        read_plan(edited(plan, 'model = "llama-3.1-70b"', ""))


def test_files_that_are_no_plan(plan, tmp_path):
    with pytest.raises(ReaderError, match="no such file"):
        read_plan(tmp_path / "other.toml")
    with pytest.raises(ReaderError, match=r"not valid TOML: .* line 3"):
        read_plan(edited(plan, 'cluster = "h100-sxm"', 'cluster = "h100-sxm'))
    with pytest.raises(ReaderError, match=r"suffix .toml"):
        read_plan(tmp_path / "plan.yaml")


def test_files_named_in_a_plan_are_beside_it(plan, tmp_path):
    (tmp_path / "lab.toml").write_text('base = "h100-sxm"\nsource = "the lab"\n')
    found = read_plan(edited(plan, '"h100-sxm"', '"lab.toml"'))
    assert found.cluster.source == "the lab"
    assert found.cluster.tiers == load_cluster("h100-sxm", 8).tiers
    with pytest.raises(ReaderError, match="no such file"):
        read_plan(edited(plan, '"llama-3.1-70b"', '"missing/config.json"'))


def test_data_parallel_follows_from_the_devices():
    assert build_strategy({"tp": 2, "zero": 0}, 8, where="x") == Strategy(tp=2, zero=0, dp_replicate=4)
    assert build_strategy({"dp_replicate": 2}, 8, where="x") == Strategy(dp_replicate=2, dp_shard=4)
    assert build_strategy({"dp_shard": 2}, 8, where="x") == Strategy(dp_replicate=4, dp_shard=2)
    stated = build_strategy({"dp_shard": 2, "dp_replicate": 2}, 64, where="x")
    assert (stated.dp_replicate, stated.dp_shard) == (2, 2)


def three_layers(model):
    layers = tuple(replace(layer, ffn=DenseFfn(ffn_hidden_size=64)) for layer in model.layers[:3])
    return replace(model, name="small", layers=layers)


UNUSUAL = Strategy(
    tp=4,
    pp=2,
    dp_replicate=4,
    dp_shard=8,
    axis_order=("tp", "pp", "cp", "dp"),
    stage_layers=(41, 39),
    overlap=Overlap(tensor=True),
    recompute=Recompute(granularity="full", num_layers=3),
)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p,
        lambda p: replace(p, preset="primus", strategy=None),
        lambda p: replace(p, model=replace(p.model, name='odd "name" \\ é', tied_embeddings=True)),
        lambda p: replace(p, model=three_layers(p.model)),
        lambda p: replace(p, cluster=replace(p.cluster, devices_per_node=4)),
        lambda p: replace(p, strategy=UNUSUAL),
        lambda p: replace(p, strategy=replace(UNUSUAL, placement=(Share(tp=4, dp=2), Share(pp=2)))),
        lambda p: replace(p, workload=Workload(seq_len=1, global_batch_size=1, tokens=1e9)),
    ],
)
def test_what_is_written_reads_back_equal(plan, tmp_path, change):
    wanted = change(read_plan(plan))
    write_plan(wanted, tmp_path / "again.toml")
    assert read_plan(tmp_path / "again.toml") == wanted


def test_a_written_plan_is_short(plan, tmp_path):
    write_plan(read_plan(plan), tmp_path / "again.toml")
    text = (tmp_path / "again.toml").read_text()
    assert 'model = "llama-3.1-70b"' in text
    assert len(text.splitlines()) < 30
