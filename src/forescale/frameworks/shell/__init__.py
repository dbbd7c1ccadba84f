"""Launch scripts of the shell, followed without running them."""

from forescale.frameworks.shell.launch import HEADERS, Devices, devices_of, launch_of
from forescale.frameworks.shell.run import Script, follow, is_unset

__all__ = ["HEADERS", "Devices", "Script", "devices_of", "follow", "is_unset", "launch_of"]
