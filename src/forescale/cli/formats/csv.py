"""Rows as CSV: the plain values of a result, or else the cells of the first table that is shown."""

from __future__ import annotations

from forescale.cli.formats import Answer
from forescale.errors import empty
from forescale.escaping import csv_text
from forescale.report.document import Rows


def write(answer: Answer) -> str:
    """Return rows with a header.

    Raises
    ------
    SpecError
        If the answer has no rows.
    """
    rows = rows_of(answer)
    return csv_text(rows, list(rows[0]))


def rows_of(answer: Answer) -> Rows:
    """Return the rows of an answer."""
    rows = _of_table(answer) if answer.rows is None else answer.rows()
    if not rows:
        raise empty("the table of this answer", "print it as text or json")
    return rows


def _of_table(answer: Answer) -> Rows:
    shown = next((table for table in answer.view().tables if table.headings), None)
    return [] if shown is None else [dict(zip(shown.labels, row, strict=True)) for row in shown.texts]
