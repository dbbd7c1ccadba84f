"""Layers to stages by the costs of a projection."""

import numpy as np
from tests.errors import raises
from tests.small import asked, cluster, dense, moe, workload

from forescale.project import project
from forescale.schedule import ScheduleError
from forescale.search.partition import partition_stages
from forescale.spec import Layout, Recompute

WORK = workload(global_batch_size=16)


def test_embedding_and_head_count_as_they_cost():
    result = partition_stages(asked(dense(14), cluster(4), Layout(pp=4), WORK))
    assert result.strategy.stage_layers == (3, 4, 4, 3)
    assert result.projection.step_time_s < result.even.step_time_s
    assert result.projection.memory.peak_bytes < result.even.memory.peak_bytes
    times = [time.forward_s + time.backward_s for time in result.projection.stage_times]
    host = (
        np.array(times) - result.partition.stage_time
    )  # the host's time per micro-batch, the same everywhere
    np.testing.assert_allclose(host, host[0], rtol=1e-6)


def test_multi_token_prediction_takes_layers_off_the_last_stage():
    layout = Layout(pp=4)
    with_module = partition_stages(asked(moe(16), cluster(4), layout, WORK)).strategy.stage_layers
    assert sum(with_module) == 16
    assert with_module[-1] < with_module[1]
    assert with_module[0] > with_module[1]  # its first layer is dense and short


def test_stages_that_do_not_fit_recompute_some_layers():
    layout, tight = Layout(pp=4, graphs="full"), cluster(4, hbm_gb=3.4)
    result = partition_stages(asked(dense(14), tight, layout, WORK))
    assert result.even.memory.verdict == "OOM"
    assert result.projection.memory.peak_bytes <= 3.4e9
    assert result.strategy.recompute.granularity == "full"
    assert 0 < len(result.strategy.recompute.layer_ids) < 14
    assert result.projection == project(dense(14), tight, result.strategy, WORK)


def test_a_policy_that_was_given_stays():
    layout = Layout(pp=4, recompute=Recompute(granularity="full"))
    result = partition_stages(asked(dense(14), cluster(4), layout, WORK))
    assert result.strategy.recompute == layout.recompute
    assert not any(result.partition.recomputed)


def test_virtual_stages_of_a_named_schedule():
    result = partition_stages(asked(dense(14), cluster(4), Layout(pp=4, vpp=2, schedule="zbv"), WORK))
    assert len(result.partition.stage_time) == 8
    assert result.projection.step_time_s <= result.even.step_time_s


def test_what_fits_nowhere_is_refused():
    with raises(ScheduleError, "out_of_memory any partition of 16 layers over 4 stages"):
        partition_stages(asked(dense(14), cluster(4, hbm_gb=2.2), Layout(pp=4), WORK))


def test_recompute_of_some_layers_is_chosen_anew():
    tight = cluster(4, hbm_gb=3.4)
    some = Layout(pp=4, recompute=Recompute(granularity="full", num_layers=2))
    result = partition_stages(asked(dense(14), tight, some, WORK))
    plain = partition_stages(asked(dense(14), tight, Layout(pp=4), WORK))
    assert result.strategy == plain.strategy
    assert any(result.partition.recomputed)
    assert result.projection.memory.peak_bytes <= 3.4e9
