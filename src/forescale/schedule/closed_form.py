"""Closed forms of pipeline schedules: in-flight micro-batches, idle time, bubble rates.

All functions are pure and keyword-only and take numbers or arrays over candidates. Durations are those of
one micro-batch through a device's full share of the model; a chunk takes 1/vpp of them. Where a schedule
has no closed form (greedy V schedules off their unit-time laws), simulate it instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forescale.numeric import Array, Numeric


def in_flight_microbatches(
    *, stage: Numeric, pp: Numeric, vpp: Numeric, num_microbatches: Numeric
) -> Numeric:
    """Return the most micro-batches whose activations a rank holds at once under (interleaved) 1F1B.

    Parameters
    ----------
    stage
        Pipeline rank, 0 (first) to pp - 1.
    pp, vpp
        Pipeline ranks, and model chunks on each.
    num_microbatches
        Micro-batches per step.

    Returns
    -------
    Numeric
        Micro-batches of a device's full share (a chunk counts 1/vpp).

    Notes
    -----
    1F1B: min(m, p - r). Interleaved, depth-first: 2(p - 1 - r) + (v - 1)p warm-up chunk passes and one more,
    at most m v; p + (p - 1)/v on the first rank. Source: Narayanan et al. 2021, arXiv:2104.04473,
    section 2.2.
    """
    plain = np.minimum(num_microbatches, pp - stage)
    chunks = 2.0 * (pp - 1 - stage) + (vpp - 1) * pp + 1
    looped = np.minimum(chunks / vpp, num_microbatches)
    return _where(np.asarray(vpp) > 1, looped, plain)


def live_chunks(pp: int, vpp: int) -> Array:
    """Return the passes of each chunk whose activations a rank holds under interleaved 1F1B.

    (1 + 2v, ranks, v): after the last warm-up pass and one more of m = p micro-batches; then the moments of m >= 2p at
    which the forward or the backward passes go on to another chunk. Between two moments passes change evenly, so
    that a rank holds most at one of them, whatever its chunks keep. Chunks are passed p micro-batches at a time, in
    order forward and in reverse backward (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
    """
    chunk = np.arange(vpp)
    warmup = 2 * (pp - 1 - np.arange(pp))[:, None] + (vpp - 1) * pp

    def passes(count: Any, chunks: Any) -> Any:  # noqa: ANN401  (index arrays)
        rounds, rest = np.divmod(count[..., None], pp * vpp)
        return rounds * pp + np.clip(rest - chunks * pp, 0, pp)

    few = passes(np.minimum(warmup + 1, pp * vpp), chunk)
    gone = np.concatenate([chunk * pp + 0 * warmup, (-warmup - 1) % pp + chunk * pp], axis=1)
    live = np.concatenate([few, passes(warmup + 1 + gone, chunk) - passes(gone, vpp - 1 - chunk)], axis=1)
    return live.swapaxes(0, 1).astype(float)


def bubble_fraction(*, pp: Numeric, vpp: Numeric, num_microbatches: Numeric) -> Numeric:
    """Return idle over makespan of 1F1B and interleaved 1F1B: (p - 1) / (m v + p - 1).

    Equal stages, no communication. Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2 (which
    divides by the ideal time instead); Primus-pipeline documentation, algorithm comparison.
    """
    return (pp - 1) / (num_microbatches * vpp + pp - 1)


def work_time(
    *, num_microbatches: Numeric, forward: Numeric, input_grad: Numeric, weight_grad: Numeric
) -> Numeric:
    """Return the busy time of one rank in a step, in the unit of the durations: m (tf + tb + tw)."""
    return num_microbatches * (forward + input_grad + weight_grad)


def idle_1f1b(
    *, pp: Numeric, vpp: Numeric, forward: Numeric, input_grad: Numeric, weight_grad: Numeric
) -> Numeric:
    """Return makespan minus work of GPipe, 1F1B (v = 1), interleaved 1F1B and looped breadth-first.

    (p - 1)(tf + tb + tw)/v, for any m where v = 1 and m a multiple of p elsewhere.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.
    """
    return (pp - 1) * (forward + input_grad + weight_grad) / vpp


def idle_zb_h1(
    *, pp: Numeric, vpp: Numeric, forward: Numeric, input_grad: Numeric, weight_grad: Numeric
) -> Numeric:
    """Return makespan minus work of ZB-H1 (v = 1) and of interleaved zero bubble: (p - 1)(tf + tb - tw)/v.

    Holds for m >= p and tw <= tb. Source: Qi et al. 2023, arXiv:2401.10241, table 1.
    """
    return (pp - 1) * (forward + input_grad - weight_grad) / vpp


def makespan_zb_few(
    *, pp: Numeric, num_microbatches: Numeric, forward: Numeric, input_grad: Numeric, weight_grad: Numeric
) -> Numeric:
    """Return the makespan of ZB-H1 for m <= p, tw <= tb: (m + p - 1)(tf + tb) + tw.

    Source: Qi et al. 2023, arXiv:2401.10241, appendix H.
    """
    return (num_microbatches + pp - 1) * (forward + input_grad) + weight_grad


def idle_zb_h2_span(*, pp: Numeric, forward: Numeric, input_grad: Numeric, weight_grad: Numeric) -> Numeric:
    """Return longest rank span minus work of ZB-H2: (p - 1)(tf + tb - 2 tw).

    Source: Qi et al. 2023, arXiv:2401.10241, table 1.
    """
    return (pp - 1) * (forward + input_grad - 2 * weight_grad)


def idle_zb_h2_makespan(*, pp: Numeric, forward: Numeric) -> Numeric:
    """Return makespan minus work of ZB-H2 for equal durations: (p - 1) tf, the last rank's wait to start."""
    return (pp - 1) * forward


def idle_zbv_makespan(*, pp: Numeric, input_grad: Numeric) -> Numeric:
    """Return makespan minus work of ZBV in its fixed order, tb >= tf: (p - 1) tb / 2 (chunks take half)."""
    return (pp - 1) * input_grad / 2


def idle_zbv_span(*, pp: Numeric, input_grad: Numeric, weight_grad: Numeric) -> Numeric:
    """Return longest rank span minus work of ZBV in its fixed order, tb >= tf: (p - 1)(tb - tw)."""
    return (pp - 1) * (input_grad - weight_grad)


def idle_v_limited(*, pp: Numeric, limit_chunks: Numeric) -> Numeric:
    """Return makespan minus work of a V schedule under a limit on live chunks, in unit chunk passes.

    max(p - 1, 6p - 1 - 3k). Source: laws of the greedy tables of Qi et al. 2024, arXiv:2405.15362.
    """
    return np.maximum(pp - 1, 6 * pp - 1 - 3 * limit_chunks)


def v_half_limit_chunks(*, pp: Numeric) -> Numeric:
    """Return the live chunks that V-Half may hold: 2 floor((p + 2)/2). Source: arXiv:2405.15362."""
    return 2 * ((pp + 2) // 2)


def v_min_limit_chunks(*, pp: Numeric) -> Numeric:
    """Return the live chunks that V-Min may hold: 2 floor((p + 4)/3). Source: arXiv:2405.15362."""
    return 2 * ((pp + 4) // 3)


def idle_dualpipe(
    *, pp: Numeric, forward_backward: Numeric, backward: Numeric, weight_grad: Numeric
) -> Numeric:
    """Return makespan minus work of DualPipe: (p/2 - 1)(F&B + B - 3W).

    `backward` is the full backward. Source: DeepSeek-V3 technical report, arXiv:2412.19437, table 2.
    """
    return (pp / 2 - 1) * (forward_backward + backward - 3 * weight_grad)


def bubble_rate(*, idle: Numeric, work: Numeric) -> Numeric:
    """Return idle over idle plus work."""
    return idle / (idle + work)


def _where(mask: np.ndarray, yes: Numeric, no: Numeric) -> Numeric:
    chosen = np.where(mask, yes, no)
    return float(chosen) if chosen.ndim == 0 else chosen
