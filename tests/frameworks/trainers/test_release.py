"""Defaults that releases of TRL changed are filled in, and warned of."""

import pytest

from forescale.frameworks.python.values import Call
from forescale.frameworks.settings import Settings
from forescale.frameworks.trainers.release import lay_release, open_release


def calls(name="SFTConfig", trainer=(), **fields):
    return [Call(name, "", fields=fields), Call("SFTTrainer", "", fields=dict.fromkeys(trainer, 1))]


def test_present_releases_recompute_in_bf16():
    content = {"per_device_train_batch_size": 1, "max_length": 512}
    warnings = lay_release(content, {}, calls(), has_bf16=True)
    assert (content["gradient_checkpointing"], content["bf16"]) == (True, True)
    assert [text.rpartition("(")[2] for text in warnings] == ["--recompute)", "--precision)"]


@pytest.mark.parametrize(("fields", "trainer"), [({"max_seq_length": 512}, ()), ({}, ("tokenizer",))])
def test_arguments_of_older_releases_tell_their_defaults(fields, trainer):
    content = {"max_length": 512}
    warnings = lay_release(content, {}, calls(trainer=trainer, **fields), has_bf16=True)
    assert content == {"max_length": 512, "gradient_checkpointing": False}
    assert "projected with none" in warnings[0]
    assert "projected in tf32" in warnings[1]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("SFTConfig", {"gradient_checkpointing": False, "fp16": True, "max_length": 512}),
        ("TrainingArguments", {"max_length": 512}),
        ("SFTConfig", {"unsloth": True}),
    ],
)
def test_what_is_given_or_not_of_trl_stays(name, content):
    before = dict(content)
    assert lay_release(content, {}, calls(name), has_bf16=True) == []
    assert content == before


@pytest.mark.parametrize(
    ("name", "unpacked", "unread", "length"),
    [
        ("DPOConfig", "", {}, 1024),
        ("SFTConfig", "cfg", {}, None),
        ("SFTConfig", "", {"max_length": "is read"}, None),
        ("GRPOConfig", "", {}, None),
        ("SFTTrainer", "", {}, 1024),
    ],
)
def test_trl_cuts_sequences_off_where_it_is_given_no_length(name, unpacked, unread, length):
    content = {"gradient_checkpointing": True, "bf16": True}
    lay_release(content, unread, [Call(name, "", open=unpacked)], has_bf16=True)
    assert content.get("max_length") == length


def test_no_length_of_trl_is_no_default():
    content = {"gradient_checkpointing": True, "bf16": True}
    assert lay_release(content, {}, calls(max_length=None), has_bf16=True) == []
    assert "max_length" not in content


RECIPE = {"model_name_or_path": "m", "packing": True, "bf16": True, "gradient_checkpointing": True}


@pytest.mark.parametrize(
    ("left_out", "more", "samples", "ends"),
    [
        ((), {}, False, []),
        (("gradient_checkpointing",), {}, False, ["--recompute)"]),
        (("bf16",), {}, False, ["--precision)"]),
        ((), {"reward_funcs": ["a"]}, True, ["--seq-len)"]),
        ((), {"max_prompt_length": 64}, True, []),
        (("packing", "bf16"), {}, False, []),
    ],
)
def test_what_a_recipe_leaves_open_is_warned_of(left_out, more, samples, ends):
    values = {key: value for key, value in RECIPE.items() if key not in left_out} | more
    warnings = open_release(Settings(values, "sft.yaml"), samples=samples)
    assert [text.rpartition("(")[2] for text in warnings] == ends
