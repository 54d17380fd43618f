"""Ids in items of any form."""

import sgoif


def test_a_dictionary_holds_its_id_under_a_key():
    items = [{"pixel_values": i, "labels": 0} for i in range(4)]
    kept, held = sgoif.split(items, fraction=0.5)
    assert {item["id"] for part in (kept, held) for item in sgoif.with_ids(part)} == {0, 1, 2, 3}
    assert sgoif.with_ids(items, ["a", "b", "c", "d"])[2] == {"pixel_values": 2, "labels": 0, "id": "c"}
    assert items[2] == {"pixel_values": 2, "labels": 0}
