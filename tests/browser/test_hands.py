"""What hands, browsers and other people's files do to a page."""

from __future__ import annotations

import numpy as np
import pytest

from sgoif.run import load
from tests.browser.conftest import downloaded, make_report, press, reload, rows_of, state_of
from tests.cli.runs import table, write_run


@pytest.fixture
def page(bare_report, open_page):
    return open_page(bare_report)


def decided(page):
    return page.evaluate("[...sgoif.decided].map(([i, value]) => [i, value.decision, value.labels, value.note])")


def write_note(page, text):
    press(page, "Enter", "t")
    page.keyboard.type(text)
    press(page, "Escape", "Escape")


def test_undo_leaves_notes(page):
    press(page, "k", "ArrowLeft")
    write_note(page, "blurred")
    page.keyboard.press("z")
    assert decided(page) == [[0, None, [], "blurred"]]


def test_a_note_alone_decides_nothing(page, tmp_path):
    write_note(page, "look again")
    row = rows_of(downloaded(page, tmp_path))[0]
    assert (row["decision"], row["note"]) == ("", "look again")
    assert "Reviewed 0" in page.locator("#progress").inner_text()


def test_a_key_does_not_decide_about_a_card_out_of_sight(page):
    page.set_viewport_size({"width": 1280, "height": 600})
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.keyboard.press("d")
    assert decided(page) == []
    page.keyboard.press("d")
    assert len(decided(page)) == 1
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.locator("#actions button", has_text="Drop").click()
    assert len(decided(page)) == 1


def test_a_key_that_is_held_down_decides_once(page):
    page.keyboard.down("k")
    page.keyboard.down("k")  # a repetition
    page.keyboard.down("k")
    page.keyboard.up("k")
    assert len(decided(page)) == 1


def test_after_the_last_card_comes_the_first_undecided_one_and_then_rest(page):
    page.fill("#filter-id", "img/00")
    page.locator("#filter-id").blur()
    page.keyboard.press("End")
    for _ in range(10):
        page.keyboard.press("k")
    assert [kind for _, kind, *_ in decided(page)] == ["keep"] * 10
    page.keyboard.press("d")  # nothing is left
    assert all(kind == "keep" for _, kind, *_ in decided(page))
    press(page, "ArrowLeft", "d")
    assert sum(kind == "drop" for _, kind, *_ in decided(page)) == 1


def test_an_empty_enter_ends_several_classes(page, tmp_path):
    page.keyboard.press("s")
    page.keyboard.type("fox")
    press(page, "Enter", "Enter")
    assert decided(page) == [] and page.locator("#finder").is_visible()  # one class is not several
    page.keyboard.type("bird")
    press(page, "Enter", "Enter")
    assert decided(page)[0][1:3] == ["several", [2, 3]]
    row = rows_of(downloaded(page, tmp_path))[0]
    assert (row["decision"], row["label"], row["label_name"]) == ("several", "2|3", "bird | fox")


def page_of_names(folder, open_page, names):
    """A page of labels of the first class that might be the second."""
    given = np.zeros(4, int)
    url = write_run(folder / "run", table(np.full(4, 0.9), given, given + 1), names=names)
    return open_page(make_report(load(url), folder / "report.html"))


def find_class(page, typed):
    page.keyboard.press("/")
    page.keyboard.type(typed)
    page.keyboard.press("Enter")
    return decided(page)[-1][2]


def test_the_very_name_is_found_first_whatever_accents_are_typed(tmp_path, open_page):
    page = page_of_names(tmp_path, open_page, [f"caterpillar {i}" for i in range(100)] + ["cat", "e\u0301tude"])
    assert find_class(page, "cat") == [100] and find_class(page, "\u00c9TUDE") == [101]


def test_names_from_right_to_left_keep_their_places(tmp_path, open_page):
    page = page_of_names(tmp_path, open_page, ["\u05d7\u05ea\u05d5\u05dc", "\u05db\u05dc\u05d1"])
    page.select_option("#sort", "p")  # else the group's heading has the names
    given_box, best_box = (page.locator(".card .names bdi").nth(n).bounding_box() for n in (0, 1))
    assert given_box["x"] < best_box["x"]


def test_what_a_browser_kept_badly_costs_only_itself(page):
    press(page, *"kkk")
    assert len(decided(page)) == 3, state_of(page)
    page.evaluate(
        """() => { const keys = Object.keys(localStorage).filter((key) => key.includes("img/"));
        localStorage.setItem(keys[0], "{broken"); localStorage.setItem(keys[1], "null"); }"""
    )
    reload(page)
    assert len(decided(page)) == 1, state_of(page)
    press(page, "ArrowRight", "d")
    assert len(decided(page)) == 2


