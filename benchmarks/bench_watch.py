"""Follow a log that grows fast with `forescale watch`: processor time, memory, and what is noticed of mishaps.

    .venv/bin/python benchmarks/bench_watch.py [--seconds 60] [--rate 1000]

Every tenth line is a step of Megatron-LM, the others are what else a job prints. Meanwhile the log is rotated and cut,
binary garbage is written, and the step number falls back as after a restart. The processor time of the command is
counted from its first line on, without its start.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUESTION = (
    "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "8", "--seq-len", "8192",
    "--global-batch-size", "64", "--zero", "3",
)  # fmt: skip
MOST_SHARE, MOST_GROWTH = 0.05, 2**20
"""Of a core; bytes that memory may grow by after the first quarter."""
TICKS = os.sysconf("SC_CLK_TCK")


def used(process: int) -> tuple[float, int]:
    """Return the seconds of processor time and the bytes of memory of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    status = Path(f"/proc/{process}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    return (int(fields[11]) + int(fields[12])) / TICKS, 1024 * int(resident[1])


def text_of(number: int, step: int) -> bytes:
    """Return a line of a log."""
    if number % 10:
        return b"[rank%d] INFO dataloader: batch %d prefetched, queue 8/8, pinned memory 1.5 GiB\n" % (
            number % 8,
            number,
        )
    line = f" iteration {step}/ 100000 | consumed samples: {64 * step} | elapsed time per iteration (ms): 5823.4 | "
    return (
        line + "throughput per GPU (TFLOP/s/GPU): 431.7 | global batch size: 64 | lm loss: 2.1E+00 |\n"
    ).encode()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=1000, help="lines a second")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return follow(Path(folder) / "train.log", args.seconds, args.rate)


def follow(log: Path, seconds: float, rate: int) -> int:
    """Write the log while it is followed, and print what that takes."""
    log.touch()
    command = (
        str(Path(sys.executable).with_name("forescale")),
        "watch",
        *QUESTION,
        "--log",
        str(log),
        "--every",
        "500",
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1.0)
        begin, memory = used(process.pid), []
        start, number, step, done = time.monotonic(), 0, 0, set()
        file = log.open("ab")
        while (elapsed := time.monotonic() - start) < seconds:
            for part, name in ((0.2, "garbage"), (0.4, "rotation"), (0.6, "truncation"), (0.8, "restart")):
                if elapsed > part * seconds and name not in done:
                    done.add(name)
                    time.sleep(1.0)
                    if name == "garbage":
                        file.write(os.urandom(100_000))
                    elif name == "rotation":
                        file.close()
                        log.rename(log.with_suffix(".1"))
                        file = log.open("ab")
                    elif name == "truncation":
                        os.truncate(log, 0)
                    else:
                        step -= 50
            while number < rate * (time.monotonic() - start):
                number += 1
                step += number % 10 == 0
                file.write(text_of(number, step))
            file.flush()
            memory.append(used(process.pid)[1])
            time.sleep(0.05)
        time.sleep(2.0)
        share = (used(process.pid)[0] - begin[0]) / seconds
        process.terminate()
        printed = process.stdout.read()
    growth = max(memory) - max(memory[: len(memory) // 4])
    print(printed[-600:])
    print(
        f"{number / seconds:,.0f} lines a second: {share:.1%} of a core, memory {max(memory) / 2**20:.0f} MiB, ",
        end="",
    )
    print(f"grown by {growth / 2**10:.0f} KiB; last step {step}, followed up to {last_of(printed)}")
    good = share <= MOST_SHARE and growth <= MOST_GROWTH and "restart: back at step" in printed
    return 0 if good and abs(last_of(printed) - step - 50) <= 600 else 1


def last_of(printed: str) -> int:
    """Return the last step that was printed."""
    steps = re.findall(r"^step (\d+) ", printed, flags=re.MULTILINE)
    return int(steps[-1]) if steps else 0


if __name__ == "__main__":
    sys.exit(main())
