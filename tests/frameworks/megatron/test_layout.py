"""CUDA graphs in the spellings of every release, of scripts and of tables of runs."""

import pytest
from tests.errors import raises

from forescale.errors import ReaderError
from forescale.frameworks.megatron import read_arguments
from forescale.frameworks.megatron.layout import launch_graphs

BASE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --vocab-size 100 --micro-batch-size 1 "
MOE = "--num-experts 8 --disable-bias-linear "
PADDED = MOE + "--moe-expert-capacity-factor 1 --moe-pad-expert-input-to-capacity "


@pytest.mark.parametrize(
    ("more", "graphs"),
    [
        ("", "none"),
        ("--cuda-graph-impl none --cuda-graph-scope full_iteration", "none"),
        ("--cuda-graph-impl full_iteration", "full"),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "full"),
        ("--cuda-graph-modules full_iteration", "full"),
        ("--enable-cuda-graph --cuda-graph-scope full_iteration", "full"),
        ("--enable-cuda-graph", "partial"),
        ("--external-cuda-graph --cuda-graph-scope attn", "partial"),
        ("--cuda-graph-impl local", "partial"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope full", "partial"),
        (
            MOE + "--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router moe_preprocess",
            "partial",
        ),
        (
            MOE + "--cuda-graph-impl transformer_engine --cuda-graph-modules moe_router moe_preprocess",
            "router",
        ),
        (MOE + "--cuda-graph-impl local", "partial"),
        (PADDED + "--cuda-graph-impl transformer_engine", "full"),
        (PADDED + "--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe", "full"),
    ],
)
def test_every_spelling_of_a_script(more, graphs):
    reading = read_arguments(BASE + more)
    assert reading.strategy.graphs == graphs
    assert not [flag for flag in reading.ignored if "cuda-graph" in flag]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("--cuda-graph-impl jax", "not_one_of --cuda-graph-impl"),
        (
            "--enable-cuda-graph --cuda-graph-impl local",
            "conflicts --enable-cuda-graph, --external-cuda-graph, --cuda-graph-impl",
        ),
        (
            "--enable-cuda-graph --external-cuda-graph",
            "conflicts --enable-cuda-graph, --external-cuda-graph, --cuda-graph-impl",
        ),
        ("--attention-backend flsh", "not_one_of --attention-backend"),
        (MOE + "--moe-ffn-hidden-size 0", "out_of_range --moe-ffn-hidden-size"),
    ],
)
def test_what_megatron_refuses(more, text):
    with raises(ReaderError, text):
        read_arguments(BASE + more)


def test_experts_are_captured_where_their_shapes_are_fixed():
    assert launch_graphs("transformer_engine", ("attn", "moe")) == "full"
    assert launch_graphs("transformer_engine", ()) == "partial"
    assert launch_graphs("transformer_engine", (), padded=True) == "full"
    assert launch_graphs("local", ("mamba",)) == "none"
