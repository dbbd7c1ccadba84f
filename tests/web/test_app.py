"""The server by its addresses: pages, fragments, JSON equal to the commands', refusals, and waiting."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import signal
import socket
import struct
import xml.etree.ElementTree as ET
from html import unescape
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2 as httpx
import pytest
from fastapi.testclient import TestClient
from tests.web.test_asked import SMALL

from forescale.catalogue.clusters import cluster_names
from forescale.catalogue.models import model_names
from forescale.cli.app import run
from forescale.presets import preset_names
from forescale.web.app import OF_A_CLIENT, create_app, serve
from forescale.web.guard import SECURITY
from forescale.web.pages import ANALYSES, GALLERY
from forescale.web.workers import Workers
from scripts import gallery

NEUTRAL = urlencode([*SMALL, ("tp", "2"), ("pp", "2"), ("tokens", "1000000000000"), ("framework", "none")])
QUERY = urlencode([*SMALL, ("tp", "2"), ("pp", "2"), ("tokens", "1000000000000")])
KINDS = ("gzip", "identity", "gzip, deflate")
FRAGMENT = {"hx-request": "true"}


@pytest.fixture(scope="module")
def client():
    return TestClient(create_app())


def page(client, path, query=QUERY, status=200):
    answer = client.get(f"{path}{'&' if '?' in path else '?'}{query}", headers=FRAGMENT)
    assert answer.status_code == status, answer.text
    return answer.text


@pytest.mark.parametrize("page", ["/", "/learn"])
def test_the_page_loads_nothing_from_elsewhere(client, page):
    answer = client.get(page)
    assert answer.status_code == 200
    assert SECURITY.items() <= dict(answer.headers).items() | {(k, answer.headers[k]) for k in SECURITY}
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("link", [link for _, _, link in ANALYSES], ids=[name for name, _, _ in ANALYSES])
def test_a_published_analysis_is_a_link_and_explains_its_numbers(client, link):
    text = unescape(page(client, "/", link))
    for quantity in ("peak", "activations"):
        explained = re.search(rf'hx-get="/explain\?(quantity=memory.{quantity}[^"]+)"', text)
        assert "<code>" in page(client, "/explain", explained[1])


def test_a_layout_is_a_link_to_the_memory_calculator(client):
    link = re.search(r'href="/learn\?([^"]+)#memory"', unescape(page(client, "/")))[1]
    parameters = dict(parse_qsl(link))
    assert (parameters["memory.tp"], parameters["memory.pp"], parameters["memory.zero"]) == ("2", "2", "1")
    assert client.get(f"/learn?{link}").status_code == 200


def test_all_published_analyses_are_links():
    assert tuple(name for name, _, _ in ANALYSES) == preset_names()[1:]


def test_the_json_is_that_of_the_command(client, capsys):
    line = re.search(r"<pre[^>]*>forescale ([^<]+)</pre>", page(client, "/", NEUTRAL))[1]
    assert run([*line.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(page(client, "/project.json", NEUTRAL))
    text = page(client, "/explain?quantity=memory.weights&stage=1", NEUTRAL)
    line = re.search(r"<pre[^>]*>forescale ([^<]+)</pre>", text)[1]
    assert run([*line.split(), "--json"]) == 0
    link = re.search(r'href="/explain\.json\?([^"]+)"', text)[1].replace("&amp;", "&")
    assert json.loads(capsys.readouterr().out) == json.loads(page(client, "/explain.json", link))


def test_a_link_holds_the_question(client):
    answer = client.get(f"/?{QUERY}", headers=FRAGMENT)
    kept = answer.headers["HX-Push-Url"].partition("?")[2]
    assert sorted(parse_qsl(kept)) == sorted(parse_qsl(QUERY))


def test_a_number_is_explained(client):
    assert "Where step_time.ffn comes from" in page(client, "/explain?quantity=step_time.ffn")
    tree = json.loads(page(client, "/explain.json?quantity=mfu"))["tree"]
    assert tree["value"] == json.loads(page(client, "/project.json"))["mfu"]


def test_launch_files_are_shown_and_saved(client):
    text = page(client, "/launch?to=megatron-core")
    link = re.search(r'href="(/launch[^"]+)" download', text)[1].replace("&amp;", "&")
    saved = client.get(link)
    assert "--tensor-model-parallel-size" in saved.text
    assert saved.headers["content-disposition"].startswith("attachment")


def test_what_would_fit_leads_to_questions(client):
    query = urlencode([*SMALL[:2], ("devices", "4"), *SMALL[3:], ("framework", "none")])
    assert "OOM" in page(client, "/", query)
    link = re.search(r'href="/\?([^"]+)"', page(client, "/fit", query))[1].replace("&amp;", "&")
    assert "FITS" in page(client, "/", link)


def test_pictures_and_comparison(client):
    drawn = page(client, "/pictures")
    assert drawn.count("data-spec") == 3
    assert "<svg" in drawn
    others = [urlencode([*SMALL, ("tp", tp)]) for tp in ("1", "4", "8")]
    compared = page(client, f"/compare?{urlencode([('with', item) for item in others])}")
    assert "strategy.tp" in compared
    assert [f"question {place}" in compared for place in (1, 2, 3, 4)] == [True, True, True, False]


def test_the_card_is_a_picture_that_other_pages_may_show(client):
    drawn = client.get(f"/card.svg?{QUERY}")
    assert (drawn.headers["content-type"], drawn.status_code) == ("image/svg+xml", 200)
    assert drawn.headers["cross-origin-resource-policy"] == "cross-origin"
    root = ET.fromstring(drawn.text)
    assert (root.get("width"), root.get("height")) == ("1200", "630")
    png = client.get(f"/card.png?{QUERY}")
    assert struct.unpack(">8x4x4xII", png.content[:24]) == (1200, 630)


def test_the_gallery_shows_published_runs_next_to_projections():
    assert {run["id"]: run["address"] for run in GALLERY} == gallery.addresses()
    assert len(GALLERY) == 20
    assert all(run["source"] and run["measured_step_s"] for run in GALLERY)


def test_the_costs_of_a_run_are_those_of_its_tokens(client):
    assert "enter the tokens" in page(client, "/cost", urlencode([*SMALL, ("tp", "2")]))
    priced = page(client, "/cost", f"{QUERY}&price=2")
    hours, money = (
        float(re.search(f'{name}</dt><dd><data value=.([^"]+)', priced)[1])
        for name in ("Device-hours", "Cost")
    )
    assert money == pytest.approx(2 * hours)


def test_names_have_the_numbers_of_the_catalogue(client):
    names = client.get("/static/names.json").json()
    assert [row["name"] for row in names["model"]] == list(model_names())
    assert [row["name"] for row in names["cluster"]] == list(cluster_names())
    assert all(row == gallery.model_row(row["name"]) for row in names["model"][::40])
    assert all(row == gallery.cluster_row(row["name"]) for row in names["cluster"][::10])


def test_a_log_is_compared_with_the_question(client):
    log = " iteration 5/ 100 | elapsed time per iteration (ms): 9000.0 | global batch size: 256 |\n" * 3
    read = client.post(f"/read?name=run.log&{QUERY}", content=log).json()
    assert (read.get("format"), read.get("fields")) == ("a log", {}), read
    assert '<data value="9.0">' in read["html"]


@pytest.mark.parametrize(
    "path", ["/", "/explain", "/launch?to=megatron-core", "/fit", "/pictures", "/project.json"]
)
@pytest.mark.parametrize(
    "query", ["model=%3Cscript%3Ealert(1)%3C/script%3E", "devices=1e9", "what=1", "model=own&config=%7B", "tp=" + "9" * 400]
)  # fmt: skip
def test_hostile_questions_are_one_escaped_sentence(client, path, query):
    text = page(client, path, query, status=422)
    assert path.endswith(".json") or "<script" not in text
    assert "Traceback" not in text


HOSTILE_VALUES = (
    "-1",
    "nan",
    "1e400",
    "9" * 400,
    "\u0663",
    "\x00",
    "<b>",
    "../../etc/passwd",
    "8\r\nSet-Cookie: x",
)
HOSTILE_LINES = (
    "strategy=1", "strategy.=1", "strategy.tp='", "strategy.recompute={}", "strategy.offload.optimizer=nan",
    "strategy.placement=[[1]]", "workload.tokens=1e26", "workload.outer.every=0", "strategy.pp=16777216",
)  # fmt: skip
HOSTILE_CONFIGS = (
    "[" * 20_000, "null", '{"model_type": []}', '{"layers": [1]}', '{"layers": [{"count": 1000000000}]}',
    '{"base": "/etc/passwd", "layers": []}', '{"model_type": "llama", "hidden_size": 1e308, "num_attention_heads": 0}',
)  # fmt: skip
HOSTILE_FILES = {
    "empty.sh": b"",
    "binary.sh": bytes(range(256)),
    "a.zip": b"PK\x03\x04" + bytes(1000),
    "deep.json": b'{"a":' * 20_000,
    "tag.yaml": b"!!python/object/apply:os.system ['id']",
    "loop.yaml": b"a: &a [*a]\nmodules: *a\n",
    "doubling.sh": b"X=a\n" + b"X=$X$X$X$X\n" * 60 + b"torchrun pretrain_gpt.py --num-layers $X",
    "repeated.sh": b"torchrun pretrain_gpt.py " + b"--num-layers 2 " * 2_000,
    "recipe.py": b"x = 10**10**10",
    "ds.json": b'{"zero_optimization": {"stage": 99}, "train_batch_size": NaN}',
    "../../etc/passwd": b"root",
}


def test_hostile_requests_get_an_answer(client):
    fields = (
        "model",
        "devices",
        "seq_len",
        "tokens",
        "framework",
        "tp",
        "recompute",
        "hbm_gib",
        "set",
        "config",
    )
    changes = [
        {name: HOSTILE_VALUES[(nth + more) % len(HOSTILE_VALUES)]}
        for more in (0, 4)
        for nth, name in enumerate(fields)
    ]
    changes += [{"set": line} for line in HOSTILE_LINES]
    changes += [{"model": "own", "config": text} for text in HOSTILE_CONFIGS]
    answers = [client.get("/project.json", params={**dict(SMALL), **change}) for change in changes]
    answers += [
        client.post("/read", params={"name": name}, content=body) for name, body in HOSTILE_FILES.items()
    ]
    answers += [
        client.request(method, path) for method in ("PUT", "TRACE") for path in ("/", "/read", "/search.json")
    ]
    paths = ("/%ff%fe", "/?%ff=%80", "/static/%00", "/explain?stage=1e9", "/compare?with=%00")
    for answer in (*answers, *map(client.get, paths)):
        assert 200 <= answer.status_code < 500, answer.url
        assert "mistake of the program" not in answer.text, answer.url
        assert "takes longer" not in answer.text, answer.url


def test_an_unknown_target_or_quantity_is_named(client):
    assert "nope" in page(client, "/launch?to=nope", status=422)
    assert "nope" in page(client, "/explain?quantity=nope", status=422)
    for stage, sentence in (
        ("9", "from 0 to"),
        ("-1", "number from 0"),
        ("9" * 5000, "number from 0"),
    ):
        assert sentence in page(client, f"/explain?quantity=memory.peak&stage={stage}", status=422)
    assert (
        client.get(
            "/launch", params={"to": "megatron-core", "file": "/etc/passwd", **dict(SMALL)}
        ).text.count("root:")
        == 0
    )


def test_files_of_the_server_are_not_served(client):
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/vendor/../../app.py"):
        assert client.get(path).status_code == 404


def test_more_than_is_worked_on_is_told_to_wait():
    none = Workers(processes=1, most=0, time_limit_s=1.0)
    client = TestClient(create_app(none, none, none))
    for path in ("/project.json", "/search.json", "/fit"):
        answer = client.get(f"{path}?{QUERY}")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
    assert client.get(f"/search?{QUERY}").text.startswith("event: busy")


@pytest.mark.parametrize(
    "path",
    ["/", "/fit", "/pictures", "/explain", "/launch?to=megatron-core", "/project.json", "/search.json"],
)
def test_whatever_takes_longer_than_its_limit_is_ended(path):
    hasty = Workers(processes=1, most=4, time_limit_s=0.0)
    client = TestClient(create_app(hasty, hasty, hasty))
    assert "takes longer than 0 s" in page(client, path, status=422)
    assert "takes longer" in client.get(f"/search?{QUERY}").text


def test_answers_are_remembered(client):
    query = urlencode([*SMALL, ("tp", "4")])
    first = page(client, "/project.json", query)
    patient = TestClient(client.app)
    assert page(patient, "/project.json", urlencode([("tp", "4"), *SMALL])) == first


class Echo:
    """Workers that answer with the parameters, and count."""

    def __init__(self):
        self.asked, self.started = 0, 0

    async def ask(self, _, work, query, *more):
        self.asked += 1
        await asyncio.sleep(0)
        return gzip.compress(f"{work} {query}".encode())

    def start(self):
        self.started += 1

    def close(self):
        pass


def test_what_the_page_opens_with_is_answered_before_the_first_request():
    workers = Echo()
    with TestClient(create_app(workers, workers, workers)) as client:
        assert (workers.started, workers.asked) == (3, 1)
        assert client.get("/").text == "form []"
        assert workers.asked == 1


def test_a_page_that_is_not_answered_in_time_is_served_nevertheless():
    hasty = Workers(processes=1, most=4, time_limit_s=0.0)
    with TestClient(create_app(hasty, hasty, hasty)) as client:
        assert client.get("/learn").status_code == 200


def test_the_address_is_told_once_the_server_listens():
    places = []

    def ready(url):
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port), timeout=10):
            places.append(place.hostname)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        serve("127.0.0.1", 0, ready=ready)
    assert places == ["127.0.0.1"]


def test_equal_questions_are_answered_together():
    workers = Echo()
    application = create_app(workers, workers, workers)

    async def ask():
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as session:
            return await asyncio.gather(
                *(session.get(f"/project.json?{QUERY}", headers={"accept-encoding": kind}) for kind in KINDS)
            )

    answers = asyncio.run(ask())
    assert workers.asked == 1
    assert len({answer.text for answer in answers}) == 1
    assert [answer.headers.get("content-encoding") for answer in answers] == ["gzip", None, "gzip"]


def test_the_answers_that_are_kept_have_a_bounded_size(monkeypatch):
    workers = Echo()
    client = TestClient(create_app(workers, workers, workers))
    monkeypatch.setattr("forescale.web.app.REMEMBERED", 200)
    for devices in ("8", "16", "32", "64", "8"):
        page(client, "/", urlencode([("devices", devices)]))
    page(client, "/", urlencode([("devices", "8")]))
    assert workers.asked == 5


def test_a_framework_file_fills_the_form(client):
    query = f"{QUERY}&framework=megatron-core"
    script = page(client, "/launch?to=megatron-core&file=run.sh", query)
    result = client.post("/read?name=run.sh&devices=16", content=script).json()
    fields = {**result["fields"], "cluster": "h100-sxm", "devices": "16"}
    filled = urlencode({name: value for name, value in fields.items() if value})
    again, first = (json.loads(page(client, "/project.json", item)) for item in (filled, query))
    assert again["step_time_s"] == first["step_time_s"]


def test_a_file_that_is_none_is_refused(client):
    assert client.post("/read?name=a", content=b"\xff\xfe\x00").status_code == 422
    assert client.post("/read?name=a", content=b"x" * 9_000_000).status_code == 413
    assert "not known" in client.post("/read?name=a.txt", content="hello").json()["error"]


@pytest.mark.usefixtures("usual_frameworks")  # as in the processes that work for the page
def test_a_search_tells_how_far_it_is_and_what_is_best(client, capsys):
    query = urlencode([*SMALL[:2], ("devices", "8"), *SMALL[3:]])
    result = json.loads(page(client, "/search.json", query))
    assert run(["search", "llama-3.1-8b", "--cluster", "h100-sxm", "--devices", "8", "--seq-len", "4096",
                "--global-batch-size", "256", "--json"]) == 0  # fmt: skip
    command = json.loads(capsys.readouterr().out)
    assert [item["step_time_s"] for item in result["best"]] == [
        item["step_time_s"] for item in command["best"]
    ]
    text = page(client, "/search", query)
    assert "event: found" in text
    link = re.search(r'href="/\?([^"]+)"', text)[1].replace("&amp;", "&")
    assert json.loads(page(client, "/project.json", link))["step_time_s"] == result["best"][0]["step_time_s"]


def test_a_search_is_remembered_whatever_layout_is_looked_at(client):
    query = [
        *SMALL[:2],
        ("devices", "8"),
        *SMALL[3:],
        ("set", "workload.document_len=1024\nstrategy.sp=false"),
    ]
    first = page(client, "/search?soon=1", urlencode([*query, ("tp", "2")]))
    assert "event: progress" in first
    again = page(client, "/search?soon=1", urlencode([*query, ("tp", "4"), ("pp", "2")]))
    assert again.startswith("event: found")
    assert again == first[first.index("event: found") :]
    assert "workload.document_len" in again


def test_one_client_does_not_take_all_places():
    app = create_app(long=Workers(processes=1, most=16, time_limit_s=30.0, patient=True))

    async def ask():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as session:
            links = [f"/fit?{urlencode([*SMALL, ('tp', str(2**tp))])}" for tp in range(OF_A_CLIENT + 2)]
            return [answer.status_code for answer in await asyncio.gather(*map(session.get, links))]

    result = asyncio.run(ask())
    assert result.count(429) == 2


def test_a_search_that_cannot_be_asked_is_one_sentence(client):
    assert "unknown model" in page(client, "/search", "model=nope&cluster=h100-sxm")
    assert json.loads(page(client, "/search.json", "model=nope", status=422))["error"].startswith(
        "unknown model"
    )


def test_the_front_has_the_layout_asked_and_leads_to_the_others(client):
    text = page(client, "/front", f"{QUERY}&price=2")
    memory, money = (json.loads(unescape(item)) for item in re.findall(r'data-spec="([^"]+)"', text))
    points = [row for layer in memory["layer"] for row in layer["data"]["values"]]
    assert [row["line"] for row in points].count("this one") == 1
    assert money["layer"][0]["data"]["values"][0]["y"] > 0
    step = json.loads(page(client, "/project.json", points[0]["link"].removeprefix("/?")))["step_time_s"]
    assert step == points[0]["y"]
    assert len(re.findall("<tr>", text)) == len(points)


def test_a_front_of_a_layout_that_cannot_be_has_only_others(client):
    text = page(client, "/front", QUERY.replace("tp=2", "tp=3"))
    assert "this one" not in text


def test_money_is_days_times_price(client):
    text, dear = (page(client, "/", f"{QUERY}&price={price}") for price in ("$2.00/hr", 4))
    cost, double = (float(re.search(r'id="cost"><data value="([^"]+)"', item)[1]) for item in (text, dear))
    assert double == 2.0 * cost
    assert cost == pytest.approx(16 * 24 * 2 * json.loads(page(client, "/project.json"))["training_days"])
    assert "on the calendar" in text
    assert "a number above 0 and up to" in page(client, "/", f"{QUERY}&price=free", status=422)


def test_images_are_asked_of_models_that_see(client):
    question = QUERY.replace("llama-3.1-8b", "qwen2.5-vl-7b") + "&image_size=448"
    few, many = (json.loads(page(client, "/project.json", f"{question}&images={count}")) for count in (1, 4))
    assert many["vision"]["patches"] == 4 * few["vision"]["patches"]
    assert "no vision tower" in page(client, "/", f"{QUERY}&images=2", status=422)
