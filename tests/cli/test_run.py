"""`forescale run` and `forescale sites` as they are typed."""

import json
import re

import pytest

from forescale.cli.misspelt import translated
from forescale.units import format_span

RUN = (
    "llama-3.1-8b",
    "--cluster",
    "h100-sxm",
    "--devices",
    64,
    "--seq-len",
    8192,
    "--global-batch-size",
    256,
)


def test_a_run_in_phases(forescale):
    phases = ("--phase", "tokens=1T", "--phase", "tokens=50B seq_len=131072 global_batch_size=16 cp=8")
    ran = forescale("run", *RUN, "--tp", 1, *phases, "--price", 2, "--json")
    result = json.loads(ran.out)
    assert result["schema"] == "forescale.run/1"
    assert [row["seq_len"] for row in result["phases"]] == [8192, 131_072]
    assert result["days"]["low"] < result["days"]["expected"] < result["days"]["high"]
    assert result["money"]["expected"] == pytest.approx(2 * result["device_hours"]["expected"])
    assert forescale("run", *RUN, "--tp", 1, *phases, "--price", 2, "--json").out == ran.out


@pytest.mark.parametrize(
    ("plain", "written"),
    [
        (("--price", "2.5"), ("--price", "$2.50")),
        (("--price", "2.5"), ("--price", "2.50 USD/hr")),
        (("--electricity-price", "0.1"), ("--electricity-price=$100/MWh",)),
    ],
)
def test_money_is_read_with_its_currency(forescale, plain, written):
    line = ("run", *RUN, "--tp", 1, "--tokens", "1T", "--json")
    assert forescale(*line, *written).out == forescale(*line, *plain).out


def test_money_in_another_unit_is_refused(forescale):
    line = ("run", *RUN, "--tp", 1, "--tokens", "1T")
    assert "not_a_quantity money/h" in forescale(*line, "--price", "€2").refused
    assert "not_a_quantity money/kWh" in forescale(*line, "--electricity-price", "$2/hr").refused


def test_a_given_layout_that_does_not_fit_is_marked(forescale):
    large = ("llama-3.1-70b", "--cluster", "h100-sxm", "--devices", 64, "--global-batch-size", 256)
    fits, more = ("--phase", "tokens=1T seq_len=4096 tp=8 pp=4"), ("--phase", "tokens=1B seq_len=4096 tp=1")
    message = " ".join(forescale("run", *large, *fits, *more).out.split())
    assert "OOM in phase 2: " in message
    assert "OOM in" not in forescale("run", *large, *fits).out
    assert " money USD " in message
    assert "USD" not in forescale("run", *large, *fits, "--price", 2).out


SMALL = (
    "llama-3.1-8b",
    "--cluster",
    "h100-sxm",
    "--devices",
    8,
    "--seq-len",
    4096,
    "--global-batch-size",
    64,
)


def phases_of(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)["phases"]


def test_a_run_without_a_layout_takes_the_fastest_that_fits_with_margin(forescale):
    tokens = ("--tokens", "1B")
    assert (
        phases_of(forescale("run", *SMALL, *tokens, "--micro-batch-size", 8, "--json"))[0]["verdict"] == "OOM"
    )
    (row,) = phases_of(forescale("run", *SMALL, *tokens, "--json"))
    assert row["verdict"] == "FITS"
    best = json.loads(forescale("search", *SMALL, "--safe", "--top", 1, "--json").out)["best"][0]
    assert row["step_time_s"] == best["step_time_s"]
    assert row["layout_origin"] != "given"
    shown = " ".join(forescale("run", *SMALL, *tokens).out.split())
    assert f"layout of phase 1: {row['layout']}" in shown
    assert row["layout_origin"] in shown


def test_the_searched_layout_divides_every_batch_of_a_ramp(forescale):
    ramp = ("--phase", "tokens=1B rampup_batch_size=4,4,8192")
    rows = phases_of(forescale("run", *SMALL, *ramp, "--json"))
    assert len(rows) == 16
    assert len({row["layout"] for row in rows}) == 1
    assert all(row["verdict"] == "FITS" for row in rows)


