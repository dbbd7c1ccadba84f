"""Conditions as numbers, so that formulas stay elementwise."""

from __future__ import annotations

from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from forescale.numeric import Numeric

Condition: TypeAlias = bool | NDArray[np.bool_]


def indicator(condition: Condition) -> Numeric:
    """Return 1 where `condition` holds and 0 elsewhere, for scalars, arrays and recorded terms."""
    return cast("Numeric", 1.0 * condition)
