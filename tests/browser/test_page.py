from __future__ import annotations

import shutil

import numpy as np
import pytest

from sgoif.review.estimate import count_left_over, recalibrate
from sgoif.run import load
from tests.browser.conftest import downloaded, make_report, press, reload, rows_of, state_of, width_of
from tests.cli.runs import document_of, table, write_run


@pytest.fixture
def page(report, open_page):
    return open_page(report)


def test_cards_are_grouped_by_pair_and_filtered(page):
    heads = page.locator(".group h3").all_inner_texts()
    assert all(" → " in head for head in heads)
    assert len(heads) == len(set(heads))
    page.select_option("#filter-pair", label=page.locator("#filter-pair option").nth(1).inner_text())
    assert page.locator(".group h3").count() == 1
    page.click("#clear")
    page.locator("#filter-p").fill("95")
    assert 0 < page.locator("#grid .card").count() < 6
    page.click("#clear")
    page.fill("#filter-id", "img/007")
    assert page.locator(".card .id").all_inner_texts() == ["img/007.png"]
    page.fill("#filter-id", "nowhere")
    assert page.locator("#nothing").is_visible()


def test_the_overview_tells_health_and_leads_to_the_cards_of_a_class(page):
    page.click("#tab-overview")
    page.locator("#health summary").click()
    text = page.locator("#health").inner_text()
    assert "Overhead" in text and "4.0% of the bare step" in text and "Faults" in text
    assert not page.locator("#grid").is_visible()
    page.locator("[data-class='0']").first.click()
    assert all("cat" in text for text in page.locator(".group h3").all_inner_texts())


def test_opened_card_shows_the_picture_and_why(page):
    page.locator(".card").first.click()
    sheet = page.locator("#opened")
    assert sheet.is_visible()
    assert "looks like" in sheet.inner_text()
    large = sheet.locator(".large img")
    assert large.evaluate("image => image.complete && image.naturalWidth") == 48
    assert sheet.locator(".beside").count() >= 2  # typical pictures of both classes
    assert sheet.locator("a").get_attribute("href").startswith("file:///")
    before = sheet.locator(".ident").inner_text()
    page.keyboard.press("ArrowRight")
    assert sheet.locator(".ident").inner_text() != before
    page.keyboard.press("Escape")
    assert not sheet.is_visible()


def test_ten_decisions_by_keyboard_alone(page, tmp_path):
    press(page, *"k111dunk1")
    page.keyboard.press("/")
    page.keyboard.type("fox")
    page.keyboard.press("Enter")
    rows = rows_of(downloaded(page, tmp_path))
    assert len(rows) == 10
    found = [row["decision"] for row in rows]
    assert {"keep", "relabel", "drop", "unsure", "none"} <= set(found)
    assert all((row["label"] != "") == (row["decision"] == "relabel") for row in rows)
    assert all(len(row["content"]) == 16 and row["decided_at"].endswith("Z") for row in rows)
    assert "found" in page.locator("#progress").inner_text()


def test_many_cards_at_once_and_undo(page, tmp_path):
    press(page, "x", "Shift+ArrowRight", "Shift+ArrowRight")
    assert page.locator(".card.selected").count() == 3
    page.keyboard.press("d")
    assert page.locator(".card.decided").count() == 3
    page.keyboard.press("z")
    assert page.locator(".card.decided").count() == 0
    page.keyboard.press("a")
    assert page.locator(".card.selected").count() > 3
    page.keyboard.press("Escape")
    assert page.locator(".card.selected").count() == 0


def test_decisions_survive_a_reload_and_travel_to_another_machine(page, report, tmp_path, open_page):
    press(page, *"k1d")
    assert page.locator(".card.decided").count() == 3, state_of(page)
    page.locator(".card").first.click()
    page.keyboard.press("t")
    page.keyboard.type("blurred; ask Bo")
    press(page, "Escape", "Escape")
    page.wait_for_function("() => location.hash === '#cards' && !document.getElementById('grid').hidden")
    reload(page)
    assert page.locator(".card.decided").count() == 3, state_of(page)
    assert "not downloaded" in page.locator("#saved").inner_text()
    file = downloaded(page, tmp_path)
    assert "not downloaded" not in page.locator("#saved").inner_text()
    assert "blurred; ask Bo" in {row["note"] for row in rows_of(file)}

    elsewhere = open_page(report)  # a browser that has never seen the page
    assert elsewhere.locator(".card.decided").count() == 0
    elsewhere.set_input_files("#load", str(file))
    elsewhere.wait_for_selector(".card.decided")
    again = downloaded(elsewhere, tmp_path / "again")
    assert rows_of(again) == rows_of(file)


def test_a_page_keeps_the_address_that_it_is_opened_at(page):
    page.add_init_script(
        """window.addresses = []; const replace = history.replaceState;
        history.replaceState = (...given) => (addresses.push(given[2]), replace.apply(history, given));"""
    )
    reload(page)  # a second reload before the browser has learnt of another address would open that one
    assert page.evaluate("[location.hash, addresses]") == ["#cards", []]


