"""500 design points, on the cores of this machine and through Ray: the time of each, and whether the tables agree.

Start a cluster of two workers first: `ray start --head --num-cpus=2`; then `python benchmarks/bench_sweep.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path

from forescale.sweep import Executor, Local, Ray, Sweep, build_sweep, run

POINTS = 500


def design_space(points: int) -> Sweep:
    """Return machines around an H100, each with a small search of its own."""
    return build_sweep(
        {
            "model": "llama-3.1-8b",
            "cluster": "h100-sxm",
            "devices": 64,
            "workload": {"seq_len": 8192, "global_batch_size": 256},
            "space": {"cp": [1, 2], "micro_batch_size": 1, "axis_order": "tp-cp-dp-pp"},
            "vary": {
                "flops": {"from": "x0.5", "to": "x4"},
                "hbm_bandwidth": {"from": "1 TB/s", "to": "16 TB/s"},
                "hbm_capacity": {"from": "16 GiB", "to": "320 GiB"},
                "domain_size": {"from": 4, "to": 64, "multiple": 4},
                "link_bandwidth": {"from": "x0.5", "to": "x4"},
                "nic_bandwidth": {"from": "12.5 GB/s", "to": "400 GB/s"},
                "nic_latency": {"from": "x0.5", "to": "x4"},
            },
            "sample": {"points": points, "seed": 1},
        }
    )


def timed(sweep: Sweep, executor: Executor, folder: Path) -> tuple[float, str]:
    """Return the seconds that a sweep takes and the digest of its Parquet file."""
    started = time.perf_counter()
    result = run(sweep, executor=executor, output=folder)
    seconds = time.perf_counter() - started
    print(
        f"{type(executor).__name__:>6}: {len(result.rows) / seconds:6.1f} points/s  {seconds:6.1f} s  {result.counts}"
    )
    return seconds, hashlib.sha256((folder / "results.parquet").read_bytes()).hexdigest()


def main() -> None:
    """Compare the executors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ray-address", default="auto")
    options = parser.parse_args()
    sweep = design_space(options.points)
    with tempfile.TemporaryDirectory() as folder:
        _, here = timed(sweep, Local(jobs=options.jobs), Path(folder) / "local")
        _, there = timed(sweep, Ray(address=options.ray_address), Path(folder) / "ray")
    print("the Parquet files are equal" if here == there else "THE PARQUET FILES DIFFER")
    raise SystemExit(here != there)


if __name__ == "__main__":
    main()
