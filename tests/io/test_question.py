"""Questions in files: random ones are read back equal, and answered bit for bit alike."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.small import cluster, dense, moe, workload

from forescale.catalogue.clusters import load_cluster
from forescale.catalogue.frameworks import framework_names, load_framework, release_names
from forescale.catalogue.models import load_model
from forescale.cost.run_calibration import load_run_calibration
from forescale.cost.select import Costs
from forescale.errors import SpecError
from forescale.io.question import read_question, write_question
from forescale.project import project
from forescale.question import Question
from forescale.spec import Overlap, Precision, Recompute, Share, Space, Strategy
from forescale.spec.framework import replayed, searched
from forescale.spec.space import ORDERS

RECOMPUTES = (
    Recompute(),
    Recompute(granularity="full", num_layers=2),
    Recompute(granularity="selective", modules=("layernorm", "mlp")),
)


@cache
def models():
    return dense(4), moe(4), load_model("llama-3.1-8b")


@st.composite
def spaces(draw):
    return Space(
        tp=draw(st.none() | st.just((1, 2))),
        zero=draw(st.sampled_from([(0, 1, 2, 3), (1,), (0, 3)])),
        sp=draw(st.sampled_from([(True, False), (True,)])),
        recompute=draw(st.none() | st.just(RECOMPUTES)),
        axis_order=draw(st.sampled_from([ORDERS, ORDERS[:1]])),
        placement=draw(st.none() | st.just(("orders", "all", (Share(tp=2, dp=4),)))),
        schedule=draw(st.sampled_from([(None,), (None, "zbv"), ("zb-h1",)])),
        precision=draw(st.sampled_from([(None,), (None, ("fp8", "blockwise"))])),
        overlap=draw(st.sampled_from([(None,), (None, (), ("tensor", "data"))])),
        optimizer_offload=draw(st.sampled_from([(None,), (None, 0.1, 1.0)])),
        base=Strategy(
            overlap=Overlap(expert=draw(st.booleans())), graphs=draw(st.sampled_from(["none", "full"]))
        ),
        waived=draw(st.sampled_from([(), ("heads over tp",)])),
    )


@st.composite
def questions(draw):
    devices = draw(st.sampled_from([cluster(8), load_cluster("h100-sxm", 8), cluster(8, hbm_gb=0.1 + 0.2)]))
    asked = Question(
        model=draw(st.sampled_from(models())),
        cluster=devices,
        workload=replace(
            workload(),
            tokens=draw(st.none() | st.floats(1e9, 1e13)),
            precision=draw(st.sampled_from([Precision(), Precision(moments="bf16")])),
        ),
        strategy=draw(
            st.none()
            | st.builds(
                lambda tp, zero, again: Strategy(tp=tp, dp_shard=8 // tp, zero=zero, recompute=again),
                tp=st.sampled_from([1, 2, 4]),
                zero=st.sampled_from([1, 3]),
                again=st.sampled_from(RECOMPUTES[:2]),
            )
        ),
        space=draw(spaces()),
        costs=Costs(
            compute=draw(st.sampled_from(["auto", "roofline", "tile"])),
            clock_hz=draw(st.none() | st.integers(500, 2500).map(lambda mhz: mhz * 1e6)),
        ),
        objective=draw(st.sampled_from(["step_time", "peak_memory"])),
        max_memory=draw(st.none() | st.floats(1e9, 1e11)),
        safe=draw(st.booleans()),
    )
    label = draw(st.none() | st.sampled_from(frameworks()))
    return asked if label is None else trained(asked, load_framework(label))


@cache
def frameworks():
    return [f"{name}@{release}" for name in framework_names() for release in release_names(name)]


def trained(asked, framework):
    """Return a question with the words of a framework where it is silent: in its layout, or in its space."""
    parts = (asked.strategy or asked.space.base, asked.workload, asked.model, asked.cluster)
    layout, run = framework.applied(*parts)
    changed = replace(asked, framework=framework, workload=run)
    if asked.strategy is not None:
        return replace(changed, strategy=layout)
    space = searched(framework, replace(asked.space, base=layout), limited=False)
    return replace(changed, space=replayed(framework, space, asked.model))


@settings(max_examples=40, deadline=None)
@given(asked=questions())
def test_a_question_is_read_back_equal_and_answered_alike(asked, tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "asked.toml"
    write_question(asked, path)
    again = read_question(path)
    assert again == asked
    if asked.strategy is not None:
        assert project(again).to_json() == project(asked).to_json()


def test_rules_of_a_framework_are_named(tmp_path):
    space = searched(load_framework("torchtitan"), Space(), limited=True)
    for name in ("torchtitan", "megatron", "maxtext"):
        space = searched(load_framework(name), space, limited=True)
    asked = Question(model=dense(4), cluster=cluster(8), workload=workload(), space=space)
    write_question(asked, tmp_path / "asked.toml")
    assert read_question(tmp_path / "asked.toml") == asked
    assert space.rules


def test_what_has_no_form_in_a_file_is_refused(tmp_path):
    own = replace(load_run_calibration(), name="mine")
    asked = Question(model=dense(4), cluster=cluster(8), workload=workload(), costs=Costs(calibration=own))
    with pytest.raises(SpecError, match="cannot be written so that it is read back equal"):
        write_question(asked, tmp_path / "asked.toml")
    assert not (tmp_path / "asked.toml").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('objective = "speed"', "objective must be"),
        ("safe = 1", "safe must be true"),
        ("max_memory = -1", "max_memory"),
    ],
)
def test_limits_are_checked(tmp_path, line, message):
    path = tmp_path / "asked.toml"
    write_question(Question(model=dense(4), cluster=cluster(8), workload=workload()), path)
    path.write_text(f"{line}\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    with pytest.raises(SpecError, match=message):
        read_question(path)
