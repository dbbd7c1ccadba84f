from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.errors import raises
from tests.sweep.killed import MANY, goes_on_after_a_kill, kept_in
from tests.sweep.questions import grid

from forescale.errors import ForescaleError
from forescale.sweep import Local, run, store

HERE = Local(jobs=1)


class Interrupted(Exception):
    """Stands for a process that ends."""


def stopped_after(question, folder, count, **how):
    def tell(known, _whole):
        if known >= count:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(question, executor=HERE, output=folder, progress=tell, **how)


def test_an_interrupt_ends_workers_and_says_how_to_go_on(tmp_path):
    file, folder = tmp_path / "sweep.toml", tmp_path / "out"
    file.write_text(MANY, encoding="utf-8")
    command = [sys.executable, "-m", "forescale", "sweep", str(file), "--jobs", "2", "--output", str(folder)]
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # what ignores it hands that down
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, usual)
    with process:
        while len(kept_in(folder)) < 2:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err == f"interrupted; the points known so far are in {folder}: the same command goes on\n"


def test_a_killed_sweep_goes_on_to_the_same_parquet(tmp_path):
    """The process is killed with SIGKILL in the middle of its work; nothing is lost or asked again."""
    goes_on_after_a_kill(tmp_path, Local(jobs=2))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_interrupted_sweep_asks_only_what_is_left(tmp_path, monkeypatch, kind):
    question = grid(devices=[8, 16, 32, 64], flops=["x1", "x2"])
    stopped_after(question, tmp_path, 3, table_format=kind)
    from forescale.sweep import executors

    seen = []
    answer = executors.answer
    monkeypatch.setattr(executors, "answer", lambda one, names: seen.append(one.index) or answer(one, names))
    result = run(question, executor=HERE, output=tmp_path, table_format=kind)
    assert seen == [3, 4, 5, 6, 7]
    assert result.num_resumed == 3
    monkeypatch.undo()
    other = run(question, executor=HERE, output=tmp_path / "other", table_format=kind)
    assert result.points == other.points
    assert result.table.read_bytes() == other.table.read_bytes()


def test_a_line_that_was_cut_short_is_asked_again(tmp_path):
    question = grid(devices=[8, 16, 32])
    whole = run(question, executor=HERE, output=tmp_path)
    lines = tmp_path / "points.jsonl"
    content = lines.read_bytes()
    lines.write_bytes(content[:-40])
    result = run(question, executor=HERE, output=tmp_path)
    assert result.num_resumed == 2
    assert result.points == whole.points
    assert lines.read_bytes() == content


def test_another_sweep_is_refused_and_said_why(tmp_path):
    run(grid(devices=[8, 16]), executor=HERE, output=tmp_path)
    with raises(ForescaleError, "file_exists"):
        run(grid(devices=[8, 32]), executor=HERE, output=tmp_path)
    other = run(grid(devices=[8, 16]), executor=HERE, output=tmp_path, table_format="csv")
    assert (other.num_resumed, other.table.name) == (2, "results.csv")
    again = run(grid(devices=[8, 32]), executor=HERE, output=tmp_path, restart=True)
    assert again.num_resumed == 0
    assert [row["num_devices"] for row in again.points] == [8, 32]


def test_another_version_is_refused(tmp_path, monkeypatch):
    question = grid(devices=[8, 16])
    run(question, executor=HERE, output=tmp_path)
    monkeypatch.setattr(sys.modules["forescale.sweep.definition"], "__version__", "999.0")
    with raises(ForescaleError, "file_exists"):
        run(question, executor=HERE, output=tmp_path)


