"""Questions small enough for tests."""

from __future__ import annotations

RUN = ("--seq-len", 4096, "--global-batch-size", 64)
MACHINE = ("--cluster", "h100-sxm", "--devices", 16)
DENSE = ("llama-3.1-8b", *MACHINE, *RUN)
LAYOUT = ("--tp", 4, "--pp", 2)
SEARCH = (*DENSE, "--fix", "micro_batch_size=1", "--fix", "cp=1", "--fix", "vpp=1", "--top", 5)
