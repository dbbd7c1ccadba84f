"""What a step time says of the whole run: throughput, utilisation, days."""

from __future__ import annotations

from forescale.formula import formula
from forescale.numeric import Numeric

SECONDS_PER_DAY = 86400.0


@formula(unit="1", source="Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B")
def utilisation(*, flops: Numeric, peak_rate: Numeric, num_devices: Numeric, step_time: Numeric) -> Numeric:
    """FLOP per step / (peak rate × devices × step time)."""
    return flops / (peak_rate * num_devices * step_time)


@formula(unit="token/s", source="definition")
def tokens_per_device_second(*, tokens: Numeric, step_time: Numeric, num_devices: Numeric) -> Numeric:
    """Tokens per step / step time / devices."""
    return tokens / step_time / num_devices


@formula(unit="d", source="definition")
def days(*, total_tokens: Numeric, tokens: Numeric, step_time: Numeric) -> Numeric:
    """Tokens of the run / tokens per step × step time."""
    return total_tokens / tokens * step_time / SECONDS_PER_DAY


SECONDS_PER_HOUR = 3600.0


@formula(unit="currency/token", source="definition")
def cost_per_token(
    *, price_per_device_hour: Numeric, num_devices: Numeric, step_time: Numeric, tokens: Numeric
) -> Numeric:
    """Price per device and hour × devices × step time / tokens per step."""
    return price_per_device_hour * num_devices * (step_time / SECONDS_PER_HOUR) / tokens


@formula(unit="J/token", source="definition; rated power bounds the devices' draw from above")
def energy_per_token(*, power: Numeric, num_devices: Numeric, step_time: Numeric, tokens: Numeric) -> Numeric:
    """Rated power × devices × step time / tokens per step: the devices' energy at most, nothing else counted."""
    return power * num_devices * step_time / tokens
