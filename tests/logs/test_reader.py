"""Lines as each framework prints them, and what they say."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.logs import LogReader, read_log, seconds_of

GIB = 2**30
LINES = {
    "megatron": (
        " [2026-01-02 03:04:05] iteration       12/     100 | consumed samples:         3072 | elapsed time per iteration (ms): "
        "5823.4/5901.2 | throughput per GPU (TFLOP/s/GPU): 431.7 | learning rate: 3.0E-05 | global batch size:   256 | "
        "lm loss: 7.12E+00 | loss scale: 1.0 | grad norm: 1.234 |",
        {"step": 12, "seconds": 5.8234, "tflops": 431.7, "global_batch_size": 256, "loss": 7.12},
    ),
    "megatron memory": (
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 10240.5 | max allocated: 30720.0 | reserved: 40960.0 | "
        "max reserved: 40960.0",
        {"peak_bytes": 40960.0 * 2**20},
    ),
    "bridge": (
        "Step Time : 12.34s GPU utilization: 512.3MODEL_TFLOP/s/GPU",
        {"seconds": 12.34, "tflops": 512.3},
    ),
    "megatron-deepspeed": (
        " iteration   199/  3178 | consumed samples: 1528 | elapsed time per iteration (ms): 14287.5 | learning rate: 2.4E-04 | "
        "global batch size:   768 | lm loss: 5.9E+00 | samples per second: 53.753 | TFLOPs: 69.85 |",
        {"step": 199, "seconds": 14.2875, "global_batch_size": 768, "loss": 5.9, "tflops": 69.85},
    ),
    "gpt-neox": (
        " samples/sec: 3.125 | iteration       20/    1000 | elapsed time per iteration (ms): 5120.0 | approx flops per GPU: "
        "43.5TFLOPS | lm_loss: 9.5E+00 |",
        {"step": 20, "seconds": 5.12, "tflops": 43.5},
    ),
    "nemo": (
        "Training epoch 0, iteration 5/99 | lr: 1e-05 | global_batch_size: 512 | global_step: 5 | reduced_train_loss: 10.5 "
        "| train_step_timing in s: 6.123 | consumed_samples: 3072",
        {"step": 5, "seconds": 6.123, "global_batch_size": 512, "loss": 10.5},
    ),
    "torchtitan": (
        "[rank0]:\x1b[32m[titan] 2026-01-02 03:04:05,678 - root - INFO - step: 10  \x1b[31mloss:  7.1234  grad_norm:  1.2  "
        "\x1b[34mmemory: 45.50GiB(57.45%)  tps: 5,678  tflops: 345.67  mfu: 34.95%",
        {
            "step": 10,
            "tokens_per_s_per_device": 5678.0,
            "tflops": 345.67,
            "mfu": 0.3495,
            "peak_bytes": 45.5 * GIB,
            "loss": 7.1234,
        },
    ),
    "nanotron": (
        "01/02/2026 03:04:05 [INFO|DP=0|PP=0|TP=0|h100-1]: iteration: 5 / 100 | consumed_tokens: 5.24M | "
        "elapsed_time_per_iteration_ms: 1.23K | tokens_per_sec: 852K | tokens_per_sec_per_gpu: 53.3K | "
        "global_batch_size: 1.02K | lm_loss: 11.1 | lr: 3e-05 | model_tflops_per_gpu: 345 | hardware_tflops_per_gpu: 345",
        {
            "step": 5,
            "seconds": 1.23,
            "tokens_per_s": 852e3,
            "tokens_per_s_per_device": 53.3e3,
            "tflops": 345.0,
            "global_batch_size": 1020,
            "loss": 11.1,
        },
    ),
    "nanotron of 2025, its batch in tokens": (
        "12/21 01:39:51 [INFO|DP=0|TP=0|n1]: iteration: 2113 / 15000 | consumed_tokens: 480B | time_per_iteration_ms: 8.79K | "
        "tokens_per_sec: 182K | tokens_per_sec_per_gpu: 699 | global_batch_size: 1.6M | lm_loss: 2.04 | model_tflops_per_gpu: 15.4",
        {
            "step": 2113,
            "seconds": 8.79,
            "tokens_per_s": 182e3,
            "tokens_per_s_per_device": 699.0,
            "tflops": 15.4,
            "loss": 2.04,
        },
    ),
    "maxtext": (
        "completed step: 5, seconds: 3.456, TFLOP/s/device: 234.5, Tokens/s/device: 3456.7, total_weights: 65536, loss: 10.2",
        {"step": 5, "seconds": 3.456, "tflops": 234.5, "tokens_per_s_per_device": 3456.7, "loss": 10.2},
    ),
    "deepspeed": (
        "[2026-01-02 03:04:05,678] [INFO] [timer.py:260:stop] epoch=0/micro_step=80/global_step=10, RunningAvgSamplesPerSec="
        "12.5, CurrSamplesPerSec=12.8, MemAllocated=18.25GB, MaxMemAllocated=61.5GB",
        {"step": 10, "samples_per_s": 12.8, "peak_bytes": 61.5 * GIB},
    ),
    "deepspeed pipeline": (
        "steps: 10 loss: 2.3456 iter time (s): 1.250 samples/sec: 25.600",
        {"step": 10, "seconds": 1.25, "samples_per_s": 25.6, "loss": 2.3456},
    ),
    "trainer bar": (
        "  5%|▌         | 50/1000 [01:19<25:00,  1.58s/it]",
        {"step": 50, "total": 1000, "elapsed_s": 79.0},
    ),
    "trainer end of transformers 5": (
        "{'train_runtime': '3.7e+04', 'train_samples_per_second': '33.84', 'train_steps_per_second': '0.132', 'train_loss': '2.5'}",
        {"elapsed_s": 3.7e4, "samples_per_s": 33.84, "steps_per_s": 0.132, "loss": 2.5},
    ),
    "ms-swift": (
        "{'loss': 1.5, 'memory(GiB)': 5.25, 'train_speed(iter/s)': 0.25, 'global_step/max_steps': '340/9060', "
        "'elapsed_time': '22m 40s'}",
        {"step": 340, "steps_per_s": 0.25, "peak_bytes": 5.25 * GIB, "loss": 1.5},
    ),
    "ms-swift of Megatron": (
        "{'loss': '1.5', 'memory(GiB)': '76.5', 'train_speed(s/it)': '7.5', 'global_step/max_steps': '40/400'}",
        {"step": 40, "seconds": 7.5, "peak_bytes": 76.5 * GIB, "loss": 1.5},
    ),
    "llama-factory's file": (
        '{"current_steps": 10, "total_steps": 90, "loss": 1.25, "lr": 1e-05, "elapsed_time": "0:01:15", "remaining_time": "0:10:00"}',
        {"step": 10, "elapsed_s": 75.0},
    ),
    "trainer end": (
        "{'train_runtime': 123.45, 'train_samples_per_second': 12.3, 'train_steps_per_second': 0.512, 'train_loss': 1.5, "
        "'epoch': 1.0}",
        {"steps_per_s": 0.512, "samples_per_s": 12.3, "loss": 1.5, "elapsed_s": 123.45},
    ),
    "deepspeed before 0.7": (
        "[2026-01-02 03:04:05,678] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=12.5, MemAllocated=1.0GB, MaxMemAllocated=9.0GB",
        {"step": 40, "samples_per_s": 12.5, "peak_bytes": 9.0 * GIB},
    ),
    "nemo memory": (
        "Training epoch 0, iteration 5/9 | max_memory_reserved: 2000 | max_memory_allocated: 1000 | train_step_timing in s: 6.5 | "
        "TFLOPS_per_GPU: 1.25e+03",
        {"step": 5, "seconds": 6.5, "peak_bytes": 2000.0, "tflops": 1250.0},
    ),
    "maxtext of 2023": (
        "completed step: 7, seconds: 2.125, TFLOP/s: 36.5, loss: 2.5",
        {"step": 7, "seconds": 2.125, "tflops": 36.5, "loss": 2.5},
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_each_format(name):
    line, values = LINES[name]
    assert LogReader().feed(line).values() == pytest.approx(values)


def test_every_format_has_a_line():
    from forescale.logs import FORMATS

    formats = set()
    for line, _ in LINES.values():
        reader = LogReader()
        reader.feed(line)
        formats.add(reader.format.name)
    assert formats == {one.name for one in FORMATS}


def megatron(step: int, milliseconds: float) -> str:
    return f" iteration {step}/ 100 | elapsed time per iteration (ms): {milliseconds} | lm loss: 1.0E+00 |\n"


def test_a_typical_step_leaves_out_warm_up(tmp_path: Path):
    path = tmp_path / "train.log"
    path.write_text(
        "setting up\n"
        + "".join(megatron(n, 9000 if n < 3 else 1000 + n) for n in range(1, 12))
        + "garbage\x00\n"
    )
    log = read_log(path)
    assert log.format == "megatron"
    assert log.step_seconds(partial(seconds_of, tokens=1, devices=1, sequences=1)) == 1.0075
    assert (log.restarts, log.out_of_memory) == (0, False)


def test_restarts_and_the_end_of_memory(tmp_path: Path):
    path = tmp_path / "train.log.gz"
    text = (
        "".join(megatron(n, 1000) for n in (1, 2, 3, 2, 3, 4))
        + "torch.OutOfMemoryError: CUDA out of memory\n"
    )
    with gzip.open(path, "wt") as file:
        file.write(text)
    log = read_log(path)
    assert (log.restarts, log.out_of_memory, len(log.records)) == (1, True, 6)


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (
            "step: {n}  loss: 7.1  memory: 45.50GiB(57.45%)  tps: 5,000  tflops: 345.67  mfu: 34.95%\n",
            8192 * 8 / 8 / 5000,
        ),
        (
            "global_step={n}, RunningAvgSamplesPerSec=12.5, CurrSamplesPerSec=16.0, MaxMemAllocated=61.5GB\n",
            64 / 16,
        ),
        ("  5%|▌  | {n}/1000 [00:{n2:02d}<25:00,  1.58s/it]\r", 2.0),
    ],
)
def test_steps_from_rates(tmp_path: Path, line, seconds):
    path = tmp_path / "train.log"
    path.write_text("".join(line.format(n=n, n2=2 * n) for n in range(1, 21)))
    assert read_log(path).step_seconds(
        partial(seconds_of, tokens=8192 * 8, devices=8, sequences=64)
    ) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (  # the engine's rates come first, the trainer's step times replace them
            "[timer.py:260:stop] epoch=0/micro_step=2/global_step=2, CurrSamplesPerSec=64.0, MemAllocated=1GB\n"
            + " iteration 2/ 100 | elapsed time per iteration (ms): 1250.0 | lm loss: 1.0E+00 |\n",
            1.25,
        ),
        ("100%|██| 200/200 [03:45<00:00,  1.13s/it]\n{'train_runtime': 225.8, 'train_steps_per_second': 0.886}\n", 1.129),
        ("Epoch 0:   1%|  | 50/77225 [1:40<878:01:48, 2.0s/it, loss=3.1]\n", 2.0),
    ],
)  # fmt: skip
def test_steps_of_short_logs(tmp_path: Path, text, seconds):
    path = tmp_path / "train.log"
    path.write_text(text)
    assert read_log(path).step_seconds(
        partial(seconds_of, tokens=1, devices=1, sequences=64)
    ) == pytest.approx(seconds)


def test_other_progress_bars_are_no_steps(tmp_path: Path):
    path = tmp_path / "train.log"
    training = [f" {n}%|█▌  | {n}/100 [00:{3 * n:02d}<05:00,  3.00s/it]\r" for n in range(1, 11)]
    path.write_text(
        "Loading checkpoint shards: 100%|███| 4/4 [00:03<00:00,  1.30it/s]\n"
        "Map (num_proc=8): 100%|███| 52002/52002 [00:09<00:00, 5778.00 examples/s]\n"
        + "".join(training[:6])
        + "".join(f" {n}0%|██  | {n}/10 [00:{n:02d}<00:09,  1.0it/s]\r" for n in range(1, 11))
        + "".join(f"[rank0]: {line}" for line in training[6:])
        + "Epoch 1:  11%|█▌  | 11/100 [00:33<05:00,  3.00s/it]\n"
    )
    log = read_log(path)
    assert [record.step for record in log.records] == [*range(1, 12)]
    assert log.restarts == 0
    assert log.step_seconds(lambda _: None) == pytest.approx(3.0)


def test_an_evaluation_before_training_is_no_step_once_training_takes_longer(tmp_path: Path):
    path = tmp_path / "train.log"
    path.write_text(
        "".join(f" {n}0%|██  | {n}/10 [00:{n:02d}<00:09,  1.0it/s]\r" for n in range(1, 11))
        + "".join(f" {n}%|█▌  | {n}/100 [00:{5 * n:02d}<05:00,  5.00s/it]\r" for n in range(1, 12))
    )
    assert read_log(path).step_seconds(lambda _: None) == pytest.approx(5.0)


def test_a_bar_that_began_anew_counts_from_there(tmp_path: Path):
    path = tmp_path / "train.log"
    first = [f" {n}%|█▌  | {n}/100 [00:{2 * n:02d}<05:00]\r" for n in range(1, 5)]
    again = [f" {n}%|█▌  | {n}/100 [00:{4 * (n - 2):02d}<05:00]\r" for n in range(3, 13)]
    path.write_text("".join(first + again))
    log = read_log(path)
    assert log.step_seconds(lambda _: None) == pytest.approx(4.0)
    assert log.restarts == 1


@pytest.mark.parametrize("prefix", ["[rank{}]:[titan] x ", "[default{}]: ", "{}: ", "[1,{}]<stdout>: "])
def test_steps_of_one_process_count(tmp_path: Path, prefix):
    path = tmp_path / "train.log"
    titan = "step: {}  loss: 7.1  memory: {}.00GiB(57.45%)  tps: 5,000\n"
    order = [(0, 1), (1, 1), (0, 2), (1, 2), (1, 3), (0, 3), (0, 2), (1, 2), (0, 3), (1, 3)]
    path.write_text("".join(prefix.format(rank) + titan.format(step, 40 + rank) for rank, step in order))
    log = read_log(path)
    assert [record.step for record in log.records if record.step] == [1, 2, 3, 2, 3]
    assert (log.restarts, log.peak_bytes) == (1, 41 * GIB)


def test_a_file_that_is_no_log(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("nothing\n")
    with raises(ReaderError, "no_records"):
        read_log(path)
