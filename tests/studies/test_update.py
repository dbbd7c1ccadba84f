"""The command of the studies writes what differs, and says what does not hold."""

import sys

import pytest
import study
import update
from study import Output, Study


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    for name in ("pages", "layouts", "docs"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(study, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(update, "FOLDER", tmp_path / "layouts")
    monkeypatch.setattr(update, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(update, "known_layouts", lambda _: {})
    (tmp_path / "pages" / "one.md").write_text("{n} is odd\n", encoding="utf-8")

    def output(n):
        return Output(
            tables={"tables.md": f"{n}\n"},
            charts={"bars": {"mark": "bar", "data": {"values": [{"x": n / 3.0}]}}},
            figures={"n": n},
            claims={"is odd": n % 2 == 1},
        )

    def call(n, *words):
        monkeypatch.setattr(update, "STUDIES", {"one": Study(name="one", output=lambda _: output(n))})
        monkeypatch.setattr(sys, "argv", ["update.py", *words])
        code = update.main()
        return code, capsys.readouterr().out.splitlines()

    return call


def test_a_study_is_written_once(run, tmp_path):
    code, lines = run(1)
    assert (code, len(lines)) == (0, 4)
    assert (tmp_path / "docs" / "one.md").read_text() == "1 is odd\n"
    assert (tmp_path / "layouts" / "one.json").exists()
    assert run(1) == (0, [])
    assert run(1, "--check") == (0, [])


def test_a_check_writes_nothing_and_fails(run, tmp_path):
    run(1, "one")
    code, lines = run(3, "--check", "--known-layouts")
    assert (code, len(lines)) == (1, 3)
    assert (tmp_path / "docs" / "one.md").read_text() == "1 is odd\n"


def test_a_claim_that_does_not_hold_is_named_and_all_else_written(run, tmp_path):
    code, lines = run(2)
    assert code == 1
    assert "is odd" in lines[-1]
    assert (tmp_path / "docs" / "one" / "tables.md").read_text() == "2\n"


def test_pictures_may_differ_by_rounding(run, tmp_path):
    run(1)
    path = tmp_path / "docs" / "one" / "bars.json"
    path.write_text(path.read_text().replace("0.3333333333333333", "0.33333333333333337"))
    assert update.differing({path: path.read_text().replace("37", "3")}) == []
    assert update.differing({path: path.read_text().replace("0.333", "0.334")}) == [path]
