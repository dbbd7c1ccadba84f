"""Moments of a hand-made block, every sum computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.small import dense, moe

from forescale.graph.layer import head_block, layer_block
from forescale.graph.operator import Block, Builder
from forescale.graph.ops import Collective, Elementwise
from forescale.graph.recompute import keep
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.memory.liveness import (
    BlockBytes,
    Moment,
    block_bytes,
    block_moments,
    peak_bytes,
    peaks_of,
    undominated,
)
from forescale.spec import Kernels, Layout, Recompute
from forescale.spec.workload import Precision


@pytest.fixture
def block() -> Block:
    """input (10 elements) -> wide (40, its maker keeps input) -> squeezed (10, its maker keeps wide); bf16."""
    degrees, choices = split_layout(Layout())
    b = Builder(sharding=ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0))
    for name, elements in (("input", 10.0), ("wide", 40.0), ("squeezed", 10.0), ("scratch", 3.0)):
        b.tensor(name, elements)
    b.operator("widen", reads=("input",), writes=("wide",), saves=("input",))
    with b.module("mlp"):
        b.operator(
            "squeeze",
            reads=("wide",),
            writes=("squeezed",),
            saves=("wide",),
            backward_temporaries=("scratch",),
        )
    return b.block("test", "input")


def at(moments: tuple[Moment, ...], name: str, phase: str) -> float:
    return next(float(moment.num_bytes) for moment in moments if (moment.name, moment.phase) == (name, phase))


def test_without_recompute(block: Block) -> None:
    kept = keep(block, Recompute())
    assert kept.num_bytes == 2 * (10 + 40)
    moments = block_moments(block, kept)
    assert at(moments.forward, "widen", "forward") == 2 * (10 + 40)
    assert at(moments.forward, "squeeze", "forward") == 2 * (10 + 40 + 10)
    # squeeze: input, wide, its two gradients, scratch; widen: input and two gradients, wide is gone
    assert at(moments.backward, "squeeze", "backward") == 2 * (10 + 40 + 10 + 40 + 3)
    assert at(moments.backward, "widen", "backward") == 2 * (10 + 40 + 10)
    assert moments.backward_bytes == 2 * 103


def test_full_recompute_makes_everything_again(block: Block) -> None:
    kept = keep(block, Recompute(granularity="full"))
    assert kept.num_bytes == 2 * 10
    moments = block_moments(block, kept)
    # the last operator's replay: input, both results, and the gradient that waits
    assert at(moments.backward, "squeeze", "replay") == 2 * (10 + 10 + 40 + 10)
    # and backward as without recompute, beside the replayed result that its checkpoint holds
    assert moments.backward_bytes == 2 * (103 + 10)


def test_temporaries_live_through_one_operator(block: Block) -> None:
    moments = block_moments(block, keep(block, Recompute()))
    assert "scratch" in moments.backward[0].tensors
    assert "scratch" not in moments.backward[1].tensors


def test_an_addition_shares_its_gradient() -> None:
    degrees, choices = split_layout(Layout())
    b = Builder(sharding=ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0))
    for name in ("input", "branch", "sum"):
        b.tensor(name, 10.0)
    b.operator("branch", reads=("input",), writes=("branch",), saves=("input",))
    b.operator("add", reads=("input", "branch"), writes=("sum",), shares_gradient=True)
    plain = b.block("residual", "input")
    backward = block_moments(plain, keep(plain, Recompute())).backward
    assert at(backward, "add", "backward") == 2 * (10 + 10)
    # the branch's part is added to the gradient that came past it
    assert at(backward, "branch", "backward") == 2 * (10 + 10 + 10)


def test_only_moments_that_can_be_the_peak_are_summed() -> None:
    small = Moment(name="a", phase="forward", tensors={"x": 1.0})
    large = Moment(name="b", phase="forward", tensors={"x": 1.0, "y": 2.0})
    other = Moment(name="c", phase="backward", tensors={"z": 9.0})
    assert undominated((small, large, other, large)) == [large, other]
    assert peak_bytes((small, large, other)) == 9.0


@pytest.fixture
def gated() -> Block:
    """A gated feed-forward with its norm and residual: every tensor in 2 bytes, one fp32 statistic."""
    degrees, choices = split_layout(Layout())
    b = Builder(sharding=ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0))
    for name in ("input", "normed", "result", "sum"):
        b.tensor(name, 10.0)
    for name in ("up", "gate", "product"):
        b.tensor(name, 40.0)
    b.tensor("statistic", 1.0, 4.0)
    b.tensor("mask", 5.0, 1.0, differentiable=False)
    b.operator("norm", reads=("input",), writes=("normed",), saves=("input", "statistic"))
    with b.module("mlp"):
        b.operator("up", reads=("normed",), writes=("up",), saves=("normed",))
        b.operator("gate", reads=("normed",), writes=("gate",), saves=("normed",))
        b.operator("activation", reads=("up", "gate"), writes=("product",), saves=("up", "gate"))
        b.operator("down", reads=("product", "mask"), writes=("result",), saves=("product",))
    b.operator("add", reads=("input", "result"), writes=("sum",), shares_gradient=True)
    return b.block("gated", "input")


ORDER = ("norm", "up", "gate", "activation", "down", "add")


def test_every_moment_of_a_gated_feed_forward(gated: Block) -> None:
    kept = keep(gated, Recompute())
    assert kept.num_bytes == 2 * (10 + 10 + 3 * 40) + 4
    moments = block_moments(gated, kept)
    # Each writes its result beside what is kept; the last reads the result of the one before.
    forward = [at(moments.forward, name, "forward") for name in ORDER]
    assert forward == [44, 44 + 80, 44 + 160, 44 + 240, 44 + 240 + 20, 44 + 240 + 40]
    backward = {
        "add": 284 + 20,  # the gradient of the sum is that of the input and of the result
        "down": 284 + 20 + 80,  # the mask has none
        "activation": 204 + 20 + 80 + 160,  # its result is gone, both factors get theirs
        "gate": 44 + 20 + 160 + 20,
        "up": 44 + 20 + 80 + 20 + 20,  # a second part of the same gradient, to be added
        "norm": 24 + 20 + 20 + 20,  # what it read has one from the residual too
    }
    assert {name: at(moments.backward, name, "backward") for name in ORDER} == backward
    assert [item.name for item in moments.backward] == [*reversed(ORDER)]
    assert moments.backward_bytes == max(backward.values())
    assert moments.forward_bytes == max(forward)


def test_every_moment_of_its_replay(gated: Block) -> None:
    """Only the input is kept; the replay holds tensors from their writer to their last reader."""
    kept = keep(gated, Recompute(granularity="full"))
    moments = block_moments(gated, kept)
    forward = [at(moments.forward, name, "forward") for name in ORDER]
    assert forward == [20 + 20, 20 + 20 + 80, 20 + 20 + 160, 20 + 240, 20 + 80 + 20, 20 + 20 + 20]
    # The replay keeps what backward needs, beside the gradient that waits.
    replay = [at(moments.backward, name, "replay") for name in ORDER]
    assert replay == [20 + item for item in (44, 44 + 80, 44 + 160, 44 + 240, 44 + 260, 44 + 280)]
    # And its own sum stays until its first operator is done.
    plain = block_moments(gated, keep(gated, Recompute())).backward
    again = {name: at(moments.backward, name, "backward") - at(plain, name, "backward") for name in ORDER}
    assert again == dict.fromkeys(ORDER, 20)


def test_every_moment_where_a_module_is_replayed(gated: Block) -> None:
    """The module's input is kept, and what the others save; its result is made again before it is needed."""
    kept = keep(gated, Recompute(granularity="selective", modules=("mlp",)))
    assert {tensor.name for tensor in kept.tensors} == {"input", "statistic", "normed", "mask"}
    moments = block_moments(gated, kept)
    replay = [at(moments.backward, name, "replay") for name in ORDER[1:5]]
    # Beside what is kept and the gradient that waits, what it makes; its result comes last.
    assert replay == [69 + 80, 69 + 160, 69 + 240, 69 + 240 + 20]
    assert at(moments.backward, "add", "backward") == 49 + 20
    assert at(moments.backward, "activation", "backward") == 209 + 20 + 80 + 160 + 20
    # It goes with the first operator of the module; the mask was the module's own input.
    assert at(moments.backward, "up", "backward") == 49 + 20 + 80 + 20 + 20 + 20
    assert at(moments.backward, "norm", "backward") == 29 + 20 + 20 + 20


