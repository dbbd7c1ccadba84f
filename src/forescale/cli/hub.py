"""The config.json of a model on huggingface.co: of the local cache of its library, or downloaded where asked for."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescale import wording
from forescale.catalogue.models import address_of, model_name_on_hub, resolve_model_name
from forescale.errors import ReaderError, UnknownNameError
from forescale.files import exists, place_of

if TYPE_CHECKING:
    from urllib.request import OpenerDirector, Request

CONFIG = "config.json"
SECONDS = 20.0
"""After which a download is given up."""
MOST = 4 * 2**20
"""Bytes of a configuration."""


def config_on_hub(text: str | None, *, download: bool) -> Path | None:
    """Return the config.json of ORGANISATION/NAME, or of its address, that the catalogue does not have.

    The local cache of huggingface_hub goes before that of earlier downloads; the network is used only with `download`.
    None if `text` is another model, or neither has it.

    Raises
    ------
    ReaderError
        If the download fails; it names the address.
    """
    name = None if text is None or exists(place_of(text)) else model_name_on_hub(text)
    if name is None:
        return None
    with suppress(UnknownNameError):
        resolve_model_name(name)
        return None
    cached = next((file for folder in _caches() if (file := _cached(folder / _folder(name)))), None)
    return _downloaded(name) if cached is None and download else cached


def _folder(name: str) -> str:
    return f"models--{name.replace('/', '--')}"


def _caches() -> tuple[Path, ...]:
    """Return the folders where models of the hub are kept: huggingface_hub's, as its variables say, and ours."""
    home = os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", Path(home) / "hub")), _own_cache()


def _own_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "forescale"


def _cached(folder: Path) -> Path | None:
    """Return the configuration in the snapshot that `main` is, or else the newest; None without any."""
    snapshots = folder / "snapshots"
    with suppress(OSError):
        file = snapshots / (folder / "refs" / "main").read_text(encoding="utf-8").strip() / CONFIG
        if file.is_file():
            return file
    files = (file for file in snapshots.glob(f"*/{CONFIG}") if file.is_file())
    return max(files, key=lambda file: file.stat().st_mtime, default=None)


def _downloaded(name: str) -> Path:
    """Return the file that the repository's configuration was saved in."""
    from urllib.error import URLError
    from urllib.request import Request

    address = address_of(name)
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with _opener().open(Request(address, headers=headers), timeout=SECONDS) as answer:  # noqa: S310  (https)
            content = answer.read(MOST).decode()
        json.loads(content)  # a page that asks to log in is none
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        fix = "save it with a browser and give that file; HF_TOKEN is sent for models that need it"
        raise ReaderError(address, wording.cannot_download(reason, fix)) from error
    file = _own_cache() / _folder(name) / "snapshots" / "main" / CONFIG
    file.parent.mkdir(parents=True, exist_ok=True)
    from forescale.atomic_write import write_text

    write_text(file, content)
    return file


def _opener() -> OpenerDirector:
    """Return what opens addresses, and sends a token to no other host that one leads to."""
    from urllib.parse import urlsplit
    from urllib.request import HTTPRedirectHandler, build_opener

    class SameHost(HTTPRedirectHandler):
        def redirect_request(self, req: Request, *args: Any) -> Request | None:  # noqa: ANN401  (as its base)
            following = super().redirect_request(req, *args)
            if following is not None and urlsplit(following.full_url).netloc != urlsplit(req.full_url).netloc:
                following.remove_header("Authorization")
            return following

    return build_opener(SameHost)
