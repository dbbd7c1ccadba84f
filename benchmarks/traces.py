"""Write a trace of torch.profiler of a given size, and time how fast it is summarised, in how much memory.

Usage: python -m benchmarks.traces [GB] [--gzip]
"""

from __future__ import annotations

import gzip
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from forescale.profiles import summarise

NAMES = (
    "nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_NNT",
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float>>",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
)
STEPS = 10


def event(number: int) -> dict[str, object]:
    """Return a kernel, or the operator on the host that launched it."""
    start = 10.0 * number
    if number % 2:
        args = {
            "External id": number,
            "Record function id": 0,
            "Ev Idx": number,
            "Input Dims": [[8192, 4096], [4096, 14336]],
        }
        return {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 12345,
            "tid": 12345,
            "ts": start,
            "dur": 8.5,
            "args": args,
        }
    args = {"External id": number, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": number,
            "registers per thread": 168, "shared memory": 231424, "blocks per SM": 1.0, "warps per SM": 12.0,
            "grid": [132, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %": 18}  # fmt: skip
    return {
        "ph": "X",
        "cat": "kernel",
        "name": NAMES[number % len(NAMES)],
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": 9.0,
        "args": args,
    }


def write(path: Path, num_bytes: float, *, compressed: bool) -> int:
    """Write a trace of about so many bytes before compression; return the number of events."""
    number = written = 0
    with gzip.open(path, "wb", compresslevel=1) if compressed else path.open("wb") as file:
        file.write(b'{\n  "schemaVersion": 1,\n  "traceEvents": [\n')
        while written < num_bytes:
            block = ",\n".join(json.dumps(event(number + n), indent=2) for n in range(1000)) + ",\n"
            written += len(block)
            file.write(block.encode())
            number += 1000
        length = 10.0 * number / STEPS
        marks = [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"ProfilerStep#{n}",
                "pid": 1,
                "tid": 1,
                "ts": n * length,
                "dur": length,
            }
            for n in range(STEPS)
        ]
        file.write(",\n".join(map(json.dumps, marks)).encode() + b'\n  ],\n  "traceName": "trace.json"\n}\n')
    return number


def main(arguments: list[str]) -> None:
    """Write one trace, summarise it, and print the figures."""
    size = float(next((item for item in arguments if not item.startswith("-")), "5")) * 1e9
    compressed = "--gzip" in arguments
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("trace.json.gz" if compressed else "trace.json")
        events = write(path, size, compressed=compressed)
        begin = time.perf_counter(), time.process_time()
        result = summarise(path)
        wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{size / 1e9:.2f} GB, {events:,} events: {wall:.1f} s wall, {cpu:.1f} s processor, peak {peak:.2f} GiB; "
            f"{result.launches:,} launches per step"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
