"""Files appear whole or not at all, whatever goes wrong."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from tests.errors import raises

from forescale.atomic_write import replacing, writable, write_text
from forescale.errors import ForescaleError
from forescale.sweep.store import made


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def full_disk(monkeypatch):
    """Let what is written fit no disk: known when it must reach it."""
    monkeypatch.setattr("forescale.atomic_write.os.fsync", full)


def test_a_file_is_written_and_nothing_beside(tmp_path):
    write_text(tmp_path / "a.txt", "one\r\ntwo\n\udcff")
    assert (tmp_path / "a.txt").read_bytes() == b"one\r\ntwo\n\\udcff"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_what_was_there(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("before", encoding="utf-8")
    with pytest.raises(ForescaleError, match=r"cannot write .*a\.txt: No space left on device"):
        write_text(file, "after")
    assert file.read_text(encoding="utf-8") == "before"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, RuntimeError])
def test_an_interrupt_leaves_what_was_there(tmp_path, error):
    def cut_short():
        with replacing(tmp_path / "a.txt") as place:
            place.write_text("half", encoding="utf-8")
            raise error

    with pytest.raises(error):
        cut_short()
    assert names(tmp_path) == []


@pytest.mark.parametrize("ask", [writable, lambda path: write_text(path, "x")], ids=["before", "then"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere/a.txt", "No such file or directory"),
        ("file/a.txt", "Not a directory"),
        ("folder", "Is a directory"),
        ("circle", "Symlink loop|Too many levels"),
        ("guarded", "Permission denied"),
        ("closed/a.txt", "Permission denied"),
    ],
)
def test_a_place_that_takes_no_file_is_a_sentence(tmp_path, monkeypatch, ask, name, why):
    for folder in ("folder", "closed"):
        (tmp_path / folder).mkdir()
    for file in ("file", "guarded"):
        (tmp_path / file).write_text("mine", encoding="utf-8")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    monkeypatch.setattr(os, "access", lambda path, _mode: path.name not in {"guarded", "closed"})
    before = names(tmp_path)
    with pytest.raises(ForescaleError, match=f"cannot write .*{name}: .*({why})"):
        ask(tmp_path / name)
    assert names(tmp_path) == before
    assert (tmp_path / "guarded").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("ask", [writable, lambda path: write_text(path, "mine"), made])
def test_what_is_meant_for_standard_output_goes_into_no_file(tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    with raises(ForescaleError, "cannot_write -"):
        ask(Path("-"))
    assert names(tmp_path) == []


def test_links_rights_and_devices_stay_what_they_are(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before", encoding="utf-8")
    target.chmod(0o640)
    link.symlink_to(target)
    write_text(link, "after")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    write_text(writable(Path(os.devnull)), "lost")
    assert not Path(os.devnull).is_file()
