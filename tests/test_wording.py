"""The wording of every error: the only place where a test asserts sentences."""

import pytest

from forescale.errors import SpecError
from forescale.wording import CODES, LISTED, listed, shown

TABLE = (
    ("wrong_type", ("dp", "two", "a whole number"), "dp must be a whole number, got 'two'"),
    (
        "wrong_type",
        ("vpp", "2", "a whole number", "write it without quotes"),
        "vpp must be a whole number, got '2'; write it without quotes",
    ),
    ("out_of_range", ("seq_len", 0, "1 or more"), "seq_len must be 1 or more, got 0"),
    (
        "not_a_quantity",
        ("byte/s", "450 Gb", "write a number and one of B/s, GB/s"),
        "'450 Gb' is not a quantity in byte/s; write a number and one of B/s, GB/s",
    ),
    (
        "not_one_of",
        ("schedule", "1f2b", ("gpipe", "1f1b", "zb-h1")),
        "schedule must be gpipe, 1f1b or zb-h1, got '1f2b'",
    ),
    (
        "not_one_of",
        ("zero", 4, (0, 1, 2, 3), "did you mean 3?"),
        "zero must be 0, 1, 2 or 3, got 4; did you mean 3?",
    ),
    (
        "not_divisible",
        ("global_batch_size", 63, 4, "dp × micro_batch_size"),
        "global_batch_size 63 must be a multiple of dp × micro_batch_size = 4; try 60 or 64",
    ),
    (
        "not_divisible",
        ("the number of devices", 100, 48, "tp × pp", "give --devices 144"),
        "the number of devices 100 must be a multiple of tp × pp = 48; give --devices 144",
    ),
    ("not_a_factor", ("ep", 3, 8, "dp × cp"), "ep 3 must divide dp × cp = 8"),
    (
        "unknown_key",
        ("tpp", "plan.toml, layout", ("tp", "pp"), "did you mean tp?"),
        "unknown key 'tpp' in plan.toml, layout; did you mean tp?",
    ),
    ("unknown_key", ("x", "plan.toml", ("tp", "pp")), "unknown key 'x' in plan.toml; allowed are tp and pp"),
    (
        "unknown_name",
        ("model", "lama-3", ("llama-3",), "did you mean llama-3?"),
        "unknown model 'lama-3'; did you mean llama-3?",
    ),
    ("unknown_name", ("model", "x", ("a", "b")), "unknown model 'x'; there are a and b"),
    (
        "unknown_name",
        ("model", "lama-3", ("llama-3",), "did you mean llama-3?", "give a config.json"),
        "unknown model 'lama-3'; did you mean llama-3? Otherwise give a config.json",
    ),
    (
        "ambiguous",
        ("cluster", "h100", ("h100-sxm", "h100-pcie")),
        "cluster 'h100' is ambiguous; give one of the full names: h100-sxm or h100-pcie",
    ),
    ("missing", ("--model",), "--model is required"),
    (
        "missing",
        (["--model", "--cluster"], "give them here or in a plan file (--plan)"),
        "--model and --cluster are required; give them here or in a plan file (--plan)",
    ),
    ("no_value", ("--tp",), "--tp has no value; give it a value, or leave it out"),
    ("required_with", ("experts", "ep 8"), "ep 8 requires experts"),
    (
        "required_with",
        ("stage 3", "offload_param", 2, "set stage 3"),
        "offload_param requires stage 3, got 2; set stage 3",
    ),
    ("conflicts", (["--devices", "--nodes"],), "--devices and --nodes exclude each other; give one of them"),
    (
        "conflicts",
        (["bf16", "fp16"], "", "both set the type", "leave fp16 out"),
        "bf16 and fp16 exclude each other (both set the type); leave fp16 out",
    ),
    (
        "differs",
        ("--device", "h100", "the device of the cluster", "a100", "leave one out"),
        "--device is h100, but the device of the cluster is a100; leave one out",
    ),
    ("given_twice", ("tp",), "tp is given twice; give it once"),
    ("given_twice", ("tp", 2, 4), "tp is given twice, as 2 and 4; give it once"),
    (
        "no_effect",
        ("--fix ep", "llama-3.1-8b has no experts"),
        "--fix ep has no effect: llama-3.1-8b has no experts; leave it out",
    ),
    (
        "no_effect",
        (["--pp", "--microbatches"], "the table gives the shape"),
        "--pp and --microbatches have no effect: the table gives the shape; leave them out",
    ),
    (
        "unsupported_by",
        ("megatron-core", "tp_kind summa", "use tp_kind 1d"),
        "megatron-core does not support tp_kind summa; use tp_kind 1d",
    ),
    ("not_expressed", ("peft_type", "DORA", "LORA is"), "peft_type DORA is not supported; LORA is"),
    ("not_expressed", ("reinforcement learning", ""), "reinforcement learning is not supported"),
    (
        "wrong_count",
        ("stage_layers", "3 stages", "the model", "4"),
        "stage_layers has 3 stages, but the model has 4",
    ),
    (
        "too_large",
        ("the model", "20,000 layers", "10,000"),
        "the model has 20,000 layers; the limit is 10,000",
    ),
    ("too_large", ("it", "", "4 MiB for a YAML file"), "it exceeds the limit of 4 MiB for a YAML file"),
    ("not_found", (), "there is no such file"),
    (
        "not_found",
        ("folder (--presets)", "give another"),
        "there is no such folder (--presets); give another",
    ),
    ("cannot_read", ("line 3 is not UTF-8",), "it cannot be read as text (line 3 is not UTF-8)"),
    (
        "cannot_download",
        ("no route", "save it with a browser"),
        "it cannot be downloaded (no route); save it with a browser",
    ),
    ("cannot_parse", ("TOML", "invalid value at line 3"), "it is not valid TOML: invalid value at line 3"),
    ("cannot_parse", ("Python",), "it is not valid Python"),
    (
        "cannot_write",
        ("out.json", "No space left on device"),
        "cannot write out.json: No space left on device",
    ),
    ("file_exists", ("best.sh", "give --force to replace it"), "best.sh exists; give --force to replace it"),
    ("wrong_suffix", ("--plot", "a.pdf", (".svg", ".png")), "--plot must end in .svg or .png, got a.pdf"),
    (
        "wrong_format",
        ("a trace of torch.profiler", "it has no list traceEvents"),
        "it is not a trace of torch.profiler: it has no list traceEvents",
    ),
    ("incomplete", ("model",), "it has no model"),
    (
        "incomplete",
        (["num_layers", "hidden_size"], "config.json"),
        "config.json has no num_layers or hidden_size",
    ),
    (
        "newer_version",
        ("its schema", "forescale.bench/9", "forescale.bench/1"),
        "its schema is forescale.bench/9; this version reads forescale.bench/1; update Forescale",
    ),
    (
        "corrupted",
        ("it", "its checksum is 12, that of its content 34"),
        "it is corrupted: its checksum is 12, that of its content 34",
    ),
    ("empty", (), "it is empty"),
    (
        "circular",
        ("extends", "a.yaml → b.yaml → a.yaml"),
        "its chain of extends is circular: a.yaml → b.yaml → a.yaml",
    ),
    (
        "extra_missing",
        ("--parquet", "pyarrow", "sweep"),
        "--parquet needs pyarrow; install it with: pip install 'forescale[sweep]'",
    ),
    ("not_measured", ("bench.json", "a rank or layer"), "bench.json has no measurements of a rank or layer"),
    (
        "other_run",
        ("bench.json", "A100", "H100", "measure there"),
        "bench.json was measured on A100; the question is about H100; measure there",
    ),
    ("not_enough_devices", ("cp 8", 8, 4), "cp 8 needs 8 devices; 4 are available"),
    (
        "out_of_memory",
        ("the reduced model", "90 GiB", "80 GiB", "use more recompute"),
        "the reduced model needs 90 GiB, but 80 GiB are available; use more recompute",
    ),
    (
        "no_records",
        ("NeMo; MaxText",),
        "no line says how long a step takes in a known format (NeMo; MaxText)",
    ),
    (
        "no_value_passes",
        ("micro_batch_size", 1, "needs 90 of 80 GiB"),
        "no micro_batch_size passes (1 was the last that was tried): needs 90 of 80 GiB",
    ),
    ("no_layout", ("fits 80 GiB", "use more devices"), "no layout fits 80 GiB; use more devices"),
    ("timed_out", ("this", "30 s"), "this takes longer than 30 s"),
    (
        "needs_running",
        ("the model", "what build() returns"),
        "the model depends on what build() returns, which is known only when the configuration runs",
    ),
    (
        "choose_one",
        ("schedules", "a, b", "its name with --schedule"),
        "it holds several schedules: a, b; give its name with --schedule",
    ),
    ("unset_variable", ("TP", "$TP", "--var TP=VALUE"), "TP is $TP, which nothing sets; give --var TP=VALUE"),
    (
        "unknown_format",
        ("Megatron-LM, DeepSpeed",),
        "its format is not known; formats that can be read: Megatron-LM, DeepSpeed",
    ),
    ("too_deep", (64,), "it is nested more than 64 levels deep"),
    ("removed", ("--fp8", "use --fp8-format"), "--fp8 is no longer supported; use --fp8-format"),
    ("exactly_one", (["devices", "nodes"], False, "enter one"), "devices and nodes are missing; enter one"),
    (
        "exactly_one",
        (["devices", "nodes"], True, "enter one"),
        "devices and nodes exclude each other; enter one",
    ),
    (
        "cannot_finish",
        ("the run", "failures come every 60 s", "use more spares"),
        "the run never ends: failures come every 60 s; use more spares",
    ),
    (
        "implausible",
        ("the step", "0.1 s", "0.3 s at peak rate", "measure again"),
        "the step took 0.1 s, less than 0.3 s at peak rate; measure again",
    ),
    (
        "not_traceable",
        ("GPT", "it runs other blocks at 48 tokens than at 64", "give another --seq-len"),
        "GPT cannot be traced: it runs other blocks at 48 tokens than at 64; give another --seq-len",
    ),
    ("deadlock", ("1f1b", "rank 0 waits for rank 1"), "1f1b deadlocks: rank 0 waits for rank 1"),
    (
        "illegal_layout",
        (
            ["vpp needs pp", "heads over tp"],
            ["vpp 2 needs pp > 1; pp is 1", "tp 3 must divide the attention heads = 32"],
        ),
        "vpp 2 needs pp > 1; pp is 1; tp 3 must divide the attention heads = 32",
    ),
    (
        "cannot_listen",
        ("localhost:80", "Permission denied", "--port 0 takes a free port"),
        "cannot listen on localhost:80: Permission denied; --port 0 takes a free port",
    ),
)
"""Code, fields in the order of its function, sentence."""


@pytest.mark.parametrize(("code", "fields", "sentence"), TABLE)
def test_sentence(code, fields, sentence):
    error = CODES[code](*fields)
    assert isinstance(error, SpecError)
    assert (error.code, str(error)) == (code, sentence)


def test_every_code_has_a_sentence():
    assert {code for code, _, _ in TABLE} == set(CODES)


def test_fields_stay_with_the_error():
    error = CODES["out_of_range"]("seq_len", 0, "1 or more", "use 4096").at("plan.toml")
    assert (error.key, error.value, error.allowed, error.fix) == ("seq_len", 0, "1 or more", "use 4096")
    assert str(error).startswith("plan.toml: seq_len ")


def test_lists_and_values_are_cut():
    assert listed(["a", "b", "c"]) == "a, b or c"
    assert listed(range(LISTED + 2)).endswith("23 and 2 more")
    assert shown("x" * 100) == f"'{'x' * 58}…"
