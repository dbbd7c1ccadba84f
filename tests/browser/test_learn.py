"""The interactive pictures in a browser, from files: drawn, linked, used by keyboard, and equal to the engine's figures."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from scripts.book import PICTURES, SCRIPTS
from scripts.learn import RECIPES
from tests.browser.conftest import Opened, serious

import forescale as fs
from forescale.cli.app import run
from forescale.formula import number_of
from forescale.presets import load_preset

NAMES = ("memory", "timeline", "collectives", "splits", "ring", "formats", "decisions")
PARTS = ("weights", "gradients", "optimizer", "activations")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a page that has all pictures, without a server."""
    scripts = [f'<script defer src="{(PICTURES / name).as_uri()}"></script>' for name in names_of_scripts()]
    style = (
        f"<style>:root {{ color-scheme: light dark }} {(PICTURES / 'learn.css').read_text('utf-8')}</style>"
    )
    head = f'<meta charset="utf-8"><title>Pictures</title>{style}'
    view = '<meta name="viewport" content="width=device-width">'
    shown = "".join(f'<h2>{name}</h2><div id="{name}" data-picture="{name}"></div>' for name in NAMES)
    file = tmp_path_factory.mktemp("learn") / "page.html"
    page = f'<!doctype html><html lang="en"><head>{head}{view}{"".join(scripts)}</head><body><main><h1>Pictures</h1>{shown}</main></body></html>'
    file.write_text(page, encoding="utf-8")
    return file.as_uri()


