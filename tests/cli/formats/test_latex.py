"""LaTeX in which no name is a command."""

from __future__ import annotations

from forescale.cli.formats import Answer, write
from forescale.cli.formats.latex import latex
from forescale.report.document import View, table


def test_a_table_has_rules_and_alignment():
    shown = View(contents=(table("<a_b", "n", rows=[("x & y", "7 %")]),))
    assert write(Answer(view=lambda: shown, document=dict), "latex") == (
        "\\begin{tabular}{lr}\n\\toprule\na\\_b & n \\\\\n\\midrule\nx \\& y & 7 \\% \\\\\n\\bottomrule\n\\end{tabular}\n"
    )


def test_marks_are_text():
    assert latex(r"\write18{rm}$~^") == (
        r"\textbackslash{}write18\{rm\}\$\textasciitilde{}\textasciicircum{}"
    )
