"""Logs of training runs: step times, rates and memory that frameworks print, read line by line."""

from forescale.logs.formats import FORMATS, LogFormat, StepRecord
from forescale.logs.reader import LogReader, RunLog, read_log, seconds_of

__all__ = ["FORMATS", "LogFormat", "LogReader", "RunLog", "StepRecord", "read_log", "seconds_of"]