def names_of_scripts() -> list[str]:
    return SCRIPTS.findall((PICTURES / "index.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(browser: Browser, place: str) -> Iterator[Page]:
    """One page for the tests that only compute."""
    page = browser.new_page()
    page.goto(place)
    yield page
    page.close()


def picture(page: Page, name: str, expression: str, *values: Any) -> Any:
    """Return the value of a method of a picture."""
    return page.evaluate(f"([...values]) => Learn.pictures['{name}'].{expression}(...values)", list(values))


def test_all_pictures_are_drawn_and_accessible(opened: Opened, place: str):
    page = opened(place, width=360, scheme="dark")
    assert serious(page) == []
    page.emulate_media(color_scheme="light")
    contrast = "axe.run({runOnly: ['color-contrast']}).then((result) => result.violations.length)"
    assert page.evaluate(contrast) == 0
    for width in (360, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "document.querySelector('#memory svg').getBoundingClientRect().width > innerWidth / 2"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for name in NAMES:
            assert page.evaluate(DRAWN, name) == [True, True, True], (name, width)


DRAWN = """(name) => {
    const place = document.getElementById(name), svg = place.querySelector("svg"), texts = [...svg.querySelectorAll("text")];
    const boxes = texts.map((text) => text.getBBox()), left = Math.min(...boxes.map((box) => box.x)), right = Math.max(...boxes.map((box) => box.x + box.width));
    return [svg.querySelectorAll("rect").length >= 4, /[=≤]/.test(place.querySelector(".learn-formula").textContent), left >= -1 && right <= svg.viewBox.baseVal.width + 1];
}"""
"""Whether a picture has shapes, states a formula, and cuts no text off."""


SETTINGS = """() => [...document.querySelectorAll("[data-picture]")].flatMap((place) => {
    const spec = Learn.pictures[place.dataset.picture];
    return spec.controls.flatMap((control) => {
        const values = { choice: () => control.options.map(([value]) => value), check: () => [true, false], number: () => [control.min, control.max] };
        return (values[control.kind] || (() => []))().filter((value) => {
            const result = spec.draw({ ...place.picture.state, [control.name]: value }, { width: 360, set: () => {} });
            return /NaN(?![;)])|undefined|Infinity/.test([result.formula, result.value, result.text, ...[result.extra].flat().map((node) => node.textContent)].join(" "));
        }).map((value) => [place.id, control.name, value]);
    });
})"""
"""Every choice, and the least and the largest number of every control, that leave no number in the text."""


def test_every_setting_draws_numbers(page: Page):
    assert page.evaluate(SETTINGS) == []


def test_a_link_holds_the_parameters(opened: Opened, place: str):
    page = opened(place)
    page.fill("#memory-layers", "80")
    page.select_option("#memory-recipe", "nanotron FP8")
    page.uncheck("#memory-flash")
    page.select_option("#ring-order", "zigzag")
    text = page.text_content("#memory .learn-text")
    link = page.evaluate("document.querySelector('#memory .learn-actions a').href")
    assert "ring.order=zigzag" in link
    assert page.url == page.evaluate("document.querySelector('#ring .learn-actions a').href")
    page.goto("about:blank")
    page.goto(link)
    assert page.text_content("#memory .learn-text") == text
    assert page.input_value("#ring-order") == "zigzag"
    page.click("#memory .learn-actions button")
    assert page.input_value("#memory-layers") == "32"
    assert "memory." not in page.url
    assert "ring.order=zigzag" in page.url


def test_invalid_parameters_are_one_error_with_what_is_allowed(opened: Opened, place: str):
    page = opened(f"{place}?ring.ranks=99&decisions.model=x;ls&decisions.one=yes")
    assert '"x;ls" must be a name' in str(page.text_content("#decisions .learn-problem"))
    assert "llama-3.1-70b" in str(page.text_content("#decisions .learn-command code"))
    assert (
        page.text_content("#ring .learn-problem")
        == 'Ranks (cp) "99" must be a whole number between 2 and 8; 4 is shown'
    )
    before = page.text_content("#ring .learn-text")
    page.fill("#ring-ranks", "3.5")
    assert page.get_attribute("#ring-ranks", "aria-invalid") == "true"
    assert page.text_content("#ring .learn-text") == before
    page.fill("#ring-ranks", "3")
    assert page.get_attribute("#ring-ranks", "aria-invalid") is None
    assert page.text_content("#ring .learn-problem") == ""


def test_pictures_are_used_by_the_keyboard(opened: Opened, place: str):
    page = opened(place)
    assert page.is_visible("#collectives .learn-play")
    page.emulate_media(reduced_motion="reduce")
    assert not page.is_visible("#collectives .learn-play")
    page.focus("#collectives-step")
    page.keyboard.press("ArrowRight")
    assert "after step 1 of 6" in str(page.text_content("#collectives .learn-text"))
    page.focus("#decisions [data-key=cp]")
    page.keyboard.press("Enter")
    assert page.input_value("#decisions-node") == "no"
    assert page.evaluate("document.activeElement.dataset.key") == "cp"
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.taken = text; }")
    page.focus("#decisions .learn-command button >> nth=0")
    page.keyboard.press("Enter")
    assert page.evaluate("window.taken").endswith("--tp 8 --cp 4 --zero 1")


GRID = [*itertools.product(
    ("llama-3.1-8b", "llama-3.1-70b"),
    ((0, 8, 1, 1, 1), (1, 4, 2, 1, 2), (2, 2, 4, 4, 1), (3, 3, 1, 3, 2)),
    (("none", True), ("none", False), ("selective", False), ("full", True)),
    ("bf16, fp32 gradients", "fp32", "DeepSeek-V3", "nanotron FP8"),
)]  # fmt: skip


def test_the_memory_calculator_agrees_with_the_engine(page: Page):
    preset = load_preset("playbook")
    states, expected = [], []
    for name, (zero, dp, tp, pp, cp), (recompute, flash), recipe in GRID:
        types = next(item for item in RECIPES if item.name == recipe)
        model = fs.load_model(name)
        question = fs.ask(
            model, "h100-sxm", devices=dp * tp * pp * cp, seq_len=8192, global_batch_size=dp * 2 * 6, micro_batch_size=2,
            tp=tp, pp=pp, cp=cp, zero=zero, flash_attention=flash, recompute=recompute,
            precision={"compute": types.compute, "parameters": types.weights, "gradients": types.gradients, "master": types.master, "moments": types.moments[0]},
        )  # fmt: skip
        stage = preset.stages(question)[0]
        expected.append([number_of(getattr(stage, part)) for part in PARTS])
        heads = model.layer_kinds[0].attention.num_heads
        states.append({
            "layers": model.num_layers, "hidden": model.hidden_size, "heads": heads, "vocab": model.vocab_size, "parameters": 0,
            "seq": 8192, "batch": 2, "micro": 6, "recipe": recipe, "zero": zero, "dp": dp, "tp": tp, "pp": pp, "cp": cp,
            "recompute": recompute, "flash": flash,
        })  # fmt: skip
    call = "(states) => states.map((s) => { const { states, activations } = Learn.pictures.memory.amounts(s); return [...states.map((one) => one.bytes), activations]; })"
    for result, values in zip(page.evaluate(call, states), expected, strict=True):
        assert result == pytest.approx(values, rel=1e-12)


def test_the_memory_calculator_has_the_table_of_the_playbook(page: Page):
    """States of 1, 7, 70 and 405 B parameters in GB, without and with fp32 gradients."""
    state = {
        "layers": 1,
        "hidden": 1,
        "heads": 1,
        "vocab": 1,
        "seq": 1,
        "batch": 1,
        "micro": 1,
        "flash": True,
    }
    plain = {"zero": 0, "dp": 1, "tp": 1, "pp": 1, "cp": 1, "recompute": "none"}
    call = "(states) => states.map((s) => Learn.pictures.memory.amounts(s).states.reduce((sum, one) => sum + one.bytes, 0) / 1e9)"
    cells = [
        state | plain | {"recipe": recipe, "parameters": billions}
        for recipe in ("bf16, bf16 gradients", "bf16, fp32 gradients")
        for billions in (1, 7, 70, 405)
    ]
    assert page.evaluate(call, cells) == [16, 112, 1120, 6480, 20, 140, 1400, 8100]


COLLECTIVES = {
    "broadcast": lambda n, rank, chunk: 1,
    "reduce": lambda n, rank, chunk: 2**n - 1 if rank == 0 else None,
    "gather": lambda n, rank, chunk: 1 << chunk if rank == 0 else None,
    "scatter": lambda n, rank, chunk: 1 if rank == chunk else 0,
    "all_gather": lambda n, rank, chunk: 1 << chunk,
    "reduce_scatter": lambda n, rank, chunk: 2**n - 1 if rank == chunk else 0,
    "all_reduce": lambda n, rank, chunk: 2**n - 1,
    "all_to_all": lambda n, rank, chunk: 1 << chunk,
    "barrier": lambda n, rank, chunk: 1 << chunk,
}
"""What a cell holds at the end, as bits of ranks; None where it does not matter."""


def test_collectives_end_as_they_are_defined(page: Page):
    for (name, final), n in itertools.product(COLLECTIVES.items(), (2, 3, 5, 8)):
        cells = picture(page, "collectives", "after", name, n, 99)
        for rank, chunk in itertools.product(range(n), range(n)):
            if (value := final(n, rank, chunk)) is not None:
                assert cells[rank][chunk] == value, (name, n, rank, chunk)


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
def test_the_ring_computes_the_whole_mask_and_zigzag_is_balanced(page: Page, order: str):
    for ranks, causal in itertools.product((2, 4, 7), (True, False)):
        rows = picture(page, "ring", "work", {"ranks": ranks, "order": order, "causal": causal})
        pairs = (2 * ranks) ** 2
        assert sum(map(sum, rows)) == (pairs / 2 if causal else pairs)
        slowest = sum(max(row[step] for row in rows) for step in range(ranks))
        balanced = order == "zigzag" or not causal
        assert (slowest == sum(map(sum, rows)) / ranks) == balanced


TIMELINE = {
    "ranks": 4, "layers": 3, "forward": 2.0, "backward": 4.0, "volume": 100.0, "bandwidth": 100.0, "latency": 500.0,
    "bucket": 300.0, "micro": 1, "overlap": True, "nosync": True, "prefetch": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "exposed"),
    [
        ({"kind": "ddp"}, 0.5 + 1.5 * 3),  # one bucket, after the whole backward pass
        ({"kind": "ddp", "bucket": 100.0}, 0.5 + 1.5),  # 2 ms each, hidden but for the last
        ({"kind": "ddp", "bucket": 100.0, "overlap": False}, 3 * 2.0),
        ({"kind": "ddp", "bucket": 100.0, "micro": 2}, 2.0),
        ({"kind": "ddp", "bucket": 100.0, "micro": 2, "nosync": False}, 2 * 2.0),
        ({"kind": "zero3", "prefetch": 0}, 6 * 1.25 + 3 * 1.25),  # nothing is hidden
        ({"kind": "zero3", "backward": 8.0}, 1.25 + 1.25),  # the first gather, the last scatter
        ({"kind": "tp", "overlap": False}, 12 * 2.0),
        ({"kind": "cp", "overlap": False}, 3 * 1.5),
        ({"kind": "cp"}, 0.0),
    ],
)
def test_timelines_expose_what_is_not_hidden(page: Page, changed: dict[str, Any], exposed: float):
    assert picture(page, "timeline", "exposed", TIMELINE | changed) == pytest.approx(exposed)


FORMATS = {
    "fp32": (
        2.0**-23,
        3.4028234663852886e38,
        2.0**-126,
        [0.10000000149011612, 17.0, 100.5, 2.9999999242136255e-05],
    ),
    "bf16": (2.0**-7, 3.3895313892515355e38, 2.0**-126, [0.10009765625, 17.0, 100.5, 3.0040740966796875e-05]),
    "fp16": (2.0**-10, 65504.0, 2.0**-14, [0.0999755859375, 17.0, 100.5, 2.9981136322021484e-05]),
    "fp8 e4m3": (0.125, 448.0, 2.0**-6, [0.1015625, 16.0, 104.0, 0.0]),
    "fp8 e5m2": (0.25, 57344.0, 2.0**-14, [0.09375, 16.0, 96.0, 3.0517578125e-05]),
}
"""Epsilon, largest and smallest normal number of `torch.finfo` (2.13), and what `torch.Tensor.to` makes of VALUES."""
VALUES = [0.1, 17.0, 100.5, 3e-5]


def test_number_formats_are_those_of_torch(page: Page):
    rows = page.evaluate(
        "(values) => Learn.pictures.formats.formats.map((one) => [one, values.map((value) => Learn.pictures.formats.rounded(value, one))])",
        VALUES,
    )
    computed = {
        item["name"]: (item["epsilon"], item["largest"], item["smallest"], rounded) for item, rounded in rows
    }
    assert {name: computed[name] for name in FORMATS} == FORMATS


def test_heads_are_stored_several_times_where_tp_exceeds_them(page: Page):
    split = {"heads": 32, "kv": 8}
    assert picture(page, "splits", "heads", split | {"tp": 16}) == {"query": 2, "kv": 1, "copies": 2}
    assert picture(page, "splits", "heads", split | {"tp": 4}) == {"query": 8, "kv": 2, "copies": 1}


def test_commands_of_the_decision_tree_run(page: Page, capsys: pytest.CaptureFixture[str]):
    asked = {
        "model": "llama-3.1-8b",
        "cluster": "h100-sxm",
        "devices": 64,
        "seq": 8192,
        "batch": 128,
        "experts": False,
    }
    for leaf in page.evaluate("Object.keys(Learn.pictures.decisions.leaves)"):
        project, search = picture(page, "decisions", "commands", asked, leaf)
        assert run(shlex.split(project)[1:]) == 0, project
    experts = picture(
        page, "decisions", "commands", asked | {"model": "qwen3-30b-a3b", "experts": True}, "dp"
    )[0]
    assert run(shlex.split(experts)[1:]) == 0
    assert run([*shlex.split(search)[1:], "--fix", "tp=8", "--top", "1"]) == 0
    capsys.readouterr()
