"""Write catalogue/parallel_plans.json: how transformers splits the modules of its recorded model types over ranks.

Needs the extra `trace`. Usage: python scripts/parallel_plans.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from forescale.graph.recorded import recorded_types

OUT = Path(__file__).parents[1] / "src/forescale/catalogue/parallel_plans.json"
HEAD = transformers.AutoModelForCausalLM


def plan_of(kind: str) -> dict[str, Any]:
    """Return the styles of the modules of a type, and whether its experts can be dealt to ranks."""
    config = transformers.CONFIG_MAPPING[kind]
    styles = dict(getattr(config, "base_model_tp_plan", None) or {})
    if styles:  # distributed/mixin.py, init_parallel_plans: embeddings are split unless the plan names them
        styles.setdefault("embed_tokens", "embedding_rowwise")
    if config in HEAD._model_mapping:  # noqa: SLF001
        styles |= getattr(HEAD._model_mapping[config], "_tp_plan", None) or {}  # noqa: SLF001
    return {"styles": styles, "experts": bool(getattr(config, "base_model_ep_plan", None))}


def main() -> None:
    """Write the file: types with equal plans share an entry."""
    plans: dict[str, dict[str, Any]] = {}
    for kind in recorded_types():
        plan = plan_of(kind)
        if plan["styles"] or plan["experts"]:
            plans.setdefault(json.dumps(plan), {"types": [], **plan})["types"].append(kind)
    content = {
        "source": f"transformers {transformers.__version__}: base_model_tp_plan and base_model_ep_plan of the "
        "configuration, _tp_plan of the causal language model",
        "plans": list(plans.values()),
    }
    OUT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
