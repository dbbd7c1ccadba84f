"""What a study writes: tables, pictures, and a page whose figures come from them.

The page of a study is a template, studies/pages/NAME.md. Each computed figure is a placeholder in it, `{name}` or
`{name:format}` as in Python, so that the format is next to the sentence. Published figures are written as they are.
A statement without a figure, such as which of two is faster, is a claim: the study has its condition next to the words
of the page. A claim that does not hold any more is reported, and its sentence must be rewritten by hand.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charts import Chart
from winners import Winners

PAGES = Path(__file__).parent / "pages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a study writes."""

    tables: Mapping[str, str]
    """Markdown by name of file."""
    charts: Mapping[str, Chart]
    """Vega-Lite specifications by name of file, without its ending."""
    figures: Mapping[str, object]
    """Values of the placeholders of the page by name."""
    claims: Mapping[str, bool] = field(default_factory=dict)
    """Whether the statements of the page hold, by their words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One study: the name of its page, and what computes it."""

    name: str
    output: Callable[[Winners], Output]

    def files(self, output: Output) -> dict[str, str]:
        """Return the text of every file but the pictures, by path below docs/studies."""
        pages = {f"{self.name}/{name}": text for name, text in output.tables.items()}
        charts = {
            f"{self.name}/{name}.json": json.dumps(chart, indent=1, ensure_ascii=False) + "\n"
            for name, chart in output.charts.items()
        }
        return {f"{self.name}.md": self.page(output), **pages, **charts}

    def page(self, output: Output) -> str:
        """Return the page with all figures.

        Raises
        ------
        ValueError
            If the template and the figures, or the template and the claims, do not correspond.
        """
        path = PAGES / f"{self.name}.md"
        figures = Figures()
        try:
            page = figures.vformat(path.read_text(encoding="utf-8"), (), output.figures)
        except (KeyError, ValueError, IndexError) as error:
            raise ValueError(f"{path}: placeholder {error} cannot be filled in") from error
        if unused := sorted(set(output.figures) - figures.used):
            raise ValueError(f"{path}: no placeholder for {', '.join(unused)}; remove it from the study")
        plain = " ".join(page.split())
        if lost := [claim for claim in output.claims if claim not in plain]:
            raise ValueError(
                f"{path}: claims that the page does not make: {lost}; remove them from the study"
            )
        return page


class Figures(string.Formatter):
    """Fills in placeholders; percentages and negative numbers are set as in prose: 13 %, −2.5 %."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return a figure by its name."""
        self.used.add(str(key))
        return super().get_value(str(key), args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401
        """Return a figure as the page has it."""
        text = str(super().format_field(value, format_spec))
        if isinstance(value, str):
            return text
        zero = not any(digit in text for digit in "123456789")
        return text.replace("%", " %").replace("-", "" if zero else "−")


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table under a heading."""
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join([f"## {title}", "", *lines])


def bounds(values: Iterable[float]) -> tuple[float, float]:
    """Return the least and the greatest value, `{name[0]}` and `{name[1]}` in a template."""
    ordered = sorted(values)
    return ordered[0], ordered[-1]
