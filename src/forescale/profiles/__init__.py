"""Profiler traces of training steps: what each part of a step took on a rank, read in a stream."""

from forescale.profiles.events import TraceEvent
from forescale.profiles.parts import part_of
from forescale.profiles.stream import begins_trace, is_trace, stream_events
from forescale.profiles.summary import PROFILED_STEP, RANK_PARTS, TraceSummary, profile_rows, summarise
from forescale.profiles.timed import Profile, is_profile, read_profile

__all__ = [
    "PROFILED_STEP",
    "RANK_PARTS",
    "Profile",
    "TraceEvent",
    "TraceSummary",
    "begins_trace",
    "is_profile",
    "is_trace",
    "part_of",
    "profile_rows",
    "read_profile",
    "stream_events",
    "summarise",
]
