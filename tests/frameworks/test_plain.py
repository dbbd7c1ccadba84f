"""Keys of a framework that are plain copies: no line of code besides the declaration of the field."""

from typing import Annotated, Literal

from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.plain import plain_settings, read_plain
from forescale.frameworks.settings import Settings
from forescale.limits import Extent
from forescale.spec.layout import Kernels
from forescale.spec.option import Option
from forescale.struct import SpecStruct


class Fields(SpecStruct, frozen=True, kw_only=True):
    switch: Annotated[bool, Option(keys=("megatron.switch_key",))] = False
    count: Annotated[Extent | None, Option("Count.", keys=("megatron.count_key", "nanotron.count"))] = None
    word: Annotated[Literal["a", "b"], Option(keys=("megatron.word_key",))] = "a"
    share: Annotated[float, Option(keys=("megatron.share_key",))] = 1.0
    elsewhere: int = 3


def test_what_is_written_is_read_back():
    value = Fields(switch=True, count=4, word="b", share=0.5)
    settings = plain_settings(value, "megatron")
    assert settings == {"switch_key": True, "count_key": 4, "word_key": "b", "share_key": 0.5}
    assert Fields(**read_plain(Fields, Settings(settings, "run.sh"), "megatron")) == value
    assert plain_settings(value, "nanotron") == {"count": 4}


def test_defaults_are_left_out_and_switches_are_not():
    assert plain_settings(Fields(), "megatron") == {
        "switch_key": False, "count_key": None, "word_key": None, "share_key": None,
    }  # fmt: skip
    assert Fields(**read_plain(Fields, Settings({}, "run.sh"), "megatron")) == Fields()


def test_a_wrong_value_is_refused():
    with raises(ReaderError, "not_one_of word_key"):
        read_plain(Fields, Settings({"word_key": "c"}, "run.sh"), "megatron")


def test_megatron_has_its_own_keys():
    assert plain_settings(Kernels(deterministic=True), "megatron")["deterministic_mode"] is True
