"""Write the golden files anew: `python -m tests.golden.update`."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from tests.golden.documents import DOCUMENTS, GOLDEN, commands, frozen, layout_shapes
from tests.golden.scoreboard import pins, sample

from forescale.cli.app import run


def _write(name: str, content: Any) -> None:
    (GOLDEN / name).write_text(
        json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def main() -> None:
    _write("commands.json", commands())
    _write("layout.json", layout_shapes())
    _write("scoreboard.json", pins(sample()))
    for name, arguments in DOCUMENTS.items():
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            assert run(list(arguments)) == 0
        _write(f"{name}.json", frozen(json.loads(output.getvalue())))


if __name__ == "__main__":
    main()
