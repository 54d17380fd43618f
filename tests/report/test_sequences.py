"""The page of a run about sequences: what its cards hold, and that nothing in the data is markup."""

import json
import re

import numpy as np
import pytest

import sgoif
from sgoif.errors import SgoifError
from sgoif.report.similar import find_similar
from sgoif.sources.written import written_hash
from tests.sequence_runs import write_sequence_run

EVIL = "</script><script>window.hurt=1</script><!-- {{ 7*7 }}"
GROUPS = ("math", EVIL)
IDS = [f"s{i}" for i in range(5)]
HARM = np.array([[0.5, -0.1], [0.1, 0.9], [np.nan, np.nan], [-0.3, -0.2], [0.2, 0.1]])
LOSS = np.array([2.0, 1.0, 3.0, 0.5, 0.1])
PROMPTS = ["my card was lost today", "lost my card", EVIL, "exchange rate of the euro", "my card got lost"]
COMPLETIONS = ["lost card", "exchange rate", "x", "exchange rate", "lost card"]


@pytest.fixture
def run(tmp_path):
    return sgoif.load(write_sequence_run(tmp_path / "run", IDS, HARM, LOSS, GROUPS))


@pytest.fixture
def texts(tmp_path):
    rows = [{"id": id, "prompt": p, "completion": c} for id, p, c in zip(IDS, PROMPTS, COMPLETIONS)]
    return write_lines(tmp_path / "train.jsonl", rows)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def page_of(run, tmp_path, **options):
    (page,) = run.report(tmp_path / "page.html", **options)
    return page.read_text(encoding="utf-8")


def document(html):
    return json.loads(re.search(r'<script type="application/json" id="document">(.*?)</script>', html, re.S)[1])


def test_cards_hold_texts_numbers_and_harm_by_group(run, texts, tmp_path):
    cards = document(page_of(run, tmp_path, images=texts))["cards"]
    assert cards["id"] == ["s2", "s0", "s1", "s3", "s4"]  # by suspicion
    assert cards["prompt"][:2] == [EVIL, PROMPTS[0]] and cards["completion"][1] == "lost card"
    assert cards["loss_last"][0] == 3 and cards["harm"][0] is None and cards["harms"][0] == []
    assert cards["harms"][2] == [["math", 0.1], [EVIL, 0.9]] and cards["worst_group"][2] == EVIL
    assert cards["num_tokens"][1] == 7 and cards["visits"][:2] == [1, 3]
    assert cards["content"][1] == written_hash("lost card")


def test_an_audit_ranks_by_conflict_and_the_page_says_so(run, tmp_path):
    conflict = np.array([-8.0, 2.0, np.nan, 2.0, 2.0])
    audit = sgoif.load(write_sequence_run(tmp_path / "audit", IDS, HARM, LOSS, GROUPS, conflict=conflict))
    html = page_of(audit, tmp_path)
    cards = document(html)["cards"]
    assert cards["id"] == ["s2", "s1", "s3", "s0", "s4"]  # s0 agrees with what it is judged by
    assert cards["conflict"] == [None, 2, 2, -8, 2] and "conflict with them" in html
    assert cards["suspicion"][:2] == [3, pytest.approx(0.5 + 1.25**0.5, rel=1e-3)]
    assert set(document(page_of(run, tmp_path))["cards"]["conflict"]) == {None}


def test_what_the_run_warns_of_stands_before_the_cards(run, tmp_path):
    assert 'id="warnings"' not in page_of(run, tmp_path)
    run.info["warnings"] = {"no_tokens": f"3 of 5 have no token; `sgoif info` {EVIL}"}
    html = page_of(run, tmp_path)
    (section,) = re.findall(r'<section class="panel" id="warnings">(.*?)</section>', html, re.S)
    assert "3 of 5 have no token; sgoif info &lt;/script&gt;" in section and html.count("have no token") == 1


def test_texts_that_are_missing_are_said(run, texts, tmp_path, caplog):
    page_of(run, tmp_path, images=texts)
    assert not caplog.records
    rows = texts.read_text().splitlines(keepends=True)
    texts.write_text("".join(rows[:3]))
    page_of(run, tmp_path, images=texts)
    assert "2 of 5 sequences are not in 'train.jsonl'" in caplog.text


def test_similar_prompts_say_whether_their_completion_is_another(run, texts, tmp_path):
    html = page_of(run, tmp_path, images=texts)
    cards = document(html)["cards"]
    (first, cosine, prompt, completion, is_same), *rest = cards["similar"][2]  # s1, which has the completion of s3
    assert {first, rest[0][0]} == {"s0", "s4"} and cosine >= rest[0][1]
    assert "lost" in prompt and completion == "lost card" and not is_same
    assert cards["similar"][1][0][0] != "s0" and any(item[4] for item in cards["similar"][1])
    assert "among 5 of 5 sequences" in html


