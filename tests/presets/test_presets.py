from __future__ import annotations

import pytest
from tests import small
from tests.errors import raises
from tests.small import asked

from forescale.errors import UnknownNameError
from forescale.presets import PRESETS, load_preset, preset_names, project_as
from forescale.project import project
from forescale.spec import Layout


def test_names_are_unique_and_start_with_our_own():
    assert preset_names()[0] == "default"
    assert len(set(preset_names())) == len(PRESETS)
    assert {"primus", "primus-2026", "korthikanti2022", "playbook", "almodel"} <= set(preset_names())
    assert all(preset.source for preset in PRESETS)


def test_unknown_names_get_the_nearest():
    with raises(UnknownNameError, "unknown_name preset"):
        load_preset("primsu")
    with raises(UnknownNameError, "unknown_name preset"):
        project_as(
            asked(small.dense(), small.cluster(8), Layout(dp_shard=8), small.workload(), preset="playbok")
        )


def test_default_is_our_own_engine():
    arguments = (small.dense(), small.cluster(8), Layout(dp_shard=8), small.workload())
    assert project_as(asked(*arguments)) == project(*arguments)


@pytest.mark.parametrize("name", ["primus", "primus-2026", "korthikanti2022", "playbook"])
def test_memory_presets_leave_time_out_and_say_so(name):
    arguments = (small.dense(), small.cluster(8), Layout(pp=2, dp_shard=4), small.workload())
    result = project_as(asked(*arguments, preset=name))
    assert result.preset == name
    assert result.step_time_s == 0.0
    assert "time" in {note.topic for note in result.notes}
    assert len(result.memory.stages) == len(result.stage_times) == 2
    assert result.to_json()["preset"] == name
    for stage in result.memory.stages:
        parts = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
        assert stage.peak_bytes == pytest.approx(sum(getattr(stage, f"{part}_bytes") for part in parts))


@pytest.mark.parametrize("preset", ["korthikanti2022", "playbook"])
def test_layers_of_virtual_stages_are_those_of_their_ranks(preset):
    ranks, chunks = (
        project_as(
            asked(
                small.dense(),
                small.cluster(2),
                Layout(pp=2, vpp=2, stage_layers=layers),
                small.workload(),
                preset=preset,
            )
        ).memory.peak_bytes
        for layers in ((3, 5), (1, 2, 2, 3))
    )
    assert ranks == chunks
