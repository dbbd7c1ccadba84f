"""Bad input: one clear sentence on standard error, nothing on standard output, exit code 2."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from tests.cli.questions import DENSE, LAYOUT, MACHINE, RUN, SEARCH

MODEL = "llama-3.1-8b"
EXAMPLE = Path(__file__).parents[2] / "examples" / "plan.toml"
PLAN = 'model = "llama-3.1-8b"\ncluster = "h100-sxm"\ndevices = 8\n[workload]\nseq_len = 4096\nglobal_batch_size = 64\n'
BAD = {
    "unknown model": (("project", "llama-3.1-8c", *DENSE[1:]), "did you mean llama-3.1-8b"),
    "unknown cluster": (("project", MODEL, "--cluster", "h100-sxn", "--devices", 8, *RUN), "did you mean h100-sxm"),
    "unknown option": (("project", *DENSE, "--tpp", 2), "No such option: --tpp; did you mean --tp or --pp"),
    "part of an option": (("run", *DENSE, "--storage", 2), "did you mean --storage-bandwidth?"),
    "degree of a search": (("search", *SEARCH, "--micro-batch-size", 2), "a search holds it with --fix micro_batch_size=VALUE"),
    "option of another command": (("run", *DENSE, "--budget", "3M"), "No such option: --budget; forescale search has it"),
    "a dimension by another name": (("search", *SEARCH, "--micro-batch", 2), "a search holds it with --fix micro_batch_size=VALUE"),
    "part of another's option": (("search", *SEARCH, "--stage-layer", 2), "and others have --stage-layers"),
    "option like no other": (("search", *DENSE, "--zzz", 2), "No such option: --zzz (see forescale search --help)"),
    "unknown command": (("projct", *DENSE), "Did you mean 'project'"),
    "unknown preset of an incomplete question": (("report", "--preset", "almodl", "--devices", 8), "did you mean almodel"),
    "name like no other": (("project", *DENSE, "--preset", "zzz"), "there are default, "),
    "unknown choice": (("project", *DENSE, "--precision", "bf17"), "'bf17' is not one of"),
    "unknown quantity": (("explain", MODEL, "step_tme", *MACHINE, *RUN), "did you mean step_time"),
    "unknown override": (("project", *DENSE, "--set", "strategy.tq=2"), "did you mean tp"),
    "unknown section": (("project", *DENSE, "--set", "strategi.tp=2"), "did you mean strategy"),
    "unknown dimension": (("search", *SEARCH, "--fix", "tq=2"), "did you mean tp"),
    "unknown overlap": (("project", *DENSE, "--overlap", "tensors"), "'tensors'"),
    "unknown module": (("project", *DENSE, "--recompute-modules", "attn"), "core_attn"),
    "degree that does not divide the devices": (("project", *DENSE, "--tp", 3), "not a multiple of the 3"),
    "degree that does not divide the heads": (
        ("project", MODEL, "--cluster", "h100-sxm", "--devices", 24, "--seq-len", 4104, "--global-batch-size", 64, "--tp", 3, "--no-sp"),
        "does not divide",
    ),
    "more stages than layers": (("project", MODEL, "--cluster", "h100-sxm", "--devices", 64, *RUN, "--pp", 64), "32"),
    "experts of a dense model": (("project", *DENSE, "--ep", 2), "has no experts"),
    "batch that does not divide": (("project", MODEL, *MACHINE, "--seq-len", 4096, "--global-batch-size", 3), "is not divisible"),
    "vpp without pp": (("project", *DENSE, "--vpp", 2), "needs pp > 1"),
    "zero degree": (("project", *DENSE, "--tp", 0), "tp must be greater than 0, got 0"),
    "negative degree": (("project", *DENSE, "--pp", -2), "pp must be greater than 0, got -2"),
    "zero sequence": (("project", MODEL, *MACHINE, "--seq-len", 0, "--global-batch-size", 64), "seq_len must be greater than 0"),
    "negative batch": (("project", MODEL, *MACHINE, "--seq-len", 4096, "--global-batch-size", -8), "global_batch_size must be greater than 0"),
    "zero devices": (("project", MODEL, "--cluster", "h100-sxm", "--devices", 0, *RUN), "devices must be a whole number of 1 or more"),
    "zero nodes": (("search", MODEL, "--cluster", "h100-sxm", "--nodes", 0, *RUN), "nodes must be a whole number of 1 or more"),
    "negative tokens": (("project", *DENSE, "--tokens", "-2T"), "tokens must be greater than 0"),
    "zero stage beyond 3": (("project", *DENSE, "--zero", 4), "zero must be 3 or less"),
    "zero top": (("search", *DENSE, "--top", 0), "--top must be a whole number of 1 or more"),
    "zero memory": (("search", *SEARCH, "--max-memory", "0GiB"), "--max-memory must be greater than 0"),
    "memory without its unit": (("search", *SEARCH, "--max-memory", "70"), "must be 1048576 or more bytes, got 70; say its unit"),
    "carbon of no place": (("run", *DENSE, "--tokens", "1T", "--carbon", "1e30"), "--carbon must be 0 or more, 100,000 kg of CO2 per MWh at most"),
    "unit that is no unit": (("search", *SEARCH, "--max-memory", "70GX"), "--max-memory: '70GX' is not a quantity in byte"),
    "memory beyond any device": (("search", *SEARCH, "--max-memory", "1e30"), "--max-memory: '1e30' must be"),
    "step time without its unit": (("search", *SEARCH, "--target-step-time", "2x"), "--target-step-time: '2x' is not a quantity"),
    "fix without a value": (("search", *SEARCH, "--fix", "tp"), "NAME=VALUE"),
    "fix that no layout can have": (("search", *SEARCH, "--fix", "tp=3"), "not a multiple of 3"),
    "fix to nothing": (("search", *SEARCH, "--fix", "zero=5"), "takes 0, 1, 2, 3"),
    "text where a number belongs": (("project", *DENSE, "--tp", "four"), "--tp"),
    "stage layers that are no numbers": (("project", *DENSE, "--pp", 2, "--stage-layers", "16;16"), "--stage-layers"),
    "stage layers that do not add up": (("project", *DENSE, "--pp", 2, "--stage-layers", "16,17"), "32 layers"),
    "modules under full": (("project", *DENSE, "--recompute", "full", "--recompute-modules", "mlp"), "goes with recompute selective"),
    "devices and nodes": (("project", *DENSE, "--nodes", 2), "give one of them"),
    "no sizes at all": (("project", MODEL, *MACHINE), "--seq-len, --global-batch-size are required"),
    "no model": (("project", *DENSE[1:]), "MODEL is required"),
    "search without devices": (("search", MODEL, "--cluster", "h100-sxm", *RUN), "error: --devices (or --nodes) is required, here or"),
    "model of no name": (("project", "", *DENSE[1:]), "unknown model ''; there are almodel, bloom"),
    "an option in the place of a file": (("search", *SEARCH, "--checkpoint", "--json"), "--checkpoint requires a value; got the option --json"),
    "an option in the place of a number": (("project", MODEL, *MACHINE, "--seq-len", "--global-batch-size", 64), "--seq-len requires a value; got the option --global-batch-size"),
    "cluster of no name": (("project", MODEL, "--cluster", "", "--devices", 8, *RUN), "--cluster is empty; give it a value"),
    "cluster with a word too many": (("project", MODEL, "--cluster", "b200-sxm", "--devices", 8, *RUN), "did you mean b200 or"),
    "a network of no devices": (("network", "--cluster", "h100-sxm", "--devices", 0), "1 or more, got 0"),
    "a network of no nodes": (("network", "--cluster", "h100-sxm", "--nodes", 0), "1 or more, got 0"),
    "a layout of a plan by number": (("project", f"{EXAMPLE}#2"), "plan.toml: only what a command printed with --json has layouts by number"),
    "a checkpoint of another kind": (("search", *SEARCH, "--checkpoint", EXAMPLE), "is no whole checkpoint of a search (it is of another kind)"),
    "missing model file": (("project", "nowhere/config.json", *DENSE[1:]), "there is no such file"),
    "missing plan": (("project", "--plan", "nowhere.toml"), "there is no such file"),
    "missing corpus": (("validate", "nowhere.csv"), "nowhere.csv"),
    "unknown preset": (("project", *DENSE, *LAYOUT, "--preset", "primos"), "did you mean primus"),
    "unknown preset of a search": (("search", *SEARCH, "--preset", "primos"), "did you mean primus"),
    "search under a published account": (
        ("search", *SEARCH, "--preset", "primus"),
        "search works under the presets default and subramanian2024 only; project takes primus",
    ),
    "more memory than there is": (("search", *SEARCH, "--max-memory", "200GiB"), "has 79.65 GiB, got 200GiB"),
    "tokens of a published search": (
        ("search", *SEARCH, "--preset", "subramanian2024", "--tensor-parallel", "1d", "--tokens", "1T"),
        "--tokens does not go with it",
    ),
    "target of no time": (("search", *SEARCH, "--target-days", 0), "--target-days must be greater than 0"),
    "target without tokens": (("search", *SEARCH, "--target-days", 9), "--tokens"),
    "target in another unit": (("search", *SEARCH, "--target-step-time", "9GiB"), "not a quantity in second"),
    "target of negative time": (("search", *SEARCH, "--target-step-time", "-9s"), "--target-step-time must be greater than 0, got -9s"),
    "front and target": (("search", *SEARCH, "--target-step-time", "9s", "--pareto"), "one at a time"),
    "batches and target": (("search", *SEARCH, "--target-step-time", "9s", "--batches", "64"), "one at a time"),
    "batches and batch": (("search", *SEARCH, "--batches", "64,128"), "give one of them"),
    "batches that are no numbers": (("search", MODEL, *MACHINE, "--seq-len", 4096, "--batches", "64:128"), "such as 64,128,256 or 256-8192:8; got '64:128'"),
    "counts beside devices": (("search", *SEARCH, "--device-counts", "8,16"), "leave out --devices"),
    "counts of nothing": (("search", MODEL, "--cluster", "h100-sxm", *RUN, "--device-counts", "0,8"), "--device-counts takes"),
    "price of a front": (("search", *SEARCH, "--pareto", "--price-per-device-hour", 2), "goes with a ranking, a target"),
    "negative price": (("search", *SEARCH, "--target-step-time", "9s", "--price-per-device-hour", -2), "must be 0 or more, got -2"),
    "front by another objective": (("search", *SEARCH, "--pareto", "--objective", "peak_memory"), "--pareto does not go with --objective"),
    "front of a published account": (
        ("search", "gpt3-1t", "--cluster", "b200-nvs8", "--devices", 256, "--global-batch-size", 4096, "--preset", "subramanian2024", "--tensor-parallel", "1d", "--pareto"),
        "--pareto does not go with --preset",
    ),
    "nothing that fits at any batch": (
        ("search", "llama-3.1-70b", "--cluster", "h100-sxm", "--devices", 8, "--seq-len", 4096, "--batches", "8,16", "--fix", "cp=1"),
        "nothing fits at any global batch size of 8, 16",
    ),
    "comparison with nothing": (("compare", "nowhere.json", "nowhere.toml"), "nowhere.json: there is no such file"),
    "comparison with a missing plan": (("compare", "nowhere.toml", "nowhere.toml"), "there is no such file"),
    "comparison of other files": (("compare", "model.csv", "b.json"), "compare takes a plan"),
    "devices of no machine": (("search", MODEL, "--cluster", "h100-sxm", "--devices", 10**18, *RUN), "devices must be 16,777,216 or less"),
    "endless digits": (("project", MODEL, *MACHINE, "--seq-len", "9" * 4000, "--global-batch-size", 64), "seq_len must be 1,000,000,000 or less"),
    "hidden size of no machine": (("project", *DENSE, "--set", "model.hidden_size=1e30"), "hidden_size must be 16,777,216 or less"),
    "no vocabulary": (("project", *DENSE, "--set", "model.vocab_size=-1"), "vocab_size must be 0 or more"),
    "infinite memory": (("project", *DENSE, "--set", "cluster.device.hbm_bytes=inf"), "must be a number, got inf"),
    "infinite bandwidth": (("project", *DENSE, "--set", "cluster.device.hbm_bandwidth=1e400 GB/s"), "must be a number, got inf"),
    "infinite clock": (("project", *DENSE, "--device-clock-mhz", "inf"), "device_clock_mhz must be a number, got inf"),
    "endless tokens": (("project", *DENSE, "--tokens", "1e400"), "must be"),
    "target of no number": (("search", *DENSE, "--target-days", "nan"), "--target-days must be a number, got nan"),
    "endless top": (("search", *DENSE, "--top", 99999999999), "--top must be 10,000 or less"),
    "a part of an order": (("project", *DENSE, "--axis-order", "tp"), "axis_order names each of tp, cp, dp, pp once; got tp"),
    "an axis twice": (("project", *DENSE, "--axis-order", "tp,tp,cp,dp"), "got tp,tp,cp,dp"),
    "parameters on the host under zero 1": (("project", *DENSE, "--offload-parameters"), "zero is 1"),
    "a digit that is none": (("search", *SEARCH, "--fix", "zero=²"), "takes 0, 1, 2, 3"),
    "a home of nobody": (("project", "~nobody-here/x.json", *DENSE[1:]), "there is no such file"),
    "ranks of nothing": (("calibrate", "--collectives", "x.log", "--cluster", "h100-sxm", "-o", "x.json", "--num-ranks", 0), "--num-ranks must be a whole number of 1 or more"),
    "unknown preset of a corpus": (("validate", "nowhere.csv", "--preset", "zz"), "unknown preset 'zz'"),
    "nothing that is frozen": (("project", *DENSE, "--freeze", ""), "--freeze is empty; give it a value, or leave it out"),
    "a word for a number": (("project", *DENSE, "--tp", "four"), "--tp takes a whole number; got 'four'"),
    "a float for a count": (("project", *DENSE, "--pp", "1e3"), "--pp takes a whole number; got '1e3'"),
    "a word for a share": (("project", *DENSE, "--offload-optimizer", "half"), "--offload-optimizer takes a number; got 'half'"),
    "a length that is none": (("project", *DENSE, "--seq-len", "8x"), "takes a whole number of tokens, such as 8192 or 128k; got '8x'"),
    "a name that nothing has": (("catalogue", "models", "qwen9"), "no name of models contains 'qwen9'"),
    "a bench of a preset": (("bench", *DENSE, "--preset", "almodel"), "bench works under the preset default only"),
    "a picture of no kind": (("pipeline", "draw", "-o", "x.png"), "--output x.png ends in none of .html, .svg, .json, .csv"),
    "nothing among several": (("project", *DENSE, "--set", " "), "--set is empty; give it a value, or leave it out"),
    "a schedule that stands alone": (("pipeline", "draw", "zb-h1"), "unexpected argument 'zb-h1'; write --schedule zb-h1"),
    "a number that stands alone": (("project", *DENSE, "3"), "unexpected argument '3' (see forescale project --help)"),
    "a model after an option": (("project", "--model", MODEL), "No such option: --model; it stands without one: forescale project MODEL (see"),
    "a degree as frameworks call it": (("project", *DENSE, "--tensor-model-parallel-size", 8), "did you mean --tp? (see"),
    "a number format as an option": (("search", *SEARCH, "--fp8"), "did you mean --precision? (see"),
    "data parallel": (("project", *DENSE, "--dp", 8), "did you mean --dp-shard? (see"),
    "devices by what they are": (("project", *DENSE, "--gpus", 8), "did you mean --devices? (see"),
    "a command by another name": (("optimize", *SEARCH), "No such command 'optimize'; forescale search does that (see"),
    "a cluster that stands alone": (("network", "h100"), "write --cluster h100"),
    "a clock in gigahertz": (("project", *DENSE, "--device-clock-mhz", 1.5), "device_clock_mhz must be 10 or more, got 1.5"),
    "too many words": (("explain", MODEL, "step_time", "mfu", *MACHINE, *RUN), "one quantity"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(forescale, arguments, sentence):
    ran = forescale(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
    assert sentence in ran.err


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", '{"model_type": "llama", "hidden_size": 1024, "num_hid', "not whole JSON"),
        ("config.json", "[1, 2]", "no JSON object"),
        ("config.json", json.dumps({"model_type": "never-seen"}), "not supported"),
        ("config.json", json.dumps({"hidden_size": 8}), "model_type"),
        (
            "plan.json",
            json.dumps({"model": "llama-3.1-8b", "workload": {"seq_len": 4096}}),
            "it asks a question; write a plan in TOML or YAML",
        ),
        ("config.yaml", "a: [1, 2", ""),
    ],
)
def test_model_files_that_cannot_be_read(forescale, tmp_path, name, content, sentence):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    ran = forescale("project", path, *DENSE[1:])
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert str(path) in ran.err
    assert sentence in ran.err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (PLAN + "[strategy\n", "not valid TOML"),
        (PLAN.replace("devices", "device"), "did you mean devices"),
        (PLAN + "[strategy]\ntp = 2\nzerro = 1\n", "did you mean zero"),
        (PLAN + "[strategy]\ntp = -2\n", "tp must be greater than 0"),
        (PLAN.replace("4096", '"long"'), "seq_len must be a whole number"),
        ("[strategy]\ntp = 2\n", "are required"),
        (
            PLAN + '[workload.precision]\ncompute = "bf16"\n[precision]\ncompute = "fp8"\n',
            "precision.compute is given in precision and in workload.precision; give it once",
        ),
        (
            PLAN + '[strategy.recompute]\ngranularity = "none"\nmodules = ["mlp"]\n',
            "recompute.modules goes with the granularity selective; it is none",
        ),
        (
            'max_memory = "700 GiB"\n' + PLAN,
            "max_memory limits what a device has; h100-sxm has 79.65 GiB, got 700 GiB",
        ),
        ('max_memory = "70 gb"\n' + PLAN, "line 1: max_memory = '70 gb' is not a quantity in byte"),
        (
            PLAN.replace("4096", '"4096"'),
            "seq_len must be a whole number, got '4096' (write it without quotes)",
        ),
        (
            PLAN.replace('cluster = "h100-sxm"', 'cluster = {base = "h100-sxm", num_devices = 16}'),
            "cluster.num_devices is given beside 8 devices; leave it out",
        ),
        (
            PLAN.replace('cluster = "h100-sxm"', 'cluster = {base = "h100-sxm", device = {hbm_bytes = 141}}'),
            "device.hbm_bytes must be 1000000.0 or more, got 141",
        ),
        (
            PLAN + "[strategy.recompute]\nnum_layers = 2\n",
            "recompute.num_layers goes with the granularity selective or full or policy; it is none",
        ),
        (
            PLAN + '[strategy]\ntp = 2\nrecompute = { granularity = "full", layer_ids = [1, 2, 1] }\n',
            "line 9, strategy: recompute.layer_ids lists 1 twice",
        ),
        (
            PLAN
            + '[strategy]\ntp = 2\nrecompute = { granularity = "selective", modules = ["mlp", "mlp"] }\n',
            "line 9, strategy: recompute.modules lists mlp twice",
        ),
        (
            PLAN + "[strategy]\ntp = 2\noffload={optimizer=1.5}\n",
            "line 9, strategy: offload.optimizer must be 1 or less, got 1.5",
        ),
    ],
)
def test_plans_that_cannot_be(forescale, tmp_path, content, sentence):
    plan = tmp_path / "plan.toml"
    plan.write_text(content, encoding="utf-8")
    ran = forescale("project", "--plan", plan)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert sentence in ran.err


SCRIPT = (
    "#!/bin/bash\ntorchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--ffn-hidden-size 11008 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 "
    "--micro-batch-size 1 --global-batch-size 64 "
)
DOUBLING = "V=aaaaaaaaaaaaaaaa\n" + "V=$V$V\n" * 60
TORUS = (
    'device = "tpu-v5p"\ndevices_per_node = 4\n[[tiers]]\nname = "ici"\nsize = 64\nbandwidth = "600 GB/s"\n'
    'latency = "1 us"\ntopology = "torus"\ndimensions = 99999999\n'
)
HEADS = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 5} | {
    "num_hidden_layers": 2,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}
GRID = PLAN.replace(
    "[workload]", "[vary]\nhbm_bandwidth = { from = 'x1', to = 'x4', steps = 100000000 }\n[workload]"
)


@pytest.mark.parametrize(
    ("name", "content", "arguments", "sentence"),
    [
        (
            "a.sh",
            SCRIPT + "--make-vocab-size-divisible-by 0",
            ("project", "a.sh", *MACHINE),
            "1 or more, got 0",
        ),
        ("a.sh", SCRIPT + "--kv-channels 0", ("project", "a.sh", *MACHINE), "must be greater than 0, got 0"),
        ("a.sh", SCRIPT + "--fp8-format zzz", ("project", "a.sh", *MACHINE), "one of e4m3, hybrid"),
        (
            "a.sh",
            SCRIPT + "--swiglu --squared-relu",
            ("project", "a.sh", *MACHINE),
            "two activations; give one",
        ),
        (
            "a.sh",
            SCRIPT + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*9999999999|L'",
            ("project", "a.sh", *MACHINE),
            "more than 50,000 letters",
        ),
        (
            "d.json",
            '{"zero_optimization": 3}',
            ("project", "--config", "d.json", *DENSE),
            "zero_optimization",
        ),
        (
            "config.json",
            json.dumps(HEADS),
            ("project", "config.json", *DENSE[1:]),
            "is not a multiple of 'num_key_value_heads' 5",
        ),
        ("c.toml", TORUS, ("project", MODEL, "--cluster", "c.toml", "--devices", 64, *RUN), "16 or less"),
        ("s.toml", GRID, ("sweep", "s.toml"), "steps"),
    ],
)
def test_the_impossible_is_refused_before_work_begins(
    forescale, tmp_path, monkeypatch, name, content, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")
    ran = forescale(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert sentence in ran.err


def test_a_variable_that_doubles_itself_does_not_grow_without_end(forescale, tmp_path):
    path = tmp_path / "a.sh"
    path.write_text(DOUBLING + SCRIPT + "--data-path $V", encoding="utf-8")
    ran = forescale("project", path, *MACHINE)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("a.sh: its variables stand for more than 1 MiB of text\n")


def test_a_compared_document_is_checked_like_a_plan(forescale, tmp_path):
    document = json.loads(forescale("project", *DENSE, "--json").out)
    document["strategy"]["vpp"] = 1e308
    path = tmp_path / "mutated.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    ran = forescale("compare", path, path)
    assert (ran.code, ran.out) == (2, "")
    assert "mutated.json, strategy: vpp must be" in ran.err


def test_an_unwritable_file_is_a_sentence(forescale, tmp_path):
    ran = forescale("search", *SEARCH, "--csv", tmp_path / "no" / "folder.csv")
    assert ran.code == 2
    assert "cannot write" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--preset", "almodel", "--output"),
        ("pipeline", "draw", "--schedule", "1f1b", "--pp", 2, "--microbatches", 4, "--output"),
    ],
)
def test_an_unwritable_page_is_a_sentence(forescale, tmp_path, arguments):
    path = tmp_path / "no" / "page.html"
    ran = forescale(*arguments, path)
    assert ran.code == 2
    assert ran.err.splitlines() == [f"error: cannot write {path}: No such file or directory"]


def test_a_defect_is_not_hidden(forescale, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(import_module("forescale.cli.project"), "answered", broken)
    with pytest.raises(ZeroDivisionError):
        forescale("project", *DENSE, *LAYOUT)


def test_an_interrupt_is_quiet(forescale, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("forescale.cli.project"), "answered", interrupted)
    ran = forescale("project", *DENSE, *LAYOUT)
    assert (ran.code, ran.out, ran.err) == (130, "", "")
