"""`forescale diagnose`: measured against expected."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from forescale.atomic_write import writable
from forescale.cli.advice import flags_of
from forescale.cli.advise import remedies_of
from forescale.cli.console import show
from forescale.cli.declare import option
from forescale.cli.formats import answer_of
from forescale.cli.inputs import answered, read_question, refuse_presets
from forescale.cli.misspelt import lacking
from forescale.cli.options import Priced, output_option
from forescale.cli.output import PageOptions, command_line
from forescale.cli.reproduce import TYPED
from forescale.errors import ReaderError, missing, wrong_format
from forescale.files import is_file, place_of
from forescale.synonyms import EXAMPLES

LINES = 1_000
"""Of a file in the place of a model that are looked at for those of a log."""


def diagnose_command(
    *,
    request: Priced,
    measured: list[str] | None = option(
        "A log, a profiler trace, a folder of traces of several ranks, or a figure: step=12.4s, mfu=35%, tflops=410, "
        "tokens_per_s_per_device=5000, memory=70GiB. Repeatable.",
        "FILE|NAME=VALUE",
        panel="Measurement",
    ),
    mfu_convention: str = option(
        "FLOP that mfu and tflops count: causal, full, hardware or 6nd, with :sparse over the sparse peak.",
        "WORD",
        default="causal",
        panel="Measurement",
    ),
    plot: Path | None = output_option(
        "Draw both steps: .svg, .png, .html, .json (Perfetto).",
        "FILE",
        flag="--output -o",
        check=writable,
    ),
    output: PageOptions,
) -> None:
    """Compare a measured run with what it should reach, and rank the causes of the difference."""
    from forescale.cli.progress import ReadingBar
    from forescale.cli.render.diagnose import diagnosis_view
    from forescale.diagnose import diagnose, measured_of, with_settings
    from forescale.diagnose.picture import write_steps

    if not measured:
        _refuse_log(request)
    question = read_question(request)
    refuse_presets(question, "diagnose")
    if not measured:
        raise missing("--measured", "give a log, a trace, or a figure such as step=12.4s")
    sizes = [Path(item).stat().st_size for item in measured if Path(item).is_file()]
    with ReadingBar(max(1, *sizes, 1)) as progress:
        evidence = measured_of(measured, answered(question), progress, mfu_convention)
    result = with_settings(diagnose(question, evidence, answered), question, remedies_of(request))
    if plot is not None:
        write_steps(result, plot)
    show(answer_of(result, diagnosis_view, question=question), output)


def _refuse_log(request: Priced) -> None:
    """Refuse a log in the place of the model, with the command that takes it as what was measured."""
    from forescale.logs import format_of, lines_of

    path = place_of(request.model or "")
    if not is_file(path) or (log := format_of(islice(lines_of(path), LINES))) is None:
        return
    words = list(TYPED.get())
    if str(request.model) in words:
        words.remove(str(request.model))
    model = [] if {"--model", "--plan", "--config"} & {*words} else [str(EXAMPLES["model"])]
    asked = (words[0], *model, *words[1:], "--measured", str(request.model))
    example = command_line((*asked, *lacking(asked[:-1], flags_of(words[0]))))
    fix = f"for example: {example}"
    raise ReaderError(path, wrong_format(f"a model: it is a log of {log.title}", "", fix))
