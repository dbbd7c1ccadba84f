import json

import pytest

from forescale.frameworks.detect import detect, detect_script, signatures
from forescale.frameworks.readers import READERS


@pytest.mark.parametrize(
    ("text", "name", "markers"),
    [
        ("base_model: org/x\nsequence_len: 2048\noutput_dir: out\n", "axolotl", {("base_model:", 1)}),
        (
            "### model\nstage: sft\nfinetuning_type: lora\noutput_dir: x\n",
            "llamafactory",
            {("finetuning_type:", 3)},
        ),
        (
            "output_dir: x\nmodel:\n  _component_: torchtune.models.llama3\n",
            "torchtune",
            {("_component_:", 3)},
        ),
        ("train:\n  output_dir: x\n  per_device_train_batch_size: 8\n", None, set()),
        (
            "model: {}\nparallelism:\n  dp: 2\ntokens:\n  n: 1\ndata:\n  output_dir: x\n",
            "nanotron",
            {("parallelism:", 2), ("model:", 1), ("tokens:", 4)},
        ),
        (json.dumps({"train_batch_size": 8}), "deepspeed", {("{", 1), ("train_batch_size:", 1)}),
        ("# python pretrain.py --num-layers 4\necho hello\n", None, set()),
        ("  stage: sft\n  finetuning_type: lora\n", "llamafactory", {("finetuning_type:", 2)}),
        ("#!/bin/bash\ncat > x.yaml <<E\ndistributed_type: FSDP\nE\n", None, set()),
        ("output_dir: x\nprep_stage: 1\n", None, set()),
    ],
)
def test_the_content_decides_the_format(text, name, markers):
    detection = detect(text)
    assert (detection.name if detection else None) == name
    assert set(detection.markers if detection else ()) == markers


def test_a_detection_names_the_formats_that_it_rejected():
    detection = detect("base_model: org/x\nper_device_train_batch_size: 1\n")
    assert detection is not None
    assert detection.others == ("trainer",)
    assert detection.reason == "line 1: base_model:"


def test_every_reader_has_a_signature_and_every_other_signature_a_title():
    names = {reader.name for reader in READERS}
    assert names <= {row.name for row in signatures()}
    assert all(row.title for row in signatures() if row.name not in names)


def test_a_broken_document_does_not_raise():
    for text in ("", "{", "\x00", '{"a": ' * 3000, "key" * 10000):
        assert detect(text) is None


def test_a_script_that_launches_is_taken_for_a_command():
    text = '#!/bin/bash\nL="torchrun --nproc_per_node 4"\nsrun bash -c "$L $P"\nP=train.py\n'
    assert detect(text) is None
    assert detect_script(text).name == "launch"
    assert detect_script(text.replace("#!/bin/bash", "#")) is None
