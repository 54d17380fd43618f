"""The workbench: three views, batches and focus mode, and nothing that is decided without being seen."""

from __future__ import annotations

import itertools
import shutil

import pyarrow.parquet as pq
import pytest

from sgoif.run import load
from tests.browser.conftest import (
    cards_of,
    colour,
    decisions,
    downloaded,
    press,
    reload,
    rows_of,
    width_of,
)
from tests.cli.runs import NAMES, answer, document_of


def test_bulk_keys_change_nothing_out_of_sight(bare_report, open_page):
    page = open_page(bare_report, height=420)
    page.keyboard.press("a")
    selected = page.evaluate("document.querySelector('.actions .target').textContent")
    page.keyboard.press("1")
    first = decisions(page)
    assert 0 < len(first) < int(selected.split()[0])
    assert "press again" in page.locator("#message").inner_text()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.keyboard.press("1")  # brings the rest into sight
    assert decisions(page) == first
    page.keyboard.press("1")
    assert len(decisions(page)) > len(first)


def test_bulk_keys_ask_before_they_change_decisions(bare_report, open_page):
    page = open_page(bare_report)
    page.keyboard.press("d")
    page.keyboard.press("a")  # selects what is undecided
    assert page.locator(".card.selected.decided").count() == 0
    page.keyboard.press("Home")
    page.keyboard.press("x")  # the dropped card by itself
    page.keyboard.press("k")
    assert decisions(page) == {0: "drop"} and "1 selected card is decided" in page.locator("#ask").inner_text()
    page.locator("#ask .primary").click()
    found = decisions(page)
    assert found.pop(0) == "drop" and len(found) > 5 and set(found.values()) == {"keep"}


def test_the_next_hundred_are_those_that_come_next(bare_report, open_page):
    page = open_page(bare_report)
    cards = cards_of(page)
    for sort in ("pair", "p", "doubt"):
        page.select_option("#sort", sort)
        order = [int(i) for i in page.locator("#grid .card").evaluate_all("cards => cards.map(c => c.dataset.card)")]
        coming = page.evaluate("sgoif.comingUp()")
        assert coming[: len(order)] == order
        expected = sum(cards["p"][i] for i in coming[:100])
        assert page.evaluate("sgoif.estimate().next") == pytest.approx(expected, abs=1e-6)
        shown = [cards["p"][i] for i in order]
        assert sort != "p" or shown == sorted(shown, reverse=True)


@pytest.mark.parametrize("way", ["batches", "focus", "cards"])
def test_a_filter_keeps_the_keyboard_while_it_is_typed(alike_report, open_page, way):
    page = open_page(alike_report, way)
    page.evaluate("document.querySelector('details.filters').open = true")
    page.locator("#filter-id").press_sequentially("img/00")
    assert page.locator("#filter-id").input_value() == "img/00"
    assert page.evaluate("sgoif.comingUp().length") == 10 and decisions(page) == {}


def test_small_pictures_are_smooth_until_their_pixels_are_asked_for(alike_report, open_page):
    page = open_page(alike_report, "focus")
    image = page.locator("#opened .large img.tiny")
    assert image.evaluate("image => getComputedStyle(image).imageRendering") == "auto"
    page.keyboard.press("p")
    assert image.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"


def test_decisions_differ_in_shape(bare_report, open_page):
    page = open_page(bare_report)
    press(page, *"k1du")
    shape = "badge => { const s = getComputedStyle(badge); return [s.borderStyle, s.borderRadius, s.clipPath].join(); }"
    badges = page.locator(".card .badge")
    assert len({badge.evaluate(shape) for badge in badges.all()}) == badges.count() == 4
    assert len({text[0] for text in badges.all_inner_texts()}) == 4


def test_reviewers_see_the_review_alone(alike, tmp_path, open_page):
    own = load(shutil.copytree(alike.url, tmp_path / "run"))  # the plan of who sees what is written into it
    (path,) = own.report(tmp_path / "r.html", images=colour, reviewers=["ann"], top=60)
    page = open_page(path, "overview")
    assert page.locator("[role=tab], #overview, #result").count() == 0
    assert page.locator("#batches").is_visible()
    source = path.read_text(encoding="utf-8").split('id="document">')[0]
    assert "error rate" not in source.lower()
    assert "Class" not in source.split('<div id="review"')[0].split("</style>")[1]
    assert not set(document_of(path)) & {"sizes", "sentence", "map", "run", "beyond", "checked"}


