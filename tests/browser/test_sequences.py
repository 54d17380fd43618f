"""The page of sequences in a browser: read, decided on by key and button, downloaded, loaded and applied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import sgoif
from tests.browser.conftest import downloaded, press, reload, width_of
from tests.browser.test_axe import serious
from tests.cli.runs import answer
from tests.report.test_sequences import EVIL, write_lines
from tests.sequence_runs import write_sequence_run

COUNT = 30
IDS = [f"s{i:02d}" for i in range(COUNT)]
ROWS = [
    {"id": id, "prompt": f"what is {i} plus one, and why is that?", "completion": str(i + (i > 2))}
    for i, id in enumerate(IDS)
]
ROWS[1] = {"id": "s01", "prompt": EVIL, "completion": EVIL}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, harm = tmp_path_factory.mktemp("sequences"), np.random.default_rng(0).normal(size=(COUNT, 2))
    write_lines(folder / "train.jsonl", ROWS)
    return sgoif.load(write_sequence_run(folder / "run", IDS, harm, np.linspace(3, 1, COUNT), ("math", EVIL)))


@pytest.fixture(scope="module")
def path(run):
    folder = Path(run.url).parent
    words = [{"text": text, "loss": 1.0, "harm": harm} for text, harm in ((EVIL, 2.0), (" two", -0.5), (" x", 0.0))]
    tokens = write_lines(folder / "tokens.jsonl", [{"id": "s00", "group": EVIL, "tokens": words}])
    (found,) = run.report(folder / "report.html", images=folder / "train.jsonl", tokens=tokens, by="loss_last")
    return found


@pytest.fixture
def page(path, open_page):
    return open_page(path, "list")


def card(page, ident):
    return page.locator(f'article[aria-label="Sequence {ident}"]')


def current(page):
    return page.locator(".sequence.current h2 .ident").inner_text()


def test_decisions_are_made_by_key_and_button_and_applied(page, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page.keyboard.press("k")
    assert current(page) == "s01"
    card(page, "s01").get_by_role("button", name="Drop").click()
    assert current(page) == "s02"
    page.keyboard.press("e")
    page.keyboard.type("kdu")  # letters are text here
    page.fill(".new-completion", "3\nby counting")
    press(page, "Control+Enter", "u")
    assert page.locator("#progress").inner_text() == "Reviewed 4 of 30: 1 kept, 1 dropped, 1 edited, 1 unsure."
    assert card(page, "s02").locator(".edited .written").inner_text() == "3\nby counting"
    found = downloaded(page, tmp_path)
    rows = [json.loads(line) for line in found.read_text().splitlines()]
    assert [(row["id"], row["decision"]) for row in rows] == list(zip(IDS, ["keep", "drop", "edit", "unsure"]))
    assert page.locator("#command").inner_text() == f"sgoif apply {run.url} {found.name} --out manifest.parquet"
    counts = answer("apply", run.url, found.name, "--out", "manifest.parquet")["counts"]
    assert counts == {"keep": 1, "drop": 1, "edit": 1, "unsure": 1, "unreviewed": COUNT - 4}
    cleaned = sgoif.cleaned(sgoif.with_ids(ROWS, IDS), "manifest.parquet")
    assert len(cleaned) == COUNT - 1
    assert [cleaned[i]["completion"] for i in range(2)] == ["0", "3\nby counting"]


def test_a_sample_is_checked_by_key_and_becomes_a_rate(run, tmp_path, open_page, monkeypatch):
    monkeypatch.chdir(shutil.copytree(Path(run.url).parent, tmp_path, dirs_exist_ok=True))  # it is written into the run
    assert answer("verify", "run", "--show", "train.jsonl", "--page", "check.html")["cards"] == COUNT
    page = open_page(tmp_path / "check.html", "list")
    shown = page.locator(".sequence").first.inner_text()
    assert "Right" in shown and "Cannot tell" in shown and "harm" not in shown.lower() and "loss" not in shown.lower()
    for _ in range(COUNT - 2):
        page.keyboard.press("k")
    press(page, "d", "u")
    assert page.locator("#progress").inner_text() == "Reviewed 30 of 30: 28 right, 1 wrong, 1 unsure."
    found = downloaded(page, tmp_path)
    assert page.locator("#command").inner_text() == f"sgoif verify run --verdicts {found.name}"
    figures = answer("verify", "run", "--verdicts", found.name)["all"]
    assert (figures["num_checked"], figures["num_wrong"], figures["num_unsure"]) == (29, 1, 1)


def test_decisions_stay_are_taken_back_and_loaded(page, path, tmp_path, open_page):
    press(page, "d", "e")
    page.fill(".new-completion", "new")
    page.get_by_role("button", name="Save").click()
    reload(page)
    page.wait_for_selector('.sequence[data-decision="edit"] .edited:visible')
    found = downloaded(page, tmp_path)
    other = open_page(path, "list")
    other.set_input_files("#load", found)
    other.wait_for_selector('.sequence[data-decision="edit"]')
    assert card(other, "s01").locator(".edited .written").inner_text() == "new"
    other.locator("#message", has_text="2 decisions loaded.").wait_for()
    other.keyboard.press("z")
    assert other.locator(".sequence[data-decision]").count() == 0
    broken = write_lines(tmp_path / "x.jsonl", [{"id": "s00", "decision": 5}, {"id": "no", "decision": "drop"}])
    broken.write_text(broken.read_text() + "{\n")
    other.set_input_files("#load", broken)
    other.locator("#message", has_text="0 decisions loaded").wait_for()
    assert "1 about cards that are not on this page. 2 could not be" in other.locator("#message").inner_text()


def test_an_edit_that_changes_nothing_is_no_edit(page):
    page.keyboard.press("e")
    for text, said in ((" ", "is empty"), ("0", "as it was")):
        page.fill(".new-completion", text)
        page.keyboard.press("Control+Enter")
        assert said in page.locator("#message").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".new-completion").count() == 0 and page.evaluate("sgoif.decided.size") == 0


def test_nothing_in_the_data_is_run_and_tokens_have_their_numbers(page):
    assert card(page, "s01").locator(".prompt .written").text_content() == EVIL
    tokens = card(page, "s00").locator(".tokens .token")
    assert tokens.nth(0).text_content() == EVIL and "harm +2, loss 1" in tokens.nth(0).get_attribute("title")
    kinds = [tokens.nth(place).get_attribute("class").split() for place in range(3)]
    assert kinds == [["token", "raises", "level-5"], ["token", "lowers", "level-2"], ["token"]]
    lines = [tokens.nth(place).evaluate("e => getComputedStyle(e).textDecorationStyle") for place in range(2)]
    assert lines == ["solid", "dotted"]  # without colour they differ too
    assert page.locator("#list script, #list img, #filter-group script").count() == 0
    assert page.evaluate("window.hurt") is None


def test_cards_are_sorted_filtered_and_searched(page):
    page.evaluate("document.querySelector('details.filters').open = true")
    page.select_option("#sort", "harm")
    order = page.evaluate("[...document.querySelectorAll('#list article')].map((e) => Number(e.dataset.card))")
    harm = page.evaluate("sgoif.document.cards.harm")
    assert [harm[i] for i in order] == sorted(harm, reverse=True)
    page.select_option("#filter-group", label=EVIL)
    worst = page.evaluate("sgoif.document.cards.worst_group")
    assert page.locator("#list article").count() == worst.count(EVIL) > 0
    page.select_option("#filter-group", "")
    page.fill("#filter-id", "WHAT IS 7 plus")
    assert page.locator("#list article h2 .ident").all_inner_texts() == ["s07"]
    page.fill("#filter-id", "nowhere")
    assert page.locator("#nothing").is_visible()


def test_a_card_out_of_sight_is_not_decided_on(page):
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.keyboard.press("d")
    assert page.evaluate("sgoif.decided.size") == 0
    assert "out of sight" in page.locator("#message").inner_text()
    page.keyboard.press("d")
    assert page.evaluate("[...sgoif.decided.keys()]") == [0]


def test_without_texts_nothing_can_be_edited(run, tmp_path, open_page):
    (path,) = run.report(tmp_path / "bare.html", by="loss_last")
    page = open_page(path, "list")
    assert card(page, "s00").get_by_role("button", name="Edit").is_disabled()
    page.keyboard.press("e")
    assert "has no text" in page.locator("#message").inner_text() and page.locator(".new-completion").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_has_no_serious_fault(axe, path, open_page, width, scheme):
    page = open_page(path, "list", width=width, height=850, scheme=scheme)
    press(page, *"kdu")
    page.evaluate("document.querySelectorAll('details').forEach((e) => (e.open = true))")
    page.keyboard.press("e")
    assert serious(page, axe) == []
    assert width_of(page) <= width
    press(page, "Escape", "?")
    assert serious(page, axe) == []
