"""Files that Weights & Biases and TensorBoard write themselves, offline, and what is read of them while they grow."""

from __future__ import annotations

import struct

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.logs import metrics
from forescale.logs.metrics import records_of, tensorboard_poll, wandb_poll


def test_a_history_of_weights_and_biases(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True)
    run = wandb.init(project="job", dir=str(tmp_path), mode="offline", settings=settings)
    for step in range(1, 4):
        run.log({"iteration-time": 2.0 + step, "notes": "x" * 40_000}, step=10 * step)
    run.finish()
    wandb.teardown()
    poll = wandb_poll(tmp_path)
    records = [*records_of(poll())]
    assert [(item.step, item.seconds) for item in records] == [(10, 3.0), (20, 4.0), (30, 5.0)]
    assert [*poll()] == []


def test_a_damaged_record_of_weights_and_biases_is_left_out(tmp_path):
    pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    rows = [("_step", "1"), ("iteration-time", "2.5")], [("_step", "NaN")], [("_step", "3"), ("loss", "{")]
    good = [
        pb2.Record(history=pb2.HistoryRecord(item=[pb2.HistoryItem(key=k, value_json=v) for k, v in row]))
        for row in rows
    ]
    records = [b"\xff\xff\xffgarbage", *(item.SerializeToString() for item in good)]
    framed = b"".join(struct.pack("<IHB", 0, len(item), 1) + item for item in records)
    (tmp_path / "run-x.wandb").write_bytes(bytes(7) + framed)
    assert [(item.step, item.seconds) for item in records_of(wandb_poll(tmp_path)())] == [(1, 2.5)]


def scalars(writer, first, count, **values):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    for step in range(first, first + count):
        rows = [Summary.Value(tag=tag.replace("_", "-"), simple_value=value) for tag, value in values.items()]
        writer.add_event(Event(step=step, wall_time=100.0 + 9.0 * step, summary=Summary(value=rows)))
    writer.flush()


def test_scalars_of_tensorboard_while_they_are_written(tmp_path):
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    writer = writers.EventFileWriter(str(tmp_path))
    scalars(writer, 1, 3, loss=1.0)
    poll = tensorboard_poll(tmp_path)
    assert [(item.step, item.elapsed_s) for item in records_of(poll())] == [(1, 0.0), (2, 9.0), (3, 18.0)]
    assert [*poll()] == []
    scalars(writer, 4, 2, loss=1.0, iteration_time=8.5)
    records = [*records_of(poll())]
    assert [(item.step, item.seconds) for item in records if item.seconds] == [(4, 8.5), (5, 8.5)]
    writer.close()


def test_folders_without_files_of_them_and_packages_that_are_missing(tmp_path, monkeypatch):
    for poll in (tensorboard_poll, wandb_poll):
        with raises(ReaderError, "not_found"):
            poll(tmp_path)
    with raises(Exception, "extra_missing --wandb-dir"):
        metrics._package("no_such_package", "--wandb-dir", "wandb")


def test_records_that_are_not_complete_wait():
    content = bytes(7) + b"\0\0\0\0\x03\0\x01abc" + b"\0\0\0\0\x02\0\x02de" + b"\0\0\0\0\x01\0\x04f"
    for end in (len(content) - 1, len(content)):
        records = [*metrics._records(content[7:end], 7)]
        assert records == [(b"abc", 17), (b"def", 34)][: 1 if end < len(content) else 2]
