from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forescale.catalogue.models import model_names
from forescale.errors import ReaderError
from forescale.files import packaged
from forescale.frameworks.huggingface import read_huggingface, reader

CONFIGS = [
    record["huggingface"]
    for record in (packaged(f"models/{name}") for name in model_names())
    if "huggingface" in record and "trace" not in record
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.floats(allow_nan=True),
    st.text(max_size=5),
    st.lists(
        st.one_of(st.integers(0, 3), st.text(max_size=3), st.lists(st.integers(), max_size=1)), max_size=4
    ),
    st.dictionaries(st.sampled_from(["hidden_size", "alibi", "kv_n_heads"]), st.integers(-1, 9), max_size=2),
)


@st.composite
def damaged(draw: Any) -> dict[str, Any]:
    config = dict(draw(st.sampled_from(CONFIGS)))
    for key in draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        config[key] = draw(VALUES)
    for key in draw(
        st.lists(st.sampled_from(["layer_types", "mlp_layer_types", "moe_layers", "head_dim"]), max_size=2)
    ):
        config[key] = draw(VALUES)
    return config


@settings(max_examples=400, deadline=None)
@given(config=damaged())
def test_a_damaged_configuration_is_read_or_refused_with_a_sentence(config: dict[str, Any]):
    try:
        with pytest.MonkeyPatch.context() as patch:  # as on an install without the extra that traces
            patch.setattr(reader, "traceable_types", lambda: "")
            model = read_huggingface(config, name="m", where="config.json").model
    except ReaderError as error:
        assert str(error).startswith("config.json")
    else:
        assert model.num_layers > 0
        assert all(layer.attention or layer.ffn or layer.traced for layer in model.layers)
