from __future__ import annotations

import pytest
from tests import small
from tests.errors import raises, refusal

from forescale.catalogue.frameworks import load_framework
from forescale.errors import ReaderError, SpecError, UnknownKeyError
from forescale.io.space import held_space, placement_of, read_space, wider_space
from forescale.spec import Layout, Recompute, Share
from forescale.spec.framework import searched
from forescale.spec.layout import ALL_LAYERS
from forescale.spec.space import Space, default_recompute, partial_recompute

MODEL = small.dense()


def written(tmp_path, text):
    path = tmp_path / "space.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_says_what_is_held_allowed_and_overlapped(tmp_path):
    path = written(
        tmp_path,
        """
        for = "torchtitan"
        overlap = ["grad_reduce", "tensor"]
        [fix]
        tp = [2, 4]
        pp = 2
        recompute = ["none", "full"]
        [allow]
        schedule = "gpipe"
        """,
    )
    space, framework = read_space(path, MODEL)
    assert framework.name == "torchtitan"
    assert (space.tp, space.pp) == ((2, 4), (2,))
    assert space.schedule == (None, "interleaved-zb", "zbv", "dualpipev", "gpipe")
    assert space.recompute == (Recompute(), Recompute(granularity="full"))
    assert space.base.overlap.tensor
    assert not space.base.overlap.param_gather
    assert {rule.name.split(": ")[0] for rule in space.rules} == {"torchtitan"}


def test_words_of_recompute():
    kept = held_space(Space(), {"recompute": ["full:4", "minimal", "selective"]}, MODEL, where="--fix")
    first, second, *selective = kept.recompute
    assert first == Recompute(granularity="full", num_layers=4)
    assert second == Recompute(granularity="policy", policy="minimal")
    assert selective == [item for item in default_recompute(MODEL) if item.granularity == "selective"]


def test_allowed_values_stand_beside_the_usual_ones_once():
    wide = wider_space(
        Space(), {"cp_kind": ["ulysses", "ring"], "recompute": ["full:3"]}, MODEL, where="--allow"
    )
    assert wide.cp_kind == ("all_gather", "ring", "ulysses")
    grids = wider_space(Space(), {"tp_kind": ["summa"], "summa_panels": ["8"]}, MODEL, where="--allow")
    assert (grids.tp_kind, grids.summa_panels) == (("1d", "summa"), (1, 2, 4, 8))
    usual = (*default_recompute(MODEL), *partial_recompute(MODEL))
    assert wide.recompute == (*usual, Recompute(granularity="full", num_layers=3))
    assert wider_space(Space(), {"tp": ["3"]}, MODEL, where="--allow").tp is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp = 4", "unknown_key tp"),
        ("for = 'megatorn'", "unknown_name framework"),
        ("fix = 3", "wrong_type fix"),
        ("[fix]\ntq = 2", "unknown_key tq"),
        ("[fix]\ntp = []", "wrong_type fix.tp"),
        ("[fix]\nrecompute = 'some'", "not_one_of fix recompute"),
        ("overlap = 'everything'", "not_one_of overlap"),
        ("overlap = ['none', 'tensor']", "wrong_type overlap"),
        ("for = 'deepspeed'\n[allow]\nvpp = 2", "not_one_of vpp of deepspeed-zero"),
        ("for = 'megatron'\n[allow]\ntp_kind = 'summa'", "not_one_of tp_kind of megatron-core"),
        ("tp = ", "cannot_parse TOML"),
    ],
)
def test_mistakes_name_the_file_and_what_is_allowed(tmp_path, text, said):
    path = written(tmp_path, text)
    with pytest.raises(ReaderError) as caught:
        read_space(path, MODEL)
    assert said in refusal(caught.value)
    assert str(path) in refusal(caught.value)


def test_a_missing_file_and_two_frameworks(tmp_path):
    with raises(ReaderError, "not_found file"):
        read_space(tmp_path / "none.toml", MODEL)
    path = written(tmp_path, "for = 'megatron'")
    with raises(ReaderError, "differs the framework of the space"):
        read_space(path, MODEL, framework=load_framework("maxtext"))


def test_a_framework_refuses_what_it_cannot_be_told():
    framework = load_framework("deepspeed")
    space = searched(framework, Space(), limited=True)
    with raises(SpecError, "not_one_of recompute of deepspeed-zero"):
        held_space(space, {"recompute": ["selective"]}, MODEL, where="--fix", framework=framework)
    with raises(UnknownKeyError, "unknown_key zzz"):
        held_space(Space(), {"zzz": ["1"]}, MODEL, where="--fix")


def test_placements_and_what_changes_the_question():
    value = {
        "placement": ["tp=4,dp=2", "all"],
        "precision": ["fp8:blockwise"],
        "overlap": ["tensor+expert", "none"],
    }
    host = {"optimizer_offload": ["0.5"], "activation_offload": ["2", "all"], "dispatcher": ["deepep"]}
    wide = wider_space(Space(placement=("orders",)), {**value, **host}, MODEL, where="--allow")
    assert wide.placement == ("orders", (Share(tp=4, dp=2),), "all")
    assert wide.precision == (None, ("fp8", "blockwise"))
    assert wide.overlap == (None, ("tensor", "expert"), ())
    assert wide.optimizer_offload == (None, 0.5)
    assert wide.activation_offload == (None, 2, ALL_LAYERS)
    assert wide.dispatcher == (None, "deepep")
    assert held_space(Space(), {"precision": ["bf16"]}, MODEL, where="--fix").precision == (("bf16", "none"),)


@pytest.mark.parametrize(
    ("name", "word", "said"),
    [
        ("precision", "fp9", "not_one_of --fix precision"),
        ("overlap", "tensors", "not_one_of overlap"),
        ("optimizer_offload", "2", "wrong_type --fix optimizer_offload"),
        ("activation_offload", "some", "wrong_type --fix activation_offload"),
        ("dispatcher", "nccl", "not_one_of --fix dispatcher"),
        ("placement", "near", "not_one_of --fix placement"),
    ],
)
def test_mistakes_in_them_say_what_is_allowed(name, word, said):
    with raises(SpecError, said):
        held_space(Space(), {name: [word]}, MODEL, where="--fix")


def test_numbers_of_layers_are_powers_of_two():
    kept = held_space(Space(), {"recompute": ["full:any"]}, MODEL, where="--fix")
    counts = [item.num_layers for item in kept.recompute]
    assert counts == [2**power for power in range(len(counts))]
    assert counts[-1] < MODEL.num_layers <= 2 * counts[-1]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("tp=4,dp=2", (Share(tp=4, dp=2),)), ("tp=8/pp = 4, dp=2", (Share(tp=8), Share(dp=2, pp=4)))],
)
def test_tiers_and_axes(text, meaning):
    assert placement_of(text, where="--placement") == meaning
    written = Layout(placement=meaning).rank_order
    assert placement_of(written, where="--placement") == meaning


@pytest.mark.parametrize("text", ["", "tp", "tp=0", "tp=2,tp=4", "ep=8", "tp=4;dp=2", "tp=4//dp=2"])
def test_anything_else_is_refused(text):
    with raises(SpecError, "not_one_of --placement"):
        placement_of(text, where="--placement")