def test_a_gradient_made_in_place_takes_the_saved_tensor_s_memory(gated: Block) -> None:
    operators = tuple(
        replace(operator, gradient_in_saved=True) if operator.name == "activation" else operator
        for operator in gated.operators
    )
    block = replace(gated, operators=operators)
    plain, placed = (block_moments(item, keep(item, Recompute())).backward for item in (gated, block))
    assert at(plain, "activation", "backward") - at(placed, "activation", "backward") == 160
    assert at(plain, "gate", "backward") == at(placed, "gate", "backward")


def test_what_is_written_in_place_keeps_one_gradient() -> None:
    degrees, choices = split_layout(Layout())
    b = Builder(sharding=ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0))
    for name in ("input", "queries", "output"):
        b.tensor(name, 10.0)
    b.operator("project", reads=("input",), writes=("queries",), saves=("input",))
    b.operator("rotate", reads=("queries",), writes=("queries",))
    b.operator("core", reads=("queries",), writes=("output",), saves=("queries",))
    block = b.block("rotated", "input")
    moments = block_moments(block, keep(block, Recompute()))
    assert at(moments.backward, "core", "backward") == 20 + 20 + 20 + 20
    assert at(moments.backward, "rotate", "backward") == 20 + 20
    assert at(moments.backward, "project", "backward") == 20 + 20 + 20