def test_two_tabs_share_their_decisions(page, bare_report, open_page):
    other = open_page(bare_report, profile=page.context)
    page.keyboard.press("k")
    other.wait_for_selector(".card.decided")
    assert decided(other)[0][1] == "keep"


def test_a_full_browser_is_told_of_for_good(page):
    page.evaluate("() => { Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError'); }; }")
    for _ in range(2):
        page.keyboard.press("k")
        assert "Download them often" in page.locator("#trouble").inner_text()


def loaded(page, tmp_path, text):
    (tmp_path / "in.csv").write_bytes(text)
    page.set_input_files("#load", str(tmp_path / "in.csv"))
    page.wait_for_selector("#message:not([hidden])")
    return page.locator("#message").inner_text()


def test_files_that_people_edited_are_understood_as_python_does(page, tmp_path):
    text = (
        "\ufeffsep=;\r\nid;given_label;decision;label;label_name;note;decided_at\r\n"
        "img/000.png;0;Keep;;;;\r\n"
        'img/001.png;1;relabel;;Bird;"two\nlines";\r\n'
        "img/002.png;2;relabel;2;;;\r\n"
        "img/003.png;3;relabel;9999;;;\r\n"
        "img/004.png;0;several;1;;;\r\n"
        "img/005.png;1;constructor;;;;\r\n"
        "nowhere.png;0;keep;;;;\r\n"
    )
    said = loaded(page, tmp_path, text.encode())
    assert "3 decisions loaded" in said and "1 about cards" in said and "3 could not be understood" in said
    found = {ident: rest for ident, *rest in decided(page)}
    assert found[0][:2] == ["keep", []] and found[1] == ["relabel", [2], "two\nlines"] and found[2][0] == "keep"


def test_newer_decisions_win(page, tmp_path):
    page.keyboard.press("d")
    ident = page.evaluate("sgoif.decisionRows()[0]")
    text = f"id,given_label,decision,decided_at\n{ident['id']},{ident['given_label']},keep,2001-01-01T00:00:00Z\n"
    assert "1 older than yours" in loaded(page, tmp_path, text.encode())
    assert decided(page)[0][1] == "drop"


def test_messages_are_seen_above_an_opened_card(page):
    press(page, "Enter", "z")
    assert "Nothing to take back" in page.locator("#message:visible").inner_text()


def test_cards_are_reached_with_the_tab_key_and_said_in_order(page):
    page.evaluate("document.querySelector('details.filters').open = false")
    page.focus(".skip")
    for _ in range(11):  # from the start of the page
        if page.evaluate("document.activeElement.classList.contains('card')"):
            break
        page.keyboard.press("Tab")
    current = page.locator(".card.current").get_attribute("data-card")
    assert page.evaluate("document.activeElement.dataset.card") == current
    for _ in range(3):
        press(page, "End", "Home")
    places = [int(n) for n in page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.place)")]
    assert places == sorted(places)


def test_a_file_of_a_thousand_decisions_is_taken_up_whole_and_taken_back_at_once(tmp_path, open_page):
    """It is read in parts, so that the page stays awake; it is still one step."""
    count = 1_000
    url = write_run(tmp_path / "run", table(np.linspace(0.9, 0.5, count), np.zeros(count, int), np.ones(count, int)))
    page = open_page(make_report(load(url), tmp_path / "report.html", top=None))
    page.keyboard.press("d")
    mine, other = decided(page), page.evaluate("sgoif.document.cards.id.slice(1)")
    lines = "".join(f"{name},0,keep,,,2020-01-01T00:00:00Z\r\n" for name in other)
    head = "id,given_label,decision,label,note,decided_at\r\n"
    assert loaded(page, tmp_path, (head + lines + lines).encode()).startswith(f"{len(other)} decisions loaded.")
    assert {decision for _, decision, _, _ in decided(page)} == {"drop", "keep"}
    assert len(decided(page)) == len(other) + 1
    page.keyboard.press("z")
    assert decided(page) == mine


def test_letters_can_be_switched_off(page):
    page.keyboard.press("?")
    page.locator("#keys input[type=checkbox]").uncheck()
    page.locator("#keys button").click()
    page.keyboard.press("d")
    assert decided(page) == []


def test_ten_thousand_classes_make_a_page_that_opens(tmp_path, open_page):
    count = 10_000
    given = np.arange(count)
    names = [f"class {i}" for i in range(count)]
    url = write_run(tmp_path / "run", table(np.linspace(0.9, 0.1, count), given, (given + 1) % count), names=names)
    page = open_page(make_report(load(url), tmp_path / "report.html", top=200))
    assert page.locator("table.classes tbody tr").count() <= 100
    assert find_class(page, "class 9999") == [9999]
