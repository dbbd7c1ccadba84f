"""`scripts/rows_to_plans FILE.csv OUT.csv`."""

from __future__ import annotations

import sys

from scripts.rows.plans import convert

from forescale.errors import ForescaleError


def main(arguments: list[str]) -> int:
    """Convert one table; return the exit status."""
    if len(arguments) != 2:
        print("usage: scripts/rows_to_plans FILE.csv OUT.csv", file=sys.stderr)  # noqa: T201
        return 2
    try:
        rows = convert(*arguments)
    except ForescaleError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print(f"{arguments[1]}: {rows} rows")  # noqa: T201
    return 0


sys.exit(main(sys.argv[1:]))
