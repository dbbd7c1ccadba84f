"""The script for Slurm and the line for every node, run with a stand-in for srun and for the programs they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from forescale.export import export, place
from forescale.face import ask
from forescale.frameworks.writers import WRITERS

NODES, PER_NODE = 2, 8
TARGETS = [
    *(name for writer in WRITERS for name in writer.frameworks),
    "transformers@llamafactory",
    "transformers@axolotl",
]
PROGRAMS = ("torchrun", "accelerate", "axolotl", "llamafactory-cli", "tune", "python3")
SRUN = """#!/usr/bin/env bash
for node in 0 1; do SLURM_NODEID=$node SLURM_PROCID=$node SLURM_LOCALID=0 "$@"; done
"""
RECORD = """#!{python}
import json, os, sys
with open({records!r}, "a") as file:
    print(json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)]), file=file)
"""


def started(folder: Path, *command: str) -> list[tuple[str, list[str], dict[str, str]]]:
    """Run a command where Slurm and all launchers are stand-ins; return what each launcher got."""
    programs, records = folder / "bin", folder / "records"
    programs.mkdir(exist_ok=True)
    records.unlink(missing_ok=True)
    stand_in = RECORD.format(python=sys.executable, records=str(records))
    texts = {"srun": SRUN, "scontrol": "#!/bin/sh\nprintf 'node0\\nnode1\\n'\n"} | dict.fromkeys(
        PROGRAMS, stand_in
    )
    for name, text in texts.items():
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    primus = folder / "primus" / "examples"
    primus.mkdir(parents=True, exist_ok=True)
    (primus / "run_pretrain.sh").write_text(f"exec {programs / 'torchrun'}\n", encoding="utf-8")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "SLURM_SUBMIT_DIR": str(folder / "job"),
        "SLURM_JOB_NODELIST": "node[0-1]",
        "PRIMUS_PATH": str(folder / "primus"),
        "NANOTRON": str(folder),
    }
    ran = subprocess.run(
        command, env=environment, cwd=folder / "job", text=True, capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return [tuple(json.loads(line)) for line in records.read_text(encoding="utf-8").splitlines()]


def rendezvous(program: str, words: list[str], variables: dict[str, str]) -> dict[str, str]:
    """Return nodes, rank, address and port as a launcher reads them: from its options, or its variables."""
    options = {word.replace("-", "_"): value for word, value in pairwise(words)}
    if program == "accelerate":
        names = ("__num_machines", "__machine_rank", "__main_process_ip", "__main_process_port")
    elif "__nnodes" in options:
        names = ("__nnodes", "__node_rank", "__master_addr", "__master_port")
    else:
        options = variables
        names = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
        if program == "python3":
            names = ("NNODES", "NODE_RANK", "JAX_COORDINATOR_IP", "JAX_COORDINATOR_PORT")
    return dict(zip(("nodes", "rank", "address", "port"), map(options.get, names), strict=True))


@pytest.mark.parametrize("to", TARGETS)
def test_every_node_joins_one_run(to: str, tmp_path: Path) -> None:
    question = ask(
        "llama-3.1-8b", "h100-sxm", devices=NODES * PER_NODE, seq_len=4096, global_batch_size=64,
        zero=1 if to == "nanotron" else 3, framework=to,
    )  # fmt: skip
    result = export(question, slurm=True)
    place(result, tmp_path / "job")
    by_slurm = started(tmp_path, "bash", "slurm.sh")
    assert [rendezvous(*item) for item in by_slurm] == [
        {"nodes": str(NODES), "rank": str(node), "address": "node0", "port": "29500"} for node in range(NODES)
    ]
    by_hand = "export NODE_RANK=1 MASTER_ADDR=first MASTER_PORT=1234; " + result.launch
    for command in (by_hand, by_hand.replace("; ", "; exec ")):
        (item,) = started(tmp_path, "bash", "-c", command)
        assert rendezvous(*item) == {"nodes": str(NODES), "rank": "1", "address": "first", "port": "1234"}


@pytest.mark.parametrize("form", ["llamafactory", "trainer", "axolotl"])
def test_trainers_are_written_with_their_present_keys(form: str) -> None:
    """`per_gpu_train_batch_size` is the name that transformers deprecates; axolotl's own is micro_batch_size."""
    question = ask(
        "mistral-7b-v0.3", "h100-sxm", devices=8, seq_len=4096, global_batch_size=64, zero=3,
        framework="transformers" if form == "trainer" else f"transformers@{form}",
    )  # fmt: skip
    text = export(question).texts
    name = "micro_batch_size" if form == "axolotl" else "per_device_train_batch_size"
    main = text["recipe.yaml" if form == "trainer" else f"{form}.yaml"]
    assert f"\n{name}: 1\n" in main
    assert "per_gpu_train_batch_size" not in main
    assert "--to deepspeed" in main
