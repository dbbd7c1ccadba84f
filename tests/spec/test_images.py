"""What a model with a vision tower may be asked: images that fit, tp that cuts its tower, something that is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import cluster, dense, sees, workload

from forescale.errors import SpecError
from forescale.project import project
from forescale.question import Question
from forescale.spec import Kernels, Layout
from forescale.spec.model import Images
from forescale.spec.workload import Trainable

MODEL, MACHINE = sees(), cluster(8)
LAYOUT = Layout(tp=2, dp_shard=4)
TEXT = ("embedding", "attention", "ffn", "norm", "head")


def asked(images=None, **fields):
    return replace(workload(), images=images or Images(), **fields)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (Images(size=450), "illegal_layout images"),
        (Images(count=1000), "illegal_layout images"),
    ],
)
def test_images_that_do_not_fit_are_refused(images, said):
    with raises(SpecError, said):
        project(MODEL, MACHINE, LAYOUT, asked(images))


def test_a_tower_made_for_less_than_one_token_is_refused():
    with raises(SpecError, "out_of_range image_size"):
        replace(MODEL.vision, image_size=27)


def test_a_tower_without_a_usual_size_asks_for_one():
    model = replace(MODEL, vision=replace(MODEL.vision, image_size=0))
    with raises(SpecError, "illegal_layout images"):
        project(model, MACHINE, LAYOUT, asked())
    assert project(model, MACHINE, LAYOUT, asked(Images(size=448))).vision.image_tokens == 256


def test_tp_divides_a_tower_that_it_cuts():
    odd = replace(MODEL, vision=replace(MODEL.vision, projector=(2047, 1024)))
    assert project(odd, MACHINE, LAYOUT, asked()).vision is not None
    with raises(SpecError, "illegal_layout vision tower over tp"):
        project(odd, MACHINE, replace(LAYOUT, kernels=Kernels(cuts_vision=True)), asked())


def test_without_images_there_is_no_tower():
    question = Question(model=MODEL, cluster=MACHINE, workload=asked(Images(count=0)), strategy=LAYOUT)
    alone = project(replace(dense(), name=MODEL.name), MACHINE, LAYOUT, asked(Images(count=0)))
    assert question.model.vision is None
    assert project(question) == alone


def test_something_is_trained():
    projector = asked(trainable=Trainable(frozen=(*TEXT, "vision")))
    assert project(MODEL, MACHINE, LAYOUT, projector).params.trained == 2048 * (2048 + 1024)
    for model, frozen in ((MODEL, (*TEXT, "vision", "projector")), (dense(), TEXT)):
        with raises(SpecError, "illegal_layout something is trained"):
            project(model, MACHINE, LAYOUT, asked(trainable=Trainable(frozen=frozen)))


def test_a_tower_stands_on_the_first_stage_alone():
    layout = Layout(pp=2, dp_shard=4)
    both, text = (project(model, MACHINE, layout, asked()) for model in (MODEL, dense()))
    assert both.memory.stages[1] == text.memory.stages[1]
    assert both.stage_times[1] == text.stage_times[1]
    assert both.stage_times[0].forward_s - text.stage_times[0].forward_s == pytest.approx(
        both.vision.forward_s
    )
    assert both.time_s["vision"] > 0 == text.time_s["vision"]


@pytest.mark.parametrize("images", [Images(count=2), Images(size=448)])
def test_a_text_model_sees_no_images(images):
    with raises(SpecError, "illegal_layout images of a text model"):
        project(dense(), MACHINE, LAYOUT, asked(images))


def test_no_images_have_no_size():
    with raises(SpecError, "illegal_layout images of a text model"):
        project(MODEL.text, MACHINE, LAYOUT, asked(Images(count=0, size=448)))
