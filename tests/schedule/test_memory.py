import numpy as np
import pytest

from forescale.schedule import ActivationSizes, Request, family, peak_activations, peak_memory
from forescale.schedule.memory import memory_curve, peak_receive_buffers


def built(name, pp=4, m=8, vpp=1):
    return family(name).build(Request(pp=pp, num_microbatches=m, vpp=vpp))


def test_forward_adds_and_backward_frees():
    curve = memory_curve(built("1f1b", pp=2, m=3))
    # rank 0: F0 F1 B0 F2 B1 B2; rank 1: F0 B0 F1 B1 F2 B2
    np.testing.assert_array_equal(curve, [1, 2, 1, 2, 1, 0, 1, 0, 1, 0, 1, 0])


def test_input_gradient_frees_what_the_weight_gradient_does_not_need():
    sizes = ActivationSizes(saved=1.0, weight_part=0.25)
    curve = memory_curve(built("zb-h1", pp=1, m=1), sizes)
    np.testing.assert_allclose(curve, [1.0, 0.25, 0.0])


def test_stages_may_differ():
    sizes = ActivationSizes(saved=np.array([3.0, 1.0, 1.0, 2.0]))
    np.testing.assert_allclose(peak_memory(built("1f1b"), sizes), [12.0, 3.0, 2.0, 2.0])


def test_working_memory_is_held_only_while_a_backward_runs():
    sizes = ActivationSizes(saved=1.0, working=5.0)
    np.testing.assert_allclose(peak_memory(built("1f1b"), sizes), [9.0, 8.0, 7.0, 6.0])
    np.testing.assert_allclose(peak_memory(built("1f1b"), ActivationSizes(saved=1.0)), [4.0, 3.0, 2.0, 1.0])


def test_peaks_count_in_a_devices_full_share():
    assert peak_activations(built("interleaved-1f1b", vpp=2)).max() == 5.5
    assert peak_activations(built("dualpipe", m=8)).max() == 5.0


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "eager-1f1b"])
def test_receive_buffers(name):
    peaks = peak_receive_buffers(built(name))
    assert peaks.min() >= 1
    assert peaks.max() <= 8
