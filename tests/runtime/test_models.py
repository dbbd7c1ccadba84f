"""Users' own models as stages: sharded over tp, FSDP2 and DDP; lists, functions, Hugging Face's classes."""

from __future__ import annotations

import pytest
import torch
from tests.runtime.models import alone, data, llama, own, sharded, squares, weights_apart
from tests.runtime.worlds import run_fsdp

from forescale.runtime import PipelineStep, RunError, huggingface_stage, launch
from forescale.schedule import Request, build_schedule

ZB = build_schedule("zb-h1", Request(pp=2, num_microbatches=4))


def test_shards_and_replicas_of_stages_have_the_gradients_of_one_process():
    batches = [data(4), data(4, seed=9)]
    layers = alone(2, batches)
    expected = sum(squares(layers(inputs), targets).item() for inputs, targets in batches) / 2
    for tensor, fsdp, ddp in launch(sharded, 4, ZB):
        assert tensor[0] < 1e-12
        for worst, loss in (fsdp, ddp):
            assert worst < 1e-12
            assert loss == pytest.approx(expected, rel=1e-12)


def test_fsdp2_leaves_weight_gradients_to_w():
    """Every product of F has one of the same FLOPs in I and one in W."""
    for pairs, copies in launch(run_fsdp, 4, ZB):
        assert max(pairs[:2]) < 1e-12
        assert max(copies[:2]) < 1e-5  # products in float32
        for item in (pairs[2], copies[2]):
            by_kind = [{flops for item, flops in item if item == kind} for kind in "FIW"]
            assert by_kind[0] == by_kind[1] == by_kind[2] != {0}


def test_lists_functions_and_llama_have_the_gradients_of_one_process():
    pytest.importorskip("transformers")
    for errors in launch(own, 2, ZB):
        assert max(errors) < 1e-12


def test_weight_gradients_of_llama_run_in_w():
    pytest.importorskip("transformers")
    products = launch(weights_apart, 2, ZB)
    for product in products:
        assert product["W"] > 0.9 * product["I"] > 0


def test_a_model_that_cannot_be_cut_is_refused():
    pytest.importorskip("transformers")
    with pytest.raises(RunError, match=r"stage_layers \[1, 1\] are 2 layers; the model has 3"):
        huggingface_stage(llama(tied=False), (1, 1), 0)
    with pytest.raises(RunError, match="Linear has no embed_tokens, layers, norm"):
        huggingface_stage(torch.nn.Linear(2, 2), (1,), 0)


def wrong_counts(_rank):
    message = []
    for item in (
        {"stages": [torch.nn.Linear(2, 2)]},
        {"stages": {0: torch.nn.Linear(2, 2)}, "pipelines": [[0]]},
        {"stages": [torch.nn.Linear(2, 2)] * 2, "tp": 2},
    ):
        try:
            PipelineStep(ZB, loss=squares, **item)
        except RunError as error:
            message.append(str(error))
    return message


def test_wrong_counts_are_one_sentence():
    assert launch(wrong_counts, 2)[0] == [
        "zb-h1 has 2 stages; it was given 1 module",
        "zb-h1 runs on 2 ranks; a pipeline has 1",
        "1 pipeline cannot be groups of 2 shards; tp must divide them",
    ]
