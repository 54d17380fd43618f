"""Classes of a few examples: nobody can be judged by them, and they cost the other classes nothing."""

import numpy as np
import pytest
from PIL import Image

from sgoif.errors import SgoifError
from sgoif.scanning import loop
from sgoif.scanning.crossfit import ScanRun
from sgoif.scanning.frozen import audit_embeddings
from sgoif.scanning.holdout import choose_holdout
from tests.scanning.test_standardise import average_precision

pytestmark = pytest.mark.usefixtures("quick_heads", "narrow_networks")


def world(counts, seed=0, width=12):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(counts)), counts)
    rows = (rng.normal(size=(len(counts), width)) * 2)[truth] + rng.normal(size=(len(truth), width))
    large = np.flatnonzero(np.array(counts) >= 50)
    wrong = (rng.random(len(truth)) < 0.08) & np.isin(truth, large)
    given = np.where(wrong, large[(np.searchsorted(large, truth) + 1) % len(large)], truth)
    return rows.astype(np.float32), given, wrong, choose_holdout(np.arange(len(truth)), given, len(counts))


@pytest.mark.parametrize("few", [0, 1, 4])
def test_a_class_of_a_few_examples_is_not_judged_and_the_others_are(few):
    rows, given, wrong, held = world([300, 300, 300, few])
    facts = {"class_names": ["ant", "bee", "cow", "dodo"]}
    run = audit_embeddings(rows, given, np.arange(len(given)), held, num_classes=4, run=ScanRun(facts=facts))
    table = run.table
    is_few = table["given_label"] == 3
    p = table["p_mislabeled"].astype(float)
    assert is_few.sum() == few  # all of them: none was held out
    assert np.isnan(p[is_few]).all() and np.isfinite(p[~is_few]).all()
    if few:
        have = "1 example" if few == 1 else f"{few} examples"
        assert set(table["no_p_reason"][is_few]) == {f"class dodo has {have}, too few to judge"}
        assert all(reason is None for reason in table["no_p_reason"][~is_few])
    assert average_precision(run, wrong) > 0.9
    assert abs(np.nansum(p) - wrong[table["id"]].sum()) < 30
    assert len(run.info["transition"]) == 4  # the class keeps its place


def test_several_small_classes_at_once():
    rows, given, wrong, held = world([60, 60, 52, 2, 3, 4])
    run = audit_embeddings(rows, given, np.arange(len(given)), held, num_classes=6)
    p = run.table["p_mislabeled"].astype(float)
    assert np.isnan(p[run.table["given_label"] >= 3]).all()
    assert np.nansum(p) < 40 and wrong.sum() > 5


def test_two_classes_must_be_left():
    rows, given, _, held = world([60, 4, 3])
    with pytest.raises(SgoifError, match="at least 5 examples each; the largest of 3 classes have 60, 4"):
        audit_embeddings(rows, given, np.arange(len(given)), held, num_classes=3)


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_folder_with_a_single_picture_in_a_class_is_scanned(tmp_path, monkeypatch, is_watched):
    if is_watched:
        monkeypatch.setattr(loop, "_CROSS_FITTED", 0)
    rng = np.random.default_rng(0)
    colours = {"green": (40, 160, 60), "red": (180, 50, 40), "teal": (20, 140, 140)}
    for name, count in (("green", 60), ("red", 60), ("teal", 1)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(rng.normal(colours[name], 40, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    run = loop.scan(tmp_path / "data", epochs=3, out=str(tmp_path / "run"))
    rows = {row["id"]: row for row in run.sql("select * from examples").to_pylist()}
    assert rows["teal/0.png"]["p_mislabeled"] is None
    assert rows["teal/0.png"]["no_p_reason"] == "class teal has 1 example, too few to judge"
    assert len(rows) + run.info["num_held_out"] == 121
