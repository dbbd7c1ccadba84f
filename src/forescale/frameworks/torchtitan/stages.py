"""How torchtitan deals layers to pipeline stages, and its schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from forescale.errors import ReaderError, ScheduleError
from forescale.files import read_text
from forescale.frameworks.settings import Settings
from forescale.schedule.family import Request
from forescale.schedule.library import build_schedule, families
from forescale.schedule.torch_csv import from_csv

SCHEDULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "1F1B": "1f1b",
        "GPipe": "gpipe",
        "Interleaved1F1B": "interleaved-1f1b",
        "LoopedBFS": "looped-bfs",
        "InterleavedZeroBubble": "interleaved-zb",
        "ZBVZeroBubble": "zbv",
        "DualPipeV": "dualpipev",
    }
)
"""Names of torch.distributed.pipelining by ours (torch 2.13, get_schedule_class; letter case does not matter there)."""
SINGLE: Final = ("1F1B", "GPipe")
"""Schedules of one stage per rank; the others run two where nothing else is said."""
PP: Final = "parallelism.pipeline_parallel"


def dealt(num_stages: int, num_layers: int, first: int = 1, last: int = 1) -> tuple[int, ...] | None:
    """Return the decoder layers of each stage in the order of the model; None where torchtitan refuses.

    Embedding and head count as `first` and `last` layers; the first stages take what does not divide. Source:
    torchtitan v0.2.2, distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part; 0.3.0 alike.
    """
    if num_stages == 1:
        return (num_layers,)
    each, more = divmod(num_layers + first + last, num_stages)
    if each == 0 or first > each or last > each:
        return None
    layers = [each + (stage < more) for stage in range(num_stages)]
    layers[0] -= first
    layers[-1] -= last
    return tuple(layers)


def read_stages(settings: Settings, num_layers: int, pp: int) -> tuple[tuple[int, ...] | None, str | None]:
    """Return the layers of every virtual stage and the schedule; None is one stage, and no schedule."""
    schedule = _schedule(settings, settings.get(f"{PP}_schedule_csv"))
    first = settings.count(f"{PP}_first_stage_less_layers", 1)
    last = settings.count(f"{PP}_last_stage_less_layers", 1)
    per_stage = settings.count(f"{PP}_layers_per_stage")
    parts = settings.get("parallelism.module_fqns_per_model_part")
    if pp == 1:
        return None, None
    single = schedule in SINGLE
    if parts is not None:
        layers = _named(settings, parts, num_layers)
    else:
        num_stages = pp * (1 if single else 2)
        if per_stage is not None:
            num_stages = -(-(num_layers + first + last) // max(per_stage, 1))
        found = dealt(num_stages, num_layers, first, last)
        if found is None:
            settings.refuse(
                f"{num_layers} layers do not fill {num_stages} pipeline stages with embedding and head"
            )
        layers = found
    _check_stages(settings, len(layers), pp, schedule)
    if schedule not in SCHEDULES:
        return layers, _named_table(settings, schedule, pp, len(layers) // pp)
    return layers, SCHEDULES[schedule]


def _named_table(settings: Settings, file: str, pp: int, vpp: int) -> str:
    """Return the schedule of the library whose order a table has."""
    key = settings.spell(f"{PP}_schedule_csv")
    try:
        table, _ = from_csv(read_text(Path(settings.where).parent / file))
    except (ReaderError, ScheduleError) as error:
        settings.refuse(f"{key} cannot be read: {error}")
    request = Request(pp=pp, num_microbatches=table.num_microbatches, vpp=vpp)
    named = next((each.name for each in families() if _orders(each.name, request) == table.orders), None)
    if named is None:
        settings.refuse(f"{key} {file} holds none of the library's schedules; name one with --schedule")
    return named


def _orders(name: str, request: Request) -> tuple[Sequence[int], ...] | None:
    """Return the order of a schedule of the library; None where it cannot be built so."""
    try:
        return build_schedule(name, request, vpp=request.vpp).orders
    except ScheduleError:
        return None


def _schedule(settings: Settings, csv: object) -> str:
    """Return torch's name of the schedule, or the file that holds its order."""
    key = f"{PP}_schedule"
    given = str(settings.get(key) or "1F1B")
    if csv:
        return str(csv)
    named = next((name for name in SCHEDULES if name.lower() == given.lower()), None)
    return named or settings.choice(key, "1F1B", {name: name for name in SCHEDULES})


def _named(settings: Settings, parts: object, num_layers: int) -> tuple[int, ...]:
    """Return how many layers each list of module names holds."""
    key = "parallelism.module_fqns_per_model_part"
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        settings.refuse(f"{settings.spell(key)} must be a list of lists of module names")
    named = [[name for name in part if str(name).startswith("layers.")] for part in parts]
    wanted = [f"layers.{number}" for number in range(num_layers)]
    if [name for part in named for name in part] != wanted:
        settings.refuse(
            f"{settings.spell(key)} must name layers.0 to layers.{num_layers - 1}, each once and in order"
        )
    return tuple(len(part) for part in named)


def _check_stages(settings: Settings, num_stages: int, pp: int, schedule: str) -> None:
    """Refuse stages that the ranks, or the schedule, do not divide."""
    key = settings.spell(f"{PP}_degree")
    if num_stages % pp:
        settings.refuse(f"{num_stages} pipeline stages are no multiple of {key} {pp}")
    chunks = num_stages // pp
    if schedule in SINGLE and chunks > 1:
        settings.refuse(
            f"{settings.spell(f'{PP}_schedule')} {schedule} takes one stage a rank, but there are {chunks}"
        )
    if schedule in SCHEDULES and schedule not in SINGLE and chunks == 1:
        settings.refuse(f"{settings.spell(f'{PP}_schedule')} {schedule} takes two stages a rank or more")
