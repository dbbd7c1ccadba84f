"""Matrices on the grid of SUMMA: what travels, what a device holds, against the paper's table A2 and 1D."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from tests.errors import raises
from tests.small import dense

from forescale.catalogue.models import load_model
from forescale.errors import SpecError
from forescale.graph.layer import embedding_block, head_block, layer_block, padded_vocab
from forescale.graph.ops import Collective
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.presets.subramanian2024.layers import Quirks, Split, layer_summa, shape_of
from forescale.spec import Layout
from forescale.spec.workload import Precision

GPT3_1T = load_model("gpt3-1t")
OURS = {
    "attention.qkv": "query, key, value",
    "attention.output": "projection",
    "ffn.up": "first linear",
    "ffn.down": "second linear",
}
GRIDS = [(8, 4), (4, 8), (8, 1), (1, 8), (5, 2)]


def layout(tp, cp, *, kind="summa", panels=1, batch=1, seq_len=2048):
    strategy = Layout(tp=tp, cp=cp, tp_kind=kind, summa_panels=panels, micro_batch_size=batch)
    degrees, choices = split_layout(strategy)
    return ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=float(seq_len))


def block(tp, cp, **options):
    return layer_block(GPT3_1T, GPT3_1T.layers[0], layout(tp, cp, **options))


def sent(operator, *passes):
    """Bytes by kind and axis, over all steps."""
    result = defaultdict(float)
    for name in passes:
        for work in getattr(operator, name):
            if isinstance(work, Collective):
                times = 1.0 if operator.panels is None else operator.panels
                result[work.kind, work.axis] += times * work.num_bytes
    return dict(result)


def stated(work):
    result = defaultdict(float)
    for message in work.messages:
        result[message.kind, {"tp1": "tp", "tp2": "cp"}[message.axis]] += message.num_bytes
    return dict(result)


def table_a2(tp, cp, batch):
    split = Split(tp1=tp, tp2=cp, micro_batch_size=batch, panels=max(tp, cp), near_tp1=tp, near_tp2=cp)
    layer = layer_summa(shape_of(GPT3_1T, seq_len=2048), split, vector_weight=1.0, quirks=Quirks.none())
    return {operation.name: operation for operation in layer}


@pytest.mark.parametrize(("tp", "cp"), GRIDS)
@pytest.mark.parametrize("panels", [1, 5])
def test_volumes_of_products_are_those_of_table_a2(tp, cp, panels):
    paper = table_a2(tp, cp, 4)
    ours = {operator.name: operator for operator in block(tp, cp, panels=panels, batch=4).operators}
    for name, stated_name in OURS.items():
        operation = paper[stated_name]
        assert sent(ours[name], "forward") == pytest.approx(stated(operation.forward))
        backward = sent(ours[name], "backward_input", "backward_weight")
        assert backward == pytest.approx(stated(operation.backward))


@pytest.mark.parametrize(("tp", "cp"), GRIDS)
def test_keys_and_values_travel_as_in_table_a2(tp, cp):
    (gather,) = [
        operator for operator in block(tp, cp, batch=2).operators if operator.name == "attention.gather_kv"
    ]
    core = table_a2(tp, cp, 2)["fused attention"]
    assert sent(gather, "forward") == pytest.approx(stated(core.forward))
    assert sent(gather, "backward_input") == pytest.approx(stated(core.backward))


def test_norms_exchange_two_sums_per_token():
    norms = [operator for operator in block(8, 4, batch=2).operators if operator.name.endswith("norm")]
    assert len(norms) == 2
    for norm in norms:
        for name in ("forward", "backward_input"):
            assert sent(norm, name) == {("all_reduce", "tp"): 2.0 * 4.0 * 2 * 2048 / 4}


@pytest.mark.parametrize(("tp", "cp"), GRIDS)
def test_weights_of_one_device_are_those_of_table_a2(tp, cp):
    paper, parameters = table_a2(tp, cp, 1), block(tp, cp).parameters
    matrices = sum(item.local_elements for item in parameters if item.matrix)
    assert matrices == pytest.approx(sum(paper[name].parameters for name in OURS.values()))


@pytest.mark.parametrize("model", [GPT3_1T, dense()], ids=lambda m: m.name)
@pytest.mark.parametrize(("tp", "cp"), [(4, 2), (2, 4), (1, 8)])
def test_matrices_of_all_devices_are_the_model_once(model, tp, cp):
    sharding = layout(tp, cp)
    blocks = (
        layer_block(model, model.layers[0], sharding),
        embedding_block(model, sharding),
        head_block(model, sharding),
    )
    for item in [parameter for made in blocks for parameter in made.parameters]:
        whole = item.elements if item.matrix else item.elements * cp  # biases and norms are whole along cp
        if item.name in ("embedding.weight", "head.logits.weight"):
            vocab, multiple = float(model.vocab_size), float(model.vocab_multiple)
            whole *= padded_vocab(vocab_size=vocab, multiple=multiple, tp=float(tp)) / vocab
        assert item.local_elements * tp * cp == pytest.approx(whole)


def flops(made):
    return sum(
        (1.0 if operator.panels is None else operator.panels) * getattr(work, "flops", 0.0)
        for operator in made.operators
        for work in (*operator.forward, *operator.backward_input, *operator.backward_weight)
    )


@pytest.mark.parametrize(("tp", "cp"), GRIDS)
def test_the_same_work_as_in_1d(tp, cp):
    assert flops(block(tp, cp)) == pytest.approx(flops(block(tp, cp, kind="1d")))
    assert flops(block(tp, cp, panels=5)) == pytest.approx(flops(block(tp, cp)))


def test_one_row_of_the_grid_holds_and_sends_what_1d_does():
    """n2 = 1: weights stay where they are, and of activations each product moves what 1D's gather or scatter does."""
    one, grid = block(8, 1, kind="1d"), block(8, 1)
    assert sum(
        parameter.local_elements for parameter in grid.parameters if parameter.matrix
    ) == pytest.approx(sum(parameter.local_elements for parameter in one.parameters if parameter.matrix))
    forward = [sent(operator, "forward") for operator in grid.operators if operator.panels is not None]
    weights = [item.pop(("broadcast", "cp")) for item in forward]
    assert all(weight > 0 for weight in weights)  # to itself: a group of one takes no time
    gathers = [
        sent(operator, "forward")
        for operator in one.operators
        if operator.name.endswith((".gather", ".scatter"))
    ]
    hidden = 2.0 * 2048 * GPT3_1T.hidden_size
    assert [sum(gather.values()) for gather in gathers] == [hidden] * 4
    assert [sum(item.values()) for item in forward] == [hidden, hidden, hidden, 4.0 * hidden]