def test_only_phases_without_a_layout_are_searched(forescale):
    phases = ("--phase", "tokens=1B", "--phase", "tokens=1B tp=8")
    one, two = phases_of(forescale("run", *SMALL, *phases, "--json"))
    assert (one["layout_origin"] == "given", two["layout_origin"]) == (False, "given")
    assert two["layout"].startswith("tp 8")


def test_a_run_searches_what_its_framework_can_run(forescale):
    (row,) = phases_of(forescale("run", *SMALL, "--tokens", "1B", "--framework", "deepspeed-zero", "--json"))
    assert row["layout_origin"] != "given"
    assert "tp" not in row["layout"].split()
    assert "pp" not in row["layout"].split()


def test_a_run_that_nothing_fits_has_no_figures(forescale):
    ran = forescale("run", *SMALL, "--tokens", "1B", "--set", "cluster.device.hbm_bytes=4GiB")
    assert ran.code == 2
    assert not ran.out
    assert "MODEL is required" not in ran.err


PHASES = """
model = "llama-3.1-8b"
cluster = "h100-sxm"
devices = 64
strategy = { tp = 1 }
workload = { seq_len = 8192, global_batch_size = 256 }

[[phase]]
tokens = "1T"
rampup_batch_size = [64, 64, "3M"]

[[phase]]
tokens = "50B"
seq_len = 131072
global_batch_size = 16
cp = 8
"""


