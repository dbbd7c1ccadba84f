"""What other tools that project training need for one layout: `python benchmarks/peers.py TOOL [FOLDER]`.

Run it with the Python that has the tool (llm-analysis from PyPI; calculon and SimuMax from a checkout, FOLDER). It
prints one row of benchmarks/instant.csv: the least processor time of one layout in a warm process.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from speed import additions, least

LAYOUT = {
    "num_procs": 512,
    "tensor_par": 8,
    "pipeline_par": 8,
    "data_par": 8,
    "batch_size": 512,
    "microbatch_size": 1,
}
"""GPT-3 175B on 512 A100, in the names of calculon's execution files."""


def llm_analysis(_: Path | None) -> Callable[[], object]:
    """OPT-175B on 64 A100: the catalogue of 0.2.2 has no other model of that size."""
    from llm_analysis.analysis import LLMAnalysis
    from llm_analysis.config import (
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
        get_model_config_by_name,
    )

    parts = (
        get_model_config_by_name("facebook_opt-175b"),
        get_gpu_config_by_name("a100-sxm-80gb"),
        get_dtype_config_by_name("w16a16e16"),
        ParallelismConfig(tp_size=8, pp_size=8),
    )
    return lambda: LLMAnalysis(*parts, achieved_tflops=150).training(
        batch_size_per_gpu=1, seq_len=2048, total_num_tokens=10**9
    )


def calculon(folder: Path | None) -> Callable[[], object]:
    """GPT-3 175B on 512 A100."""
    assert folder is not None
    sys.path.insert(0, str(folder))
    from calculon import System
    from calculon.llm import Llm

    def read(path: str) -> dict[str, object]:
        return json.loads((folder / path).read_text())

    application = Llm.Application(read("models/gpt3-175B.json"))
    layout = read("examples/3072_t4_p64_d12_mbs4_full.json") | LAYOUT
    system = System(read("systems/a100_80g.json"))

    def one() -> object:
        model = Llm(application, logging.getLogger())
        model.compile(system, Llm.Execution.from_json(layout))
        return model.run(system)

    return one


def simumax(folder: Path | None) -> Callable[[], object]:
    """Llama-3 8B on 8 A100, one of its own examples."""
    assert folder is not None
    sys.path.insert(0, str(folder))
    from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
    from simumax.core.perf_llm import PerfLLM
    from simumax.utils import get_simu_model_config, get_simu_strategy_config, get_simu_system_config

    parts = {
        "strategy_config": StrategyConfig.init_from_config_file(get_simu_strategy_config("tp2_pp1_dp4_mbs1")),
        "model_config": ModelConfig.init_from_config_file(get_simu_model_config("llama3-8b")),
        "system_config": SystemConfig.init_from_config_file(get_simu_system_config("a100_pcie")),
    }

    def one() -> object:
        model = PerfLLM()
        model.configure(**parts)
        model.run_estimate()
        return model.analysis_cost(), model.analysis_mem()

    return one


TOOLS = {"llm-analysis": llm_analysis, "calculon": calculon, "SimuMax": simumax}


def main(tool: str, folder: str | None = None) -> None:
    """Print the row of a tool."""
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()):
        one = TOOLS[tool](None if folder is None else Path(folder))
        seconds = least(one)
    print(
        f"{time.strftime('%Y-%m-%d')},{tool},one layout in a warm process,{seconds:.6f},{seconds / additions():.4f},"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
