"""Launch scripts of the shell, followed without running them."""

from forescale.frameworks.shell.expressions import is_unset
from forescale.frameworks.shell.launch import HEADERS, Devices, Launch, devices_of, launch_of
from forescale.frameworks.shell.run import WORLD, follow
from forescale.frameworks.shell.script import Script, Use

__all__ = [
    "HEADERS",
    "WORLD",
    "Devices",
    "Launch",
    "Script",
    "Use",
    "devices_of",
    "follow",
    "is_unset",
    "launch_of",
]
