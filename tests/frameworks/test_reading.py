"""Variables that a configuration leaves open: the caller's, and those of the environment."""

from __future__ import annotations

import pytest

from forescale.frameworks.reading import Variables


def test_variables_of_the_environment_need_not_be_read() -> None:
    variables = Variables({"TP": "2", "PP": "4"}, {"PRIMUS_EP": "8", "TP": "16", "HOME": "x"})
    assert (variables["TP"], variables["PRIMUS_EP"]) == ("2", "8")
    assert variables.unread == ("PP",)
    assert variables.from_environment == {"PRIMUS_EP": "8"}
    assert set(variables) == {"TP", "PP", "PRIMUS_EP", "HOME"}
    with pytest.raises(KeyError):
        variables["CP"]