def test_phases_of_a_file_are_those_of_flags(forescale, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(PHASES)
    flags = ("tokens=1T rampup_batch_size=64,64,3M", "tokens=50B seq_len=131072 global_batch_size=16 cp=8")
    typed = forescale("run", *RUN, "--tp", 1, "--phase", flags[0], "--phase", flags[1], "--json")
    read = forescale("run", file, "--json")
    assert json.loads(read.out) == json.loads(typed.out)
    assert forescale("run", "--plan", file, "--json").out == read.out
    rows = json.loads(read.out)["phases"]
    assert [row["global_batch_size"] for row in rows] == [64, 128, 192, 256, 16]
    assert [row["phase"] for row in rows] == ["1, 64", "1, 128", "1, 192", "1, 256", "2"]
    assert sum(row["tokens"] for row in rows) == pytest.approx(1.05e12)
    refused = forescale("project", file)
    assert "which `forescale run` projects" in refused.err
    file.write_text(PHASES.replace("[[phase]]", "[phase]", 1).split("[[phase]]")[0])
    assert "tables, each under [[phase]]" in forescale("run", file).err


def test_a_run_that_hardly_anything_interrupts_names_no_cause(forescale):
    ran = forescale("run", *RUN, "--tp", 1, "--tokens", "1B")
    assert "0 unexpected, one every" in ran.out
    assert "()" not in ran.out
    assert "unproductive_checkpoint_restore_time" not in ran.out and "by Daly" not in ran.out


def test_the_story_on_one_screen(forescale):
    ran = forescale(
        "run", *RUN, "--tokens", "1T", "--checkpoint-mode", "sync", "--storage-bandwidth", "1GB/s"
    )
    assert ran.code == 0
    for word in (
        "where the days go",
        "interruptions",
        "checkpoints",
        "device-hours",
        "energy",
        "formulas",
    ):
        assert word in ran.out


def test_nodes_hours_and_power_of_a_run(forescale):
    ran = forescale("run", *RUN, "--tp", 1, "--tokens", "1T", "--electricity-price", "0.1")
    body = json.loads(
        forescale("run", *RUN, "--tp", 1, "--tokens", "1T", "--electricity-price", "0.1", "--json").out
    )
    days = body["days"]["expected"]
    power = 1e3 * body["mwh"] / (24.0 * days)
    assert f"{power:.3g} kW" in ran.out or f"{power / 1e3:.3g} MW" in ran.out
    assert body["electricity"] == pytest.approx(100.0 * body["mwh"])
    whole, devices = 100.0 * body["node_mwh"], body["electricity"]
    assert f"electricity costs {whole:,.0f} for whole nodes, {devices:,.0f} for the devices" in " ".join(
        ran.out.split()
    )
    low, middle, high = (body["days"][name] for name in ("low", "expected", "high"))
    money = body["money"]["expected"]
    assert f"1 T tokens in {middle:.1f} days ({low:.1f} to {high:.1f}) for USD {money:,.0f}" in ran.out
    often = forescale("run", *RUN, "--tp", 1, "--tokens", "1T", "--failures", "1").out
    assert "away for repairs on average" in often
    assert (
        "1 given" in forescale("run", *RUN, "--tp", 1, "--tokens", "1T", "--failures", "1", "--spares", 1).out
    )
    short = forescale("run", *RUN, "--tp", 1, "--tokens", "1B").out
    assert re.search(r"^days .* = [\d.]+ hours;", short, re.MULTILINE)
    assert "away for repairs" not in short


APART = ("--sites", "2,1Gbit/s", "--outer", "diloco every=100 fragments=8 overlap=1 bits=4")


def test_sites(forescale):
    explicit = ("sites", *RUN, *APART)
    result = json.loads(forescale(*explicit, "--json").out)
    needed = list(result["bandwidth_bit_per_s"].values())
    assert needed == sorted(needed)
    assert 0 < result["utilisation"] <= 1
    assert result["outer"] == {"method": "diloco", "every": 100, "fragments": 8, "overlap": 1, "bits": 4.0}
    assert "is not projected" in forescale(*explicit).out


@pytest.mark.parametrize("command", ["project", "search", "run", "memory"])
def test_sites_train_by_themselves_wherever_layouts_are(forescale, command):
    ran = forescale(command, *RUN, *APART, "--tokens", "1T", *COMMANDS.get(command, ()))
    assert ran.code == 0, ran.err
    if command != "memory":
        assert "note (sites): each of 2 sites takes 100 steps of 128 sequences by itself" in ran.out
        assert "what that does to the loss is not projected" in " ".join(ran.out.split())


def test_more_pieces_than_layers_are_refused(forescale):
    ran = forescale("sites", *RUN, "--sites", "2,1Gbit/s", "--outer", "diloco fragments=33")
    assert (ran.code, ran.out) == (2, "")
    assert "out_of_range fragments" in ran.refused
    assert "required_with several sites" in forescale("sites", *RUN).refused
    wrong = forescale("project", *RUN, "--sites", 2)
    assert "wrong_type --sites" in wrong.refused


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ((), "missing the number of training tokens"),
        (
            ("--phase", "tokens=1T rampup_batch_size=64,64"),
            "wrong_type rampup_batch_size",
        ),
        (
            ("--phase", "tokens=1T rampup_batch_size=-64,64,1M"),
            "out_of_range start",
        ),
        (
            ("--phase", "tokens=1T rampup_batch_size=64,7,1M"),
            "not_divisible global_batch_size 256 - start 64 =",
        ),
        (
            ("--phase", "tokens=1T", "--phase", "tokens"),
            "wrong_type --phase",
        ),
        (("--phase", "tokens=1T tokens=2T"), "given_twice tokens in --phase"),
        (
            ("--tokens", "1T", "--sites", "2,10Gbit/s", "--outer", "diloco every=10 every=20"),
            "given_twice every in --outer",
        ),
        (("--tokens", "1T", "--failures", "lama"), "unknown_name failure rates"),
        (("--tokens", "1T", "--failures", "-1"), "out_of_range --failures"),
        (("--tokens", "1T", "--interval", "1"), "out_of_range the time to write a checkpoint"),
        (("--phase", "tokns=3T"), "unknown_name word of a phase"),
        (("--tokens", "1T", "--storage-bandwidth", "0B/s"), "checkpointing.storage_bandwidth"),
        (("--tokens", "1T", "--carbon", "eu"), "unknown_name carbon intensity"),
        (("--tokens", "1T", "--carbon", "-5"), "out_of_range --carbon"),
        (("--tokens", "1T", "--carbon", "nan"), "out_of_range --carbon"),
        (
            ("--tokens", "1T", "--tp", "0"),
            "out_of_range tp",
        ),
        (("--tokens", "1T", "--restart", "soon"), "not_a_quantity second"),
    ],
)
def test_what_cannot_be_is_one_sentence(forescale, more, sentence):
    ran = forescale("run", *RUN, *more)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.refused
    assert len(ran.err.splitlines()) == 1


