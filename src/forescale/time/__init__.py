"""Seconds of a step: operators priced, what hides behind what, traffic, the pipeline, the update."""
