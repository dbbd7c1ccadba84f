"""Measured against expected: how far a run is from what its layout should take, and what explains the difference."""

from forescale.diagnose.causes import CAUSES, Cause
from forescale.diagnose.changes import ProfileComparison, compare_profiles
from forescale.diagnose.diagnosis import Diagnosis, Explanation, diagnose
from forescale.diagnose.groups import GROUPS, expected_groups, measured_groups
from forescale.diagnose.measured import Convention, Measured, measured_of
from forescale.diagnose.remedies import with_settings

__all__ = [
    "CAUSES",
    "GROUPS",
    "Cause",
    "Convention",
    "Diagnosis",
    "Explanation",
    "Measured",
    "ProfileComparison",
    "compare_profiles",
    "diagnose",
    "expected_groups",
    "measured_groups",
    "measured_of",
    "with_settings",
]
