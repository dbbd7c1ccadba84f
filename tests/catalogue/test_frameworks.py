from __future__ import annotations

import pickle

import pytest

from forescale.catalogue.frameworks import framework_names, load_framework, release_names
from forescale.cost.run_calibration import load_run_calibration
from forescale.errors import UnknownNameError
from forescale.spec.strategy import Kernels

EVERY = [f"{name}@{release}" for name in framework_names() for release in release_names(name)]


@pytest.mark.parametrize("label", EVERY)
def test_every_record_loads_and_says_where_each_field_comes_from(label):
    framework = load_framework(label)
    assert framework.label == label
    usual = {"name", "release", "title", "date", "source", "sources", "limits"}
    plain = type(framework)(name="", release="", title="", date="", source="", software="")
    set_ = {n for n in framework.__dataclass_fields__ if getattr(framework, n) != getattr(plain, n)} - usual
    assert set_ <= framework.sources.keys()
    assert framework.date


def test_fitted_losses_of_every_software_are_there():
    known = load_run_calibration().software
    assert {load_framework(label).software for label in EVERY} <= known.keys()


def test_a_release_goes_over_what_it_starts_from():
    assert load_framework("torchtitan").release == "0.3"
    assert load_framework("torchtitan@2024").kernels.cross_entropy == "loss_parallel"
    assert load_framework("torchtitan@2024").kernels.gathers_aside
    eager = load_framework("torchtitan@2024-eager")
    assert (eager.software, eager.microbatches_per_stage) == ("torch-eager", 1)
    assert load_framework("nemo@24.07").master == "bf16"
    assert load_framework("megatron-core").kernels == Kernels()


def test_names_are_found_by_alias_and_near_ones_are_suggested():
    assert load_framework("Megatron").name == "megatron-core"
    assert load_framework("torch_fsdp").name == "torch-fsdp"
    with pytest.raises(UnknownNameError, match="did you mean torchtitan"):
        load_framework("torchtitn")
    with pytest.raises(UnknownNameError, match=r"did you mean 24\.07"):
        load_framework("nemo@24.7")


def test_limits_recompute_as_the_record_does():
    policies = load_framework("torchtitan").limits.values["recompute"]
    assert [policy.granularity for policy in policies] == ["none", "policy", "full"]
    assert policies[1].policy == "torch_per_op_compiled"
    assert load_framework("primus").limits.values == load_framework("megatron").limits.values


@pytest.mark.parametrize("label", EVERY)
def test_records_travel_to_other_processes(label):
    assert pickle.loads(pickle.dumps(load_framework(label))) == load_framework(label)
    assert isinstance(hash(load_framework(label)), int)
