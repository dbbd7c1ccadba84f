"""Files of searches that were stopped: what is damaged is found, and said with the file's name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.small import cluster, dense, workload

from forescale.errors import SpecError
from forescale.question import Question
from forescale.search import search
from forescale.search.checkpoint import Checkpoint
from forescale.search.incumbent import Goal
from forescale.search.relax import memory_limits
from forescale.search.solve import Solver
from forescale.search.tree import enumerate_cells
from forescale.spec.space import Space

WORK = workload(global_batch_size=16)
SPACE = Space(tp=(1, 2), cp=(1,), vpp=(1,), micro_batch_size=(1,))


def asked(file):
    return search(dense(4), cluster(8), WORK, space=SPACE, checkpoint=file)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    file = tmp_path_factory.mktemp("whole") / "search.npz"
    return asked(file), file.read_bytes()


def damaged(file):
    return (
        rf"{re.escape(str(file))} is no whole checkpoint of a search \(.+\); name another file or remove it"
    )


def test_an_empty_file_is_no_checkpoint(tmp_path):
    file = tmp_path / "search.npz"
    file.touch()
    with pytest.raises(SpecError, match=damaged(file)):
        asked(file)


def test_a_device_is_no_checkpoint():
    file = Path("/dev/null")
    with pytest.raises(SpecError, match=damaged(file)):
        asked(file)


@pytest.mark.parametrize("change", ["missing", "longer", "of another type", "none"])
def test_missing_and_wrong_arrays_are_found(tmp_path, whole, change):
    file = tmp_path / "search.npz"
    file.write_bytes(whole[1])
    with np.load(file) as saved:
        arrays = dict(saved)
    if change == "missing":
        del arrays["unplaced.cell"]
    elif change == "none":
        arrays = {}
    else:
        old = arrays["counts.evaluated"]
        arrays["counts.evaluated"] = np.append(old, 1) if change == "longer" else old.astype(float)
    np.savez(file, **arrays)
    with pytest.raises(SpecError, match=damaged(file)):
        asked(file)


def test_a_flipped_bit_is_found_or_changes_nothing(tmp_path, whole):
    _, content = whole
    question = Question(model=dense(4), cluster=cluster(8), workload=WORK, space=SPACE)
    cells = enumerate_cells(question.model, question.cluster, WORK, SPACE.whole(question.model))
    limits = memory_limits(question.memory_limit)
    goal = Goal(objective="step_time", top=10, memory_limit=limits[0], relaxed=limits, folds=True)
    run = Solver(question, cells, goal)
    file, result = tmp_path / "search.npz", 0
    kept = Checkpoint.from_question(file, question, goal)
    for bit in (None, *np.random.default_rng(0).integers(8 * len(content), size=300).tolist()):
        changed = bytearray(content)
        if bit is not None:
            changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            kept.restore(run)
        except SpecError as error:
            result += 1
            assert re.fullmatch(damaged(file), str(error))
            assert bit is not None
        assert run.done
    assert result > 100
