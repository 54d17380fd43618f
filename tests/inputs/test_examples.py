"""Whatever a user gives as examples is read alike: the same labels, ids and inputs, or an error that tells the cure."""

import dataclasses
import itertools
import types
from collections import namedtuple

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import sgoif
from sgoif.errors import SgoifError
from sgoif.influence import HoldOut
from sgoif.inputs.examples import Examples
from sgoif.inputs.labels import find_labels

SIZE = 12
X, Y = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0)), torch.arange(SIZE) % 3
NAMES = ["cat", "dog", "fox"]

Named = namedtuple("Named", ["y", "image"])


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    label: int


class Items(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.make(index)


def hugging_face(**columns):
    return datasets.Dataset.from_dict({"x": X.tolist(), **columns})


def stack(items):
    return torch.stack([item[0] for item in items]), [NAMES[int(item[1])] for item in items]


SOURCES = {
    "tensors": lambda: (X, Y),
    "list of two tensors": lambda: [X, Y],
    "arrays": lambda: (X.numpy().astype(np.float64), Y.numpy()),
    "uint8 labels": lambda: (X, Y.to(torch.uint8)),
    "names beside tensors": lambda: (X, [NAMES[i] for i in Y]),
    "columns": lambda: {"x": X, "labels": Y},
    "tensor dataset": lambda: TensorDataset(X, Y),
    "list of tuples": lambda: list(zip(X, Y.tolist())),
    "subset": lambda: Subset(TensorDataset(X, Y), range(SIZE)),
    "concatenation": lambda: ConcatDataset([TensorDataset(X[:5], Y[:5]), TensorDataset(X[5:], Y[5:])]),
    "with ids": lambda: sgoif.with_ids(TensorDataset(X, Y)),
    "python ints": lambda: Items(lambda i: (X[i], int(Y[i]))),
    "numpy ints": lambda: Items(lambda i: (X[i], np.int64(Y[i]))),
    "0-d tensors": lambda: Items(lambda i: (X[i], Y[i])),
    "names": lambda: Items(lambda i: (X[i], NAMES[Y[i]])),
    "lists": lambda: Items(lambda i: [X[i], int(Y[i])]),
    **{
        f"key {key}": lambda key=key: Items(lambda i: {"x": X[i], key: int(Y[i])})
        for key in ("label", "labels", "target", "targets", "y")
    },
    "objects": lambda: Items(lambda i: types.SimpleNamespace(x=X[i], label=int(Y[i]))),
    "dataclasses": lambda: Items(lambda i: Sample(X[i], int(Y[i]))),
    "named tuples": lambda: Items(lambda i: Named(int(Y[i]), X[i])),
    "hugging face": lambda: hugging_face(label=Y.tolist()),
    "hugging face, names": lambda: hugging_face(label=[NAMES[i] for i in Y]),
    "hugging face, torch": lambda: hugging_face(label=Y.tolist()).with_format("torch"),
    "hugging face, transform": lambda: hugging_face(label=Y.tolist()).with_transform(
        lambda rows: {"x": [torch.tensor(row) for row in rows["x"]], "labels": rows["label"]}
    ),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True),
    "loader that collates": lambda: DataLoader(Items(lambda i: (X[i], Y[i], "more")), 4, collate_fn=stack),
    "loader without batches": lambda: DataLoader(Items(lambda i: (X[i], int(Y[i]))), batch_size=None),
}


def tensor_of(inputs):
    return next(iter(inputs.values())) if isinstance(inputs, dict) else inputs


@pytest.mark.parametrize("name", SOURCES)
def test_every_form_gives_the_same_examples(name):
    held = HoldOut(SOURCES[name](), class_names=NAMES)
    assert held.labels.tolist() == Y.tolist()
    assert list(held.ids) == list(range(SIZE))
    torch.testing.assert_close(tensor_of(held.inputs(torch.tensor([7, 2]))), X[[7, 2]])
    inputs, labels = held.examples.labelled(torch.tensor([7, 2]), NAMES)
    torch.testing.assert_close(tensor_of(inputs), X[[7, 2]])
    assert labels.tolist() == Y[[7, 2]].tolist()


