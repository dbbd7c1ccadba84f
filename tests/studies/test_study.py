"""Pages are filled in from templates, and nothing of either is left over."""

import pytest
import study
from charts import titled
from study import Output, Study


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "PAGES", tmp_path)

    def write(template, *, figures, claims=None):
        (tmp_path / "one.md").write_text(template, encoding="utf-8")
        output = Output(tables={"tables.md": "a\n"}, charts={}, figures=figures, claims=claims or {})
        return Study(name="one", output=lambda _: output).files(output)

    return write


def test_figures_are_set_as_in_prose(page):
    files = page(
        "{a:.1%} of {b[0]:,.0f}, {c:+.2f} {d} {e:.0%}",
        figures={"a": 0.131, "b": [1234.5], "c": -2, "d": "x-y%", "e": -1e-4},
    )
    assert files == {"one.md": "13.1 % of 1,234, −2.00 x-y% 0 %", "one/tables.md": "a\n"}


@pytest.mark.parametrize(
    ("template", "figures", "claims", "lost"),
    [
        ("{a} {b}", {"a": 1}, {}, "'b'"),
        ("{a[x]}", {"a": {}}, {}, "'x'"),
        ("{a}", {"a": 1, "b": 2}, {}, "b"),
        ("one is faster", {}, {"one is slower": True}, "one is slower"),
    ],
)
def test_what_template_and_study_do_not_share_is_named(page, template, figures, claims, lost):
    with pytest.raises(ValueError, match=r"one\.md") as raised:
        page(template, figures=figures, claims=claims)
    assert lost in str(raised.value)


def test_claims_are_quoted_across_lines(page):
    assert page("one is\n  faster", figures={}, claims={"one is faster": False})


def test_a_chart_is_described_by_its_title():
    chart = titled({"mark": "bar"}, "Days over devices")
    assert (chart["title"], chart["description"], chart["mark"]) == (
        ["Days over devices"],
        "Days over devices",
        "bar",
    )