def test_similar_prompts_are_looked_for_among_a_stated_number(run, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("sgoif.report.sequences._MOST_COMPARED", 2)
    html = page_of(run, tmp_path, images=texts, ids=["s0"])
    number = int(re.search(r"among (\d) of 5 sequences: the others", html)[1])
    assert 2 <= number <= 3 and len(document(html)["cards"]["similar"][0]) < 3


def test_nothing_in_the_data_is_markup(run, texts, tmp_path):
    tokens = write_lines(
        tmp_path / "tokens.jsonl", [{"id": "s0", "group": EVIL, "tokens": [{"text": EVIL, "loss": 1, "harm": 2}]}]
    )
    html = page_of(run, tmp_path, images=texts, tokens=tokens, title=EVIL)
    assert document(html)["cards"]["tokens"][1] == [[EVIL, [[EVIL, 1.0, 2.0]]]]
    assert html.count("<script") == 2 and html.count("</script>") == 2 and "<!-- {{" not in html


def test_without_texts_the_page_says_how_to_give_them(run, tmp_path):
    html = page_of(run, tmp_path)
    found = document(html)
    assert not found["has_texts"] and set(found["cards"]["prompt"]) == {None}
    assert "This file holds ids and numbers only" in html and "--show train.jsonl" in html


def test_fewer_cards_another_order_some_ids_and_earlier_decisions(run, tmp_path):
    def ids(**options):
        return document(page_of(run, tmp_path, **options))["cards"]["id"]

    assert ids(top=2) == ["s2", "s0"] and ids(top=1, by="harm") == ["s1"]
    assert ids(ids=["s4", "s0"]) == ["s0", "s4"]
    some, every = (document(page_of(run, tmp_path, **options))["cards"] for options in ({"ids": ["s0"]}, {}))
    assert some["suspicion"][0] == every["suspicion"][1]  # its harm is measured by that of all sequences
    done = write_lines(tmp_path / "done.jsonl", [{"id": "s2", "decision": "drop"}, {"id": "s0", "decision": None}])
    assert ids(top=2, decisions=[done]) == ["s0", "s1"]
    with pytest.raises(SgoifError, match="nothing to show"):
        ids(ids=["s2"], decisions=[done])


def test_a_text_that_is_missing_or_long_is_counted(run, tmp_path):
    texts = write_lines(tmp_path / "t.jsonl", [{"id": "s0", "text": "x" * 20_003}, {"id": "s1", "text": "short"}])
    html = page_of(run, tmp_path, images=texts)
    cards = document(html)["cards"]
    assert "3 of them are not in it" in html and "1 text cut at 20,000 characters" in html
    assert cards["left"][1] == [0, 3] and len(cards["completion"][1]) == 20_000 and cards["completion"][0] is None
    assert cards["content"][1] == written_hash("x" * 20_003)  # of the whole text, which an edit is compared with


def test_texts_of_other_sequences_are_refused(run, tmp_path):
    half = [{"id": "s2", "question": "1 + 1?", "answer": "2"}]
    twice = [{"id": "s2", "text": "a"}, {"id": "s2", "text": "b"}]
    for rows, said in (
        ([{"id": "other", "text": "a"}], r"'t.jsonl' knows no id of this run.*such as 's2'"),
        (half, "has no texts of sequences: it has id, question, answer"),
        (twice, "has several texts of the id 's2'"),
    ):
        with pytest.raises(SgoifError, match=said):
            run.report(tmp_path / "p.html", images=write_lines(tmp_path / "t.jsonl", rows))
    assert not (tmp_path / "p.html").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "s0"}', "line 1 of .* no list of tokens"),
        ('{"id": "s0", "tokens": [{"harm": 1}]}', "a token without a text"),
        ('{"id": "s0", "tokens": [{"text": "a", "harm": "much"}]}', "whose harm is no number: 'much'"),
        ('{"id": "other", "tokens": []}', "none of the sequences shown; its ids look like 'other'"),
        ("", "has no lines"),
    ],
)
def test_tokens_that_cannot_be_understood_are_named(run, tmp_path, line, said):
    (tmp_path / "tokens.jsonl").write_text(line)
    with pytest.raises(SgoifError, match=said):
        run.report(tmp_path / "p.html", tokens=tmp_path / "tokens.jsonl")


def test_prompts_without_words_have_no_neighbours():
    assert find_similar(["...", "?"], ["...", "?"], 2) == [[], []]
    assert find_similar(["dog", "cat"], ["a dog", "the sea"], 2) == [[(0, pytest.approx(0.707, abs=0.01))], []]
