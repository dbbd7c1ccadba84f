"""Hostile files of measurements: valid ones, of every kind that is read, with one value or their text broken.

At length: `python -m tests.fuzz.hostile --count 400`; a failure names the seed that repeats it.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import math
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tests.fuzz import fuzz

from forescale.cli.app import run

EXAMPLE = json.loads((Path(__file__).parents[2] / "examples" / "bench.json").read_text(encoding="utf-8"))
ARTIFACT = {key: value for key, value in EXAMPLE.items() if key != "checksum"}
TARGET = (
    "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "64", "--seq-len", "4096", "--global-batch-size", "256",
    "--tp", "2", "--pp", "2",
)  # fmt: skip
SHAPES = {
    "Input Dims": [[1, 16, 4096, 128], [1, 4, 4096, 128], [1, 4, 4096, 128]],
    "Input type": ["c10::BFloat16"] * 3,
}
TRACE = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
    "traceEvents": [
        {"cat": "cpu_op", "name": "aten::mm", "dur": 50.0, "args": {"External id": 1, "Input Dims": [[4096, 4096], [4096, 7168]], "Input type": ["c10::BFloat16"] * 2}},
        {"cat": "kernel", "name": "k", "dur": 900.0, "args": {"External id": 1}},
        {"cat": "cpu_op", "name": "aten::_scaled_dot_product_flash_attention", "dur": 5.0, "args": {"External id": 2, **SHAPES}},
        {"cat": "kernel", "name": "k", "dur": 700.0, "args": {"External id": 2}},
        {"cat": "kernel", "name": "k", "dur": 500.0, "args": {"External id": 3, "Collective name": "allreduce", "In msg nelems": 1000, "Group size": 16, "dtype": "BFloat16"}},
        {"cat": "user_annotation", "name": "ProfilerStep#1", "dur": 2500000.0, "args": {}},
        {"cat": "user_annotation", "name": "Optimizer.step#AdamW.step", "dur": 12000.0, "args": {}},
        {"name": "[memory]", "args": {"Device Type": 1, "Total Allocated": 3 << 34, "Total Reserved": 4 << 34}},
    ],
}  # fmt: skip
SNAPSHOT = {
    "segments": [{"device": 0, "total_size": 30 << 30, "allocated_size": 20 << 30}],
    "device_traces": [[{"action": "alloc", "addr": 0, "size": 4 << 30}, {"action": "segment_alloc", "addr": 0, "size": 8 << 30}]],
}  # fmt: skip
PRIMUS = {
    "schema_version": 2,
    "metadata": {"benchmark_gpus": 8, "bench_training_config_summary": {"num_layers": 2, "sequence_length": 4096, "tensor_model_parallel_size": 2}},
    "profiling_results": {
        "0": {"type": "dense", "forward_time_ms": 9.0, "backward_time_ms": 19.0, "activation_memory_bytes": 1.5e9},
        "_tp_allreduce_benchmark": {"2": {"measured_ms": 0.3, "msg_size_bytes": 33554432}},
        "_optimizer_benchmark": {"step_time_ms": 20.0},
    },
    "memory_results": {"global_peak_allocated_bytes": 3e10, "global_peak_reserved_bytes": 3.5e10},
}  # fmt: skip
PROJECT, MEMORY = ("project", *TARGET), ("memory", *TARGET)
KINDS: tuple[tuple[str, Any, tuple[tuple[str, ...], ...]], ...] = (
    ("bench.json", ARTIFACT, ((*PROJECT, "--load-benchmark", "F", "--json"), (*MEMORY, "--load-benchmark", "F"), (*PROJECT, "--load-benchmark", "F", "--mode", "both"))),
    ("bench.json", ARTIFACT, ((*PROJECT, "--measurements", "F", "--json"), (*PROJECT, "--measurements", "F"))),
    ("trace.json", TRACE, ((*PROJECT, "--load-benchmark", "F", "--json"), (*PROJECT, "--measurements", "F", "--json"))),
    ("snapshot.pickle", SNAPSHOT, ((*PROJECT, "--load-benchmark", "F", "--json"), (*MEMORY, "--load-benchmark", "F"))),
    ("primus.json", PRIMUS, ((*PROJECT, "--load-benchmark", "F", "--json"), (*MEMORY, "--load-benchmark", "F"))),
    ("own.json", json.loads(fuzz.FITS), ((*PROJECT, "--calibration", "F", "--json"), (*PROJECT, "--calibration", "F"))),
    ("kernels.csv", fuzz.KERNELS, ((*PROJECT, "--measurements", "F", "--json"), ("calibrate", "--kernels", "F", "--device", "h100-sxm", "--output", "O", "--json"))),
    ("log.txt", fuzz.LOG, (("calibrate", "--collectives", "F", "--cluster", "mi300x", "--output", "O", "--json"), ("project", "llama-3.1-8b", "--cluster", "mi300x", *TARGET[3:], "--measurements", "F", "--json"))),
    ("runs.csv", fuzz.RUNS, (("validate", "F", "--json"), ("validate", "F"), ("calibrate", "F", "--output", "O", "--json"))),
)  # fmt: skip
"""Name, content and commands of each kind of file."""
VALUES: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, 0, -1, -1e-3, 1e-300, 5e-324, 1e-12, 1e12, 1e23, 1e300, 2**62, 2**70, 10**40, True, None,
    "", "nan", "8", "x" * 200, [], {}, [[]], [1, 2], {"a": 1}, "٣", 1.5, [None], {"": None},
)  # fmt: skip
CELLS = ("nan", "inf", "-1", "0", "1e-300", "5e-324", "1e300", "1e23", "1e400", "", '"', "1,5", "٣", "x", "1_0", "--", "=1", "9" * 400, "0x10", "1e-12")  # fmt: skip
ENDLESS = re.compile(r"(?<![\w./-])(?:nan|-?inf|NaN|-?Infinity)(?![\w./-])")


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where every value within one is."""
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from paths(item, (*at, key))


