"""Logs of training runs: step times, rates and memory that frameworks print, read line by line."""

from forescale.logs.formats import FORMATS, LogFormat, StepRecord
from forescale.logs.reader import LogReader, RunLog, format_of, lines_of, read_log, seconds_of

__all__ = [
    "FORMATS",
    "LogFormat",
    "LogReader",
    "RunLog",
    "StepRecord",
    "format_of",
    "lines_of",
    "read_log",
    "seconds_of",
]
