"""The Python of Jupyter notebooks."""

from __future__ import annotations

import ast
import json
import re
from typing import Final

_MAGIC: Final = re.compile(r"^([ \t]*)[!%](?:[^\n]*\\\n)*[^\n]*$", re.MULTILINE)
"""A command of the shell or of IPython, with its further lines."""


def code_of_notebook(text: str) -> str:
    """Return the Python of a Jupyter notebook; the text itself if it is none.

    Commands of the shell and of IPython (`!pip …`, `%cd …`) do nothing, and cells that are no Python are left out.
    """
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text
    lines = (_MAGIC.sub(r"\1pass", source) for source in sources if not source.lstrip().startswith("%%"))
    return "\n".join(source for source in lines if _is_python(source))


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
