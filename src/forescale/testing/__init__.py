"""Conformance suites: what every schedule, reader and cost model must keep to."""