def changed(content: Any, chance: random.Random) -> Any:
    """Return plain values with one of them replaced, scaled, left out, doubled or put deep inside others."""
    content = copy.deepcopy(content)
    *way, last = chance.choice([path for path in paths(content) if path])
    place = content
    for key in way:
        place = place[key]
    match chance.randrange(8):
        case 0:
            del place[last]
        case 1 if isinstance(place, list):
            place.append(copy.deepcopy(place[last]))
        case 2 if isinstance(place[last], int | float) and not isinstance(place[last], bool):
            place[last] *= chance.choice((-1, 1e-30, 1e-9, 1e-4, 1e4, 1e9, 1e30))
        case 3:
            for _ in range(chance.choice((3, 70, 400))):
                place[last] = [place[last]]
        case _:
            place[last] = chance.choice(VALUES)
    return content


def broken_text(text: str, chance: random.Random) -> bytes:
    """Return a text with a number replaced, cut off, with a line twice, or in another encoding."""
    numbers = list(re.finditer(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])", text))
    match chance.randrange(8):
        case 0:
            return text[: chance.randrange(len(text))].encode()
        case 1:
            return chance.choice(
                (
                    text.encode("utf-16"),
                    text.encode() + b"\xff\xfe",
                    b"\0" + text.encode(),
                    text.encode("utf-8-sig"),
                )
            )
        case 2:
            lines = text.splitlines()
            return "\n".join([*lines, chance.choice(lines)]).encode()
        case 3:
            key = chance.choice(re.findall(r'"\w+": ?', text) or [","])
            return text.replace(key, f"{key}1, {key}", 1).encode()
        case _:
            where = chance.choice(numbers)
            return f"{text[: where.start()]}{chance.choice(CELLS)}{text[where.end() :]}".encode()


def hostile(seed: int) -> tuple[tuple[str, ...], str, bytes]:
    """Return the command, the name and the content of a seed's file."""
    chance = random.Random(seed)
    name, content, commands = KINDS[seed % len(KINDS)]
    command = commands[seed // len(KINDS) % len(commands)]
    if isinstance(content, str):
        return command, name, broken_text(content, chance)
    if name.endswith(".pickle"):
        data = pickle.dumps(changed(content, chance))
        return command, name, data if chance.random() < 0.85 else data[: chance.randrange(len(data))]
    if chance.random() < 0.25:
        return command, name, broken_text(json.dumps(content), chance)
    return command, name, json.dumps(changed(content, chance)).encode()


def problems(seed: int, folder: Path) -> list[str]:
    """Return what is wrong with how the command of a seed ends."""
    command, name, content = hostile(seed)
    (folder / name).write_bytes(content)
    value = [{"F": str(folder / name), "O": str(folder / "out.json")}.get(word, word) for word in command]
    out, err = io.StringIO(), io.StringIO()
    try:
        with chdir(folder), redirect_stdout(out), redirect_stderr(err):
            code = run(value)
    except TimeoutError:
        return ["took too long"]
    except BaseException:  # whatever it is, it is what is looked for
        return [traceback.format_exc(limit=-4)]
    answer, getvalue = out.getvalue(), err.getvalue()
    if code == 2:
        return (
            []
            if getvalue.startswith("error: ") and len(getvalue.splitlines()) == 1
            else [f"no sentence: {getvalue[:300]!r}"]
        )
    if code:
        return [f"exit code {code}: {getvalue[:200]}"]
    result = list(impossible(json.loads(answer), "")) if "--json" in command else []
    return result + [f"an answer with {item[0]}" for item in ENDLESS.finditer(answer)][:1]


LIMITS = {"mfu": 1.0, "hfu": 1.0, "step_time_s": 1e12, "peak_bytes": 1e17, "peak_high_bytes": 1e17}
"""Of figures by their key, the most that they can be; none is below 0."""


def impossible(value: Any, place: str) -> Iterator[str]:
    """Yield the figures of an answer that no device can have."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in LIMITS and isinstance(item, int | float) and not 0.0 <= item <= LIMITS[key]:
                yield f"{place}.{key} = {item}"
            yield from impossible(item, f"{place}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from impossible(item, place)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place} = {value}"


def main() -> int:
    """Ask about many hostile files, each within some seconds; print what goes wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=20)
    args = parser.parse_args()

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    wrong = 0
    for seed in range(args.first, args.first + args.count):
        folder = Path(tempfile.mkdtemp())
        signal.alarm(args.seconds)
        result = problems(seed, folder)
        signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)
        if result:
            wrong += 1
            sys.stdout.write(f"seed {seed}: {' '.join(hostile(seed)[0])}\n{result[0][-1200:]}\n\n")
            sys.stdout.flush()
    sys.stdout.write(f"{args.count} hostile files, {wrong} that ended wrongly\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
