"""One declaration of a field: its option, the values it takes, and where it has an effect."""

from typing import Annotated, Literal

import pytest

from forescale.cli.options import LayoutOptions, OperationsOptions, RunOptions
from forescale.limits import Interval
from forescale.spec import Layout, Workload
from forescale.spec.layout import Share
from forescale.spec.operations import Operations
from forescale.spec.option import Option, Under, declared, options
from forescale.struct import SpecStruct

KINDS = {"LayoutOptions": Layout, "RunOptions": Workload, "OperationsOptions": Operations}
FIELDS = {item.name: item for kind in KINDS.values() for item in declared(kind)}


class Inner(SpecStruct, frozen=True, kw_only=True):
    deep: Annotated[bool, Option("Deep.")] = False
    unlisted: int = 1


class Outer(SpecStruct, frozen=True, kw_only=True):
    count: Annotated[int, Interval(ge=0, le=3), Option("Count.", under=Under("inner", least=2))] = 2
    inner: Annotated[Inner, Option()] = Inner()
    key: Annotated[Literal["a", "b"], Option(keys=("megatron.key",))] = "a"


def test_tables_have_options_for_their_own_fields():
    assert [(item.flag, item.path, item.default) for item in options(Outer)] == [
        ("--count", ("count",), 2),
        ("--inner-deep", ("inner", "deep"), False),
    ]
    assert [item.path for item in declared(Outer)] == [("count",), ("inner", "deep"), ("key",)]


@pytest.mark.parametrize(
    ("name", "kind", "values", "entry"),
    [
        ("tp", int, (), None),
        ("sp", bool, (True, False), None),
        ("zero", int, (0, 1, 2, 3), None),
        ("cp_balanced", bool, (True, False), None),
        ("allocator", Literal["segments", "expandable_segments"], ("segments", "expandable_segments"), None),
        ("schedule", str, (), None),
        ("stage_layers", str, (), int),
        ("recompute_layer_ids", str, (), int),
        ("placement", str, (), Share),
        ("expert_imbalance", float, (), None),
        ("seq_len", int, (), None),
        ("spares", int, (), None),
    ],
)
def test_types_follow_from_annotations(name, kind, values, entry):
    field = FIELDS[name]
    assert (field.kind, field.values, field.entry) == (kind, values, entry)
    assert field.is_list == (entry is not None)


def test_words_or_numbers_are_read_as_text():
    assert FIELDS["reshard"].kind is str
    assert FIELDS["reshard"].is_list


@pytest.mark.parametrize("group", [LayoutOptions, RunOptions, OperationsOptions])
def test_every_declared_option_is_one_of_the_command_line(group):
    names = [item.name for item in options(KINDS[group.__name__])]
    assert list(group.__dataclass_fields__) == names
    assert len({*names}) == len(names)


@pytest.mark.parametrize("field", [item for item in declared(Layout) if item.option.under], ids=str)
def test_conditions_are_on_fields_of_the_layout(field):
    assert field.option.under.field in Layout.__struct_fields__
    assert field.path == (field.name,)


@pytest.mark.parametrize(
    ("under", "label", "met", "unmet"),
    [
        (Under("cp", least=2), "cp of 2 or more", 2, 1),
        (Under("zero", (2, 3)), "zero 2 or 3", 3, 1),
        (Under("placement", (None,), text="no placement"), "no placement", None, "all"),
    ],
)
def test_conditions(under, label, met, unmet):
    assert under.label == label
    assert under.is_met(met)
    assert not under.is_met(unmet)
