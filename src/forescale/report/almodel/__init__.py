"""The report of the ALModel analysis."""

from forescale.report.almodel.compose import almodel_report

__all__ = ["almodel_report"]
