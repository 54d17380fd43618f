"""Copies are found by their sketches: differing labels first, then pairs across training and hold-out."""

import io

import numpy as np
import pytest
from PIL import Image

import sgoif
from benchmarks import data
from sgoif.errors import SgoifError
from sgoif.evidence import LIKENESS_COLUMNS, SKETCH_COLUMNS, Sketches, picture_sketch, sign_sketch
from sgoif.findings import find_duplicates
from sgoif.findings.duplicates import bits_of_copies
from sgoif.run import Run
from sgoif.tables import MemoryTables
from tests.training.loops import data as loop_data
from tests.training.loops import fresh, train, watch


def columns(words, labels, first=0):
    return {
        "id": np.arange(first, first + len(words)),
        "given_label": np.asarray(labels),
        **{name: words[:, i] for i, name in enumerate(SKETCH_COLUMNS)},
    }


def pairs_of(examples, holdout=None, max_bits=25):
    tables = {"examples": examples} if holdout is None else {"examples": examples, "holdout": holdout}
    return find_duplicates(MemoryTables(tables).sql, max_bits=max_bits, has_holdout=holdout is not None).to_pylist()


def random_words(count, seed=0):
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, (count, 4), dtype=np.int64)


def flipped(words, bits, seed):
    """Change so many bits of each sketch."""
    rng, out = np.random.default_rng(seed), words.copy()
    for row in out:
        for bit in rng.permutation(256)[:bits].tolist():
            row[bit // 64] ^= np.array([1 << (bit % 64)], np.uint64).view(np.int64)[0]
    return out


@pytest.mark.parametrize("bits", [0, 1, 7, 15])
def test_every_pair_up_to_fifteen_bits_apart_is_found(bits):
    words = random_words(200)
    found = pairs_of(columns(np.concatenate([words, flipped(words, bits, 1)]), np.zeros(400, int)))
    assert {frozenset((int(row["id"]), int(row["other_id"]))) for row in found} == {
        frozenset((i, i + 200)) for i in range(200)
    }
    assert {row["bits_apart"] for row in found} == {bits}


def test_wide_bands_find_what_they_promise(monkeypatch):
    monkeypatch.setattr("sgoif.findings.duplicates._MANY", 100)
    words = random_words(300)
    for bits, least in ((7, 300), (15, 190)):
        found = pairs_of(columns(np.concatenate([words, flipped(words, bits, 2)]), np.zeros(600, int)))
        assert len(found) >= least


def test_rows_that_are_all_much_alike_are_compared_within_a_budget(monkeypatch, caplog):
    """Rows of few numbers share many bands: bands become wider, then the commonest are passed over, with a word."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10, 4))[rng.integers(10, size=2000)] + 0.2 * rng.normal(size=(2000, 4))
    words = sign_sketch(np.concatenate([rows, rows[:20]]).astype(np.float32))
    alike = columns(words, np.zeros(2020, int))
    whole = pairs_of(alike, max_bits=8)
    assert not caplog.messages
    monkeypatch.setattr("sgoif.findings.duplicates._MOST_COMPARED", 1000)
    part = pairs_of(alike, max_bits=8)
    assert "much alike by their sketches" in caplog.text and 20 <= len(part) < len(whole)
    exact, others = ([row for row in found if not row["bits_apart"]] for found in (part, whole))
    assert exact == others and len(exact) >= 20


def test_differing_labels_come_first_then_pairs_across_the_hold_out():
    words = random_words(3)
    examples = columns(words[[0, 0, 0, 1, 1, 2]], [4, 4, 7, 1, 1, 2])
    found = pairs_of(examples, columns(words[[2]], [2], first=100))
    told = [(row["id"], row["other_id"], row["labels_differ"], row["is_across_holdout"]) for row in found]
    assert told == [
        ("0", "2", True, False),  # 4 is the group's commonest label
        ("5", "100", False, True),
        ("0", "1", False, False),
        ("3", "4", False, False),
    ]
    # a thousand equal ones are a star
    assert len(pairs_of(columns(np.repeat(words[:1], 1000, axis=0), np.zeros(1000, int)))) == 999


def reencoded(pixels, quality):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


@pytest.mark.data
def test_pictures_are_known_again_after_what_files_go_through():
    pictures = data.cifar10("train").pixels[:3000]
    words = picture_sketch(pictures)
    some = pictures[:200]

    def within(changed):
        return (np.bitwise_count((picture_sketch(changed) ^ words[:200]).view(np.uint64)).sum(1) <= 25).mean()

    assert within(np.stack([reencoded(item, 75) for item in some])) > 0.95
    assert within(np.stack([np.asarray(Image.fromarray(item).resize((64, 64))) for item in some])) > 0.99
    assert within((some * 0.9).astype(np.uint8)) > 0.99
    assert within(some[:, :, ::-1]) < 0.05  # a mirror image is another picture
    others = [row for row in pairs_of(columns(words, np.zeros(3000, int))) if row["bits_apart"] > 0]
    assert len(others) <= 5  # of 4.5 million pairs; CIFAR-10 has a few true copies


def test_plain_pictures_of_different_shades_differ():
    shades = np.array([10, 60, 110, 160, 210, 250], np.uint8)
    words = picture_sketch(np.broadcast_to(shades[:, None, None, None], (6, 32, 32, 3)))
    assert len(np.unique(words, axis=0)) == 6


def test_embeddings_close_in_angle_have_close_sketches():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 64))
    near = rows + 0.05 * rng.normal(size=rows.shape)  # about 3 degrees
    words = sign_sketch(np.concatenate([rows, near]))
    apart = np.bitwise_count((words[:500] ^ words[500:]).view(np.uint64)).sum(1)
    assert apart.mean() == pytest.approx(256 * np.arctan(0.05) / np.pi, rel=0.2)


def test_sketches_are_kept_by_id():
    kept = Sketches(0)
    kept.add(np.array([7, 3]), random_words(2))
    kept.add(np.array([3]), np.array([[1, 2, 3, 4]]))
    assert [int(column[0]) for column in kept.columns(np.array([3])).values()] == [1, 2, 3, 4]
    with pytest.raises(SgoifError, match="1 of 2 examples have no sketch"):
        kept.columns(np.array([3, 4]))


def test_a_run_without_sketches_says_so():
    run = Run({}, MemoryTables({"examples": {"id": np.arange(3), "given_label": np.zeros(3, int)}}))
    with pytest.raises(SgoifError, match="no sketches"):
        run.duplicates()


def test_an_audit_knows_copies_by_what_the_model_sees():
    (pixels, labels), (held_pixels, held_labels) = loop_data()
    pixels[40:46] = pixels[:6]
    labels[40:43] = (labels[:3] + 1) % 4
    labels[43:46] = labels[3:6]
    held_pixels[5] = pixels[20]
    held_labels[5] = labels[20]
    model = train(fresh(), (pixels, labels))
    found = sgoif.audit(model, (pixels, labels), anchors=(held_pixels, held_labels)).duplicates().to_pylist()
    same = [row for row in found if row["bits_apart"] == 0]
    pairs = {frozenset((row["id"], row["other_id"])) for row in same if not row["is_across_holdout"]}
    assert pairs == {frozenset((str(i), str(i + 40))) for i in range(6)}
    assert [row["labels_differ"] for row in found[:4]] == [True] * 3 + [False]
    assert {(row["id"], row["other_id"]) for row in same if row["is_across_holdout"]} == {("20", "5")}


def test_a_watched_training_says_why_it_knows_no_copies():
    train_set, holdout = loop_data()
    monitor = watch(fresh(), holdout)
    train(monitor.model, train_set, monitor)
    run = monitor.close()
    assert LIKENESS_COLUMNS[0] in run.table
    with pytest.raises(SgoifError, match=r"augmentation, which it cannot tell, would hide copies.*sgoif.audit"):
        run.duplicates()


def test_where_all_of_a_class_look_the_same_only_the_very_nearest_are_copies():
    classes = np.repeat(random_words(3), 100, axis=0)
    for bits, expected in ((5, 2), (40, 12)):  # each example differs so much from its class: two of them twice that
        words = flipped(classes, bits, seed=1)
        table = {"id": np.arange(300), "given_label": np.zeros(300, int)}
        sql = MemoryTables({"examples": table | dict(zip(LIKENESS_COLUMNS, words.T, strict=True))}).sql
        assert bits_of_copies(sql, 12) == expected
        assert len(find_duplicates(sql, max_bits=expected, has_holdout=False, by=LIKENESS_COLUMNS)) == 0