def test_without_pyarrow_parquet_names_the_extra_and_csv_works(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    question = grid(devices=[8, 16])
    with raises(ForescaleError, "extra_missing Parquet files"):
        run(question, executor=HERE, output=tmp_path / "a")
    result = run(question, executor=HERE, output=tmp_path / "b", table_format="csv")
    text = result.table.read_text(encoding="utf-8").splitlines()
    assert text[0].startswith("index,vary.devices,status,problem,model")
    assert len(text) == 3


def test_parquet_keeps_kinds_and_order(tmp_path):
    import pyarrow.parquet as pq

    result = run(grid(devices=[8, 16], hbm_capacity=["8 GiB", "80 GiB"]), executor=HERE, output=tmp_path)
    table = pq.read_table(tmp_path / "results.parquet")
    assert table.column_names == [column.name for column in result.columns]
    assert str(table.schema.field("index").type) == "int64"
    assert str(table.schema.field("step_time_s").type) == "double"
    assert str(table.schema.field("sp").type) == "bool"
    assert table.to_pylist() == list(result.points)
    assert table.column("index").to_pylist() == [0, 1, 2, 3]


def test_a_file_in_place_of_the_folder_is_one_sentence(tmp_path):
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with raises(ForescaleError, "cannot_write"):
        run(grid(devices=[8]), executor=HERE, output=Path(tmp_path / "taken"))


def test_a_damaged_point_is_named_and_can_be_asked_again(tmp_path):
    question = grid(devices=[8, 16])
    whole = run(question, executor=HERE, output=tmp_path)
    lines = tmp_path / "points.jsonl"
    first, second = lines.read_text(encoding="utf-8").splitlines()
    for content in ("{", "3", "{}", second.replace("16", "17")):
        lines.write_text(f"{first}\n{content}\n", encoding="utf-8")
        with pytest.raises(
            ForescaleError, match=r"line 2 of .*points\.jsonl is damaged .*delete it"
        ) as caught:
            run(question, executor=HERE, output=tmp_path)
        assert "\n" not in str(caught.value)
    lines.write_text(f"{first}\n", encoding="utf-8")
    result = run(question, executor=HERE, output=tmp_path)
    assert result.num_resumed == 1
    assert result.points == whole.points


def test_a_damaged_definition_is_named(tmp_path):
    question = grid(devices=[8])
    run(question, executor=HERE, output=tmp_path)
    (tmp_path / "sweep.json").write_text("{", encoding="utf-8")
    with raises(ForescaleError, "corrupted"):
        run(question, executor=HERE, output=tmp_path)
    assert run(question, executor=HERE, output=tmp_path, restart=True).num_resumed == 0


@pytest.mark.parametrize("name", ["points.jsonl", "results.csv", "report.html", "plots/a.svg", "sweep.json"])
def test_a_strangers_file_stays(tmp_path, name):
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text('{"schema": "another/1"}', encoding="utf-8")
    for restart in (False, True):
        with raises(ForescaleError, "wrong_format"):
            run(grid(devices=[8]), executor=HERE, output=tmp_path, restart=restart)
    assert mine.read_text(encoding="utf-8") == '{"schema": "another/1"}'
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_a_restart_deletes_points_only(tmp_path):
    run(grid(devices=[8, 16]), executor=HERE, output=tmp_path)
    mine = tmp_path / "mine.txt"
    mine.write_text("mine", encoding="utf-8")
    assert run(grid(devices=[8]), executor=HERE, output=tmp_path, restart=True).num_resumed == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.txt", "points.jsonl", "results.parquet", "sweep.json",
    ]  # fmt: skip
    assert len(kept_in(tmp_path)) == 1


def test_two_sweeps_do_not_share_a_folder(tmp_path):
    pytest.importorskip("fcntl")
    question = grid(devices=[8, 16])

    def again(known, _whole):
        if known == 1:
            with raises(ForescaleError, f"cannot_write {tmp_path}"):
                run(question, executor=HERE, output=tmp_path, restart=True)

    assert len(run(question, executor=HERE, output=tmp_path, progress=again).points) == 2
    assert run(question, executor=HERE, output=tmp_path).num_resumed == 2


def test_a_file_is_no_folder(tmp_path):
    place = tmp_path / "out"
    place.write_text("mine", encoding="utf-8")
    with pytest.raises(ForescaleError, match="it is a file, not a folder"):
        run(grid(devices=[8]), executor=HERE, output=place)
    assert place.read_text(encoding="utf-8") == "mine"


def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path):
    question = run(grid(devices=[8, 16]), executor=HERE, output=tmp_path)
    rows = {row["index"]: row for row in question.points}
    points = tmp_path / "points.jsonl"
    whole, result = points.read_bytes(), 0
    for bit in np.random.default_rng(0).integers(8 * len(whole), size=150).tolist():
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        points.write_bytes(changed)
        try:
            assert store.Store(tmp_path, question.columns, "csv").done().items() <= rows.items()
        except ForescaleError as error:
            result += 1
            assert re.fullmatch(r".*points\.jsonl is damaged \(.+\); delete it .*", str(error))
    assert result > 50