def test_views_have_addresses_and_keys(alike_report, open_page):
    page = open_page(alike_report, "overview")
    assert "60 cards" in page.locator("#sentence").inner_text()
    for name in ("review", "result", "overview"):
        page.evaluate("name => (location.hash = name)", name)
        page.wait_for_function("name => !document.getElementById(name).hidden", arg=name)
        assert page.locator("main > div:visible").count() == 1
    page.focus("#tab-overview")
    page.keyboard.press("ArrowRight")
    assert page.locator("#review").is_visible() and page.evaluate("document.activeElement.id") == "tab-review"
    page.keyboard.press("ArrowRight")
    assert page.locator("#result").is_visible()


def test_a_batch_is_accepted_but_for_its_exceptions(alike_report, tmp_path, open_page):
    page = open_page(alike_report, "batches")
    cards = cards_of(page)
    tiles = [int(i) for i in page.locator(".tile").evaluate_all("tiles => tiles.map(tile => tile.dataset.card)")]
    (answer_,) = {cards["suggested"][i][0] for i in tiles}
    assert len(tiles) > 3 and all(cards["agrees"][i] for i in tiles)
    assert page.locator(".tile").first.inner_text() == ""  # no caption
    page.locator(".tile").nth(1).click()
    press(page, "ArrowRight", "x", "Enter")
    rest = {i for n, i in enumerate(tiles) if n not in (1, 2)}
    assert decisions(page) == dict.fromkeys(rest, "relabel")
    reload(page)  # what was excepted stays out of the batches
    later = [int(i) for i in page.locator(".tile").evaluate_all("tiles => tiles.map(tile => tile.dataset.card)")]
    assert later and not set(later) & set(tiles)
    rows = rows_of(downloaded(page, tmp_path))
    assert {row["label"] for row in rows} == {str(answer_)}


def test_a_batch_is_taken_back_with_its_exceptions(alike_report, open_page):
    page = open_page(alike_report, "batches")
    tiles = page.locator(".tile").count()
    press(page, "x", "Enter")
    assert len(decisions(page)) == tiles - 1
    page.keyboard.press("z")
    assert decisions(page) == {} and page.locator(".tile").count() == tiles
    assert page.locator(".tile.excepted").count() == 1


def test_a_batch_fits_the_window(alike_report, open_page):
    page = open_page(alike_report, "batches", width=390, height=700)
    boxes = page.locator(".tile").evaluate_all("tiles => tiles.map(tile => tile.getBoundingClientRect().bottom)")
    assert max(boxes) <= 700 and width_of(page) <= 390
    assert page.evaluate("document.querySelector('.tile').getBoundingClientRect().top") < 420


def test_batches_then_one_at_a_time_by_keyboard_alone(alike_report, open_page):
    page = open_page(alike_report, "batches")
    for _ in range(10):
        page.keyboard.press("Enter")
    assert page.locator(".tile").count() == 0
    in_batches = len(decisions(page))
    assert in_batches == sum(cards_of(page)["agrees"])
    page.keyboard.press("f")
    for _ in range(60 - in_batches):
        assert page.locator("#opened .strip").first.locator("figure").count() == 6  # neighbours, always in sight
        page.keyboard.press("k")
    assert len(decisions(page)) == 60


def test_class_keys_show_their_shares(alike_report, open_page):
    page = open_page(alike_report, "focus")
    shares = page.locator("#opened .class-key .share").all_inner_texts()
    assert len(shares) == 3 and [float(text[:-1]) for text in shares] == cards_shares(page)
    assert "nearest examples are labelled" in page.locator("#opened .why").inner_text()


def cards_shares(page):
    found = [100 * share for share in cards_of(page)["shares"][int(page.evaluate("sgoif.comingUp()[0]"))]]
    return [round(share) if share >= 9.95 else round(share, 1) for share in found]


