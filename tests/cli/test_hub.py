"""Models of huggingface.co that the catalogue does not have: caches first, and the network only where asked for."""

from __future__ import annotations

import io
import json
from unittest.mock import patch
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, Request

import pytest

from forescale.cli import hub
from forescale.errors import ReaderError, UnknownNameError

MODEL = "some-org/tiny-7b"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
ASKED = ("--cluster", "h100", "--devices", 1, "--global-batch-size", 8, "--json")


@pytest.fixture
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path


def saved(folder, snapshot, layers):
    file = folder / "models--some-org--tiny-7b" / "snapshots" / snapshot / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}), encoding="utf-8")
    return file


def layers_of(ran):
    assert ran.code == 0, ran.err
    model = json.loads(ran.out)["question"]["model"]
    assert model["name"] == "tiny-7b"
    return sum(layer.get("count", 1) for layer in model["layers"])


def answer(content):
    return patch("urllib.request.OpenerDirector.open", return_value=io.BytesIO(json.dumps(content).encode()))


def test_the_snapshot_that_main_is_goes_before_newer_ones(forescale, caches):
    saved(caches / "hub", "main-one", 2)
    saved(caches / "hub", "newer", 3)
    reference = caches / "hub" / "models--some-org--tiny-7b" / "refs" / "main"
    reference.parent.mkdir()
    reference.write_text("main-one\n")
    assert layers_of(forescale("project", MODEL, *ASKED)) == 2
    assert layers_of(forescale("project", f"https://huggingface.co/{MODEL}", *ASKED)) == 2


def test_only_download_uses_the_network_and_what_it_fetched_is_kept(forescale, caches):
    with answer({**CONFIG, "num_hidden_layers": 5}) as opened:
        error = forescale("project", MODEL, *ASKED).error
        assert isinstance(error, UnknownNameError)
        assert error.suggestions == ()
        assert f"https://huggingface.co/{MODEL}/resolve/main/config.json" in str(error)
        assert not opened.called
        assert layers_of(forescale("project", MODEL, *ASKED, "--download")) == 5
        assert opened.call_args[0][0].full_url == f"https://huggingface.co/{MODEL}/resolve/main/config.json"
    with patch("urllib.request.OpenerDirector.open", side_effect=AssertionError):
        assert layers_of(forescale("project", MODEL, *ASKED)) == 5


def test_the_catalogue_goes_before_the_network(forescale, caches):
    with patch("urllib.request.OpenerDirector.open", side_effect=AssertionError):
        ran = forescale("project", "meta-llama/Llama-3.2-1B", *ASKED, "--download")
    assert json.loads(ran.out)["question"]["model"] == "llama-3.2-1b"


def test_a_failed_download_is_one_error_with_the_address(forescale, caches):
    with patch("urllib.request.OpenerDirector.open", side_effect=URLError("no route")):
        error = forescale("project", MODEL, *ASKED, "--download").error
    assert isinstance(error, ReaderError)
    assert error.code == "cannot_download"
    assert str(error.path) == f"https://huggingface.co/{MODEL}/resolve/main/config.json"


def test_a_page_in_place_of_a_configuration_is_an_error_and_is_not_kept(forescale, caches):
    page = patch("urllib.request.OpenerDirector.open", return_value=io.BytesIO(b"<html>log in</html>"))
    with page:
        error = forescale("project", MODEL, *ASKED, "--download").error
    assert (type(error), error.code) == (ReaderError, "cannot_download")
    assert not list(caches.rglob("config.json"))


@pytest.mark.parametrize(
    ("address", "header"),
    [("https://huggingface.co/api/config.json", "Bearer x"), ("https://elsewhere.example/config.json", None)],
)
def test_a_token_is_sent_to_no_other_host(address, header):
    asked = Request(f"https://huggingface.co/{MODEL}/resolve/main/config.json")
    asked.add_header("Authorization", "Bearer x")
    handler = next(item for item in hub._opener().handlers if isinstance(item, HTTPRedirectHandler))
    following = handler.redirect_request(asked, None, 307, "", {}, address)
    assert following.full_url == address
    assert following.get_header("Authorization") == header


def test_a_misspelt_name_of_the_hub_has_the_nearest_name_only(forescale, caches):
    error = forescale("project", "meta-lama/Llama-3.1-8Bb", *ASKED).error
    assert isinstance(error, UnknownNameError)
    assert error.suggestions[0] == "llama-3.1-8b"
