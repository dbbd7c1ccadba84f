"""Every number of the page, in its tables and its pictures, is that of the JSON of the same question."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from urllib.parse import parse_qsl, urlencode

import pytest
from fastapi.testclient import TestClient
from tests.web import test_app
from tests.web.test_app import QUERY
from tests.web.test_asked import SMALL, STUDY

from forescale.units import GIB
from forescale.web.app import create_app

NUMBER = re.compile(r'hx-get="/explain\?([^"]+)"[^>]*><data value="([^"]+)">([^<]+)</data>')
SMALLER = urlencode(
    [*SMALL[:2], ("devices", "8"), *SMALL[3:], ("framework", "none"), ("tokens", "1e12"), ("price", "2")]
)
CROWDED = urlencode([*SMALL[:2], ("devices", "4"), *SMALL[3:], ("tokens", "1e12")])
PUBLISHED = urlencode([*STUDY, ("tp", "4"), ("pp", "64"), ("tokens", "1T")])
MEMORY_ONLY = urlencode([*SMALL[:2], ("devices", "8"), *SMALL[3:], ("preset", "playbook")])
OTHER = urlencode({"with": urlencode([*SMALL, ("tp", "4")])})


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app())


@cache
def page(client, path, query=QUERY):
    """Ask for each page once: most numbers of one are of the same question."""
    return test_app.page(client, path, query)


@cache
def asked(client, path, query):
    return json.loads(page(client, path, query))


def numbers(text: str) -> Iterator[tuple[dict[str, str], str, float]]:
    """Yield of each number that is explained: quantity and stage, the address of its question, and the number."""
    for link, value, _ in NUMBER.findall(text):
        query = parse_qsl(unescape(link))
        message = {name: result for name, result in query if name in ("quantity", "stage")}
        yield message, urlencode([pair for pair in query if pair[0] not in message]), float(value)


def of_document(document, message):
    """Return what the JSON says of a quantity."""
    family, _, part = message["quantity"].partition(".")
    if family == "memory":
        stages = document["memory"]["stages"]
        stage = (
            stages[int(message["stage"])]
            if "stage" in message
            else max(stages, key=lambda item: item["peak_bytes"])
        )
        return stage[f"{part}_bytes"]
    if family in ("ratio", "payload", "volume"):
        sent = next(item for item in document["communication"] if item["part"] == part)
        return sent[family if family == "ratio" else f"{family}_bytes"]
    if family == "params":
        return document["params"][part]
    if part:
        return document["time_s"][part]
    return document["step_time_s" if family == "step_time" else family]


def leaves(value) -> Iterator[float]:
    """Yield every number of a document."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    elif isinstance(value, int | float):
        yield float(value)


def shown(text: str) -> list[float]:
    return [float(value) for value in re.findall(r'<data value="([^"]+)"', text)]


def specs(text: str):
    """Return the charts by their titles: all rows of each."""
    result = [json.loads(unescape(item)) for item in re.findall(r'data-spec="([^"]+)"', text)]
    return {
        item["title"]["text"]: [
            *item.get("data", {}).get("values", []),
            *(row for layer in item["layer"] for row in layer.get("data", {}).get("values", [])),
        ]
        for item in result
    }