def test_a_swipe_decides_on_a_phone(alike_report, open_page):
    page = open_page(alike_report, "focus", width=390, height=844, has_touch=True)
    swipe = """(x) => {
        const panel = document.querySelector("#opened .large");
        const touch = (x) => new Touch({ identifier: 1, target: panel, clientX: x, clientY: 300 });
        const fire = (kind, touches, changedTouches) =>
            panel.dispatchEvent(new TouchEvent(kind, { bubbles: true, touches, changedTouches }));
        fire("touchstart", [touch(200)], [touch(200)]);
        fire("touchend", [], [touch(200 + x)]);
    }"""
    page.evaluate(swipe, 20)
    assert decisions(page) == {}
    page.evaluate(swipe, 120)
    page.evaluate(swipe, -120)
    assert sorted(decisions(page).values()) == ["keep", "relabel"]


def test_the_matrix_and_the_map_lead_to_their_cards(alike_report, open_page):
    page = open_page(alike_report, "overview")
    cell = page.locator("#matrix button").first
    number = int(cell.inner_text())
    cell.click()
    assert page.locator("#review").is_visible() and page.locator("#grid .card").count() == number
    page.click("#tab-overview")
    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 1)
    page.mouse.down()
    for x, y in ((1, 0), (1, 1), (0, 1)):
        page.mouse.move(box["x"] + 1 + x * (box["width"] - 2), box["y"] + 1 + y * (box["height"] - 2), steps=3)
    page.mouse.up()
    assert page.locator("#review").is_visible()
    assert page.evaluate("sgoif.comingUp().length") == 60


def test_the_map_is_walked_by_keys_and_heard(alike_report, open_page):
    page = open_page(alike_report, "overview")
    for _ in range(200):
        if page.evaluate("document.activeElement.id") == "map":
            break
        page.keyboard.press("Tab")
    places = page.evaluate("sgoif.document.map.cards")
    said = page.locator("#map-said")
    ids = cards_of(page)["id"]

    def current():
        return ids.index(said.text_content().split(", ")[-1])

    assert current() == 0 and "% wrong" in said.text_content()
    assert page.locator("#pointed-at").is_visible()
    for key, axis, sign in (("ArrowRight", 0, 1), ("ArrowLeft", 0, -1), ("ArrowUp", 1, 1), ("ArrowDown", 1, -1)):
        seen = [current()]
        for _ in range(60):
            page.keyboard.press(key)
            if current() == seen[-1]:
                break
            seen.append(current())
        steps = [sign * (places[b][axis] - places[a][axis]) for a, b in itertools.pairwise(seen)]
        assert all(step > 0 for step in steps)
        assert not any(sign * (place[axis] - places[seen[-1]][axis]) > 3 for place in places)  # the edge is reached
    page.keyboard.press("Home")
    found = [current()]
    for _ in range(59):  # cards at the same place, too
        page.keyboard.press("PageDown")
        found.append(current())
    assert found == list(range(60))
    page.keyboard.press("Enter")
    assert page.locator("#review").is_visible() and page.locator("#grid .card .id").all_inner_texts() == [ids[59]]


def test_the_result_follows_the_decisions(alike_report, alike, tmp_path, open_page):
    page = open_page(alike_report)
    cards = cards_of(page)
    press(page, "1", "d")
    page.click("#tab-result")
    assert "2 of 60 cards decided: 1 relabelled, 1 dropped" in page.locator("#done").inner_text()
    rows = page.locator("#sizes tr").evaluate_all("rows => rows.map(r => [...r.children].map(c => c.textContent))")
    before, after = ({row[0]: int(row[place]) for row in rows} for place in (1, 2))
    assert sum(before.values()) == 420 and sum(after.values()) == 419
    first = page.evaluate("[...sgoif.decided.keys()][0]")
    to = NAMES[cards["suggested"][first][0]]
    assert after[to] == before[to] + 1
    command = page.locator("#command").inner_text()
    assert command == f"sgoif apply {alike.url} decisions.csv --out manifest.parquet"
    file = downloaded(page, tmp_path, "#download-too")
    answer("apply", alike.url, file, "--out", tmp_path / "manifest.parquet")
    actions = pq.read_table(tmp_path / "manifest.parquet")["action"].to_pylist()
    assert (actions.count("relabel"), actions.count("drop")) == (1, 1)


def test_pages_are_the_same_every_time(alike, alike_report, tmp_path):
    (again,) = alike.report(tmp_path / "again.html", images=colour, top=60)
    assert again.read_bytes() == alike_report.read_bytes()
    places = document_of(again)["map"]
    assert len(places["cards"]) == 60 and all(places["cards"]) and places["count"] == 420
