from __future__ import annotations

import pytest

from forescale.cli.app import run
from forescale.cli.explain import complete_quantities
from forescale.cli.options import (
    complete_clusters,
    complete_frameworks,
    complete_models,
    complete_presets,
    complete_schedules,
)


def test_names_of_the_catalogue_complete():
    assert "llama-3.1-70b" in complete_models("llama-3.1")
    assert "h100-sxm" in complete_clusters("h1")
    assert complete_presets("def") == ["default"]
    assert complete_schedules("zb-h") == ["zb-h1", "zb-h2"]
    assert complete_frameworks("torchti") == ["torchtitan"]
    assert complete_quantities("step_time.d") == ["step_time.data_comm"]
    assert complete_models("no such model") == []


def test_the_shell_asks_and_gets_them(monkeypatch, capsys):
    monkeypatch.setenv("_FORESCALE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "forescale project --cluster h100-s")
    monkeypatch.setenv("COMP_CWORD", "3")
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == ["h100-sxm", "h100-sxm-96gb-500w"]