TWO_PHASES = """
model = "llama-3.1-8b"
cluster = "h100-sxm"
devices = 16
workload = { seq_len = 4096, global_batch_size = 256 }

[[phase]]
tokens = "1T"

[[phase]]
tokens = "50B"
seq_len = 8192
"""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('tokens = "50B"', 'tokns = "50B"', "unknown_name word of a phase"),
        ('"50B"', '"-50B"', "out_of_range tokens"),
        (
            "seq_len = 8192",
            "tp = 3",
            "not_divisible the number of devices",
        ),
        (
            "seq_len = 8192",
            "rampup_batch_size = 3",
            "wrong_type rampup_batch_size",
        ),
        ("[[phase]]", "[phase]", "cannot_parse TOML"),
    ],
)
def test_what_is_wrong_with_a_phase_of_a_plan_has_its_line(forescale, tmp_path, old, new, sentence):
    (tmp_path / "asked.toml").write_text(TWO_PHASES.replace(old, new), encoding="utf-8")
    ran = forescale("run", "--plan", tmp_path / "asked.toml")
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.refused
    assert len(ran.err.splitlines()) == 1


COUNTED = """
devices = 16
days = 10
causes = { gpu = 4, network = 1 }
planned = 2
"""


def test_failures_that_a_file_counts(forescale, tmp_path):
    (tmp_path / "log.toml").write_text(COUNTED, encoding="utf-8")
    ran = forescale(
        "run", *RUN, "--tokens", "100B", "--failures", tmp_path / "log.toml", "--restart", "10min", "--json"
    )
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    days = result["device_hours"]["expected"] / 24.0
    assert result["interruptions"] == pytest.approx(
        {"gpu": 4 / 160 * days, "network": 1 / 160 * days}, rel=1e-3
    )
    assert (result["failures"], result["operations"]["restart"]) == ("log", 600.0)
    plan = 'failures = "log.toml"\n'
    (tmp_path / "asked.toml").write_text(f"{TWO_PHASES}\n[operations]\n{plan}", encoding="utf-8")
    ran = forescale("run", tmp_path / "asked.toml", "--json")
    assert json.loads(ran.out)["failures"] == "log", ran.err


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("gpu = 4", "gpu = -4", "out_of_range causes.gpu"),
        ("days = 10", "days = 0", "out_of_range days"),
        ("days", "dayz", "log.toml, line 3: unknown key 'dayz'"),
        ("causes", "#", "missing causes"),
        ("days = 10", "days = ", "cannot_parse TOML"),
    ],
)
def test_what_no_file_of_failures_says(forescale, tmp_path, old, new, sentence):
    (tmp_path / "log.toml").write_text(COUNTED.replace(old, new), encoding="utf-8")
    ran = forescale("run", *RUN, "--tokens", "100B", "--failures", tmp_path / "log.toml")
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.refused


def test_devices_that_cost_nothing_are_counted_in_hours(forescale):
    ran = forescale(*PLANNED, "--deadline", "30d", "--price", "0", "--json")
    assert json.loads(ran.out)["price_per_device_hour"] is None, ran.err