def test_nothing_has_no_moments() -> None:
    degrees, choices = split_layout(Layout())
    b = Builder(sharding=ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0))
    b.tensor("input", 10.0)
    block = b.block("nothing", "input")
    moments = block_moments(block, keep(block, Recompute()))
    assert (moments.forward_bytes, moments.backward_bytes) == (0, 0)


def moment_of(block: Block, name: str) -> Moment:
    (result,) = [item for item in block_moments(block, keep(block, Recompute())).forward if item.name == name]
    return result


def laid_out(**layout) -> ShardingRules:
    degrees, choices = split_layout(Layout(**layout))
    return ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=512.0)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_fused_linear_loss_reads_its_whole_input_on_any_number_of_ranks(tp):
    block = head_block(dense(), laid_out(tp=tp, kernels=Kernels(cross_entropy="fused_linear")))
    tensors = moment_of(block, "head.fused_loss").tensors
    assert tensors["head.gather.result"] == tensors["head.input_gradient"] == 512 * 1024 * 2


def test_a_mask_that_comes_with_the_batch_is_there_until_the_loss_is_made():
    """A byte for each of 512 x 512 pairs, over 2 context-parallel ranks; backward has none."""
    block = head_block(dense(), laid_out(cp=2, kernels=Kernels(attention_mask=True)))
    assert moment_of(block, "head.cross_entropy").tensors["head.attention_mask"] == 512 * 512 / 2
    backward = block_moments(block, keep(block, Recompute())).backward
    assert not any("head.attention_mask" in item.tensors for item in backward)


@pytest.mark.parametrize("tp", [1, 2])
def test_what_comes_back_from_experts_is_beside_their_rows_without_sequence_parallelism(tp):
    block = layer_block(moe(), moe().layers[-1], laid_out(tp=tp, sp=False))
    tensors = moment_of(block, "moe.unpermute").tensors
    assert tensors["moe.own"] == 512 * 1024 * 2 / tp
    assert tensors["moe.returned"] == 4 * tensors["moe.own"]


POLICIES = [
    Recompute(),
    Recompute(granularity="full"),
    Recompute(granularity="full", stops_early=True),
    Recompute(granularity="selective", modules=("mlp", "core_attn")),
    Recompute(granularity="selective", modules=("layernorm", "moe_act")),
    Recompute(granularity="policy", policy="torch_per_op"),
    Recompute(granularity="policy", policy="save_qkv_proj"),
]


