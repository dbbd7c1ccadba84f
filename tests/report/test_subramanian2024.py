from __future__ import annotations

import pytest

from forescale.report.subramanian2024 import definitions, paper_figure


def stated(name):
    return {(item.row, item.quantity): (item.paper, item.here) for item in paper_figure(name).statements}


def test_figure_1_has_the_configuration_of_the_paper():
    values = stated("fig1")
    best = "fastest that fits"
    assert values[best, "tp1"] == (8, 8)
    assert values[best, "dp"] == (32, 32)
    assert values[best, "num_microbatches"] == (128, 128)
    assert values[best, "memory_GB"] == (40, pytest.approx(65.7, abs=0.05))


@pytest.mark.parametrize("name", ["fig4a", "tableA3", "validation"])
def test_what_the_paper_states_holds(name):
    result = paper_figure(name)
    assert result.statements
    for item in result.statements:
        assert item.difference == pytest.approx(0.0, abs=2e-3)


def test_a_figure_has_a_row_per_configuration_that_fits():
    rows = paper_figure("fig4b").rows()
    assert [row["devices"] for row in rows] == [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    shares = [name for name in rows[0] if name.startswith("share_")]
    assert all(sum(row[name] for name in shares) == pytest.approx(1.0) for row in rows)


@pytest.mark.parametrize(("name", "rows"), [("table1", 26), ("table2", 26), ("tableA2", 26), ("tableA1", 13)])
def test_tables(name, rows):
    assert len(paper_figure(name).rows()) == rows


def test_every_definition_names_models_and_clusters_that_exist():
    for item in definitions().values():
        assert item["caption"]
