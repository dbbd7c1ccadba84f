"""Korthikanti et al. 2022: printed shares, the variants of Table 2, and the operator list of a GPT-3 layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
from tests import small
from tests.errors import raises
from tests.small import asked

from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.graph.layer import layer_block
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.presets import project_as
from forescale.presets.korthikanti2022 import (
    KORTHIKANTI_2022,
    korthikanti_embedding,
    korthikanti_layer,
    korthikanti_output,
    korthikanti_replayed_layer,
)
from forescale.spec import (
    DenseFfn,
    FullAttention,
    Kernels,
    Layer,
    Layout,
    Model,
    Precision,
    Recompute,
    Workload,
)

GPT3 = {"seq_len": 2048.0, "hidden_size": 12288.0, "num_heads": 96.0}
MT_NLG = {"seq_len": 2048.0, "hidden_size": 20480.0, "num_heads": 128.0}


def layer(shape, *, tp=1.0, split=1.0, scores=1.0, batch=1.0):
    return korthikanti_layer(**shape, micro_batch_size=batch, tp=tp, sequence_ranks=split, scores=scores) / (
        shape["seq_len"] * batch * shape["hidden_size"]
    )


@pytest.mark.parametrize(("shape", "scores", "saved"), [(GPT3, 80, 0.70), (MT_NLG, 64, 0.65)])
def test_scores_and_what_selective_recompute_saves(shape, scores, saved):
    """Section 5: 70 % of GPT-3, 65 % of MT-NLG."""
    assert layer(shape) == pytest.approx(34 + scores)
    assert 1 - layer(shape, scores=0.0) / layer(shape) == pytest.approx(saved, abs=0.005)


def test_variants_of_table_2():
    assert layer(GPT3, tp=8.0) == pytest.approx(10 + 24 / 8 + 80 / 8)
    assert layer(GPT3, tp=8.0, split=8.0) == pytest.approx(34 / 8 + 80 / 8)
    assert layer(GPT3, tp=8.0, scores=0.0) == pytest.approx(10 + 24 / 8)
    assert layer(GPT3, tp=8.0, split=8.0, scores=0.0) == pytest.approx(34 / 8)
    full = korthikanti_replayed_layer(
        seq_len=2048.0, micro_batch_size=1.0, hidden_size=12288.0, sequence_ranks=1.0
    )
    assert full == 2 * 2048 * 12288


def test_first_stage_is_that_of_equations_5_and_6():
    model = load_model("gpt3-175b")
    workload = Workload(seq_len=2048, global_batch_size=64)
    selective = Recompute(granularity="selective", modules=("core_attn",))
    for recompute, width in ((Recompute(), 34 + 80), (selective, 34)):
        layout = Layout(tp=8, pp=8, recompute=recompute, flash_attention=False)
        account = KORTHIKANTI_2022.account(model, layout, workload)
        sbh = 2048 * 12288
        layers = sbh * width / 8 * 96
        embedding = korthikanti_embedding(
            seq_len=2048.0, micro_batch_size=1.0, hidden_size=12288.0, sequence_ranks=8.0, in_flight=8.0
        )
        assert account.stages[0].activations == pytest.approx(layers + embedding)
        assert embedding == sbh * 8 / 8


def test_interleaving_holds_more():
    model = load_model("gpt3-175b")
    layout = Layout(tp=8, pp=8, vpp=3, flash_attention=False)
    account = KORTHIKANTI_2022.account(model, layout, Workload(seq_len=2048, global_batch_size=64))
    sbh = 2048 * 12288
    factor = 1 + 7 / (8 * 3)  # section 4.2.3
    expected = sbh * 114 / 8 * 96 * factor + sbh
    assert account.stages[0].activations == pytest.approx(expected)


def test_extra_of_one_stage():
    """sbh·L/t·(p/L + 4/L·(1 + v/h)) at p = 1, as one term beside the layers."""
    model = load_model("gpt3-175b")
    layout = Layout(tp=8, recompute=Recompute(granularity="full"))
    account = KORTHIKANTI_2022.account(model, layout, Workload(seq_len=2048, global_batch_size=64))
    sbh, ratio = 2048 * 12288, model.vocab_size / 12288
    output = korthikanti_output(
        seq_len=2048.0,
        micro_batch_size=1.0,
        hidden_size=12288.0,
        vocab_size=float(model.vocab_size),
        tp=8.0,
        sequence_ranks=8.0,
    )
    assert output == pytest.approx(4 * sbh / 8 * (1 + ratio))
    extra = sbh * 96 / 8 * (1 / 96 + 4 / 96 * (1 + ratio))
    assert account.stages[0].activations == pytest.approx(96 * 2 * sbh / 8 + extra)


def operator_sum(*, seq_len, batch, hidden, heads, tp, sp):
    """Bytes that a GPT layer's operators keep, without the statistics of norms that the paper leaves out."""
    kind = Layer(
        attention=FullAttention(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=hidden // heads,
            qkv_bias=True,
            output_bias=True,
            rotary=False,
        ),
        ffn=DenseFfn(ffn_hidden_size=4 * hidden, gated=False, bias=True),
    )
    model = Model(name="gpt", hidden_size=hidden, layers=(kind,), norm="layer")
    strategy = Layout(
        tp=tp, sp=sp, micro_batch_size=batch, flash_attention=False, kernels=Kernels(dropout=True)
    )
    degrees, choices = split_layout(strategy)
    layout = ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))
    block = layer_block(model, kind, layout)
    kept = dict.fromkeys(name for operator in block.operators for name in operator.saves)
    sizes = (block.tensors[name].num_bytes for name in kept if not name.endswith(".statistics"))
    return sympy.nsimplify(float(sum(sizes)), rational=True)


