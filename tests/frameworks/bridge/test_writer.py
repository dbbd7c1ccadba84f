"""What is written for Megatron-Bridge is read back to the bit; recipes that cannot be are refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.export.laws import check_writer
from tests.plans import plans

from forescale.errors import ReaderError, UnknownKeyError
from forescale.frameworks.bridge.reader import BridgeReader
from forescale.frameworks.reading import Options

LOST = ("workload.precision.parameters",)
"""Parameters in fp8 need sharded states, in Megatron-LM too."""


def test_plans_read_back_to_the_bit() -> None:
    written = check_writer(plans("bridge", 60), unsaid=LOST)
    assert sum(not result.unsaid for result in written) >= 50


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("cfg.model.num_layer = 4", UnknownKeyError, "line 2, model; did you mean num_layers"),
        ("cfg.mdel.num_layers = 4", UnknownKeyError, "unknown key 'mdel'"),
        ("cfg.model.num_layers = depth()", ReaderError, "depth() is no plain value"),
        ("cfg.model.num_layers = = 4", ReaderError, "it is no Python"),
    ],
)
def test_refusals(tmp_path: Path, line: str, kind: type[Exception], said: str) -> None:
    path = tmp_path / "recipe.py"
    path.write_text(f"import megatron.bridge\n{line}\n")
    with pytest.raises(kind, match=r"recipe\.py") as refused:
        BridgeReader().read(path, Options())
    assert said in str(refused.value)
