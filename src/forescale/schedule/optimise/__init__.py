"""Find the best schedule for given durations, messages, micro-batches and memory limit."""

from forescale.schedule.optimise.local_search import Problem
from forescale.schedule.optimise.partition import Layer, Partition, partition_layers
from forescale.schedule.optimise.run import Optimised, optimise

__all__ = ["Layer", "Optimised", "Partition", "Problem", "optimise", "partition_layers"]
