"""What the published code does although it was probably not meant, each on a switch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """True is the published behaviour, False the formula that was evidently meant."""

    summa_norm_splits_sequence: bool = True
    """Norms of the SUMMA layer hold l / n1 of a token's elements where e / n1 is meant; so does the message
    between pipeline stages. Large: it moves the best configuration in half of the published cases."""
    free_slow_hops: bool = True
    """Slow hops of a pipeline cost nothing where some of its hops are fast."""
    single_level_all_reduce: bool = True
    """An all-reduce counts one pass instead of two where it stays on one network."""
    projection_bias_splits_hidden: bool = True
    """In 2D, the bias of attention's output projection splits the hidden size over tp1 although the tokens
    are already split by then, as they are for the bias of the feed-forward."""

    @classmethod
    def none(cls) -> Quirks:
        """Return the model as it was meant."""
        return cls(
            summa_norm_splits_sequence=False,
            free_slow_hops=False,
            single_level_all_reduce=False,
            projection_bias_splits_hidden=False,
        )