PLANNED = (
    "search", "llama-3.1-8b", "--cluster", "h100-sxm", "--device-counts", "32-64:32", "--seq-len", "4096",
    "--global-batch-size", "64", "--tokens", "100B", "--fix", "tp=2", "--fix", "cp=1", "--fix", "zero=1",
)  # fmt: skip


def test_a_run_is_planned_for_a_deadline(forescale):
    ran = forescale(*PLANNED, "--deadline", "30d", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    selected = document["front"][document["chosen"]]
    assert selected["cost"] == min(item["cost"] for item in document["front"])
    assert selected["days"] <= 30.0
    shown = forescale(*PLANNED, "--budget", "1M", "--price", "2")
    assert "the soonest of 2 numbers of devices" in shown.out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--deadline", "0d"), "out_of_range --deadline"),
        (("--deadline", "1min"), "give a deadline of that or more"),
        (("--budget", "1"), "give a budget of that or more"),
        (("--budget", "1M", "--pareto"), "ask one at a time"),
        (("--deadline", "30d", "--interval", "0"), "out_of_range checkpointing.interval"),
        (("--deadline", "90"), "write 90d"),
        (
            ("--deadline", "30d", "--device-counts", "64-32:8"),
            "--device-counts",
        ),
        (
            ("--deadline", "30d", "--sites", "3,1Gbit/s"),
            "give a multiple of 3",
        ),
        (
            ("--deadline", "30d", "--interval", "0.01"),
            "give an interval of",
        ),
        (("--deadline", "30d", "--failures", "1e6"), "no work is saved"),
        (
            ("--deadline", "30d", "--storage-bandwidth", "0B/s"),
            "checkpointing.storage_bandwidth",
        ),
        (("--deadline", "30d", "--price", "-1"), "0 or more"),
    ],
)
def test_a_plan_that_cannot_be_is_one_sentence(forescale, more, sentence):
    ran = forescale(*PLANNED, *more)
    assert ran.code != 0
    assert sentence in " ".join(ran.refused.split())


