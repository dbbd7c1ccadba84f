"""Trace the catalogue models that layers do not describe (needs the extra `trace`).

Usage: python scripts/catalogue_traces.py [NAME ...]; without names, all models whose file has `trace`: true, or the
sequence length to trace. Writes catalogue/traces/NAME.json.xz: the model with all weights trained, and with none.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

from msgspec.structs import replace  # noqa: E402

from forescale.frameworks.traces import document_of  # noqa: E402
from forescale.trace import trace_source  # noqa: E402

CATALOGUE = Path(__file__).parents[1] / "src/forescale/catalogue"
PRECISIONS = ("bf16",)


def main() -> None:
    """Write the traces of some models."""
    (CATALOGUE / "traces").mkdir(exist_ok=True)
    known = [
        file.stem for file in sorted((CATALOGUE / "models").glob("*.json")) if '"trace"' in file.read_text()
    ]
    for name in sys.argv[1:] or known:
        record = json.loads((CATALOGUE / "models" / f"{name}.json").read_text())
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / f"{name}.json"
            config.write_text(json.dumps(record["huggingface"]))
            try:
                length = 4096 if record["trace"] is True else record["trace"]
                model, frozen = (
                    trace_source(str(config), seq_len=length, precisions=PRECISIONS, frozen=frozen)
                    for frozen in (False, True)
                )
            except Exception as error:
                print(name, "failed:", type(error).__name__, str(error)[:300], flush=True)
                continue
        model = replace(model, traces=(*model.traces, *frozen.traces))
        text = json.dumps(document_of(model), separators=(",", ":"))
        file = CATALOGUE / "traces" / f"{name}.json.xz"
        file.write_bytes(lzma.compress(text.encode(), preset=9))
        trace = model.traces[0]
        lengths = f"{trace.min_seq_len} to {trace.max_seq_len}, multiples of {trace.seq_len_multiple}"
        print(name, f"{trace.num_parameters:,}", len(text), file.stat().st_size, lengths, flush=True)


if __name__ == "__main__":
    main()
