from __future__ import annotations

import json

import pytest

QUESTION = [
    "llama-3.1-8b",
    "--cluster",
    "h100-sxm",
    "--devices",
    "8",
    "--seq-len",
    "8192",
    "--global-batch-size",
    "64",
    "--zero",
    "3",
]


def document(forescale, *measured):
    ran = forescale(
        "diagnose", *QUESTION, *[item for one in measured for item in ("--measured", one)], "--json"
    )
    return json.loads(ran.out)


def test_a_figure_a_log_and_both(forescale, tmp_path):
    path = tmp_path / "train.log"
    lines = [
        f"step: {n}  loss: 7.1  memory: 79.00GiB(99%)  tps: 5,000  tflops: 250  mfu: 25%"
        for n in range(1, 20)
    ]
    path.write_text("\n".join(lines))
    seconds = 64 * 8192 / 8 / 5000
    for measured in (
        (f"step={seconds}s",),
        ("tokens_per_s_per_device=5000",),
        ("5,000 tok/s/GPU",),
        (f"{seconds} s",),
        (f"{seconds}s", "71GiB"),
        (path,),
        (path, f"step={seconds}s"),
    ):
        body = document(forescale, *measured)
        assert (body["verdict"], body["measured_s"]) == ("slower", pytest.approx(seconds))
        assert body["causes"][0]["explained"] > 0.8
    assert any("memory: 79.0 GiB" in remark for remark in document(forescale, path)["remarks"])


@pytest.mark.parametrize(("batch", "said"), [(32, True), (64, False)])
def test_a_log_of_another_batch_is_said(forescale, tmp_path, batch, said):
    path = tmp_path / "train.log"
    line = " iteration {}/ 100 | elapsed time per iteration (ms): 7000.0 | global batch size: {} | lm loss: 1.0E+00 |\n"
    path.write_text("".join(line.format(n, batch) for n in range(1, 12)))
    assert any("batch of 32, 64" in remark for remark in document(forescale, path)["remarks"]) == said


def test_what_was_expected_has_no_cause(forescale):
    body = document(forescale, "step=7s")
    assert (body["verdict"], body["causes"]) == ("as expected", [])


@pytest.mark.parametrize(
    ("measured", "error"),
    [
        ((), "missing --measured"),
        (("steps=3s",), "not_one_of --measured"),
        (("step=0s",), "wrong_type --measured step"),
        (("memory=70GiB",), "missing the time of a step"),
        (("no.log",), "not_found"),
        (("step=9s", "--mfu-convention", "all"), "not_one_of --mfu-convention"),
    ],
)
def test_bad_input(forescale, measured, error):
    ran = forescale("diagnose", *QUESTION, *(("--measured", *measured) if measured else ()))
    assert (ran.code, ran.refused.startswith(error)) == (2, True), ran.refused


def test_a_rate_gives_the_step_by_its_convention(forescale):
    from forescale.diagnose.measured import CONVENTIONS

    steps = {name: _step(forescale, "mfu=40%", name) for name in CONVENTIONS}
    assert steps["causal"] == document(forescale, "mfu=40%")["measured_s"]
    assert steps["full"] > steps["causal"] > steps["6nd"]
    assert steps["causal:sparse"] == pytest.approx(steps["causal"] / 2)
    assert _step(forescale, "tflops=400", "full") / _step(forescale, "tflops=400", "causal") == pytest.approx(
        steps["full"] / steps["causal"]
    )
    assert any("--mfu-convention" in remark for remark in document(forescale, "tflops=400")["remarks"])


def _step(forescale, figure, convention):
    ran = forescale("diagnose", *QUESTION, "--measured", figure, "--mfu-convention", convention, "--json")
    return json.loads(ran.out)["measured_s"]


AXOLOTL = """base_model: meta-llama/Llama-3.1-8B
sequence_len: 8192
micro_batch_size: 2
gradient_accumulation_steps: 4
flash_attention: true
gradient_checkpointing: false
fsdp: [full_shard]
datasets: [{path: x, type: alpaca}]
"""


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ((*QUESTION, "--framework", "megatron"), "without `--recompute-granularity full` and "),
        ((*QUESTION, "--framework", "deepspeed"), 'set `"gradient_checkpointing": false`'),
        (("a.yaml", "--cluster", "h100-sxm", "--devices", "16"), "set `gradient_checkpointing: false`"),
    ],
)
def test_remedies_are_settings_of_the_framework(forescale, tmp_path, monkeypatch, arguments, setting):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(AXOLOTL)
    expected = json.loads(forescale("diagnose", *arguments, "--measured", "step=1s", "--json").out)
    seconds = 1.25 * expected["step_time_s"]
    ran = forescale("diagnose", *arguments, "--measured", f"step={seconds}s", "--json")
    remedies = {item["name"]: item["remedy"] for item in json.loads(ran.out)["causes"]}
    assert setting in remedies["recompute"]


def test_both_steps_on_one_time_axis(forescale, tmp_path):
    path = tmp_path / "step.json"
    forescale("diagnose", *QUESTION, "--measured", "step=12s", "--output", path)
    slices = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [(item["pid"], item["name"]) for item in slices] == [
        (0, "step"),
        (0, "step, difference"),
        (1, "step"),
    ]
    assert sum(item["dur"] for item in slices if item["pid"] == 0) == pytest.approx(12e6)


def test_a_log_in_the_place_of_the_model_is_a_measurement(forescale, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(
        "{'train_runtime': 84.2, 'train_samples_per_second': 7.6, 'train_steps_per_second': 0.1}\n"
    )
    ran = forescale("diagnose", str(log), "--model", "m", "--cluster", "h100")
    assert ran.refused.startswith("wrong_format")
    assert f"forescale diagnose --model m --cluster h100 --measured {log}" in ran.refused
    assert "wrong_format" in forescale("project", str(log), "--cluster", "h100", "--devices", "8").refused
