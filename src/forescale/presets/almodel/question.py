"""What the analysis asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyQuestion:
    """Names of the catalogue, and the batch."""

    model: str
    cluster: str
    devices: int
    seq_len: int
    global_batch_size: int


QUESTION = StudyQuestion(
    model="almodel", cluster="almodel-pod", devices=128, seq_len=4096, global_batch_size=5120
)
"""17.43 B parameters on 128 devices, 5,120 sequences of 4,096 tokens."""
