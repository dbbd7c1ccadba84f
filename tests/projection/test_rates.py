from __future__ import annotations

import numpy as np
import pytest

from forescale.projection.result import cost_per_token, energy_per_token


def test_deepseek_v3_training_cost():
    """DeepSeek-AI 2024 (arXiv:2412.19437), table 1: 2.664 M H800 hours at 2 dollars an hour are 5.328 M dollars.

    14.8 T tokens in steps of 15360 sequences of 4096 tokens.
    """
    tokens = 15360 * 4096.0
    step = 2.664e6 * 3600 / 2048 * tokens / 14.8e12
    per_token = cost_per_token(price_per_device_hour=2.0, num_devices=2048, step_time=step, tokens=tokens)
    assert per_token * 14.8e12 == pytest.approx(5.328e6)


def test_energy_is_power_times_time():
    energy = energy_per_token(power=700.0, num_devices=8, step_time=np.array([2.0, 4.0]), tokens=1000.0)
    np.testing.assert_allclose(energy, [11.2, 22.4])