def test_closing_with_unsaved_decisions_is_warned_of(page):
    asked = []
    page.on("dialog", lambda dialog: asked.append(dialog.type))
    page.reload()
    assert not asked
    page.keyboard.press("k")
    page.reload()
    assert asked == ["beforeunload"]


def test_pictures_that_are_missing_are_grey_cards(run, pictures, tmp_path, open_page):
    some = shutil.copytree(pictures, tmp_path / "photos")
    for name in ("000", "001"):
        (some / f"img/{name}.png").unlink()
    (some / "img/002.png").write_bytes(b"no picture at all")
    page = open_page(make_report(run, tmp_path / "report.html", images=some, top=60))
    page.fill("#filter-id", "img/00")
    assert page.locator(".card .missing").count() == 3
    assert "img/000.png" in page.locator(".card .missing").first.inner_text()
    assert "could not be read" in page.locator("header .about").text_content()


@pytest.mark.parametrize("mode", ["link", "none"])
def test_pages_without_embedded_pictures(run, pictures, tmp_path, open_page, mode):
    path = make_report(run, tmp_path / "report.html", images=pictures, pictures=mode)
    assert "base64," not in path.read_text().split('id="document"')[1].split("</script>")[0]
    page = open_page(path)
    images = page.locator(".card img")
    if mode == "none":
        assert images.count() == 0
        return
    assert images.first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 48
    assert images.first.get_attribute("src").startswith("file:///")


def test_blind_pages_tell_nothing(run, pictures, tmp_path, open_page):
    path = make_report(run, tmp_path / "report.html", images=pictures, blind=True)
    cards = document_of(path)["cards"]
    assert not any(cards["suggested"]) and not any(cards["why"])
    page = open_page(path)
    page.locator(".card").first.click()
    assert "looks like" not in page.locator("body").inner_text()
    assert "wrong with probability" not in page.locator("#opened").inner_text().lower()


def test_nothing_of_the_data_is_markup(tmp_path, open_page):
    evil = [
        "<script>window.hurt=1</script>",
        '"><img src=x onerror=window.hurt=1>',
        "</script><script>window.hurt=1</script><!--",
        "שלום\u202eevil",
        "x" * 10_000,
        "'=cmd|' /C calc'!A0",
    ]
    names = ["<b>cat</b>", "';window.hurt=1;'", "{{ 7*7 }}", "\u2028fox"]
    given = np.arange(6) % 4
    url = write_run(tmp_path / "run", table(np.full(6, 0.9), given, (given + 1) % 4, ids=evil), names=names)
    page = open_page(make_report(load(url), tmp_path / "report.html", title="<i>title</i>"))
    assert sorted(page.locator(".card .id").all_text_contents()) == sorted(evil)
    page.locator(".card").first.click()
    page.keyboard.press("t")
    page.keyboard.type('=HYPERLINK("http://x") <script>window.hurt=1</script>')
    press(page, "Escape", "k", "Escape")
    assert page.evaluate("window.hurt") is None
    assert "<i>title</i>" in page.locator("h1").inner_text()
    assert "<b>cat</b>" in page.locator("body").inner_text() and "{{ 7*7 }}" in page.locator("body").inner_text()
    rows = rows_of(downloaded(page, tmp_path))
    assert rows[0]["note"].startswith("'=HYPERLINK")


def test_estimate_falls_when_decisions_say_so(page):
    def left():
        page.wait_for_timeout(150)
        return float(page.evaluate("window.sgoif.estimate().left.expected"))

    before = left()
    for _ in range(10):
        page.keyboard.press("k")
    assert left() < before - 5


def test_a_dark_phone_needs_no_sideways_scrolling(report, open_page):
    page = open_page(report, width=375, height=700, scheme="dark")
    assert width_of(page) <= 375
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.locator(".card").first.click()
    assert page.locator("#opened").is_visible()


def test_the_page_estimates_as_python_does(page):
    rng = np.random.default_rng(3)
    p, pairs = rng.uniform(0.02, 0.98, 200), rng.integers(0, 5, 200)
    rows = rng.permutation(200)[:60]
    wrong = rng.random(60) < 0.3
    after = recalibrate(p, pairs, rows, wrong)
    expected, deviation = count_left_over(after)
    found = page.evaluate(
        """([p, pairs, rows, wrong]) => {
            const { p: q, variance } = sgoif.recalibrate(p, pairs, new Map(rows.map((r, n) => [r, Number(wrong[n])])));
            const rest = p.map((_, i) => i).filter((i) => !rows.includes(i));
            return [q, sgoif.leftOver(q, rest, variance)];
        }""",
        [p.tolist(), pairs.tolist(), rows.tolist(), wrong.tolist()],
    )
    np.testing.assert_allclose(found[0], after.p, atol=1e-9)
    assert found[1]["expected"] == pytest.approx(expected) and found[1]["deviation"] == pytest.approx(deviation)
