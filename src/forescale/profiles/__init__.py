"""Profiler traces of training steps: what each part of a step took on a rank, read in a stream."""

from forescale.profiles.parts import part_of
from forescale.profiles.stream import TraceEvent, stream_events
from forescale.profiles.summary import TraceSummary, profile_rows, summarise

__all__ = ["TraceEvent", "TraceSummary", "part_of", "profile_rows", "stream_events", "summarise"]
