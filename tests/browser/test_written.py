"""Pages of texts and of rows: read, searched, opened and decided on, and nothing in them is run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.run import load
from tests.browser.conftest import downloaded, make_report, press, rows_of, width_of
from tests.browser.test_axe import row_of, text_of
from tests.cli.runs import answer, table, write_run

EVIL = "<img src=x onerror=window.hurt=1><script>window.hurt=1</script> </script><!-- {{ 7*7 }} &lt;b&gt;"
HEBREW = "שלום עולם, זה משפט ארוך מספיק כדי לראות את הכיוון"
IDS = [f"{kind}/{i:03d}.png" for kind in ("img", "held") for i in range(60)]  # of training and held-out examples
LONG = "first line\nsecond line\n" + "word " * 700 + "the very end"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts of the run's examples in a table; some of them nasty."""
    found = [f"play song number {i} in the kitchen" for i in range(120)]
    found[:5] = [EVIL, HEBREW, LONG, "", "Crème brûlée at the café"]
    path = tmp_path_factory.mktemp("texts") / "texts.parquet"
    pq.write_table(pa.table({"id": IDS, "text": found, "label": ["cat"] * 120}), path)
    return path


@pytest.fixture(scope="module")
def texts_report(run, texts):
    return make_report(run, texts.parent / "report.html", images=texts, top=60)


@pytest.fixture
def page(texts_report, open_page):
    return open_page(texts_report)


def search(page, text):
    page.fill("#filter-id", text)
    return sorted(page.locator(".card .id").all_inner_texts())


def card_of(page, ident):
    assert search(page, ident) == [ident]
    return page.locator(".card").first


def test_a_text_is_never_markup(page):
    card = card_of(page, "img/000.png")
    assert card.locator(".written").text_content() == EVIL
    card.click()
    assert page.locator("#opened .written").first.text_content() == EVIL
    assert page.locator("#opened .large img, #grid img, #grid script").count() == 0
    page.wait_for_timeout(100)
    assert page.evaluate("window.hurt") is None


def test_words_are_found_without_accents_and_capital_letters(page):
    assert search(page, "creme BRULEE") == ["img/004.png"]
    assert search(page, "number 17 ") == ["img/017.png"]
    assert search(page, "עולם") == ["img/001.png"]
    assert search(page, "very end") == ["img/002.png"]  # below what the card shows
    assert search(page, "no such words") == []


def test_texts_run_as_their_script_does_and_keep_line_breaks(page):
    shown = card_of(page, "img/001.png").locator(".written")
    assert shown.evaluate("part => getComputedStyle(part).direction") == "rtl"
    shown = card_of(page, "img/005.png").locator(".written")
    assert shown.evaluate("part => getComputedStyle(part).direction") == "ltr"
    shown = card_of(page, "img/002.png").locator(".written")
    assert shown.evaluate("part => getComputedStyle(part).whiteSpace").startswith("pre-wrap")
    assert "empty text" in card_of(page, "img/003.png").inner_text()


def test_an_opened_card_shows_all_of_a_long_text_and_texts_beside_it(page):
    card = card_of(page, "img/002.png")
    assert 500 < len(card.locator(".written").text_content()) <= 601
    card.click()
    assert page.locator("#opened .large .written").text_content() == LONG
    assert page.locator("#opened .quotes li").count() >= 3
    assert "img/" not in page.locator("#opened .quotes").first.inner_text()


def test_deciding_on_texts_and_downloading(page, tmp_path):
    press(page, *"k1d")
    rows = rows_of(downloaded(page, tmp_path))
    assert sorted(row["decision"] for row in rows) == ["drop", "keep", "relabel"]
    assert all(len(row["content"]) == 16 for row in rows)
    assert page.locator(".card.decided").count() == 3


@pytest.mark.parametrize("width", [1280, 390])
def test_cards_of_texts_are_of_one_height_and_fit(texts_report, open_page, width):
    page = open_page(texts_report, width=width, height=900)
    assert width_of(page) <= width
    sizes = page.locator(".card").evaluate_all("cards => cards.map((card) => card.getBoundingClientRect().height)")
    assert len(set(sizes)) == 1
    font = page.locator(".card .written").first.evaluate("part => parseFloat(getComputedStyle(part).fontSize)")
    assert font >= 13
    page.locator(".card").first.click()
    assert page.evaluate("document.querySelector('#opened').scrollWidth") <= width


def test_several_reviewers_search_words_and_see_no_ids(own_run, texts, tmp_path, open_page):
    how = ("--images", texts, "--out", tmp_path / "r.html", "--reviewers", "ann")
    (found,) = answer("report", own_run.url, *how)["pages"]
    page = open_page(f"file://{found['page']}")
    page.fill("#filter-id", "brulee")
    assert page.locator(".card").count() == 1 and "img/" not in page.locator("#grid").inner_text()
    page.fill("#filter-id", "img/004")
    assert page.locator(".card").count() == 0


