"""Trainers of the Hugging Face world: their keys and effects are data, one record each; one reading serves them all."""