@pytest.fixture(scope="module")
def network():
    """A model, its training examples, and what an audit and attribution by anchors of two tensors find."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    trained = (X + 1, Y)
    harm = sgoif.audit(model, trained, anchors=(X, Y), class_names=NAMES).table["harm"]
    return model, trained, harm, sgoif.attribute(model, trained, (X, Y), as_matrix=True)


@pytest.mark.parametrize("name", ["names", "key label", "hugging face", "loader that collates", "arrays", "objects"])
def test_every_form_can_be_watched_audited_and_attributed(network, name):
    model, (inputs, labels), harm, attributed = network
    known = {"anchors": SOURCES[name](), "class_names": NAMES}
    monitor = sgoif.watch(model, **known, train_size=SIZE)
    with monitor.step(torch.arange(SIZE), labels):
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    assert monitor.close().info["num_examples"] == SIZE
    np.testing.assert_allclose(sgoif.audit(model, (inputs, labels), **known).table["harm"], harm, rtol=1e-5)
    found = sgoif.attribute(model, (inputs, labels), SOURCES[name](), class_names=NAMES, as_matrix=True)
    np.testing.assert_allclose(found, attributed, rtol=1e-4, atol=1e-6)


def test_passes_over_a_finished_model_read_rows_of_hugging_face():
    pixels = torch.randn(240, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(240) % 3
    names = [NAMES[i] for i in labels]
    table = datasets.Dataset.from_dict({"x": pixels.tolist(), "label": names, "id": [f"row-{i}" for i in range(240)]})
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    run = sgoif.audit(model, table, anchors=(pixels + 1, labels), class_names=NAMES)
    assert run.ood_scorer(model, table).table(table).num_rows == 240
    sentinel = run.shift_sentinel(model, table, batch_size=8)
    assert len(list(sentinel.watch(table.select(range(16))))) == 2
    plan = run.unlearning_plan(["row-3", "row-7"], model=model, dataset=table, holdout=table.select(range(100, 200)))
    assert sorted(plan.table["id"].to_pylist()) == ["row-3", "row-7"]
    assert plan.predictions(table.remove_columns("label")).after.shape == (240, 3)
    suspects = run.poison_suspects(pixels[:2], 1, model=model, dataset=table)
    assert set(suspects["id"].to_pylist()) == {f"row-{i}" for i in range(1, 240, 3)}


def test_ids_come_with_items_columns_or_a_dataset():
    names = [f"row-{i}" for i in range(SIZE)]
    for source in (
        (X, Y, names),
        (X, Y, np.array(names)),
        Items(lambda i: (X[i], Y[i], names[i])),
        Items(lambda i: {"x": X[i], "label": Y[i], "id": names[i]}),
        hugging_face(label=Y.tolist(), id=names),
        sgoif.with_ids(TensorDataset(X, Y), names),
        DataLoader(sgoif.with_ids(TensorDataset(X, Y), names), batch_size=5),
        Subset(sgoif.with_ids(TensorDataset(X, Y), names), range(SIZE)),
    ):
        examples = Examples(source)
        assert list(examples.ids) == names
        assert examples.given_ids == frozenset(names)
    assert list(Examples(TensorDataset(X, Y, torch.arange(50, 50 + SIZE))).ids) == list(range(50, 50 + SIZE))


def test_ids_that_merely_count_are_not_taken_for_names():
    assert Examples(Items(lambda i: (X[i], Y[i], i))).given_ids is None
    assert Examples(sgoif.with_ids(TensorDataset(X, Y))).given_ids is None
    assert Examples((X, Y)).given_ids is None
    part = sgoif.with_ids(Subset(TensorDataset(X, Y), [3, 1, 2]))
    assert Examples(part).id_kind == "subset"
    assert list(Examples(part).ids) == [3, 1, 2]


class Raw(Dataset):
    """A dataset as torchvision's: labels in ``targets``, an item's label made from them."""

    def __init__(self, change=None, attribute="target_transform"):
        self.x, self.targets = X, Y.tolist()
        setattr(self, attribute, change)
        self.change, self.reads = change, 0

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        self.reads += 1
        return self.x[index], self.targets[index] if self.change is None else self.change(self.targets[index])


@pytest.mark.parametrize("attribute", ["target_transform", "transforms", "something"])
@pytest.mark.parametrize(
    "wrap", [lambda d: d, lambda d: Subset(d, range(SIZE)), sgoif.with_ids, lambda d: DataLoader(d)]
)
def test_labels_are_those_of_the_items_whatever_the_dataset_lists(attribute, wrap):
    held = HoldOut(wrap(Raw(lambda label: (label + 1) % 3, attribute)))
    assert held.labels.tolist() == ((Y + 1) % 3).tolist()


@pytest.mark.parametrize("attribute", ["target_transform", "transforms"])
def test_a_transform_of_labels_counts_where_lists_of_a_library_are_believed(attribute):
    class Known(Raw):
        def __getitem__(self, index):
            return super().__getitem__(index)

    Known.__getitem__.__module__ = "torchvision.datasets.mnist"  # whose lists are not compared with items
    assert HoldOut(Known(lambda label: (label + 1) % 3, attribute)).labels.tolist() == ((Y + 1) % 3).tolist()


def test_listed_labels_are_believed_after_some_items_and_checked_as_others_are_read():
    class Large(Raw):
        def __init__(self):
            super().__init__()
            self.targets = [0, 1] * 50_000

        def __len__(self):
            return len(self.targets)

        def __getitem__(self, index):
            self.reads += 1
            return X[0], self.targets[index] if index != 77 else 5

    large = Large()
    held = HoldOut(large)
    assert large.reads < 2000 < len(held)
    held.inputs(torch.tensor([76]))
    with pytest.raises(SgoifError, match=r"item 77 of anchors= has label 5, but .* says 1"):
        held.inputs(torch.tensor([77]))


def fail(index):
    raise OSError(f"cannot identify image file {index}.png")


REFUSED = {
    "broken item": (lambda: Items(lambda i: (X[i], int(Y[i])) if i != 5 else fail(i)), "item 5 .* OSError: .* 5.png"),
    "iterable": (lambda: type("Stream", (IterableDataset,), {"__iter__": lambda self: iter([])})(), "islice"),
    "generator": (lambda: ((x, y) for x, y in zip(X, Y)), "islice"),
    "loader of a stream": (lambda: DataLoader(type("S", (IterableDataset,), {"__iter__": None})()), "islice"),
    "splits": (lambda: datasets.DatasetDict(test=hugging_face(label=[0] * 12)), "with test.*pass one of its datasets"),
    "unknown key": (lambda: Items(lambda i: {"x": X[i], "fine": 0}), "items have x, fine, expected one of labels, "),
    "language model": (lambda: Items(lambda i: {"input_ids": X[i]}), "Language models have task='sequences'"),
    "token labels": (lambda: Items(lambda i: {"input_ids": X[i], "labels": Y[:3]}), "per token .* not supported yet"),
    "objects": (lambda: Items(lambda i: types.SimpleNamespace(x=X[i])), "items are SimpleNamespace with x"),
    "no labels": (lambda: X, r"pass a tuple \(inputs, labels\)"),
    "bare items": (lambda: Items(lambda i: X[i]), r"give \(input, label\)"),
    "lengths": (lambda: (X, Y[:5]), "12 inputs but 5 labels"),
    "empty": (lambda: (X[:0], Y[:0]), "empty"),
    "probabilities": (lambda: (X, torch.rand(SIZE, 3)), "argmax"),
    "no number": (lambda: Items(lambda i: (X[i], None)), "a label of anchors= is None.*leave"),
    "halves": (lambda: (X, Y + 0.5), "class numbers, but there are 0.5"),
    "names": (lambda: Items(lambda i: (X[i], NAMES[Y[i]])), r"strings \('cat', 'dog', 'fox'\); pass class_names="),
    "number": (lambda: 3, "is a int; expected a tuple"),
    "shapes": (lambda: Items(lambda i: (X[i, : 1 + i % 2], 0)), "collate_fn of your training"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_raises_with_the_cure(name):
    make, words = REFUSED[name]
    model = torch.nn.Linear(3, 3)
    with pytest.raises(SgoifError, match=words):
        sgoif.watch(model, anchors=make(), train_size=SIZE)


def test_a_name_that_is_not_a_class_is_shown():
    with pytest.raises(SgoifError, match="not among class_names: 'fox'; class_names are 'cat', 'dog'"):
        HoldOut(SOURCES["names"](), class_names=NAMES[:2])


def test_a_thousand_classes_and_a_million_items_are_read_in_seconds():
    labels = torch.arange(1_000_000) % 10_000
    held = HoldOut(TensorDataset(labels[:, None], labels))
    assert held.counts.min() == 100
    assert sorted(held.next_positions(10_000).tolist())[0] >= 0


def test_a_model_of_sequences_or_one_logit_is_refused():
    class Language(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(1, 7)

        def forward(self, x):
            return self.head(x[..., None])

    for head in (None, "head"):
        with pytest.raises(SgoifError, match=r"\(2, 3, 7\), one prediction per token .* not supported yet"):
            sgoif.watch(Language(), anchors=(X, Y), train_size=SIZE, method=sgoif.Method(head=head))
    with pytest.raises(SgoifError, match="one output; expected one per class"):
        sgoif.watch(torch.nn.Linear(3, 1), anchors=(X, Y % 2), train_size=SIZE)


def test_dictionaries_reach_the_model_by_the_names_it_knows():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(3, 3)

        def forward(self, a, b):
            return self.head(a + b)

    source = Items(lambda i: {"b": X[i], "a": X[i], "path": f"{i}.png", "label": int(Y[i])})
    sgoif.watch(Two(), anchors=source, train_size=SIZE)
    with pytest.raises(SgoifError, match=r"a batch has a, c, and the model's forward\(\) takes input; pass forward="):
        sgoif.watch(torch.nn.Linear(3, 3), anchors=Items(lambda i: {"a": X[i], "c": X[i], "y": 0}), train_size=SIZE)
    sgoif.watch(
        torch.nn.Linear(3, 3),
        anchors=source,
        train_size=SIZE,
        forward=lambda batch: batch["a"] @ torch.eye(3),
        method=sgoif.Method(head=""),
    )


def test_queries_without_labels_are_asked_about_by_what_the_model_predicts(network):
    model, trained, *_ = network
    known = sgoif.attribute(model, trained, (X, model(X).argmax(1)), as_matrix=True)
    for queries in (X, X.numpy(), Items(lambda i: X[i]), TensorDataset(X), Items(lambda i: {"x": X[i]})):
        found = sgoif.attribute(model, trained, queries, as_matrix=True)
        np.testing.assert_allclose(found, known, rtol=1e-4, atol=1e-6)


def test_items_of_a_stream_can_be_read_into_a_list():
    stream = hugging_face(label=Y.tolist()).to_iterable_dataset()
    assert HoldOut(list(itertools.islice(stream, 5))).labels.tolist() == Y[:5].tolist()


@pytest.mark.parametrize("transform", [None, lambda label: 1 - label])
def test_a_list_of_labels_says_nothing_where_a_transform_changes_them(transform):
    dataset = Items(lambda index: (X[index], int(Y[index])))
    dataset.targets, dataset.target_transform = Y.tolist(), transform
    assert (find_labels(dataset) is None) == (transform is not None)


def test_names_have_the_numbers_of_the_models_outputs():
    examples = Examples((X[:3], ["cat", "fox", "dog"]))
    assert examples.classes(["fox", "cat", "dog"]).tolist() == [1, 0, 2]
