"""Texts of sequences: divided into prompt and completion, found by id in a table, and edited."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sgoif.errors import SgoifError
from sgoif.sources import tables
from sgoif.sources.sequences import SequenceText, open_sequence_texts, replace_completion, sequence_text

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    ("value", "prompt", "completion"),
    [
        ("plain", "", "plain"),
        ({"text": "whole", "source": "web"}, "", "whole"),
        ({"prompt": "p", "completion": "c", "text": "p c"}, "p", "c"),
        ({"prompt": TALK[:1], "completion": TALK[1:]}, "user: Hi", "Hello"),
        ({"messages": TALK}, "user: Hi", "Hello"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}, {"text": "what?"}]}]}, "", "(image)\nwhat?"),
        ({"a": 1}, "", "a: 1"),
    ],
)
def test_prompt_and_completion_are_told_apart(value, prompt, completion):
    assert sequence_text(value) == SequenceText(prompt, completion)


def test_only_a_text_can_be_edited():
    assert replace_completion({"prompt": "p", "completion": "c"}, "d") == {"prompt": "p", "completion": "d"}
    assert replace_completion({"messages": TALK}, "Bye")["messages"] == [TALK[0], {**TALK[1], "content": "Bye"}]
    assert TALK[1]["content"] == "Hello"
    assert replace_completion({"prompt": TALK[:1], "completion": TALK[1:]}, "Bye")["completion"][0]["content"] == "Bye"
    for value in ({"input_ids": [1], "completion": "c"}, {"a": 1}, {"completion": TALK}):
        assert replace_completion(value, "d") is None


def rows(count):
    return {
        "id": [f"s{i}" for i in range(count)],
        "prompt": [f"p{i}" for i in range(count)],
        "completion": ["c"] * count,
    }


@pytest.mark.parametrize("end", ["jsonl", "csv", "parquet"])
def test_a_file_is_read_block_by_block_and_only_what_is_asked_for_is_kept(tmp_path, monkeypatch, end):
    monkeypatch.setattr(tables, "_LINES", 10)
    path, table = tmp_path / f"t.{end}", pa.table(rows(95))
    if end == "parquet":
        pq.write_table(table, path, row_group_size=10)
    elif end == "csv":
        path.write_text("id,prompt,completion\n" + "".join(f"s{i},p{i},c\n" for i in range(95)))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    found = open_sequence_texts(path).read(["s3", "s94", "none"])
    assert found == {"s3": SequenceText("p3", "c"), "s94": SequenceText("p94", "c")}


def test_without_ids_rows_are_known_by_their_numbers(tmp_path):
    table = pa.table({"text": ["a", "b", "c"]})
    assert open_sequence_texts(table).read([2]) == {"2": SequenceText("", "c")}
    assert open_sequence_texts(["a", "b"]).read([1, 7]) == {"1": SequenceText("", "b")}
    with pytest.raises(SgoifError, match="it has x; expected columns prompt and completion, or messages, or text"):
        open_sequence_texts(pa.table({"x": [1]}))