def test_activations_between_blocks_are_those_of_sequence_parallelism():
    one, grid = block(8, 4, kind="1d"), block(8, 4)
    for name in ("input", "attention.residual", "ffn.residual"):
        assert grid.tensors[name].num_bytes == one.tensors[name].num_bytes


def test_two_panels_of_each_operand_are_held():
    up = block(8, 4, panels=2).tensors["ffn.up.panels"]
    assert not up.differentiable
    hidden, ffn, steps = GPT3_1T.hidden_size, 4 * GPT3_1T.hidden_size, 16
    assert up.elements == pytest.approx(2.0 * hidden / steps * (2048 / 4 + ffn / 8))


def test_steps_are_those_of_both_sides_of_the_grid():
    assert layout(8, 4).panel_steps == 8.0
    assert layout(6, 4, panels=3).panel_steps == 36.0


def test_the_loss_fused_with_the_head_is_refused():
    sharding = layout(2, 2)
    kernels = replace(sharding.choices.kernels, cross_entropy="fused_linear")
    with raises(SpecError, "conflicts cross_entropy fused_linear, tp_kind summa"):
        head_block(dense(), replace(sharding, choices=replace(sharding.choices, kernels=kernels)))


def test_every_step_of_a_product_by_hand():
    """tp 2 x cp 3, two panels: 12 steps. Sums in 2 bytes, of weights accumulated in fp32 on one of three ranks."""
    layer = replace(dense().layers[0], attention=None, num_norms=1)
    value = layout(2, 3, panels=2, batch=2, seq_len=1536)
    value = replace(value, precision=Precision(compute="fp8", recipe="delayed"))
    (up,) = [
        operator for operator in layer_block(dense(), layer, value).operators if operator.name == "ffn.up"
    ]
    rows, k, n, steps = 2 * 1536 / 3, 1024, 2 * 4096 / 2, 12
    assert up.panels == steps
    width = k / steps
    send_x, send_w, cast, product = up.forward
    assert (send_x.kind, send_x.axis, send_x.num_bytes) == ("broadcast", "tp", pytest.approx(rows * width))
    assert (send_w.kind, send_w.axis, send_w.num_bytes) == ("broadcast", "cp", pytest.approx(width * n))
    assert (cast.bytes_moved, cast.kernels) == (pytest.approx(3 * rows * width / 2), 1 / 2)
    assert (product.m, product.n, product.k, product.accumulate_bytes) == (rows, n, pytest.approx(width), 2)
    send, cast, product, summed = up.backward_input
    assert (send.axis, send.num_bytes) == ("cp", pytest.approx(width * n))
    assert (cast.bytes_moved, cast.kernels) == (pytest.approx(3 * rows * n / steps), pytest.approx(1 / 12))
    assert (product.m, product.n, product.k) == (rows, pytest.approx(width), n)
    assert (summed.kind, summed.axis, summed.num_bytes) == ("reduce", "tp", pytest.approx(2 * rows * width))
    send, product, summed, added = up.backward_weight
    assert (send.axis, send.num_bytes) == ("tp", pytest.approx(rows * width))
    assert (product.m, product.n, product.k) == (n, pytest.approx(width), rows)
    assert (summed.kind, summed.axis, summed.num_bytes) == ("reduce", "cp", pytest.approx(2 * width * n))
    assert added.bytes_moved == pytest.approx(width * n / 3 * (2 + 2 * 4))  # read; the sum read and written
    assert added.kernels == pytest.approx(1 / 3)
    wide = replace(value, precision=Precision())
    (up,) = [
        operator for operator in layer_block(dense(), layer, wide).operators if operator.name == "ffn.up"
    ]
    assert up.forward[0].num_bytes == pytest.approx(2 * rows * width)
