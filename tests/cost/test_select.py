"""Compute cost models by name."""

from __future__ import annotations

import pytest

from forescale.catalogue.clusters import load_device
from forescale.cost.roofline import Roofline
from forescale.cost.select import select
from forescale.cost.tile import TileModel
from forescale.errors import UnknownNameError


@pytest.mark.parametrize(
    ("kind", "device", "expected"),
    [
        ("roofline", "h100-sxm", Roofline), ("tile", "h100-sxm", TileModel), ("auto", "h100-sxm", TileModel),
        ("tile", "tpu-v5p", TileModel), ("auto", "mi300x", Roofline), ("auto", "v100-sxm2-32gb", Roofline),
    ],
)  # fmt: skip
def test_auto_takes_the_tile_model_where_it_was_fitted(kind, device, expected):
    assert type(select(kind, load_device(device))) is expected


def test_a_clock_needs_the_tile_model():
    model = select("auto", load_device("mi300x"), clock_hz=1.5e9)
    assert isinstance(model, TileModel)
    assert model.clock_hz == 1.5e9


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown compute model 'roof'; did you mean roofline"):
        select("roof", load_device("h100-sxm"))
