"""One order of precedence for all sources of a question, also inside tables."""

from __future__ import annotations

import pytest
from tests.errors import raises

from forescale.errors import SpecError
from forescale.frameworks.megatron.reader import read_arguments
from forescale.io.merge import PartialQuestion, merge, partial_question
from forescale.positions import COMMAND_LINE

SCRIPT = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 100 --micro-batch-size 1 "
    "--num-experts 8 --moe-token-dispatcher-type alltoall --moe-expert-capacity-factor 1.5 --overlap-grad-reduce"
)


def part(source: str = COMMAND_LINE, **values: object) -> PartialQuestion:
    return PartialQuestion(values=values, source=source)


def test_a_later_source_overrides_the_fields_that_it_sets_and_no_others() -> None:
    script = partial_question(read_arguments(SCRIPT), "run.sh")
    plan = part("plan.toml", strategy={"overlap": {"tensor": True}, "routing": {"balance": "none"}})
    flags = part(strategy={"tp": 2, "routing": {"imbalance": 1.2}})
    merged = merge(script, plan, flags, overrides=("strategy.overlap.pipeline=true",))
    layout = merged.values["strategy"]
    assert layout["tp"] == 2
    assert [layout["overlap"][name] for name in ("grad_reduce", "tensor", "pipeline")] == [True] * 3
    assert [layout["routing"][name] for name in ("capacity_factor", "balance", "imbalance")] == [
        1.5,
        "none",
        1.2,
    ]


def test_the_source_of_every_field_is_known() -> None:
    merged = merge(
        part("run.sh", strategy={"tp": 1, "pp": 2}), part(strategy={"tp": 4}), overrides=("devices=8",)
    )
    assert merged.sources == {"strategy.tp": COMMAND_LINE, "strategy.pp": "run.sh", "devices": COMMAND_LINE}
    assert merged.keys_from(("run.sh",)) == {"strategy.pp"}


@pytest.mark.parametrize("name", ["recompute", "outer"])
def test_a_table_whose_fields_depend_on_each_other_is_replaced(name: str) -> None:
    below = {name: {"granularity": "selective", "modules": ["mlp"]}}
    merged = merge(part(strategy=below), part(strategy={name: {"granularity": "full"}}))
    assert merged.values["strategy"][name] == {"granularity": "full"}


@pytest.mark.parametrize(
    ("later", "vpp"),
    [({"schedule": "zbv"}, None), ({"schedule": "interleaved-1f1b"}, 4), ({"schedule": "zbv", "vpp": 3}, 3),
     ({"schedule": "no such"}, 4), ({"tp": 2}, 4)],
)  # fmt: skip
def test_a_later_schedule_drops_a_vpp_that_it_does_not_allow(
    later: dict[str, object], vpp: int | None
) -> None:
    file = PartialQuestion(values={"strategy": {"pp": 4, "vpp": 4}}, source="file")
    merged = merge(file, PartialQuestion(values={"strategy": later}))
    assert merged.values["strategy"].get("vpp") == vpp


def test_nodes_replace_devices() -> None:
    merged = merge(part(devices=8, cluster={"base": "h100-sxm", "num_devices": 8}), part(nodes=4))
    assert merged.values == {"cluster": {"base": "h100-sxm"}, "nodes": 4}


def test_what_is_no_table_stays_for_the_checks() -> None:
    assert merge(part(strategy=5), part(strategy={"tp": 2})).values == {"strategy": 5}
    with raises(SpecError, "wrong_type 'strategy' in the override 'strategy.tp=2'", value=5):
        merge(part(strategy=5), overrides=("strategy.tp=2",))
