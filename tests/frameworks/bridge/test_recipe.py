"""Files of Megatron-Bridge with several recipes: one is read, and which is asked."""

import pytest

from forescale.errors import ReaderError, UnknownNameError
from forescale.frameworks.bridge.reader import BridgeReader
from forescale.frameworks.reading import Options, Variables

RECIPES = """from megatron.bridge.training.config import ConfigContainer

LENGTH = 4 * 1024


def _base():
    cfg = ConfigContainer()
    cfg.model.num_layers = 4
    cfg.model.hidden_size = 512
    cfg.model.num_attention_heads = 8
    cfg.model.vocab_size = 1024
    cfg.train.global_batch_size = 32
    cfg.train.micro_batch_size = 1
    cfg.train.manual_gc = True
    cfg.model.seq_length = LENGTH
    cfg.dataset.seq_length = cfg.model.seq_length
    return cfg


def small_config():
    cfg = _base()
    cfg.model.tensor_model_parallel_size = 2
    return cfg


def long_config():
    cfg = _base()
    cfg.model.seq_length = 128 * 1024
    cfg.dataset.seq_length = cfg.model.seq_length
    cfg.model.context_parallel_size = 4
    return cfg
"""


def read(tmp_path, wanted=None):
    path = tmp_path / "recipes.py"
    path.write_text(RECIPES)
    given = {} if wanted is None else {"config": wanted}
    return BridgeReader().read(path, Options(num_devices=8, variables=Variables(given)))


@pytest.mark.parametrize(
    ("name", "tp", "cp", "length"), [("small_config", 2, 1, 4096), ("long_config", 1, 4, 131_072)]
)
def test_the_recipe_that_is_wanted_is_read_alone(name, tp, cp, length, tmp_path):
    found = read(tmp_path, name)
    assert (found.strategy.tp, found.strategy.cp, found.workload.seq_len) == (tp, cp, length)
    assert len(found.model.layers) == 4


def test_of_several_one_must_be_named(tmp_path):
    said = r"recipes.py, line 20: it holds 2 recipes; say which with --var config=NAME: small_config, long_config"
    with pytest.raises(ReaderError, match=said):
        read(tmp_path)
    with pytest.raises(UnknownNameError, match=r"'smal_config'; did you mean small_config"):
        read(tmp_path, "smal_config")


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ("[1]", r"line 12, model.seq_length|seq_length"),
        (
            "4096\n    cfg.dataset.sequence_length = 4096\n    cfg.model.seq_length = 8192",
            "8192 and .* 4096 must be the same",
        ),
    ],
)
def test_lengths_that_differ_are_both_named(lengths, said, tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(
        RECIPES.partition("def small_config")[0].replace("= cfg.model.seq_length", f"= {lengths}")
    )
    with pytest.raises(ReaderError, match=said):
        BridgeReader().read(path, Options(num_devices=8))
