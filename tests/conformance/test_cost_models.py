from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.conformance.cost_models import check_collective_model, check_compute_model

from forescale.catalogue.clusters import load_cluster, load_device
from forescale.cost.calibration import load_calibration
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.select import select


@pytest.mark.parametrize("kind", ["roofline", "tile", "auto"])
@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200", "mi300x"])
def test_compute_models_keep_to_the_rules(kind, name):
    check_compute_model(select(kind, load_device(name)))


@pytest.mark.parametrize("name", ["h100-sxm", "gb200-nvl72", "mi300x", "tpu-v5p"])
def test_collective_models_keep_to_the_rules(name):
    check_collective_model(AlphaBeta.from_cluster(load_cluster(name, 64)))


class _Wrong:
    """A model that depends on which other candidates stand beside one."""

    def __init__(self, model):
        self.model = model

    def seconds(self, op):
        return self.model.seconds(op) / np.max(self.model.seconds(op))

    def provenance(self, op):
        return self.model.provenance(op)


def test_a_model_that_looks_at_its_neighbours_is_found():
    with pytest.raises(AssertionError, match=r"differs from itself|no less time"):
        check_compute_model(_Wrong(select("roofline", load_device("h100-sxm"))))


def test_a_model_without_a_source_is_found():
    model = select("roofline", load_device("h100-sxm"))

    class Silent(_Wrong):
        def seconds(self, op):
            return self.model.seconds(op)

        def provenance(self, op):
            return replace(self.model.provenance(op), source="")

    with pytest.raises(AssertionError, match="where"):
        check_compute_model(Silent(model))
    assert load_calibration(load_device("h100-sxm")).source