@pytest.mark.parametrize(
    ("path", "query", "least"),
    [("/", QUERY, 30), ("/", PUBLISHED, 40), ("/", MEMORY_ONLY, 8), ("/search", SMALLER, 40), ("/front", SMALLER, 20), ("/fit", CROWDED, 4), (f"/compare?{OTHER}", QUERY, 30)],
)  # fmt: skip
def test_a_number_that_is_explained_is_that_of_the_json(client, path, query, least):
    text = page(client, path, query)
    result = list(numbers(text))
    assert len(result) >= least
    for message, link, value in result:
        assert value == of_document(asked(client, "/project.json", link), message), message


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/", QUERY),
        ("/", PUBLISHED),
        ("/", MEMORY_ONLY),
        ("/search", SMALLER),
        ("/fit", CROWDED),
        (f"/compare?{OTHER}", QUERY),
    ],
)
def test_a_number_is_the_root_of_its_tree(client, path, query):
    result = list(numbers(page(client, path, query)))
    for message, link, value in result[:: max(1, len(result) // 12)]:
        assert asked(client, "/explain.json", f"{urlencode(message)}&{link}")["tree"]["value"] == value


@pytest.mark.parametrize("path", ["/", "/search", "/front", "/fit"])
def test_no_number_is_shown_but_with_all_its_digits(client, path):
    text = re.sub(r"<data.*?</data>", "", page(client, path, CROWDED if path == "/fit" else SMALLER))
    cells = re.findall(r'<dd.*?</dd>|<td class="number">.*?</td>|<p>.*?</p>', text, flags=re.DOTALL)
    ranks = re.findall(r'<tr><td class="number">\d+</td>', text)
    names = r"80 % interval|#1 is|\(#\d+\) takes|more: .*|Held fixed .*?\. (?= layouts evaluated)"
    result = [cell for cell in cells if re.search(r"\d", re.sub(names, "", re.sub(r"<[^>]*>", "", cell)))]
    assert len(result) == len(ranks)


def test_what_has_no_tree_is_in_the_json_too(client):
    known = set(leaves(asked(client, "/project.json", QUERY)))
    assert set(shown(page(client, "/"))) <= known
    result = asked(client, "/search.json", SMALLER)
    text = page(client, "/search", SMALLER)
    took = float(re.search(r'bounds, in <data value="([^"]+)">[^<]*</data> s\.', text)[1])
    assert set(shown(text)) <= {took, *leaves(result)}
    assert len(result["run_costs"]) == len(result["best"])
    tree = asked(client, "/explain.json?quantity=mfu", QUERY)
    assert set(shown(page(client, "/explain?quantity=mfu"))) <= set(leaves(tree))


def test_bars_are_those_of_the_json(client):
    document = asked(client, "/project.json", QUERY)
    drawn = specs(page(client, "/"))
    parts = {row["part"]: row["value"] for row in drawn["Time by part"] if "part" in row}
    assert parts == {part: value for part, value in document["time_s"].items() if value}
    for row in drawn["Memory by stage"]:
        if "part" in row:
            stage = document["memory"]["stages"][int(row["stage"])]
            assert row["value"] == stage[f"{row['part']}_bytes"] / GIB
    compared = specs(page(client, f"/compare?{OTHER}"))
    before = asked(client, "/project.json", dict(parse_qsl(OTHER))["with"])
    for row in compared["Time of a step"]:
        if "part" in row:
            assert row["value"] == {"question 1": before, "now": document}[row["bar"]]["time_s"][row["part"]]


def test_points_are_those_of_the_json_of_the_question_that_they_lead_to(client):
    drawn = specs(page(client, "/pictures"))
    assert len(drawn) == 3
    for rows in drawn.values():
        assert len(rows) > 3
        for row in rows:
            document = asked(client, "/project.json", row["link"].removeprefix("/?"))
            assert row["y"] == document["tokens_per_s_per_device"]
    front = specs(page(client, "/front", SMALLER))["Memory and step time"]
    for row in front:
        document = asked(client, "/project.json", row["link"].removeprefix("/?"))
        assert (row["x"], row["y"]) == (document["memory"]["peak_bytes"] / GIB, document["step_time_s"])


def test_points_of_the_best_layouts_are_those_of_the_json(client):
    result = asked(client, "/search.json", SMALLER)
    drawn = specs(page(client, "/search", SMALLER))
    points = [(row["x"], row["y"]) for row in drawn["Memory and step time"]]
    assert points == [(item["memory"]["peak_bytes"] / GIB, item["step_time_s"]) for item in result["best"]]
    money = [(row["x"], row["y"]) for row in drawn["Days and money"]]
    assert money == [
        (item["training_days"], cost) for item, cost in zip(result["best"], result["run_costs"], strict=True)
    ]
    for row in drawn["Time of a step"]:
        if "part" in row:
            assert row["value"] == result["best"][int(row["bar"]) - 1]["time_s"][row["part"]]


def test_a_point_that_does_not_fit_says_so(client):
    rows = specs(page(client, "/pictures", CROWDED))["What if: more devices"]
    over = {row["x"] for row in rows if row["line"] == "does not fit"}
    assert over
    for row in rows:
        document = asked(client, "/project.json", row["link"].removeprefix("/?"))
        assert (row["x"] in over) == (document["memory"]["verdict"] == "OOM")
