"""Launch scripts of the shell, followed without running them."""

from forescale.frameworks.shell.run import Script, follow, is_unset

__all__ = ["Script", "follow", "is_unset"]
