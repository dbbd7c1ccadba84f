"""Conformance suites: what every schedule, reader and cost model must keep to."""

from forescale.testing.cost_models import check_collective_model, check_compute_model
from forescale.testing.readers import check_reader
from forescale.testing.schedules import check_schedule

__all__ = ["check_collective_model", "check_compute_model", "check_reader", "check_schedule"]