@pytest.fixture(scope="module")
def rows_report(run, tmp_path_factory):
    """Rows of the run's examples: the first has an unusual age, the second none, the third nasty cells."""
    folder, rng = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    ages = rng.normal(40, 3, 120).round(1).tolist()
    ages[0], ages[1] = 95.0, None
    jobs = ["cook" if i % 2 else "clerk" for i in range(120)]
    jobs[2] = EVIL
    columns = {f"<b>c{i}</b>": rng.normal(0, 1, 120).round(2) for i in range(12)}
    data = {"id": IDS, **columns, "age": ages, "job": jobs, "label": ["cat"] * 120}
    pq.write_table(pa.table(data), folder / "rows.parquet")
    return make_report(run, folder / "report.html", images=folder / "rows.parquet", top=60)


@pytest.mark.parametrize("width", [1280, 390])
def test_rows_are_tables_with_the_most_unusual_columns_first(rows_report, open_page, width):
    page = open_page(rows_report, width=width, height=900)
    assert width_of(page) <= width
    card = card_of(page, "img/000.png")
    first = card.locator("tr").first
    assert first.locator("th").inner_text() == "age" and first.locator("td").inner_text().split() == ["95", "high"]
    assert card.locator("tr").count() == 8 and "6 columns more" in card.inner_text()
    assert "missing" in card_of(page, "img/001.png").locator("tr", has_text="age").inner_text()
    card = card_of(page, "img/002.png")
    assert card.locator("tr", has_text="job").locator("bdi").last.text_content() == EVIL
    card.click()
    sheet = page.locator("#opened")
    assert sheet.locator(".large tr").count() == 14 and sheet.locator(".compared").count() >= 1
    assert sheet.evaluate("part => part.scrollWidth <= part.clientWidth")
    compared = sheet.locator(".compared").first
    assert compared.locator("tbody tr").first.locator("th").inner_text() == "this card"
    page.wait_for_timeout(100)
    assert page.evaluate("window.hurt") is None


def test_rows_are_decided_on(rows_report, tmp_path, open_page):
    page = open_page(rows_report)
    assert search(page, "age 95") == ["img/000.png"]
    page.keyboard.press("Escape")
    page.locator(".card").first.click()
    press(page, "1", "Escape")
    (row,) = rows_of(downloaded(page, tmp_path))
    assert (row["id"], row["decision"], len(row["content"])) == ("img/000.png", "relabel", 16)


def test_of_three_thousand_texts_those_in_sight_are_drawn(tmp_path, open_page):
    """Drawing all would make every key wait; benchmarks/page.py measures for how long."""
    count = 3000
    given = np.arange(count) % 4
    url = write_run(tmp_path / "run", table(np.linspace(1, 0, count), given, (given + 1) % 4))
    path = make_report(load(url), tmp_path / "report.html", images=lambda ident: f"{ident} café " * 30, top=None)
    assert path.stat().st_size < 5e6
    page = open_page(path)
    for _ in range(2):
        assert 0 < page.locator("#grid .card").count() < 120
        page.keyboard.press("End")
    page.fill("#filter-id", "2999.png cafe")
    assert page.locator("#grid .card .id").all_inner_texts() == ["img/2999.png"]


@pytest.mark.parametrize(("width", "least"), [(1280, 6), (390, 3)])
def test_a_batch_of_rows_is_a_table_of_the_same_columns(alike, tmp_path, open_page, width, least):
    page = open_page(make_report(alike, tmp_path / "report.html", images=row_of, top=60), "batches", width=width)
    assert width_of(page) <= width
    columns = page.locator("#tile-head span").all_inner_texts()
    assert least <= len(columns) == len(set(columns)) <= 8
    tiles = page.locator(".tile")
    assert tiles.count() > 3
    for n in range(tiles.count()):
        ident = page.evaluate("i => sgoif.document.cards.id[i]", int(tiles.nth(n).get_attribute("data-card")))
        cells = tiles.nth(n).locator(".line > span")
        assert cells.count() == len(columns)
        for c, column in enumerate(columns):  # each cell says its column to those who hear the page
            value = row_of(ident)[column]
            shown = "missing" if value is None else str(value)
            assert cells.nth(c).get_attribute("title").strip() in (shown.strip(), shown.strip().removesuffix(".0"))
            assert cells.nth(c).locator(".heard").text_content() == f"{column} "
    assert f"{12 - len(columns)} columns not shown here" in page.locator("#batch-left").inner_text()
    number = tiles.count()
    page.keyboard.press("Enter")
    assert page.evaluate("sgoif.decided.size") == number


def test_a_tile_is_heard_with_its_text(alike, tmp_path, open_page):
    page = open_page(make_report(alike, tmp_path / "report.html", images=text_of, top=60), "batches")
    tile = page.get_by_role("button", name="accept: 1 of").first
    assert "play song number" in tile.text_content() and tile.get_attribute("aria-label") is None
