"""What tests ask of errors: their fields, not their wording, which `test_wording.py` pins in one table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from forescale.wording import CODES


def fields(error: BaseException) -> str:
    """Return the code and the key of an error, and its line if it has one: "out_of_range seq_len (line 3)".

    A file or a name that is not what it should be has no key; what it should be stands for it: "wrong_format a plan".
    """
    location = getattr(error, "location", None)
    line = f" (line {location.line})" if location and location.line else ""
    key, allowed = getattr(error, "key", ""), getattr(error, "allowed", None)
    subject = key or (allowed if isinstance(allowed, str) else "")
    return f"{getattr(error, 'code', '')} {subject}".strip() + line


@contextmanager
def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    wanted: str,
    **expected: object,
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect an error by its code, or code and key; by a pattern of its text where it has no code.

    Behind " | " stands a part of its value, or a pattern of it; `expected` are other fields: value, allowed, fix.
    """
    with pytest.raises(kind) as caught:
        yield caught
    wanted, _, value = wanted.partition(" | ")
    error, code = caught.value, wanted.partition(" ")[0]
    if code in CODES:
        allowed = (getattr(error, "code", ""), fields(error), fields(error).partition(" (line")[0])
        assert wanted in allowed, f"{fields(error)}: {error}"
    else:
        assert re.search(wanted, str(error)), str(error)
    if value:
        actual = str(getattr(error, "value", ""))
        assert value in actual or re.search(value, actual), f"{actual}: {error}"
    assert {name: getattr(error, name) for name in expected} == expected


def refusal(error: BaseException) -> str:
    """Return the code and the key of an error, then its text."""
    return f"{fields(error)}\n{error}"
