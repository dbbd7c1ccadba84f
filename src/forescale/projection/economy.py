"""What a run costs in money and energy, from its step time."""

from __future__ import annotations

from forescale.formula import formula
from forescale.numeric import Numeric

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
