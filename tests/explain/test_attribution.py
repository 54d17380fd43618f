"""`sgoif.attribute` as a table: the strongest examples of every query, in nats and percent, with names and p."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F

import sgoif
from sgoif.errors import SgoifError
from tests.training.loops import GroupNormNet, data, train

NAMES = ["oak", "elm", "ash", "fir"]
COLUMNS = [
    *("query", "query_label", "query_loss", "id", "given_label", "given_name"),
    *("effect", "effect_percent", "p_mislabeled", "no_p_reason"),
]


@pytest.fixture(scope="module")
def finished():
    torch.manual_seed(0)
    train_set, queries = data()
    return train(GroupNormNet().double(), train_set), train_set, queries


@pytest.mark.parametrize(
    ("direction", "key"), [("either", lambda i: -np.abs(i)), ("harmful", np.negative), ("helpful", np.copy)]
)
def test_rows_are_the_strongest_entries_of_the_matrix(finished, direction, key):
    model, train_set, queries = finished
    matrix = sgoif.attribute(model, train_set, queries, as_matrix=True)  # [48, V]
    table = sgoif.attribute(model, train_set, queries, top=5, direction=direction, batch_size=7)
    assert table.column_names == COLUMNS
    order = np.argsort(key(matrix), axis=0, kind="stable")[:5]  # [5, V]
    assert table["id"].to_pylist() == order.T.flatten().tolist()
    effect = -np.take_along_axis(matrix, order, 0).T.flatten() / len(train_set[1])
    np.testing.assert_allclose(table["effect"], effect, rtol=1e-6, atol=1e-12)
    with torch.no_grad():
        losses = F.cross_entropy(model(queries[0]), queries[1], reduction="none").numpy()
    np.testing.assert_allclose(table["query_loss"], losses.repeat(5), rtol=1e-6)
    np.testing.assert_allclose(table["effect_percent"], 100 * effect / losses.repeat(5), rtol=1e-6)
    assert table["query"].to_pylist() == np.arange(len(losses)).repeat(5).tolist()
    assert table["given_label"].to_pylist() == [int(train_set[1][i]) for i in table["id"].to_pylist()]
    assert table["given_name"].null_count == len(table)  # the classes have no names
    assert table.schema.field("p_mislabeled").type == pa.float64() and table["p_mislabeled"].null_count == len(table)
    assert set(table["no_p_reason"].to_pylist()) == {"no run was given: pass run="}


def test_names_and_probabilities_come_from_the_run(finished):
    model, (inputs, labels), queries = finished
    named = sgoif.with_ids(list(zip(inputs, labels.tolist())), [f"a/{i}" for i in range(48)])
    run = sgoif.audit(model, named, anchors=queries, class_names=NAMES)
    p = np.linspace(0, 1, 48)
    p[:24] = np.nan
    run.table = {**run.table, "p_mislabeled": p}  # as a run that judged half of its labels
    run._tables._tables["examples"] = run.table
    more = sgoif.with_ids([*zip(inputs, labels.tolist()), (inputs[0], 1)], [*(f"a/{i}" for i in range(48)), "new"])
    table = sgoif.attribute(model, more, queries, top=1000, run=run)
    assert len(table) == 49 * len(queries[1])  # more than there are is all of them
    judged = {f"a/{i}": p[i] for i in range(24, 48)}
    for row in table.to_pylist():
        assert row["given_name"] == NAMES[row["given_label"]]
        if row["id"] in judged:
            assert row["p_mislabeled"] == pytest.approx(judged[row["id"]]) and row["no_p_reason"] is None
        else:
            assert row["p_mislabeled"] is None and row["no_p_reason"]
    reasons = {row["id"]: row["no_p_reason"] for row in table.to_pylist()}
    assert reasons["new"] == "this id is not in the run"


def test_what_cannot_be_asked_is_refused(finished):
    for settings, said in (({"direction": "up"}, "either, harmful, helpful"), ({"top": 0}, "top=")):
        with pytest.raises(SgoifError, match=said):
            sgoif.attribute(*finished, **settings)


def test_a_query_of_no_loss_has_no_percentage():
    model = torch.nn.Linear(1, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1000.0], [-1000.0]]))
        model.bias.zero_()
    examples = torch.tensor([[1.0], [-1.0], [0.001], [-0.001]], dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    table = sgoif.attribute(model, examples, (examples[0][:1], examples[1][:1]), top=2)
    assert table["query_loss"].to_pylist() == [0.0, 0.0] and table["effect_percent"].to_pylist() == [None, None]
