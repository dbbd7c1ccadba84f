"""Whose classes run a question: those of the framework that it names, where they are installed, else Hugging Face's."""

from __future__ import annotations

from dataclasses import replace

from forescale.bench import huggingface, megatron, torchtitan
from forescale.bench.model import Adapter
from forescale.question import Question
from forescale.spec.strategy import Overlap

ADAPTERS = (torchtitan.ADAPTER, megatron.ADAPTER, huggingface.ADAPTER)


def adapter_of(question: Question) -> Adapter:
    """Return the adapter that runs a question."""
    name = question.framework.name if question.framework else ""
    found = (each for each in ADAPTERS if name in each.frameworks and each.release)
    return next(found, huggingface.ADAPTER)


def as_run(question: Question) -> Question:
    """Return a question with the kernels that its classes train with, whatever it asks for; nothing overlaps."""
    layout = adapter_of(question).as_run(question)
    overlap = Overlap(grad_reduce=False, param_gather=False, pipeline=layout.overlap.pipeline)
    return replace(question, strategy=replace(layout, overlap=overlap))