@pytest.mark.parametrize("recompute", POLICIES, ids=str)
@pytest.mark.parametrize("model", [dense(), moe()], ids=["dense", "moe"])
def test_peaks_of_one_shape_are_those_of_the_moments_of_each_size(model, recompute):
    """To the last bit; of the second size the moments that can be the peak are known from the first."""
    for layout in (
        laid_out(),
        laid_out(tp=2),
        replace(laid_out(tp=2), seq_len=4096.0),
        laid_out(tp=2, sp=False),
    ):
        for block in (layer_block(model, model.layers[-1], layout), head_block(model, layout)):
            kept = keep(block, recompute)
            moments = block_moments(block, kept)
            assert peaks_of(block, kept) == (moments.forward_bytes, moments.backward_bytes)


def test_a_peak_may_be_another_moment_of_the_same_shape(gated: Block) -> None:
    """With a wide normed tensor the peak moves from the activation to up, where its gradient has two parts."""
    wide = replace(
        gated, tensors={**gated.tensors, "normed": replace(gated.tensors["normed"], elements=900.0)}
    )
    for block, peak in ((gated, 464), (wide, 24 + 3 * 1800 + 80 + 20)):
        kept = keep(block, Recompute())
        moments = block_moments(block, kept)
        assert peaks_of(block, kept) == (moments.forward_bytes, moments.backward_bytes)
        assert peaks_of(block, kept)[1] == peak


def made(*names: str) -> Builder:
    """Return a builder with tensors of 10 numbers in 16 bits."""
    degrees, choices = split_layout(Layout())
    b = Builder(sharding=ShardingRules(degrees=degrees, choices=choices, precision=Precision(), seq_len=1.0))
    for name in names:
        b.tensor(name, 10.0)
    return b


def test_what_the_training_loop_holds_outlasts_the_operators_that_saved_it() -> None:
    b = made("input", "logits", "loss")
    b.operator("project", reads=("input",), writes=("logits",), saves=("input",))
    b.operator("loss", reads=("logits",), writes=("loss",), saves=("logits",), held=("logits",))
    block = b.block("head", "input")
    moments = block_moments(block, keep(block, Recompute())).backward
    # input, logits, and the gradients of both
    assert at(moments, "project", "backward") == 20 + 20 + 20 + 20


@pytest.mark.parametrize(
    ("work", "saves", "summed"),
    [
        (("reduce_scatter", "tp"), (), 20),
        (("all_reduce", "tp"), (), 20),
        (("all_gather", "tp"), (), 0),
        (("all_reduce", "cp"), (), 0),
        (("all_reduce", "tp"), ("parts",), 0),  # backward needs it: not freed
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_what_a_sum_over_tp_reads_is_freed_when_it_is_asked_for(work, saves, summed, alone) -> None:
    """Of an operator that is a sum and nothing else; what runs beside one has its own kernel read it."""
    b = made("input", "parts", "sum")
    kernel = () if alone else (Elementwise(family="elementwise", bytes_moved=1.0),)
    message = Collective(kind=work[0], axis=work[1], num_bytes=20.0)
    b.operator("project", reads=("input",), writes=("parts",), saves=("input",))
    b.operator("sum", reads=("parts",), writes=("sum",), saves=saves, forward=(*kernel, message))
    block = b.block("row", "input")
    result = block_bytes(block, keep(block, Recompute()))
    assert result.summed == (summed if alone else 0)


def test_captured_launches_and_experts_have_working_sets_of_their_own(gated: Block) -> None:
    """Beyond the 284 bytes that are kept: 180 at the activation, and 100 at the one product that is an expert's."""
    kept = keep(gated, Recompute())
    assert block_bytes(gated, kept, captured=True).captured == (464 - 284, 0)
    operators = tuple(
        replace(operator, part="moe") if operator.name == "down" else operator for operator in gated.operators
    )
    experts = block_bytes(replace(gated, operators=operators), kept, captured=True)
    assert experts.captured == (464 - 284, 384 - 284)
    assert block_bytes(gated, kept).captured is None


def test_a_block_that_keeps_more_has_as_much_at_work() -> None:
    """Measured to keep half as much again: so does all that is a part of it; what is at work beside stays."""
    block = BlockBytes(kept=100.0, offloaded=40.0, awaited=20.0, forward=130.0, backward=160.0, held=5.0)
    more = block.corrected(1.5)
    assert (more.kept, more.offloaded, more.awaited, more.held) == (150.0, 60.0, 30.0, 5.0)
    assert (more.forward - more.kept, more.backward - more.kept) == (30.0, 60.0)
