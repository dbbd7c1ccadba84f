"""Closed forms that sources print of makespans and idle time, for tests of the simulator.

Durations are those of one micro-batch through a device's full share of the model; a chunk takes 1/vpp of them.
"""


def bubble_fraction(*, pp, vpp, num_microbatches):
    """Return idle over makespan of 1F1B and interleaved 1F1B: (p - 1) / (m v + p - 1).

    Equal stages, no communication. Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2 (which
    divides by the ideal time instead); Primus-pipeline documentation, algorithm comparison.
    """
    return (pp - 1) / (num_microbatches * vpp + pp - 1)


def work_time(*, num_microbatches, forward, input_grad, weight_grad):
    """Return the busy time of one rank in a step, in the unit of the durations: m (tf + tb + tw)."""
    return num_microbatches * (forward + input_grad + weight_grad)


def idle_1f1b(*, pp, vpp, forward, input_grad, weight_grad):
    """Return makespan minus work of GPipe, 1F1B (v = 1), interleaved 1F1B and looped breadth-first.

    (p - 1)(tf + tb + tw)/v, for any m where v = 1 and m a multiple of p elsewhere.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    return (pp - 1) * (forward + input_grad + weight_grad) / vpp


def idle_zb_h1(*, pp, vpp, forward, input_grad, weight_grad):
    """Return makespan minus work of ZB-H1 (v = 1) and of interleaved zero bubble: (p - 1)(tf + tb - tw)/v.

    Holds for m >= p and tw <= tb. Source: Qi et al. 2023, arXiv:2401.10241, table 1.
    """
    return (pp - 1) * (forward + input_grad - weight_grad) / vpp


def makespan_zb_few(*, pp, num_microbatches, forward, input_grad, weight_grad):
    """Return the makespan of ZB-H1 for m <= p, tw <= tb: (m + p - 1)(tf + tb) + tw.

    Source: Qi et al. 2023, arXiv:2401.10241, appendix H.
    """
    return (num_microbatches + pp - 1) * (forward + input_grad) + weight_grad


def idle_zb_h2_span(*, pp, forward, input_grad, weight_grad):
    """Return longest rank span minus work of ZB-H2: (p - 1)(tf + tb - 2 tw).

    Source: Qi et al. 2023, arXiv:2401.10241, table 1.
    """
    return (pp - 1) * (forward + input_grad - 2 * weight_grad)


def idle_zb_h2_makespan(*, pp, forward):
    """Return makespan minus work of ZB-H2 for equal durations: (p - 1) tf, the last rank's wait to start."""
    return (pp - 1) * forward


def idle_zbv_makespan(*, pp, input_grad):
    """Return makespan minus work of ZBV in its fixed order, tb >= tf: (p - 1) tb / 2 (chunks take half)."""
    return (pp - 1) * input_grad / 2


def idle_zbv_span(*, pp, input_grad, weight_grad):
    """Return longest rank span minus work of ZBV in its fixed order, tb >= tf: (p - 1)(tb - tw)."""
    return (pp - 1) * (input_grad - weight_grad)


def idle_dualpipe(*, pp, forward_backward, backward, weight_grad):
    """Return makespan minus work of DualPipe: (p/2 - 1)(F&B + B - 3W).

    `backward` is the full backward. Source: DeepSeek-V3 technical report, arXiv:2412.19437, table 2.
    """
    return (pp / 2 - 1) * (forward_backward + backward - 3 * weight_grad)


def bubble_rate(*, idle, work):
    """Return idle over idle plus work."""
    return idle / (idle + work)
