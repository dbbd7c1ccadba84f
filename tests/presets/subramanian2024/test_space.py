from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tests.errors import raises

from forescale.errors import SpecError, UnknownKeyError
from forescale.presets.subramanian2024.layers import Shape
from forescale.presets.subramanian2024.machine import NEAR, divisors_of, enumerate_space

GPT = Shape(seq_len=2048, hidden_size=25600, ffn_hidden_size=102400, num_heads=160, num_layers=128)
VIT = Shape(seq_len=64800, hidden_size=12288, ffn_hidden_size=49152, num_heads=64, num_layers=48)
SMALL = Shape(seq_len=768, hidden_size=1536, ffn_hidden_size=6144, num_heads=12, num_layers=6)


def space(shape, num_devices, kind, *, domain=8, batch=4096, fixed=None):
    return enumerate_space(
        shape,
        num_devices=num_devices,
        domain=domain,
        kind=kind,
        global_batch_size=batch,
        fixed=fixed or {},
    )


@pytest.mark.parametrize(
    ("shape", "num_devices", "counts"),
    [
        (GPT, 2048, (2624, 20920, 57264)),
        (VIT, 2048, (1758, 20418, 33011)),
        (GPT, 16384, (2027, 22696, 54662)),
    ],
)
def test_as_many_candidates_as_the_published_searches(shape, num_devices, counts):
    names = tuple(
        int(space(shape, num_devices, kind).num_candidates().sum()) for kind in ("1d", "2d", "summa")
    )
    assert names == counts


def divisors(number):
    return [value for value in range(1, number + 1) if number % value == 0]


def panel_counts(hidden, side):
    if hidden / side < 512:
        return [side]
    counts = [side * 2**power for power in range(math.ceil(math.log2(hidden // side)))]
    return [count for count in counts if hidden % count == 0 and hidden // count >= 512]


def brute(shape, num_devices, kind, domain, batch):
    """Loops, as slow as they are plain."""
    seq_len, hidden = shape.seq_len, shape.hidden_size
    for tp1, tp2, pp in itertools.product(
        divisors(num_devices), divisors(num_devices), divisors(shape.num_layers)
    ):
        if num_devices % (tp1 * tp2 * pp) or shape.num_heads % tp1 or hidden % tp1:
            continue
        if kind == "1d" and (tp2 > 1 or 3 * hidden // tp1 < 128):
            continue
        if kind != "1d" and (hidden // tp1 < 128 or seq_len // tp2 < 128):
            continue
        if kind == "summa" and hidden % tp2:
            continue
        dp = num_devices // (tp1 * tp2 * pp)
        if batch % dp:
            continue
        parts = {"1d": tp1, "2d": tp1 * tp2, "summa": tp2}[kind]
        panels = panel_counts(hidden, max(tp1, tp2)) if kind == "summa" else [1]
        ways = [(tp1, tp2, pp, dp)]
        if num_devices > domain:
            ways = [
                way
                for way in itertools.product(divisors(domain), repeat=4)
                if math.prod(way) == domain
                and not any(degree % near for degree, near in zip((tp1, tp2, pp, dp), way, strict=True))
            ]
        for micro in divisors(batch // dp):
            if micro * seq_len % parts == 0:
                for count, way in itertools.product(panels, ways):
                    yield (tp1, tp2, pp, dp, micro, batch // dp // micro, count, *way)


@pytest.mark.parametrize("kind", ["1d", "2d", "summa"])
@pytest.mark.parametrize(
    ("num_devices", "domain", "batch"), [(4, 8, 16), (24, 4, 48), (96, 6, 32), (36, 12, 60)]
)
def test_the_space_is_what_plain_loops_find(kind, num_devices, domain, batch):
    result = space(SMALL, num_devices, kind, domain=domain, batch=batch)
    columns = result.expand(np.arange(len(result.rows["tp1"])))
    names = ("tp1", "tp2", "pp", "dp", "micro_batch_size", "num_microbatches", "panels", *NEAR)
    listed = list(zip(*(columns[name].tolist() for name in names), strict=True))
    expected = list(brute(SMALL, num_devices, kind, domain, batch))
    assert len(listed) == len(set(listed)) == result.num_candidates().sum()
    assert set(listed) == set(expected)


def test_fixed_dimensions_hold():
    result = space(GPT, 16384, "1d", fixed={"pp": 64, "micro_batch_size": 1})
    assert set(result.rows["pp"].tolist()) == {64}
    assert set(result.rows["micro_batch_size"].tolist()) == {1}
    assert set(result.rows["tp1"].tolist()) == {1, 2, 4, 8, 16, 32}


def test_unknown_words_are_refused():
    with raises(SpecError, "not_one_of tensor parallel"):
        space(GPT, 16, "3d")
    with raises(UnknownKeyError, "unknown_key tp"):
        space(GPT, 16, "1d", fixed={"tp": 4})


def test_divisors():
    assert divisors_of(12).tolist() == [1, 2, 3, 4, 6, 12]
