"""What decides a fact and was not followed for certain is warned of by its name and place."""

import pytest

from forescale.catalogue.models import load_model
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options

PROGRAM = """import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
SETTINGS = {"rank": 16, "modules": ["q_proj"]}


def build():
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
    return get_peft_model(model, LoraConfig(r=SETTINGS["rank"], target_modules=SETTINGS["modules"]))


CHANGE
args = TrainingArguments("out", per_device_train_batch_size=4, bf16=True, max_length=512)
Trainer(model=build(), args=args).train()
"""


@pytest.fixture
def read(tmp_path):
    """Read a program with a change, next to its modules."""

    def call(change, modules=None):
        for name, text in {"train.py": PROGRAM.replace("CHANGE", change), **(modules or {})}.items():
            (tmp_path / name).write_text(text)
        options = Options(model_of=load_model, strict=False, num_devices=1)
        return read_file(tmp_path / "train.py", options)

    return call


def open_facts(parsed):
    """Return the warnings of what was not followed."""
    marks = ("not followed", "under a condition", "only running the script shows")
    return [text for text in parsed.warnings if text.startswith(marks)]


def test_a_program_that_is_followed_is_quiet(read):
    assert open_facts(read("")) == []
    assert open_facts(read("if False:\n    build = get_peft_model(None, LoraConfig(r=4))")) == []


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("if data.big:\n    LoraConfig(r=4)", "LoraConfig (train.py:13)"),
        ("def other():\n    return LoraConfig(r=4)", "LoraConfig (train.py:13)"),
        ("try:\n    raise ValueError\n    LoraConfig(r=4)\nexcept ValueError:\n    pass", "LoraConfig (train.py:14)"),
        ("from own import wrap_model\nwrap_model(SETTINGS)", "wrap_model of own (train.py:13)"),
    ],
)  # fmt: skip
def test_places_that_are_not_followed_are_named(read, change, place):
    (text,) = open_facts(read(change))
    assert place in text


@pytest.mark.parametrize(
    "change",
    [
        "SETTINGS.update(yaml.safe_load(open('absent.yaml')))",
        "SETTINGS[input()] = 32",
        "if data.big:\n    SETTINGS['rank'] = 32",
        "if data.big:\n    SETTINGS.update(rank=32)",
        "def change():\n    global SETTINGS\n    SETTINGS = data.settings\n\n\nchange()",
    ],
)
def test_tables_that_are_changed_by_what_is_not_known_are_not_known(read, change):
    assert "lora_r" in " ".join(open_facts(read(change)))


def test_targets_that_are_added_under_a_condition_are_not_known(read):
    assert "lora_target_modules" in " ".join(
        open_facts(read("if data.big:\n    SETTINGS['modules'].append('k_proj')"))
    )


@pytest.mark.parametrize(
    "change",
    [
        "SETTINGS['rank'] = 32",
        "SETTINGS.update({'rank': 32})",
        "def change():\n    global SETTINGS\n    SETTINGS = {'rank': 32, 'modules': ['q_proj']}\n\n\nchange()",
    ],
)
def test_a_name_of_the_file_has_its_value_of_the_time_of_the_call(read, change):
    parsed = read(change)
    assert parsed.workload_fields["trainable"]["lora_rank"] == 32
    assert open_facts(parsed) == []


def test_a_module_counts_as_far_as_its_names_are_used(read):
    module = "from peft import LoraConfig\n\n\ndef used():\n    return 1\n\n\ndef tune():\n    return LoraConfig(r=4)\n"
    assert open_facts(read("from own import used\nused()", {"own.py": module})) == []
    (text,) = open_facts(read("from own import used, tune\nfire(tune)", {"own.py": module}))
    assert "LoraConfig (own.py:9)" in text
