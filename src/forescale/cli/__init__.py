"""The command line: `forescale`."""

from forescale.cli.app import main

__all__ = ["main"]
