"""OLMo-core's training scripts in Python: the configurations that their functions make."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Final

from forescale.frameworks.detect import Signed
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import MISSING, Call, Opaque, known
from forescale.frameworks.reading import Options, ParsedFile, packaged
from forescale.frameworks.recipes.reader import read_recipe
from forescale.frameworks.trainers.facts import without_facts
from forescale.frameworks.trainers.recorder import Recorder, follow_script
from forescale.frameworks.trainers.run import MICRO
from forescale.frameworks.trainers.script import OPEN

OUTSIDE: Final = ("opts", "common", "cli_context")
"""Arguments of the functions of a script that its command line fills in."""


MODEL: Final = "TransformerConfig"
SIZES: Final = ("d_model", "n_layers", "n_heads", "block", "block_pattern")
"""Fields of a model that a script may change."""


class OlmoRecorder(Recorder):
    """Hooks that answer what a script asks its surroundings."""

    opens_classes: ClassVar[bool] = False

    def __init__(self, num_devices: int | None) -> None:
        super().__init__()
        self.num_devices = num_devices

    def call(self, call: Call, owner: object) -> Any:  # noqa: ANN401
        """Return the number of devices where a script asks for it."""
        if call.name.endswith("get_world_size") and self.num_devices is not None:
            return self.num_devices
        result = super().call(call, owner)
        return call if MODEL in call.name.split(".") else result

    def default(self, owner: Call, name: str) -> Any:  # noqa: ANN401
        """Return what the script itself passes for an argument of its functions, else nothing."""
        if owner.name not in OUTSIDE:
            return MISSING
        named = [
            call.fields.get(name, MISSING)
            for call in self.calls
            if call.name.endswith(("partial", "build_config"))
        ]
        return next((value for value in named if value is not MISSING), None)


class OlmoCoreReader(Signed):
    """Training scripts of OLMo-core."""

    name: Final = "olmo-core"
    title: Final = str(packaged("recipes", "olmo-core")["title"])
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the configurations that the script at `path` makes say."""
        recorder = OlmoRecorder(options.num_devices)
        frame = follow_script(path, recorder, options)
        module = frame.module
        for node in module.functions.values():
            arguments = {item.arg: Call(item.arg, module.place(node), known=False) for item in node.args.args}
            if arguments.keys() & set(OUTSIDE):
                Frame(module, arguments).body(node.body)
        content = dict[str, Any]()
        for call in recorder.calls:
            owner, _, last = call.name.rpartition(".")
            if owner.endswith(MODEL):
                changed = [name for name in SIZES if known(call.fields.get(name, Opaque("", "")))]
                content[MODEL] = f"{last} with another {changed[0]}" if changed else last
            name = "build_config" if last == "partial" else owner if owner.endswith("Config") else last
            positional = {"mode": call.args[0]} if call.args and last.endswith("CheckpointingConfig") else {}
            for key, value in {**positional, **call.fields}.items():
                plain = value.text.rpartition(".")[2] if isinstance(value, Opaque) else value
                content[f"{name}.{key}"] = None if isinstance(plain, Call) else plain
        parsed = read_recipe(self.name, content, path, options, {})
        is_open = not isinstance(content.get("TransformerTrainModuleConfig.rank_microbatch_size"), int)
        return without_facts(parsed, [OPEN[MICRO]] * is_open)
