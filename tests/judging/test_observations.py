"""What is asked of the judge, from tables of any library."""

import io

import numpy as np
import pytest

import sgoif
from sgoif.errors import SgoifError
from sgoif.judging.observations import Heldout, Observations, unseen_observations
from sgoif.judging.predictions import TopPredictions
from tests.judging.made import make

MADE = make(600)


def columns(**more):
    return {"id": np.arange(600), "label": MADE.given, "log_p": list(MADE.logs), **more}


def test_a_parquet_file_of_predictions_is_judged():
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns().items()}), file)
    found = sgoif.judge(pq.read_table(file))
    expected = sgoif.judge(MADE.observations())
    np.testing.assert_array_equal(found.labels.p, expected.labels.p)
    assert found.kind == "counted" and found.labels.p[MADE.wrong].min() > found.labels.p[~MADE.wrong].mean()


def test_tables_of_any_library_are_the_same_observations():
    pandas, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    plain = columns(is_held_out=np.arange(600) % 4 == 0, mean_loss=np.linspace(0, 1, 600))
    tables = [plain, pa.table({name: pa.array(values) for name, values in plain.items()}), pandas.DataFrame(plain)]
    for found in map(Observations.from_table, tables):
        held = np.arange(600) % 4 == 0
        np.testing.assert_array_equal(found.ids, np.flatnonzero(~held))
        np.testing.assert_array_equal(found.labels, MADE.given[~held])
        np.testing.assert_array_equal(found.heldout.labels, MADE.given[held])
        np.testing.assert_array_equal(found.mean_loss, plain["mean_loss"][~held])
        np.testing.assert_allclose(found.final.logs(slice(None)), MADE.logs[~held], atol=1e-6)
        np.testing.assert_allclose(found.heldout.predictions.logs(slice(None)), MADE.logs[held], atol=1e-6)
        assert len(found) == 450 and found.num_classes == 4 and not found.heldout.trusted


def test_several_views_are_read_by_their_names():
    found = Observations.from_table(columns(log_p_more=list(MADE.logs)))
    assert list(found.views) == ["log_p", "log_p_more"]


def without(name):
    return {key: values for key, values in columns().items() if key != name}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (without("id"), "need a column 'id'; this table has label, log_p"),
        (without("label"), "need a column 'label'"),
        (without("log_p"), "need predictions: a column `log_p`"),
        (columns(label=np.array(["cat"] * 600)), "whole numbers of classes"),
        (columns(label=np.full(600, 4)), "label 4 is no class: predictions are of 4 classes, 0 to 3"),
        (columns(log_p=list(MADE.logs[:-1])), "predicts 599 examples, where there are 600"),
        ({**columns(log_p_more=list(MADE.logs)), "is_held_out": np.arange(600) < 100}, "one model has one view"),
        ([1, 2, 3], "come as Observations, an Arrow table, a DataFrame or a mapping"),
    ],
)
def test_mistakes_are_named(table, message):
    with pytest.raises(SgoifError, match=message):
        Observations.from_table(table)


def test_held_out_rows_are_examples_of_their_own():
    held = Heldout(labels=MADE.given, predictions=TopPredictions.of(MADE.logs), trusted=True)
    few = held.take(np.array([5, 2]))
    assert few.trusted and few.labels.tolist() == MADE.given[[5, 2]].tolist()
    found = unseen_observations(few)
    assert found.heldout is None and len(found) == 2
    np.testing.assert_allclose(found.final.logs(slice(None)), MADE.logs[[5, 2]], atol=1e-6)
