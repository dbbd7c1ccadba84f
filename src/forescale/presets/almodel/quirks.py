"""What the analysis does although it was probably not meant, each on a switch."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """True is what reproduces the printed figures, False what was evidently meant."""

    gib_as_gb: bool = True
    """Volumes are counted in units of 2^30 bytes and divided by rates in units of 1e9: 7.4 % too fast."""
    replays_everything: bool = True
    """Recompute runs every product again whose result is not kept: the head, which lies outside the
    rematerialised layers, and the last products of a layer, whose results backward does not need."""
    reduces_over_dp_only: bool = True
    """Gradients are summed over DP and FSDP only; the ranks of CP, and for all but experts those of EP, hold
    other tokens too."""
    scores_shrink_twice: bool = True
    """Scores that save_all keeps are (sequence / CP)² per sequence, though keys and values are gathered whole."""
    gathers_fp32: bool = True
    """Weights are gathered in fp32 although the products take bf16."""

    @classmethod
    def none(cls) -> Quirks:
        """Return the analysis as it was meant."""
        return cls(**{item.name: False for item in fields(cls)})