ASKED = (
    "llama-3.1-8b",
    "--cluster",
    "h100-sxm",
    "--devices",
    16,
    "--seq-len",
    4096,
    "--global-batch-size",
    64,
)
COMMANDS = {
    "project": (),
    "run": (),
    "search": ("--fix", "tp=2", "--fix", "cp=1", "--fix", "zero=1", "--top", 1),
    "advise": ("--no-exact",),
}
"""Commands that say when a run ends, each so that it is quick."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--failures", "-1"), "out_of_range --failures"),
        (("--failures", "nan"), "out_of_range --failures"),
        (("--failures", "lama-3"), "unknown_name failure rates"),
        (("--failure-factor", "-2"), "out_of_range --failure-factor"),
        (("--interval", "0"), "out_of_range checkpointing.interval"),
        (("--spares", "-1"), "out_of_range --spares"),
        (("--evaluation", "1"), "out_of_range --evaluation"),
    ],
)
def test_what_no_run_can_be_operated_with_is_one_sentence(forescale, command, more, sentence):
    ran = forescale(command, *ASKED, *COMMANDS[command], "--tokens", "1T", *more)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.refused
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "run"])
def test_a_run_that_never_ends_says_why_wherever_days_are(forescale, command):
    explicit = (command, *ASKED, *COMMANDS[command], "--tokens", "1T")
    message = " ".join(forescale(*explicit, "--failures", "1e6").out.split())
    assert "no work is saved" in message
    message = " ".join(forescale(*explicit, "--interval", "0.1").out.split())
    assert "give an interval of" in message


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "run"])
def test_days_on_the_calendar_say_whose_failures(forescale, command):
    explicit = (command, *ASKED, *COMMANDS[command])
    message = " ".join(
        forescale(*explicit, "--tokens", "1T", "--failures", "meta-rsc-1", "--failure-factor", 3).out.split()
    )
    assert "mostly step time) on the calendar, failures as meta-rsc-1 × 3" in message
    without = forescale(*explicit, "--restart", 60)
    assert (without.code, without.out) == (2, "")
    assert (without.error.code, without.error.key) == ("no_effect", "--restart")
    assert without.error.fix == "give --tokens, such as 15T"


def test_no_preset_counts_failures(forescale):
    ran = forescale("project", *ASKED, "--tokens", "1T", "--preset", "almodel", "--spares", 2)
    assert ran.code == 2
    assert (ran.error.code, ran.error.key) == ("no_effect", "--spares")


def test_sites_without_a_legal_default_take_the_best_layout(forescale):
    words = ("llama-3.1-8b", "--cluster", "h100-sxm", "--devices", 32, "--global-batch-size", 16)
    sites = ("--sites", "2,800Gbit/s,30ms")
    ran = forescale("sites", *words, *sites, "--json")
    assert ran.code == 0, ran.err
    assert ran.err.startswith("note (layout): ")
    assert max(map(len, ran.err.splitlines())) <= 100
    best = json.loads(forescale("search", *words, *sites, "--outer", "diloco", "--json").out)["best"]
    assert json.loads(ran.out)["every_step_s"] in [one["sites"]["every_step_s"] for one in best]
    refused = forescale("sites", *words, *sites, "--tp", 1)  # which was asked for
    assert (refused.code, refused.error.code) == (2, "illegal_layout")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "500.000 ms"),
        (114.756, "115 s"),
        (5217.0, "87 min"),
        (11135.0, "3.09 h"),
        (22804651.0, "264 days"),
    ],
)
def test_spans_are_in_the_largest_unit_of_which_they_have_two(seconds, text):
    assert format_span(seconds) == text


def test_a_run_of_so_many_days(forescale):
    question = (
        "run",
        "llama-3.1-8b",
        "--cluster",
        "h100",
        "--devices",
        8,
        "--global-batch-size",
        64,
        "--zero",
        3,
    )
    said = json.loads(forescale(*question, "--days", "30", "--electricity-price", "0.1", "--json").out)
    assert said["days"]["expected"] == pytest.approx(30.0, rel=1e-3)
    assert said["electricity"] == pytest.approx(100.0 * said["mwh"])
    longer = json.loads(forescale(*question, "--days", "60d", "--json").out)
    assert longer["phases"][0]["tokens"] == pytest.approx(2 * said["phases"][0]["tokens"], rel=0.01)
    assert forescale(*question, "--days", "30", "--tokens", "1T").refused.startswith(
        "conflicts --days, --tokens"
    )
    assert forescale(*question, "--days", "0").refused.startswith("out_of_range --days")


def test_tokens_for_each_parameter(forescale):
    question = (
        "run",
        "llama-2-7b",
        "--cluster",
        "h100",
        "--devices",
        8,
        "--global-batch-size",
        64,
        "--zero",
        3,
    )
    (phase,) = phases_of(forescale(*question, "--tokens", "20x", "--json"))
    assert phase["tokens"] == 20 * 6_738_415_616
    read, _ = translated([*map(str, question), "--tokens", "chinchilla"])
    assert read[-2:] == ["--tokens", "20x"]


def test_causes_of_interruptions_add_up_and_the_pue_is_shown(forescale):
    words = ("run", "llama-3.1-8b", "--cluster", "b200", "--devices", 2048, "--global-batch-size", 2048)
    ran = forescale(*words, "--zero", 1, "--tokens", "100T", "--pue", "1.2")
    text = " ".join(ran.out.split())
    total, causes = re.search(r"(\d+) unexpected, one every [^(]*\(([^)]*)\)", text).groups()
    assert sum(int(cause.rsplit(" ", 1)[1]) for cause in causes.split(", ")) == int(total) > 0
    assert "at their rated power of 1,000 W" in text and "PUE 1.2 included" in text
    assert "training that counts" in text and "infrastructure_recovery_from_disruption" not in text
