"""The page under load: clients that each ask some questions one after the other, as `forescale serve` answers them.

    python benchmarks/bench_page.py [--clients 200] [--questions 20] [--pause 1] [--popular N]

Run by hand. Each question gets an answer, or a 429 that is repeated after its Retry-After; the time includes the wait.
Any other status is printed. Without `--popular`, a question is rarely repeated (17,280 are possible), so that the page
computes almost every answer; with it, the clients draw from N questions: the one of rank k in proportion to 1 / k.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlencode

import httpx2 as httpx

KINDS = ("/", "/", "/", "/project.json", "/project.json", "/pictures", "/explain", "/launch?to=megatron-core")
PATIENCE = 200
"""Retries of one question."""


def question(chance: random.Random, popular: int = 0) -> tuple[str, str]:
    """Return the path and the parameters of a question, one of the `popular` ones unless that is 0."""
    if popular:
        rank = chance.choices(range(popular), [1 / (1 + rank) for rank in range(popular)])[0]
        return chance.choice(KINDS), question(random.Random(f"question {rank}"))[1]
    parts = {
        "model": chance.choice(["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "qwen3-32b"]),
        "cluster": chance.choice(["h100-sxm", "h200-sxm", "a100-sxm-80gb"]),
        "devices": chance.choice([64, 128, 256, 512]),
        "seq_len": chance.choice([4096, 8192]),
        "global_batch_size": chance.choice([512, 1024, 2048]),
        "tp": chance.choice([1, 2, 4, 8]),
        "pp": chance.choice([1, 2, 4]),
    }
    return chance.choice(KINDS), urlencode(parts)


async def client(
    url: str, seed: int, count: int, pause: float, popular: int, names: list[tuple[str, int, float, int]]
) -> None:
    """Ask `count` questions, each until it is answered."""
    chance = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=120.0, verify=False) as session:
        await asyncio.sleep(pause * chance.random())
        for _ in range(count):
            path, parts = question(chance, popular)
            perf_counter, retries = time.perf_counter(), 0
            while True:
                link = f"{path}{'&' if '?' in path else '?'}{parts}"
                answer = await session.get(link, headers={"hx-request": "true"})
                if answer.status_code != 429 or retries == PATIENCE:
                    break
                retries += 1
                await asyncio.sleep(float(answer.headers["retry-after"]))
            names.append((path, answer.status_code, time.perf_counter() - perf_counter, retries))
            if answer.status_code != 200:
                print(answer.status_code, link, answer.text[:200])
            await asyncio.sleep(pause)


async def load(
    url: str, clients: int, count: int, pause: float = 0.0, popular: int = 0
) -> list[tuple[str, int, float, int]]:
    """Return what every question got."""
    names: list[tuple[str, int, float, int]] = []
    await asyncio.gather(*(client(url, seed, count, pause, popular, names) for seed in range(clients)))
    return names


def cpu_s(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of the server, and of the processes that it started."""
    server, *others = (
        sum(map(int, Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]))
        for one in descendants(pid)
    )
    return server / os.sysconf("SC_CLK_TCK"), sum(others) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return a process and those below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [pid, *(one for child in children for one in descendants(int(child)))]


def memory_mib(pid: int) -> float:
    """Return the memory of the server and its workers that no other process shares."""
    text = "".join(Path(f"/proc/{one}/smaps_rollup").read_text(encoding="utf-8") for one in descendants(pid))
    private = (line.split()[1] for line in text.splitlines() if line.startswith("Private_"))
    return sum(map(float, private)) / 1024


def main() -> None:
    """Start the server, load it, tell what it did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two questions of a client")
    parser.add_argument(
        "--popular", type=int, default=0, metavar="N", help="questions that clients draw from"
    )
    parser.add_argument("--questions", type=int, default=20)
    args = parser.parse_args()
    command = [sys.executable, "-m", "forescale", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().split()[0]
            asyncio.run(load(url, 1, 3))
            before, cpu = memory_mib(server.pid), cpu_s(server.pid)
            started = time.perf_counter()
            result = asyncio.run(load(url, args.clients, args.questions, args.pause, args.popular))
            took = time.perf_counter() - started
            after = memory_mib(server.pid)
            used = [end - begin for begin, end in zip(cpu, cpu_s(server.pid), strict=True)]
        finally:
            server.terminate()
    print(f"{len(result)} questions in {took:.1f} s: {dict(Counter(status for _, status, *_ in result))}")
    each = [1000 * seconds / len(result) for seconds in (*used, time.process_time())]
    print("CPU per question: server {:.1f} ms, workers {:.1f} ms, clients {:.1f} ms".format(*each))
    for path in sorted(set(KINDS)):
        times = sorted(seconds for item, _, seconds, _ in result if item == path)
        tail = times[int(0.95 * len(times))]
        print(f"{path:28} {len(times):5}  median {statistics.median(times):.2f} s  95 % {tail:.2f} s")
    print(
        f"told to come back: {sum(retries for *_, retries in result)} times; memory {before:.0f} → {after:.0f} MiB"
    )


if __name__ == "__main__":
    main()
