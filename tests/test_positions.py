"""Lines of keys, and errors that say them."""

from __future__ import annotations

import pytest

from forescale.errors import ReaderError, SpecError, UnknownKeyError, UnknownNameError
from forescale.positions import DEEPEST, key_lines, line_of, located, said_by

PLAN = """\
# a comment
model = "x"  # [vary]

[workload]
seq_len = 4096

[vary]
devices = [
    1,
    2,
]
device.hbm_bytes = "x2"
"cluster.tiers.nvlink.size" = 72

[[case]]
name = "a"
[[case]]
name = "b"
flops . bf16 = "x2"
[case.device]
hbm_bytes = 1
[[case.tiers]]
[[case.tiers]]
[case.tiers.link]
latency = 2

[model.rope]
base = 1
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("model",), 2),
        (("workload",), 4),
        (("workload", "seq_len"), 5),
        (("workload", "absent"), 4),
        (("vary", "devices"), 8),
        (("vary", "device", "hbm_bytes"), 12),
        (("vary", "cluster.tiers.nvlink.size"), 13),
        (("case", 0), 15),
        (("case", 1, "name"), 18),
        (("case", 1, "flops", "bf16"), 19),
        (("case", 2, "name"), None),
        (("case", 1, "device", "hbm_bytes"), 21),
        (("case", 1, "tiers", 1, "link", "latency"), 25),
        (("model", "rope", "base"), 28),
        (("absent",), None),
    ],
)
def test_keys_are_found_where_they_stand(path, line):
    assert line_of(PLAN, path) == line


def test_keys_of_json_and_yaml_have_lines_too():
    assert key_lines('{\n "a": 1, "b": [\n {"c": "x\\"{"},\n {"c":\n 2}]\n}', ".json") == {
        "a": 2,
        "b": 2,
        "b.0.c": 3,
        "b.1.c": 4,
    }
    assert key_lines("a: 1\nb:\n- c: 2\n- c: 3\n", ".yaml") == {"a": 1, "b": 2, "b.0.c": 3, "b.1.c": 4}
    assert key_lines("a: [\n", ".yaml") == {}
    assert key_lines('{"a": [', ".json") == {"a": 1}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SpecError("FILE, strategy: tp must be 1 or more"), "FILE, line 2, strategy: tp must be 1 or more"),
        (SpecError("tp 3 does not divide 8"), "FILE, line 2: tp 3 does not divide 8"),
        (SpecError("FILE, tiers[1]: size must be 8"), "FILE, line 7, tiers[1]: size must be 8"),
        (SpecError("FILE: tiers.0.size must be 8"), "FILE, line 5: tiers.0.size must be 8"),
        (SpecError("FILE, tiers[1]: name is required"), "FILE, line 6, tiers[1]: name is required"),
        (UnknownKeyError("pq", "FILE, strategy", ["pp"]), "unknown key 'pq' in FILE, line 3, strategy; did you mean pp?"),
        (UnknownNameError("model", "xyz", ["abc"]), "FILE, line 3: unknown model 'xyz'; there are abc"),
        (ReaderError("FILE", "line 9 is no CSV"), "FILE: line 9 is no CSV"),
        (ReaderError("other.json", "tp is not known"), "other.json: tp is not known"),
        (SpecError("FILE: ep must be 2"), "command line: ep must be 2"),
    ],
)  # fmt: skip
def test_an_error_says_the_line_of_the_key_that_it_names(tmp_path, monkeypatch, error, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("", encoding="utf-8")
    text = '[strategy]\ntp = 3\npq = "xyz"\n[[tiers]]\nsize = 1\n[[tiers]]\nsize = 2\n'
    (tmp_path / "f.toml").write_text(text, encoding="utf-8")
    error.args = (str(error).replace("FILE", "f.toml"),)
    if isinstance(error, UnknownKeyError):
        error.where = "f.toml, strategy"
    with pytest.raises(type(error)) as caught, located("f.toml", {"strategy.ep"}):
        raise error
    assert str(caught.value) == said.replace("FILE", "f.toml")


FOREIGN = """{
  "zero_optimization": {"stage": 1},
  "train_batch_size": 63,
  "expert_parallel": {
    "autoep_size": 2
  }
}"""


@pytest.mark.parametrize(
    ("problem", "given", "said"),
    [
        ("m has no experts: ep 2 must be 1", (), r"ds.json, line 4: expert_parallel: m has no experts"),
        ("m has no experts: ep 2 must be 1", ("ep",), r"^m has no experts"),
        ("global_batch_size 63 is not divisible by dp 4", (), r"ds.json, line 3: train_batch_size: global"),
        ("strategy: pp must be 1", (), r"^strategy: pp"),
        ("plan.toml, line 4: ep must be 1", (), r"^plan.toml, line 4"),
    ],
)
def test_an_error_about_a_degree_says_which_key_of_another_tool_says_it(tmp_path, problem, given, said):
    file = tmp_path / "ds.json"
    file.write_text(FOREIGN)
    with pytest.raises(SpecError, match=said), said_by([file], given):
        raise SpecError(problem)


def test_keys_of_maxtext_are_known_behind_where_they_count(tmp_path):
    file = tmp_path / "run.yml"
    file.write_text("base_config: base.yml\nici_expert_parallelism: 4\n")
    with pytest.raises(SpecError, match=r"run.yml, line 2: ici_expert_parallelism: m"), said_by([file], ()):
        raise SpecError("m has no experts: ep 4 must be 1")


def test_keys_below_any_configuration_have_no_line():
    assert len(key_lines('{"a":\n' * 2 * DEEPEST, ".json")) == DEEPEST
