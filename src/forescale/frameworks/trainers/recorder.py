"""What a Python script calls, followed as syntax (`frameworks/python`) and never run; `calls.json` has what counts."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from forescale.frameworks.python.module import Module, World, source_of
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import MISSING, Call, Stopped
from forescale.frameworks.reading import Options, packaged
from forescale.frameworks.trainers.arguments import Arguments
from forescale.frameworks.trainers.configured import configured, instantiated, variable

FACTS: Final = packaged("trainers", "calls")
MAKES: Final = re.compile(r"TrainingArguments$|^(?:\w+\.)*(?:SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|RLOO)Config$")
"""Calls that settle how a Trainer trains."""
COUNTS: Final = re.compile(
    r"(?:^|\.)(?:Lora|BitsAndBytes)Config$|get_peft_model$|gradient_checkpointing_enable$|kbit_training$|"
    + MAKES.pattern
)
"""Calls that a projection follows from."""
TOLD: Final = re.compile(
    r"(?i)model|quant|bits?\b|4bit|8bit|batch|accum|len|lora|dtype|precision|fp16|bf16|checkpointing|optim|stage|shard|fsdp"
)
"""Names of variables of the environment that a projection follows from."""
INSTANTIATES: Final = re.compile(r"(?:hydra\.utils\.|hydra\.)?(?:instantiate|call)")
"""Functions of hydra that make what a table names."""


class Recorder:
    """Hooks that keep the calls of a script, and answer those whose results are known."""

    package: Final = ""
    closed: Final = frozenset[str]()
    opens_classes: ClassVar[bool] = True
    """Whether methods of classes that can be read are followed."""

    def __init__(
        self,
        *,
        has_bf16: bool = True,
        given: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.answers = {**FACTS["answers"], **dict.fromkeys(FACTS["bf16"], has_bf16)}
        self.answers["get_device_capability"] = (8, 0) if has_bf16 else (7, 5)
        self.world: World | None = None
        self.calls: list[Call] = []
        self.variables: Mapping[str, str] = variables or {}
        self.unset: dict[str, None] = {}
        """Variables of the environment that nothing sets and that name what a projection follows from."""
        self.missed: list[str] = []
        """Calls that count, in functions that nothing calls."""
        self.arguments = Arguments(given or {}, packaged("deepspeed", "trainer")["keys"])

    def call(self, call: Call, owner: object) -> Any:  # noqa: ANN401
        """Keep a call, not known under a condition that is not; return the arguments that it makes, or its answer."""
        call.known = self.world is None or self.world.doubt is None
        self.calls.append(call)
        before = len(self.arguments.made)
        made = self.arguments.answer(call, owner, self.world)
        made = configured(call, owner, self.arguments.given) if made is MISSING else made
        made = self._variable(call) if made is MISSING else made
        table = next(iter(call.args), None) if INSTANTIATES.fullmatch(call.name) else None
        if isinstance(table, dict):
            made = instantiated({**table, **call.fields}, call, self.calls)
        self.calls += self.arguments.made[before:]
        return made if made is not MISSING else self.answers.get(call.name.rpartition(".")[2], MISSING)

    def _variable(self, call: Call) -> Any:  # noqa: ANN401
        """Return a variable of the environment, or its default."""
        value = variable(call, self.variables)
        name = call.args[0] if value is not MISSING and call.args else None
        if isinstance(name, str) and name not in self.variables and TOLD.search(name):
            self.unset[name] = None
        return value

    def warnings(self) -> list[str]:
        """Return the warnings of variables that are not set, and of calls that nothing makes."""
        kinds = {
            "variables of the environment, taken as not set:": self.unset,
            "functions that nothing calls are not read: they call": self.missed,
        }
        return [f"{text} {', '.join(names)}" for text, names in kinds.items() if names]

    def default(self, owner: Call, name: str) -> Any:  # noqa: ANN401, ARG002  (as all hooks)
        """Return the default of a field, which is not known."""
        return MISSING


def follow_script(path: Path, recorder: Recorder, options: Options) -> Frame:
    """Follow a script, so that `recorder` has its calls; what it raises on its data ends one statement alone.

    Where nothing that is followed trains, as with `fire.Fire(train)`, functions that train are called as they are.
    """
    recorder.world = World(recorder, Frame, options.folders)
    recorder.world.opens_classes = recorder.opens_classes
    module = recorder.world.module(path)
    frame = Frame(module, {"__name__": "__main__"})
    for line in module.tree.body:
        with suppress(Stopped):
            frame.body([line])
    if not any(makes(name) for call in recorder.calls for name in (call.name, *call.kinds)):
        for node in list(module.functions.values()):
            if any(map(makes, _called(node))):
                with suppress(Stopped):
                    frame.value(ast.copy_location(ast.Call(ast.Name(node.name, ast.Load()), [], []), node))
    recorder.missed = _missed(module)
    return frame


def makes(name: str) -> bool:
    """Whether a call of that name settles how a Trainer trains, or makes one."""
    return MAKES.search(name) is not None or name.rpartition(".")[2] in ("Trainer", "SFTTrainer")


def _called(node: ast.AST) -> list[str]:
    """Return the dotted names that lines call."""
    return [source_of(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _missed(module: Module) -> list[str]:
    """Return calls that count in functions and methods that nothing which is followed calls."""
    missed = list[str]()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef) and node not in module.world.followed:
            missed += [name.rpartition(".")[2] for name in _called(node) if COUNTS.search(name)]
    return list(dict.fromkeys(missed))
