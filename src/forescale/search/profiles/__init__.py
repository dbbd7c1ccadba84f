"""Limits of training frameworks as search spaces. A new framework is one file and one entry of `PROFILES`."""

from __future__ import annotations

from forescale.errors import UnknownNameError
from forescale.search.profiles.deepspeed import DEEPSPEED
from forescale.search.profiles.maxtext import MAXTEXT
from forescale.search.profiles.megatron import MEGATRON
from forescale.search.profiles.profile import Profile
from forescale.search.profiles.torchtitan import TORCHTITAN

PROFILES = (MEGATRON, TORCHTITAN, DEEPSPEED, MAXTEXT)


def profile_names() -> tuple[str, ...]:
    """Return the names of all profiles."""
    return tuple(profile.name for profile in PROFILES)


def load_profile(name: str) -> Profile:
    """Return the profile of a framework.

    Raises
    ------
    UnknownNameError
        If there is none of that name.
    """
    for profile in PROFILES:
        if profile.name == name:
            return profile
    kind = "framework"
    raise UnknownNameError(kind, name, profile_names())


__all__ = ["PROFILES", "Profile", "load_profile", "profile_names"]
