"""Products on the grid of SUMMA: panels of the operands travel along both axes, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.graph.casts import casts
from forescale.graph.layout import Layout
from forescale.graph.operator import Work
from forescale.graph.ops import Collective, Elementwise, Gemm
from forescale.numeric import Numeric
from forescale.spec.workload import STORAGE_BYTES

IN_FLIGHT = 2.0
"""Panels of each operand that exist at once: one is multiplied while the next arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The three passes of a linear layer, or what one of `steps` equal steps does in each."""

    forward: Work
    backward_input: Work
    backward_weight: Work
    steps: Numeric | None = None
    buffer_elements: Numeric = 0.0
    """Panels beside the blocks that a device holds, in either direction."""


def panel_passes(
    layout: Layout, *, rows: Numeric, k: Numeric, n: Numeric, dtype: str, sent_bytes: float
) -> Passes:
    """Return the steps of X·W and of its gradients on a grid of tp x cp devices.

    Every device holds rows x k/tp of the input X, k/cp x n of the weight W and rows x n of the result, `rows`
    and `n` being its own. Forward, a panel of X goes along tp and one of W along cp. The gradient of X takes
    panels of W along cp and sums its own along tp; that of W takes panels of X along tp and sums its own
    along cp (Subramanian et al. 2024, arXiv:2410.00273, appendix A, algorithm 1 and table A2). Sums have the
    type of activations.

    Parameters
    ----------
    rows, n
        Tokens and columns of one device.
    k
        Whole inner extent.
    sent_bytes
        Per element of an operand's panel.
    """
    steps, cp, size = layout.panel_steps, layout.degrees.cp, layout.element_bytes
    width = k / steps
    of_input, of_weight = rows * width, width * n
    send_input = Collective(kind="broadcast", axis="tp", num_bytes=of_input * sent_bytes)
    send_weight = Collective(kind="broadcast", axis="cp", num_bytes=of_weight * sent_bytes)
    sum_input = Collective(kind="reduce", axis="tp", num_bytes=of_input * size)
    sum_weight = Collective(kind="reduce", axis="cp", num_bytes=of_weight * size)
    stored = STORAGE_BYTES[layout.precision.gradients]
    accumulate = Elementwise(bytes_moved=of_weight / cp * (size + 2.0 * stored), kernels=1.0 / cp)
    quantised = casts(layout, of_input / layout.degrees.tp, dtype, kernels=1.0 / layout.degrees.tp)
    gradient = casts(layout, rows * n / steps, dtype, kernels=1.0 / steps)
    return Passes(
        steps=steps,
        forward=(
            send_input,
            send_weight,
            *quantised,
            Gemm(m=rows, n=n, k=width, dtype=dtype, accumulate_bytes=size),
        ),
        backward_input=(send_weight, *gradient, Gemm(m=rows, n=width, k=n, dtype=dtype), sum_input),
        backward_weight=(send_input, Gemm(m=n, n=width, k=rows, dtype=dtype), sum_weight, accumulate),
        buffer_elements=IN_FLIGHT * (of_input + of_weight),
    )
