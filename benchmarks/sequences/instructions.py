"""Texts with intents as instruction tuning: "query => words of the intent", some completions made wrong.

Tokens are words, so that a model of a few million parameters learns the task from scratch within minutes.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import noise
from benchmarks.data import data_root
from benchmarks.modalities import nearest_classes

__all__ = ["ERRORS", "SOURCES", "Instructions", "load_instructions", "plant_wrong_completions"]

SOURCES = ("banking77", "clinc150")
ERRORS = ("near", "random", "garbled")
_PAD, _UNKNOWN, _ANSWER, _END = range(4)
_SPECIAL = ("<pad>", "<unknown>", "=>", "<end>")
_LONGEST = 40  # tokens of a query; longer ones lose their beginning

Items = list[dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Instructions:
    """Queries and the intents that they were given; evaluation queries are as published."""

    queries: list[str]
    intents: NDArray[np.int64]
    held_queries: list[str]
    held_intents: NDArray[np.int64]
    names: list[str]

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Words of the training queries and of all completions."""
        words = sorted({word for text in [*self.queries, *self.names] for word in _words(text)})
        return {word: number for number, word in enumerate([*_SPECIAL, *words])}

    @cached_property
    def rows(self) -> NDArray[np.float64]:
        """TF-IDF of the training queries, by which intents are near."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        found: NDArray[np.float64] = TfidfVectorizer(sublinear_tf=True).fit_transform(self.queries).toarray()
        return found

    def completion(self, intent: int) -> list[int]:
        """The words of an intent."""
        return [self.vocabulary[word] for word in _words(self.names[intent])]

    def item(self, query: str, completion: list[int]) -> dict[str, torch.Tensor]:
        """One sequence; only the completion has labels."""
        words = [self.vocabulary.get(word, _UNKNOWN) for word in _words(query)][-_LONGEST:]
        prompt = [*words, _ANSWER]
        answer = [*completion, _END]
        labels = [-100] * len(prompt) + answer
        return {"input_ids": torch.tensor(prompt + answer), "labels": torch.tensor(labels)}

    @property
    def held_items(self) -> Items:
        """The evaluation sequences."""
        return [self.item(q, self.completion(int(c))) for q, c in zip(self.held_queries, self.held_intents)]

    def groups(self, count: int) -> dict[str, Items]:
        """Evaluation sequences, with intents of like queries in one group."""
        from sklearn.cluster import KMeans

        means = np.stack([self.rows[self.intents == c].mean(0) for c in range(len(self.names))])
        member = KMeans(count, n_init=3, random_state=0).fit_predict(means / np.linalg.norm(means, axis=1)[:, None])
        found: dict[str, Items] = {f"group {number}": [] for number in range(count)}
        for item, intent in zip(self.held_items, self.held_intents):
            found[f"group {member[intent]}"].append(item)
        return found

    def split_held(self) -> tuple[Instructions, Instructions]:
        """The same with every other evaluation query of an intent, and with the rest."""
        seen = np.zeros(len(self.names), np.int64)
        is_first = np.zeros(len(self.held_intents), bool)
        for place, intent in enumerate(self.held_intents):
            is_first[place] = seen[intent] % 2 == 0
            seen[intent] += 1
        return tuple(  # type: ignore[return-value]
            replace(
                self,
                held_queries=[self.held_queries[j] for j in np.flatnonzero(some)],
                held_intents=self.held_intents[some],
            )
            for some in (is_first, ~is_first)
        )


def load_instructions(source: str, each: int, held: int, intents: int | None = None) -> Instructions:
    """The first ``each`` training queries and ``held`` evaluation queries of the first intents, or of all."""
    folder = data_root() / "text"
    if source == "clinc150":
        whole = json.loads((folder / "clinc150/data_full.json").read_text())
        splits = [whole["train"], whole["val"]]
    else:
        splits = []
        for name in ("train", "test"):
            with (folder / f"banking77/{name}.csv").open(newline="") as file:
                splits.append([(row["text"], row["category"]) for row in csv.DictReader(file)])
    names = sorted({intent for _, intent in splits[0]})[:intents]
    (queries, given), (held_queries, held_intents) = (
        _first(split, names, count) for split, count in zip(splits, (each, held))
    )
    return Instructions(queries, given, held_queries, held_intents, [name.replace("_", " ") for name in names])


def _first(split: list[tuple[str, str]], names: list[str], count: int) -> tuple[list[str], NDArray[np.int64]]:
    number = {name: place for place, name in enumerate(names)}
    seen = np.zeros(len(names), np.int64)
    queries, intents = [], []
    for text, intent in split:
        if intent in number and seen[number[intent]] < count:
            seen[number[intent]] += 1
            queries.append(text)
            intents.append(number[intent])
    return queries, np.array(intents)


def plant_wrong_completions(data: Instructions, kind: str, rate: float, seed: int) -> tuple[Items, NDArray[np.bool_]]:
    """Training sequences of which some have a wrong completion, and which those are.

    Args:
        data: with right intents.
        kind: ``"near"``, the intent with the most similar queries; ``"random"``, any other; ``"garbled"``, as many
            words of other completions as the right one has.
        rate: of the sequences.
        seed: of the draw.
    """
    classes = len(data.names)
    if kind == "near":
        given = noise.flip_pairs(data.intents, rate, seed, nearest_classes(data.rows, data.intents))
    else:
        given = noise.flip_symmetric(data.intents, rate, classes, seed)
    is_wrong = given != data.intents
    completions = [data.completion(int(intent)) for intent in given]
    if kind == "garbled":
        rng = np.random.default_rng(seed)
        words = sorted({word for intent in range(classes) for word in data.completion(intent)})
        for place in np.flatnonzero(is_wrong):
            length = len(data.completion(int(data.intents[place])))
            completions[place] = rng.choice(words, length).tolist()
    items = [data.item(query, completion) for query, completion in zip(data.queries, completions)]
    return items, is_wrong


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+|[?!.,]", text.lower())
