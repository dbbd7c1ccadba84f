"""Experts in a narrower space (Nemotron 3 Super): two projections more, everything between them narrower."""

from __future__ import annotations

from dataclasses import replace

from tests import small

from forescale.graph.layer import layer_block
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import Layout, Precision
from forescale.validation.published import layer_flops

TOKENS, HIDDEN, LATENT = 512, 1024, 256


def block(latent: int):
    layer = replace(small.MOE_LAYER, ffn=replace(small.MOE_LAYER.ffn, latent_size=latent))
    degrees, choices = split_layout(Layout(sp=False, ep=4, dp_shard=4))
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(TOKENS))
    return layer_block(small.moe(), layer, layout)


def test_parameters():
    plain, latent = ({p.name: p.elements for p in block(size).parameters} for size in (0, LATENT))
    assert latent["moe.latent_down.weight"] == latent["moe.latent_up.weight"] == HIDDEN * LATENT
    assert latent["moe.up.weight"] == plain["moe.up.weight"] * LATENT / HIDDEN
    assert latent["moe.router.weight"] == plain["moe.router.weight"]
    assert latent["shared.up.weight"] == plain["shared.up.weight"]


def test_what_is_dispatched_is_narrow():
    def sent(size: int) -> float:
        operators = {operator.name: operator for operator in block(size).operators}
        return float(operators["moe.dispatch"].forward[0].num_bytes)

    assert sent(LATENT) == sent(0) * LATENT / HIDDEN


def test_published_flops_follow():
    ffn = small.MOE_LAYER.ffn
    plain, latent = (
        layer_flops(
            replace(small.MOE_LAYER, ffn=replace(ffn, latent_size=size)), HIDDEN, TOKENS, halved=False
        )
        for size in (0, LATENT)
    )
    narrower = 2.0 * 3 * ffn.top_k * ffn.ffn_hidden_size * (HIDDEN - LATENT)
    assert plain - latent == narrower - 2.0 * 2 * HIDDEN * LATENT
