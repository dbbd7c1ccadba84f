"""Pipeline schedules as data: write one, check it, time it, draw it.

`Schedule` holds each rank's actions. `build_schedule` makes one from the library, `check` says what is wrong
with one, `compile_schedule` turns one into arrays that are timed for many durations at once, `simulate` gives
one step in full.
"""

from forescale.errors import ScheduleError
from forescale.schedule.actions import Action, Kind, Order, Overlapped
from forescale.schedule.checker import CheckReport, Violation, check
from forescale.schedule.family import Family, Request
from forescale.schedule.library import FAMILIES, build_schedule, cuts_sequences, family, splits_backward
from forescale.schedule.memory import ActivationSizes, peak_activations, peak_memory
from forescale.schedule.messages import LoweredSchedule, lower
from forescale.schedule.model import Placement, Schedule, from_actions
from forescale.schedule.simulation import Simulation, Step, StepCosts, simulate, time_step
from forescale.schedule.times import Durations, LinkTimes, StageTimes, from_share
from forescale.schedule.timing import CompiledSchedule, Timing, compile_schedule

__all__ = [
    "FAMILIES",
    "Action",
    "ActivationSizes",
    "CheckReport",
    "CompiledSchedule",
    "Durations",
    "Family",
    "Kind",
    "LinkTimes",
    "LoweredSchedule",
    "Order",
    "Overlapped",
    "Placement",
    "Request",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "StageTimes",
    "Step",
    "StepCosts",
    "Timing",
    "Violation",
    "build_schedule",
    "check",
    "compile_schedule",
    "cuts_sequences",
    "family",
    "from_actions",
    "from_share",
    "lower",
    "peak_activations",
    "peak_memory",
    "simulate",
    "splits_backward",
    "time_step",
]
