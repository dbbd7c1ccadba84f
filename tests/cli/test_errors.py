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
    "unknown model": (("project", "llama-3.1-8c", *DENSE[1:]), "unknown_name model"),
    "unknown cluster": (("project", MODEL, "--cluster", "h100-sxn", "--devices", 8, *RUN), "unknown_name cluster"),
    "unknown option": (("project", *DENSE, "--tpp", 2), "No such option: --tpp; did you mean --tp or --pp"),
    "part of an option": (("run", *DENSE, "--storage", 2), "did you mean --storage-bandwidth?"),
    "degree of a search": (("search", *SEARCH, "--micro-batch-size", 2), "a search holds it with --fix micro_batch_size=VALUE"),
    "option of another command": (("run", *DENSE, "--jobs", "3"), "No such option: --jobs; "),
    "a dimension by another name": (("search", *SEARCH, "--micro-batch", 2), "a search holds it with --fix micro_batch_size=VALUE"),
    "part of another's option": (("search", *SEARCH, "--stage-layer", 2), "and others have --stage-layers"),
    "option like no other": (("search", *DENSE, "--zzz", 2), "No such option: --zzz (see forescale search --help)"),
    "unknown command": (("projct", *DENSE), "No such command 'projct'; did you mean forescale project"),
    "unknown preset of an incomplete question": (("report", "--preset", "almodl", "--devices", 8), "unknown_name preset"),
    "name like no other": (("project", *DENSE, "--preset", "zzz"), "unknown_name preset"),
    "unknown choice": (("project", *DENSE, "--precision", "bf17"), "not_one_of --precision"),
    "unknown quantity": (("explain", MODEL, "step_tme", *MACHINE, *RUN), "unknown_name quantity"),
    "unknown override": (("project", *DENSE, "--set", "strategy.tq=2"), "unknown_key tq"),
    "unknown section": (("project", *DENSE, "--set", "strategi.tp=2"), "unknown_key strategi"),
    "unknown dimension": (("search", *SEARCH, "--fix", "tq=2"), "unknown_key tq"),
    "unknown overlap": (("project", *DENSE, "--overlap", "tensors"), "not_one_of --overlap"),
    "unknown module": (("project", *DENSE, "--recompute-modules", "attn"), "not_one_of recompute.modules.0"),
    "degree that does not divide the devices": (("project", *DENSE, "--tp", 3), "not_divisible the number of devices"),
    "degree that does not divide the heads": (
        ("project", MODEL, "--cluster", "h100-sxm", "--devices", 24, "--seq-len", 4104, "--global-batch-size", 64, "--tp", 3, "--no-sp"),
        "illegal_layout heads over tp",
    ),
    "more stages than layers": (("project", MODEL, "--cluster", "h100-sxm", "--devices", 64, *RUN, "--pp", 64), "illegal_layout layers over pp × vpp"),
    "experts of a dense model": (("project", *DENSE, "--ep", 2), "illegal_layout ep without experts"),
    "batch that does not divide": (("project", MODEL, *MACHINE, "--seq-len", 4096, "--global-batch-size", 3), "illegal_layout global batch"),
    "vpp without pp": (("project", *DENSE, "--vpp", 2), "illegal_layout vpp needs pp"),
    "zero degree": (("project", *DENSE, "--tp", 0), "out_of_range tp"),
    "negative degree": (("project", *DENSE, "--pp", -2), "out_of_range pp"),
    "zero sequence": (("project", MODEL, *MACHINE, "--seq-len", 0, "--global-batch-size", 64), "out_of_range seq_len"),
    "negative batch": (("project", MODEL, *MACHINE, "--seq-len", 4096, "--global-batch-size", -8), "out_of_range global_batch_size"),
    "zero devices": (("project", MODEL, "--cluster", "h100-sxm", "--devices", 0, *RUN), "out_of_range devices"),
    "zero nodes": (("search", MODEL, "--cluster", "h100-sxm", "--nodes", 0, *RUN), "out_of_range nodes"),
    "negative tokens": (("project", *DENSE, "--tokens", "-2T"), "out_of_range tokens"),
    "zero stage beyond 3": (("project", *DENSE, "--zero", 4), "out_of_range zero"),
    "zero top": (("search", *DENSE, "--top", 0), "out_of_range --top"),
    "zero memory": (("search", *SEARCH, "--max-memory", "0GiB"), "out_of_range --max-memory"),
    "memory without its unit": (("search", *SEARCH, "--max-memory", "70"), "out_of_range --max-memory"),
    "carbon of no place": (("run", *DENSE, "--tokens", "1T", "--carbon", "1e30"), "out_of_range --carbon"),
    "unit that is no unit": (("search", *SEARCH, "--max-memory", "70GX"), "not_a_quantity byte"),
    "memory beyond any device": (("search", *SEARCH, "--max-memory", "1e30"), "out_of_range 1e30"),
    "step time without its unit": (("search", *SEARCH, "--target-step-time", "2x"), "not_a_quantity second"),
    "fix without a value": (("search", *SEARCH, "--fix", "tp"), "wrong_type --fix"),
    "fix that no layout can have": (("search", *SEARCH, "--fix", "tp=3"), "not_a_factor --fix tp"),
    "fix to nothing": (("search", *SEARCH, "--fix", "zero=5"), "not_one_of --fix zero"),
    "text where a number belongs": (("project", *DENSE, "--tp", "four"), "wrong_type --tp"),
    "stage layers that are no numbers": (("project", *DENSE, "--pp", 2, "--stage-layers", "16;16"), "wrong_type --stage-layers"),
    "stage layers that do not add up": (("project", *DENSE, "--pp", 2, "--stage-layers", "16,17"), "32 layers"),
    "modules under full": (("project", *DENSE, "--recompute", "full", "--recompute-modules", "mlp"), "required_with recompute selective"),
    "devices and nodes": (("project", *DENSE, "--nodes", 2), "conflicts --devices, --nodes"),
    "no sizes at all": (("project", MODEL, *MACHINE), "missing --global-batch-size"),
    "no model": (("project", *DENSE[1:]), "missing --model"),
    "search without devices": (("search", MODEL, "--cluster", "h100-sxm", *RUN), "missing --devices"),
    "model of no name": (("project", "", *DENSE[1:]), "unknown_name model"),
    "an option in the place of a file": (("search", *SEARCH, "--checkpoint", "--json"), "no_value --checkpoint"),
    "an option in the place of a number": (("project", MODEL, *MACHINE, "--seq-len", "--global-batch-size", 64), "no_value --seq-len"),
    "cluster of no name": (("project", MODEL, "--cluster", "", "--devices", 8, *RUN), "no_value --cluster"),
    "cluster with a word too many": (("project", MODEL, "--cluster", "b200-sxm", "--devices", 8, *RUN), "unknown_name cluster"),
    "a network of no devices": (("network", "--cluster", "h100-sxm", "--devices", 0), "out_of_range the number of devices"),
    "a network of no nodes": (("network", "--cluster", "h100-sxm", "--nodes", 0), "out_of_range the number of devices"),
    "a layout of a plan by number": (("project", f"{EXAMPLE}#2"), "wrong_format"),
    "a checkpoint of another kind": (("search", *SEARCH, "--checkpoint", EXAMPLE), "is no whole checkpoint of a search (it is of another kind)"),
    "missing model file": (("project", "nowhere/config.json", *DENSE[1:]), "not_found file"),
    "missing plan": (("project", "--plan", "nowhere.toml"), "not_found file"),
    "missing corpus": (("validate", "nowhere.csv"), "not_found file"),
    "unknown preset": (("project", *DENSE, *LAYOUT, "--preset", "primos"), "unknown_name preset"),
    "unknown preset of a search": (("search", *SEARCH, "--preset", "primos"), "unknown_name preset"),
    "search under a published account": (
        ("search", *SEARCH, "--preset", "primus"),
        "unsupported_by preset primus",
    ),
    "more memory than there is": (("search", *SEARCH, "--max-memory", "200GiB"), "out_of_range --max-memory"),
    "a published search of another model": (
        ("search", *SEARCH, "--preset", "subramanian2024", "--tensor-parallel", "1d", "--tokens", "1T"),
        "unsupported_by preset subramanian2024",
    ),
    "target of no time": (("search", *SEARCH, "--target-days", 0), "out_of_range --target-days"),
    "target without tokens": (("search", *SEARCH, "--target-days", 9), "required_with the tokens of the whole run (--tokens)"),
    "target in another unit": (("search", *SEARCH, "--target-step-time", "9GiB"), "not_a_quantity second"),
    "target of negative time": (("search", *SEARCH, "--target-step-time", "-9s"), "out_of_range --target-step-time"),
    "front and target": (("search", *SEARCH, "--target-step-time", "9s", "--pareto"), "conflicts --pareto, a target"),
    "batches and target": (("search", *SEARCH, "--target-step-time", "9s", "--batches", "64"), "conflicts --batches, --pareto, --device-counts"),
    "batches and batch": (("search", *SEARCH, "--batches", "64,128"), "conflicts --batches, --global-batch-size"),
    "batches that are no numbers": (("search", MODEL, *MACHINE, "--seq-len", 4096, "--batches", "64:128"), "out_of_range --batches"),
    "counts beside devices": (("search", *SEARCH, "--device-counts", "8,16"), "no_effect --devices, --nodes"),
    "counts of nothing": (("search", MODEL, "--cluster", "h100-sxm", *RUN, "--device-counts", "0,8"), "out_of_range --device-counts"),
    "price of a front": (("search", *SEARCH, "--pareto", "--price-per-device-hour", 2), "required_with a ranking, a target, --device-counts or --batches"),
    "negative price": (("search", *SEARCH, "--target-step-time", "9s", "--price-per-device-hour", -2), "out_of_range --price-per-device-hour"),
    "front by another objective": (("search", *SEARCH, "--pareto", "--objective", "peak_memory"), "no_effect --pareto"),
    "relaxations of a published account": (
        ("search", "gpt3-1t", "--cluster", "b200-nvs8", "--devices", 256, "--global-batch-size", 4096, "--preset", "subramanian2024", "--tensor-parallel", "1d", "--relax"),
        "--relax",
    ),
    "nothing that fits at any batch": (
        ("search", "llama-3.1-70b", "--cluster", "h100-sxm", "--devices", 8, "--seq-len", 4096, "--batches", "8,16", "--fix", "cp=1"),
        "nothing fits at any global batch size of 8, 16",
    ),
    "comparison with nothing": (("compare", "nowhere.json", "nowhere.toml"), "not_found file"),
    "comparison with a missing plan": (("compare", "nowhere.toml", "nowhere.toml"), "not_found file"),
    "comparison of other files": (("compare", "model.csv", "b.json"), "compare takes a plan"),
    "devices of no machine": (("search", MODEL, "--cluster", "h100-sxm", "--devices", 10**18, *RUN), "out_of_range devices"),
    "endless digits": (("project", MODEL, *MACHINE, "--seq-len", "9" * 4000, "--global-batch-size", 64), "out_of_range seq_len"),
    "hidden size of no machine": (("project", *DENSE, "--set", "model.hidden_size=1e30"), "out_of_range hidden_size"),
    "no vocabulary": (("project", *DENSE, "--set", "model.vocab_size=-1"), "out_of_range vocab_size"),
    "infinite memory": (("project", *DENSE, "--set", "cluster.device.hbm_bytes=inf"), "wrong_type device.hbm_bytes"),
    "infinite bandwidth": (("project", *DENSE, "--set", "cluster.device.hbm_bandwidth=1e400 GB/s"), "wrong_type 1e400 GB/s"),
    "infinite clock": (("project", *DENSE, "--device-clock-mhz", "inf"), "wrong_type device_clock_mhz"),
    "endless tokens": (("project", *DENSE, "--tokens", "1e400"), "wrong_type 1e400"),
    "target of no number": (("search", *DENSE, "--target-days", "nan"), "wrong_type --target-days"),
    "endless top": (("search", *DENSE, "--top", 99999999999), "out_of_range --top"),
    "a part of an order": (("project", *DENSE, "--axis-order", "tp"), "wrong_type axis_order"),
    "an axis twice": (("project", *DENSE, "--axis-order", "tp,tp,cp,dp"), "wrong_type axis_order"),
    "parameters on the host under zero 1": (("project", *DENSE, "--offload-parameters"), "illegal_layout offloaded parameters under zero 3"),
    "a digit that is none": (("search", *SEARCH, "--fix", "zero=²"), "not_one_of --fix zero"),
    "a home of nobody": (("project", "~nobody-here/x.json", *DENSE[1:]), "not_found file"),
    "ranks of nothing": (("calibrate", "--collectives", "x.log", "--cluster", "h100-sxm", "-o", "x.json", "--num-ranks", 0), "out_of_range --num-ranks"),
    "unknown preset of a corpus": (("validate", "nowhere.csv", "--preset", "zz"), "unknown_name preset"),
    "nothing that is frozen": (("project", *DENSE, "--freeze", ""), "no_value --freeze"),
    "a word for a number": (("project", *DENSE, "--tp", "four"), "wrong_type --tp"),
    "a float for a count": (("project", *DENSE, "--pp", "1e3"), "wrong_type --pp"),
    "a word for a share": (("project", *DENSE, "--offload-optimizer", "half"), "wrong_type --offload-optimizer"),
    "a length that is none": (("project", *DENSE, "--seq-len", "8x"), "such as 8192 or 128k, got '8x'"),
    "a name that nothing has": (("catalogue", "models", "qwen9"), "unknown_name name of models"),
    "a bench of a preset": (("bench", *DENSE, "--preset", "almodel"), "unsupported_by bench"),
    "a picture of no kind": (("pipeline", "draw", "-o", "x.png"), "not_one_of the suffix of --output"),
    "nothing among several": (("project", *DENSE, "--set", " "), "no_value --set"),
    "a schedule that stands alone": (("pipeline", "simulate", "zb-h1", "-s", "1f1b"), "given_twice --schedule"),
    "a number that stands alone": (("project", *DENSE, "3"), "unexpected argument '3' (see forescale project --help)"),
    "a model as an option": (("project", "--model", MODEL), "missing --cluster, --global-batch-size"),
    "a degree as frameworks call it": (("project", *DENSE, "--tensor-model-parallel-size", 8), "did you mean --tp? (see"),
    "a number format as an option": (("search", *SEARCH, "--fp8"), "did you mean --precision? (see"),
    "data parallel": (("project", *DENSE, "--dp", 8), "did you mean --dp-shard? (see"),
    "devices by what they are": (("project", *DENSE, "--gpus", 8), "did you mean --devices? (see"),
    "a command by another name": (("optimize", *SEARCH), "No such command 'optimize'; forescale search does that (see"),
    "a cluster that stands alone": (("network", "h100"), "write --cluster h100"),
    "a question as a sentence": (("search", MODEL, "on", "8", "h100"), "write --devices 8 --cluster h100: forescale search"),
    "a cluster with its devices": (("project", MODEL, "8xh100"), "write --cluster h100-sxm --devices 8"),
    "a word that stands alone": (("project", *DENSE, "banana"), "unexpected argument 'banana' (see forescale project --help)"),
    "a cluster in place of a model": (("compare", "h100", "b200"), "it is a cluster (MODEL --cluster h100)"),
    "a clock in gigahertz": (("project", *DENSE, "--device-clock-mhz", 1.5), "out_of_range device_clock_mhz"),
    "too many words": (("explain", MODEL, "step_time", "mfu", *MACHINE, *RUN), "wrong_type the question"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(forescale, arguments, sentence):
    ran = forescale(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert len(ran.err.splitlines()) == 1
    assert sentence in ran.refused


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", '{"model_type": "llama", "hidden_size": 1024, "num_hid', "cannot_parse JSON"),
        ("config.json", "[1, 2]", "wrong_format"),
        ("config.json", json.dumps({"model_type": "never-seen"}), "not supported"),
        ("config.json", json.dumps({"hidden_size": 8}), "wrong_format"),
        (
            "plan.json",
            json.dumps({"model": "llama-3.1-8b", "workload": {"seq_len": 4096}}),
            "wrong_format",
        ),
        ("config.yaml", "a: [1, 2", "unknown_format"),
    ],
)
def test_model_files_that_cannot_be_read(forescale, tmp_path, name, content, sentence):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    ran = forescale("project", path, *DENSE[1:])
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert str(path) in ran.err
    assert sentence in ran.refused


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (PLAN + "[strategy\n", "cannot_parse TOML"),
        (PLAN.replace("devices", "device"), "unknown_key device"),
        (PLAN + "[strategy]\ntp = 2\nzerro = 1\n", "unknown_key zerro"),
        (PLAN + "[strategy]\ntp = -2\n", "out_of_range tp"),
        (PLAN.replace("4096", '"long"'), "wrong_type seq_len"),
        ("[strategy]\ntp = 2\n", "missing model, cluster"),
        (
            PLAN + '[workload.precision]\ncompute = "bf16"\n[precision]\ncompute = "fp8"\n',
            "given_twice precision.compute",
        ),
        (
            PLAN + '[strategy.recompute]\ngranularity = "none"\nmodules = ["mlp"]\n',
            "required_with the granularity selective",
        ),
        (
            'max_memory = "700 GiB"\n' + PLAN,
            "out_of_range max_memory",
        ),
        ('max_memory = "70 gb"\n' + PLAN, "not_a_quantity byte"),
        (
            PLAN.replace("4096", '"4096"'),
            "wrong_type seq_len",
        ),
        (
            PLAN.replace('cluster = "h100-sxm"', 'cluster = {base = "h100-sxm", num_devices = 16}'),
            "conflicts cluster.num_devices, 8 devices",
        ),
        (
            PLAN.replace('cluster = "h100-sxm"', 'cluster = {base = "h100-sxm", device = {hbm_bytes = 141}}'),
            "out_of_range device.hbm_bytes",
        ),
        (
            PLAN + "[strategy.recompute]\nnum_layers = 2\n",
            "required_with the granularity selective, full or policy",
        ),
        (
            PLAN + '[strategy]\ntp = 2\nrecompute = { granularity = "full", layer_ids = [1, 2, 1] }\n',
            "given_twice 1 in recompute.layer_ids",
        ),
        (
            PLAN
            + '[strategy]\ntp = 2\nrecompute = { granularity = "selective", modules = ["mlp", "mlp"] }\n',
            "given_twice mlp in recompute.modules",
        ),
        (
            PLAN + "[strategy]\ntp = 2\noffload={optimizer=1.5}\n",
            "out_of_range offload.optimizer",
        ),
    ],
)
def test_plans_that_cannot_be(forescale, tmp_path, content, sentence):
    plan = tmp_path / "plan.toml"
    plan.write_text(content, encoding="utf-8")
    ran = forescale("project", "--plan", plan)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert sentence in ran.refused


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
            "out_of_range --make-vocab-size-divisible-by",
        ),
        (
            "a.sh",
            SCRIPT + "--kv-channels 0",
            ("project", "a.sh", *MACHINE),
            "out_of_range layers.0.attention.head_dim",
        ),
        ("a.sh", SCRIPT + "--fp8-format zzz", ("project", "a.sh", *MACHINE), "not_one_of --fp8-format"),
        (
            "a.sh",
            SCRIPT + "--swiglu --squared-relu",
            ("project", "a.sh", *MACHINE),
            "conflicts --swiglu, --squared-relu",
        ),
        (
            "a.sh",
            SCRIPT + "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*9999999999|L'",
            ("project", "a.sh", *MACHINE),
            "too_large",
        ),
        (
            "d.json",
            '{"zero_optimization": 3}',
            ("project", "--config", "d.json", *DENSE),
            "wrong_type zero_optimization",
        ),
        (
            "config.json",
            json.dumps(HEADS),
            ("project", "config.json", *DENSE[1:]),
            "not_divisible num_attention_heads",
        ),
        (
            "c.toml",
            TORUS,
            ("project", MODEL, "--cluster", "c.toml", "--devices", 64, *RUN),
            "out_of_range tiers.0.dimensions",
        ),
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
    assert sentence in ran.refused


def test_a_variable_that_doubles_itself_does_not_grow_without_end(forescale, tmp_path):
    path = tmp_path / "a.sh"
    path.write_text(DOUBLING + SCRIPT + "--data-path $V", encoding="utf-8")
    ran = forescale("project", path, *MACHINE)
    assert (ran.code, ran.out) == (2, "")
    assert "too_large the text of its variables" in ran.refused


def test_a_compared_document_is_checked_like_a_plan(forescale, tmp_path):
    document = json.loads(forescale("project", *DENSE, "--json").out)
    document["strategy"]["vpp"] = 1e308
    path = tmp_path / "mutated.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    ran = forescale("compare", path, path)
    assert (ran.code, ran.out) == (2, "")
    assert "out_of_range vpp" in ran.refused


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