POINTS = [
    (128, 1, 256, 8, 2),
    (256, 2, 512, 8, 4),
    (64, 3, 256, 16, 8),
    (512, 1, 1024, 32, 16),
    (2048, 1, 12288, 96, 8),
    (96, 5, 768, 48, 2),
]


@pytest.mark.parametrize("sp", [False, True])
def test_operator_list_of_a_gpt_layer_is_the_formula_symbolically(sp):
    """Solve for the coefficients of sbh, sbh/t and as²b/t, check them elsewhere, compare the polynomials."""
    s, b, h, a, t, *unknown = sympy.symbols("s b h a t c0 c1 c2")
    basis = (s * b * h, s * b * h / t, a * s**2 * b / t)
    general = sum(c * term for c, term in zip(unknown, basis, strict=True))
    values = {}
    for point in POINTS:
        seq_len, batch, hidden, heads, tp = point
        values[point] = operator_sum(seq_len=seq_len, batch=batch, hidden=hidden, heads=heads, tp=tp, sp=sp)
    equations = [
        general.subs(dict(zip((s, b, h, a, t), point, strict=True))) - value
        for point, value in values.items()
    ]
    solution = sympy.solve(equations, unknown, dict=True)
    assert len(solution) == 1
    ours = general.subs(solution[0])
    paper = korthikanti_layer(
        seq_len=s,
        micro_batch_size=b,
        hidden_size=h,
        num_heads=a,
        tp=t,
        sequence_ranks=t if sp else 1,
        scores=1,
    )
    assert sympy.nsimplify(sympy.expand(ours - paper)) == 0


def test_only_activations_are_counted_and_nothing_is_said_to_fit():
    result = project_as(
        asked(
            small.dense(8),
            small.cluster(8),
            Layout(tp=2, dp_shard=4),
            small.workload(),
            preset="korthikanti2022",
        )
    )
    assert result.memory.verdict == "AT RISK"
    assert result.memory.stages[0].weights_bytes == 0
    assert result.step_time_s == 0
    assert {"memory", "activations", "attention", "time"} <= {note.topic for note in result.notes}


def test_without_softmax_attention_or_with_context_ranks_it_refuses():
    with raises(SpecError, "unsupported_by preset korthikanti2022"):
        KORTHIKANTI_2022.account(small.moe(4), Layout(), small.workload())
    with raises(SpecError, "unsupported_by preset korthikanti2022"):
        KORTHIKANTI_2022.account(small.dense(4), Layout(cp=2), small.workload())
    assert replace(KORTHIKANTI_2022).name == "korthikanti2022"
