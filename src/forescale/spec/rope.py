"""Rotary positions: how far each pair of dimensions of queries and keys is turned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from forescale.errors import no_effect, out_of_range, required_with
from forescale.limits import Amount, Factor, Interval, OptionalExtent, Share
from forescale.struct import SpecStruct

Multiple: TypeAlias = Annotated[float, Interval(ge=0, le=1e3)]
"""A multiple that 0 leaves out."""
Scaling: TypeAlias = Literal["none", "linear", "llama3", "yarn"]
TUNED: Final[Mapping[Scaling, tuple[str, ...]]] = {
    "none": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_seq_len", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_seq_len", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "rounded"),
}
"""Fields of `Rope` that each scaling goes by."""


class Rope(SpecStruct, frozen=True, kw_only=True):
    """Rotary position embedding: at token t, pair i of d dimensions is turned by t x base^(-2i/d) radians.

    Su et al. 2021, arXiv:2104.09864. Scaling slows pairs for sequences longer than those of training: all alike
    (`linear`, Chen et al. 2023, arXiv:2306.15595), those whose wave is long beside the original sequence (`llama3`,
    Llama 3.1), or those that turn few times within it (`yarn`, Peng et al. 2023, arXiv:2309.00071). It changes what is
    trained, and of costs only what `concentration` says.
    """

    base: Amount
    """What the slowest pair's wavelength goes by (`rope_theta`)."""
    share: Share = 1.0
    """Share of the head's dimensions that is turned; of latent attention it is all of `qk_rope_head_dim`."""
    scaling: Scaling = "none"
    factor: Factor = 1.0
    """Times that a sequence may be longer than the original one."""
    original_seq_len: OptionalExtent = 0
    """Tokens of the sequences that it was trained on before scaling; llama3 and yarn need it."""
    low_freq_factor: Factor = 1.0
    """Waves longer than the original sequence over this are slowed by all of `factor` (llama3)."""
    high_freq_factor: Factor = 4.0
    """Waves shorter than the original sequence over this are left as they are (llama3)."""
    beta_fast: Factor = 32.0
    """Pairs that turn more often than this within the original sequence are left as they are (yarn)."""
    beta_slow: Factor = 1.0
    """Pairs that turn less often than this are slowed by all of `factor` (yarn)."""
    mscale: Multiple = 1.0
    """Weight of the factor of sines and cosines (yarn); see `concentration`."""
    mscale_all_dim: Multiple = 0.0
    """Weight of the factor that queries times keys have instead (yarn; DeepSeek)."""
    rounded: bool = True
    """The ramp between both betas begins and ends at whole pairs (yarn; `truncate`)."""

    def __post_init__(self) -> None:
        """Refuse what a scaling does not go by, one without the sequence that it goes by, and ramps the wrong way."""
        usual = dict(zip(self.__struct_fields__[1:], self.__struct_defaults__, strict=True))
        for name in dict.fromkeys((*TUNED["llama3"], *TUNED["yarn"])):
            if name not in TUNED[self.scaling] and getattr(self, name) != usual[name]:
                raise no_effect(name, f"the scaling of the rope is {self.scaling}")
        if "original_seq_len" in TUNED[self.scaling] and not self.original_seq_len:
            raise required_with("original_seq_len, in tokens", f"the scaling {self.scaling} of a rope")
        low, high = self.low_freq_factor, self.high_freq_factor
        if self.scaling == "llama3" and low > high:
            raise out_of_range("low_freq_factor of a rope", low, f"high_freq_factor {high:g} or less")
        if self.scaling == "yarn" and self.beta_slow > self.beta_fast:
            raise out_of_range("beta_slow of a rope", self.beta_slow, f"beta_fast {self.beta_fast:g} or less")

    @property
    def concentration(self) -> float:
        """What multiplies sines and cosines: 0.1 mscale ln factor + 1, over the same of `mscale_all_dim` (yarn)."""
        if self.scaling != "yarn" or self.factor <= 1:
            return 1.0
        weights = (self.mscale, self.mscale_all_dim)
        local, of_products = (0.1 * weight * math.log(self.factor) + 1 for weight in weights)
        return local / of_products


PLAIN_ROPE: Final = Rope(base=10_000.0)
"""Rotary positions of Su et al. 2021, which every framework takes where nothing is said."""
GPT_OSS_ROPE: Final = Rope(base=150_000.0, scaling="yarn", factor=32.0, original_seq_len=4096, rounded=False)
"""Rotary positions of openai/gpt-oss-20b and -120b (config.json)."""
