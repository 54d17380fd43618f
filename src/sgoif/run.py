"""A finished run and the questions that people ask of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgoif import findings
from sgoif.errors import SgoifError
from sgoif.findings.suspects import columns_of, labels_of, rate_columns, suspects
from sgoif.review.decisions import find_class, some_of
from sgoif.summary import (
    AnySummary,
    count_examples,
    summarise,
    summarise_annotators,
    summarise_sequences,
    summarise_tags,
    summarise_values,
)
from sgoif.tables import Columns, FileTables, Tables, arrow_table

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor, nn

    from sgoif.ood import OodScorer
    from sgoif.report.notebook import PictureGrid
    from sgoif.shift import ShiftSentinel
    from sgoif.store import RunFiles
    from sgoif.unlearning import UnlearningPlan

__all__ = ["Run", "load", "open_run"]

log = logging.getLogger(__name__)


class Run:
    """What a monitored training, an audit or a scan found.

    Args:
        info: how the run went: settings, plan, overhead, faults, calibration.
        tables: its tables.
    """

    def __init__(self, info: dict[str, Any], tables: Tables) -> None:
        self.info, self._tables = info, tables

    @cached_property
    def table(self) -> Columns:
        """One row per example, as arrays."""
        return self._tables.columns("examples")

    @cached_property
    def visits(self) -> Columns:
        """One row per visit, as arrays; empty where they were not kept."""
        return self._tables.columns("visits")

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes; empty where they have none."""
        return [str(name) for name in self.info.get("class_names") or ()]

    @cached_property
    def num_classes(self) -> int:
        """How many classes or tags there are, as far as the run knows."""
        held = self.info.get("held_out_per_class") or self.info.get("held_out_per_tag") or ()
        known = columns_of(self.sql, "examples").keys() & {"given_label", "suggested_label"}
        largest = [self.sql(f"select max({name}) as n from examples")["n"][0].as_py() for name in known]
        return max(len(self.class_names), len(held), *(0 if label is None else int(label) + 1 for label in largest), 0)

    @cached_property
    def num_examples(self) -> int:
        """Examples that the run is about: those that were trained on, audited or scanned."""
        return count_examples(self.sql)

    @cached_property
    def num_judged(self) -> int:
        """Those of them whose label has a probability; labels that a person has verified have none.

        Sequences have one as soon as somebody has checked a sample, all that have a token to predict.
        """
        if self.has_sequences:
            if not (self.info.get("checked") or {}).get("parts"):
                return 0
            return int(self.sql("select count(*) as n from examples where num_tokens > 0")["n"][0].as_py())
        if "p_mislabeled" not in columns_of(self.sql, "examples"):
            return 0
        labels = "examples" if self.has_values else labels_of(self.sql)
        judged = self.sql(f"select count(p_mislabeled) as n from {labels}")
        return int(judged["n"][0].as_py())

    @property
    def is_calibrated(self) -> bool:
        """Whether the run knows probabilities; where not, ``info["no_p_reason"]`` says why."""
        return self.num_judged > 0

    def examples(self) -> pa.Table:
        """One row per example: means of every signal, suggested labels, confidence and visits."""
        return self._tables.arrow("examples")

    def holdout(self) -> pa.Table:
        """One row per hold-out example that was seen, its own label judged by the other fold."""
        return self._tables.arrow("holdout")

    def anchors(self) -> pa.Table:
        """One row per anchor and refresh: residual, confidence and what they were judged by."""
        return self._tables.arrow("anchors")

    def sql(self, query: str, **parameters: Any) -> pa.Table:
        """Answer one SELECT over ``examples``, ``visits``, ``holdout`` and ``anchors``, in place."""
        return self._tables.sql(query, **parameters)

    def label_issues(
        self,
        *,
        top: int | None = None,
        given: int | str | None = None,
        min_p: float | None = None,
        by: Sequence[Any] | None = None,
        neighbours: bool = False,
    ) -> pa.Table:
        """Which labels are wrong, most suspicious first; or, with ``by``, how many in each group.

        ``given_name`` and ``suggested_name`` stand beside the numbers of the classes, null where these have no names.

        Hold-out examples whose labels nobody verified are among them, with ``source="holdout"``; labels that a person
        has verified and examples whose targets name no class (Mixup, soft labels) are not. ``harm`` and ``worst``, the
        influence on held-out examples, are there for a run that was watched or audited; a scan measures none.
        ``p_mislabeled`` is null where a label was not judged, and
        ``no_p_reason`` says why; a run without any is ranked by ``label_score``.

        Args:
            top: how many rows; None or 0 for all.
            given: only those labelled as this class, by number or name.
            min_p: only those at least this probably wrong.
            by: one value per example, in the order of :meth:`examples` (annotator, vendor, camera); ``top`` is then how
                many groups.
            neighbours: look up the six nearest training examples of each row. ``why`` says how they are labelled;
                ``near_suggested``, ``near_given`` and ``num_near`` count them. A second for 1,000 rows of a run of
                50,000 examples; use it with ``top``.

        Raises:
            SgoifError: ``by`` is given together with ``given`` or ``min_p``, or the run has no such class.
        """
        self.need_classes()
        import pyarrow as pa

        if by is not None:
            if given is not None or min_p is not None:
                raise SgoifError("by= counts the errors of whole groups; it goes with neither given= nor min_p=.")
            return pa.table(findings.group_issues(self.table, by)).slice(0, top or None)
        from sgoif.report.notebook import show_issues_in_notebooks

        label = None if given is None else self.find_class(given)
        rows = suspects(self.sql, top=top, given=label, min_p=min_p)
        if neighbours:
            rows = findings.with_neighbours(self.sql, rows)
        found = arrow_table(findings.label_issues(rows, self.class_names))
        found = findings.add_class_names(found, self.class_names, ("given", "suggested"))
        return show_issues_in_notebooks(found, self.class_names)

    def tag_issues(
        self,
        *,
        top: int | None = None,
        verdict: str | None = None,
        tag: int | None = None,
        min_p: float | None = None,
    ) -> pa.Table:
        """Which tags of a multi-label run are too many or missing, most suspicious first.

        Args:
            top: how many rows; None or 0 for all that were kept.
            verdict: ``"extra tag"`` or ``"missing tag"`` only.
            tag: this tag only, by number.
            min_p: only what is at least this probably wrong.

        Raises:
            SgoifError: The run is not about tags.
        """
        import pyarrow as pa

        if self.info.get("task") != "multilabel":
            raise SgoifError("this run has no tags; watch a training with task='multilabel', or ask label_issues().")
        return pa.table(
            findings.tag_issues(self.sql, self.class_names, top=top or None, verdict=verdict, tag=tag, min_p=min_p)
        )

    def value_issues(self, *, top: int | None = None, min_p: float | None = None) -> pa.Table:
        """Which values of a regression are wrong, most suspicious first, each with a prediction that has not seen it.

        Args:
            top: how many rows; None or 0 for all.
            min_p: only what is at least this probably wrong.

        Raises:
            SgoifError: The run is about classes or tags.
        """
        if not self.has_values:
            raise SgoifError("this run has no values but classes; ask label_issues() or tag_issues().")
        return arrow_table(findings.value_issues(self.sql, top=top, min_p=min_p))

    def sequence_issues(self, *, by: str = "suspicion", top: int | None = None) -> pa.Table:
        """Which training sequences of a language model are suspicious, most suspicious first. Experimental.

        Columns: ``suspicion``, a loss times less than 1 for sequences that help and more for those that hurt. In an
        audit that is by their ``conflict``, and the loss lies between ``loss_last`` and ``loss_tuned``, both as far as
        their ``coverage`` goes; in a watched training by their harm, and it is ``loss_last``;
        ``loss_tuned``, of an audit: the loss once the model has learnt the evaluation sequences;
        ``conflict``, of an audit: as harm, but evaluation sequences count by how like their prompts are, and gradients
        are divided by the root of their norm, so that a few large ones do not decide;
        ``coverage``, of an audit: from 0, where no evaluation sequence has a similar prompt, to 1, where many have;
        ``harm``, what training on it does to the loss of all evaluation sequences together, to which a group adds as
        much as it has sequences (positive is harmful); ``worst``, the largest over the groups, and ``worst_group``;
        ``cosine``, as harm, without curvature and size; ``loss`` per token, its mean over the visits, and its first and
        last value.
        ``p_mislabeled`` with the ends of its 90% interval: the share of wrong ones among the sequences of the same part
        of the ranking that people checked for ``sgoif verify``; null before, where ``no_p_reason`` says so.

        Args:
            by: what they are ranked by: ``"suspicion"``, ``"loss_last"``, ``"loss_tuned"``, ``"loss"``,
                ``"loss_first"``, ``"harm"``, ``"conflict"``, ``"worst"`` or ``"cosine"``.
            top: how many rows; None or 0 for all.

        Raises:
            SgoifError: The run is not about sequences, or they are not ranked by such a column.
        """
        self._need_sequences()
        return findings.sequence_issues(self.sql, self.info, by=by, top=top)

    def most_helpful(self, group: str, count: int = 20) -> pa.Table:
        """The training sequences that lower the loss of a group of evaluation sequences most. Experimental.

        Columns: ``help``, minus the harm to the group; ``alignment``, the cosine of the two gradients; ``loss``,
        ``num_tokens`` and ``n_visits``.

        Args:
            group: name of the group, a key of ``anchors=``.
            count: how many rows.

        Raises:
            SgoifError: The run is not about sequences, or has no such group.
        """
        self._need_sequences()
        return findings.most_helpful(self.sql, group, count, groups=list(self.info.get("groups") or {}))

    @property
    def has_sequences(self) -> bool:
        """Whether the run judged sequences of a language model."""
        return self.info.get("task") == "sequences"

    def _need_sequences(self) -> None:
        if not self.has_sequences:
            raise SgoifError(
                "this run has no sequences; watch the training of a language model with task='sequences', or ask "
                "label_issues()."
            )

    def annotators(self) -> pa.Table:
        """One row per annotator, the best first: labels given, accuracy with a 90% interval, agreement with others.

        Raises:
            SgoifError: The run has one label per example.
        """
        if self.info.get("task") != "annotators":
            raise SgoifError("this run has one label per example; scan labels of several annotators to compare them.")
        return self._tables.arrow("annotators").sort_by([("quality", "descending")])

    @property
    def has_values(self) -> bool:
        """Whether the run judged values of a regression, not classes."""
        return self.info.get("task") == "regression"

    def need_classes(self) -> None:
        """Refuse a question about classes to a run about values or sequences.

        Raises:
            SgoifError: The run has no classes; the message says what it can be asked.
        """
        if self.has_sequences:
            raise SgoifError(
                f"{self.url or 'this run'} judged sequences of a language model and has no classes; ask it for its "
                "sequence_issues(), most_helpful(group) and duplicates(), or on the command line `issues`, `info`, "
                "`report`, `duplicates`, `verify`, `check`, `export --to jsonl` and `apply`."
            )
        if self.has_values:
            raise SgoifError(
                f"{self.url or 'this run'} judged values of a regression and has no classes; ask it for its "
                "value_issues(), or `sgoif issues` and `sgoif info` on the command line."
            )

    def class_issues(self) -> pa.Table:
        """Estimated error rate of each class with a range, what it is confused with, and a verdict."""
        import pyarrow as pa

        self.need_classes()
        held, why, columns = self.info.get("held_out_per_class"), self.info.get("no_p_reason"), rate_columns(self.sql)
        if why is not None:  # for the message that no class has a rate
            columns |= {"no_p_reason": np.full(len(columns["p_mislabeled"]), why, dtype=object)}
        return pa.table(findings.class_issues(columns, class_names=self.class_names, held_out=held))

    def find_class(self, name: int | str) -> int:
        """Return the number of a class, given by its name or number.

        Raises:
            SgoifError: There is no such class; the message names some that there are.
        """
        found = find_class(str(name), self.class_names, self.num_classes)
        if found is None:
            raise SgoifError(f"this run has no class {name!r}; it has {some_of(self.class_names, self.num_classes)}.")
        return found

    def duplicates(self) -> pa.Table:
        """Pairs of examples that are the same or nearly: differing labels first, then pairs across the hold-out.

        A scan knows them by their pictures or embeddings, an audit by what the model sees of them. Of sequences, an
        audit knows those that are equal, and prompts with several completions: ``kind`` is ``"other completion"``,
        ``"evaluation"`` (a group has the same sequence) or ``"same"``; ``other_id`` is the sequence that it is
        compared with.

        Raises:
            SgoifError: The run has no sketches to compare.
        """
        if self.has_sequences:
            return findings.sequence_duplicates(self.sql)
        self.need_classes()
        found = findings.duplicates_of_run(self.sql, self.info.get("nearly_same"))
        return findings.add_class_names(found, self.class_names, ("given", "other"))

    def data_issues(self) -> pa.Table:
        """What is wrong with the data as a whole: one row per check, the most severe first.

        Columns: ``kind``; ``severity`` (high, medium, low, none, or unknown if it could not be checked); ``title``, a
        sentence; ``count``; ``share`` with its 95% interval ``low`` to ``high``, or the ``p_value`` of a test; ``ids``
        and ``scores`` of the worst examples, at most 20; ``what_to_do``; ``why_not``, why it could not be checked.

        Raises:
            SgoifError: The run has no such table; a new scan makes it.
        """
        from sgoif.checks import issue_table

        return issue_table(self.info)

    def influence(
        self, ids: Sequence[Any] | Any, anchors: Sequence[int | str] | int | str | None = None
    ) -> NDArray[np.float64]:
        """What training examples did to anchors, the hold-out examples of a class: ``[ids, anchors]``.

        ``I(i, c)``, positive where example i harms class c: to first order, training without i would change the mean
        loss of the class's hold-out examples by ``-I/n``, by way of the scored layers. NaN for a class without any.
        For influence on single examples see :func:`sgoif.attribute`.

        Args:
            ids: of training examples; one alone gives one row.
            anchors: classes by number or name, or one of them; all by default.

        Raises:
            SgoifError: The run did not keep it (``sgoif.audit(..., keep_anchors=True)`` does), or knows no such id.
        """
        return findings.influence_on_anchors(self.sql, ids, anchors, class_names=self.class_names)

    def ood_scorer(self, model: nn.Module, calibration: Any, **settings: Any) -> OodScorer:
        """A scorer that says of new inputs how far out of distribution they are; see :class:`sgoif.ood.OodScorer`.

        Args:
            model: the one that was watched or audited, as it stands now.
            calibration: 500 to 2,000 in-distribution images that it was not trained on; labels are not used.
            settings: as for :meth:`sgoif.ood.OodScorer.fit`; the head is known from the run.
        """
        from sgoif.ood import OodScorer

        return OodScorer.fit(model, calibration, **{"head": self.info.get("head"), **settings})

    def shift_sentinel(self, model: nn.Module, calibration: Any, **settings: Any) -> ShiftSentinel:
        """A sentinel that detects distribution shift in a stream of inputs; see :class:`sgoif.shift.ShiftSentinel`.

        Arguments are as for :meth:`ood_scorer`, with 2,000 calibration images or more. Experimental.
        """
        from sgoif.shift import ShiftSentinel

        return ShiftSentinel.fit(model, calibration, **{"head": self.info.get("head"), **settings})

    def explain(
        self, query: Any, target: int | str, *, model: nn.Module, dataset: Any, top: int | None = 50, **settings: Any
    ) -> pa.Table:
        """Which training examples serve one prediction: those of class ``target`` that stand where the query stands.

        Columns: ``id``; ``score`` from 0 (the mean of the class) to 1 (the query), along the direction that best tells
        the two apart in front of the head; ``is_suspect`` from 0.5 on; ``given_label`` and ``given_name``; ``effect``:
        what training without the example would change in the loss of the query as ``target``, in nats, by K-FAC at the
        head (positive: it serves that prediction), and ``effect_percent`` of that loss; ``similarity``, the cosine seen
        from the class's mean; ``near_queries``, the numbers of the queries that the example is among the six nearest
        of; ``p_mislabeled`` as this run knows it, and ``no_p_reason`` where that is null.

        Args:
            query: one input, with or without a batch axis.
            target: the class that it is taken for, by number or name.
            model: trained; used in eval mode and left as found.
            dataset: the training examples, as in :func:`sgoif.audit`.
            top: how many rows; None or 0 for all of the class.
            settings: ``forward``, ``head`` and ``batch_size`` as in :func:`sgoif.audit`.
        """
        settings |= {"model": model, "dataset": dataset, "top": top, "is_one": True}
        return self.poison_suspects(query, target, **settings)

    def poison_suspects(
        self,
        queries: Any,
        target: int | str,
        *,
        model: nn.Module,
        dataset: Any,
        top: int | None = None,
        **settings: Any,
    ) -> pa.Table:
        """Which training examples made the model predict ``target`` for the queries, most suspicious first.

        The table of :meth:`explain`, for several inputs ``[Q, ...]`` that share what fools the model: ten triggered
        pictures tell more than one. Every example of the class has a row; those to remove are the suspects.
        """
        import pyarrow as pa

        from sgoif.explain import examples_behind

        known = {"class_names": self.class_names, **settings}
        rows = findings.poison_table(examples_behind(model, dataset, queries, target, **known), top=top or None)
        near = pa.array(rows.pop("near_queries"), pa.list_(pa.int32()))
        percent = pa.array(rows.pop("effect_percent"), pa.float64(), from_pandas=True)  # null without a loss
        table = pa.table(rows)
        table = table.add_column(table.column_names.index("effect") + 1, "effect_percent", percent)
        named = table.append_column("near_queries", near)
        named = findings.add_class_names(named, known["class_names"] or (), ("given",))
        return findings.with_probabilities(named, self.sql)

    def report_suspects(
        self,
        suspects: pa.Table,
        queries: Sequence[Any] | Tensor,
        out: str | os.PathLike[str] = "suspects.html",
        **options: Any,
    ) -> Path:
        """Write a page on bad predictions: the queries, the examples nearest to each, and the suspects to decide about.

        Args:
            suspects: the table of :meth:`poison_suspects` or :meth:`explain`.
            queries: those that were asked about, in the same order: anything that can be shown as a picture.
            out: the file.
            options: ``images``, where pictures of the training examples are, and ``display``, for queries too, as in
                :meth:`report`; ``top``, how many suspects at most (500; None or 0 for all); ``title`` of the page.
        """
        from sgoif.report.questions import write_suspects_page

        return write_suspects_page(self, suspects, queries, out, **options)

    def unlearning_plan(
        self, ids: Sequence[Any], *, model: nn.Module, dataset: Any, holdout: Any, **settings: Any
    ) -> UnlearningPlan:
        """What training without some examples would change; see :func:`sgoif.unlearning.unlearning_plan`."""
        from sgoif.unlearning import unlearning_plan

        known = {"head": self.info.get("head"), "class_names": self.class_names}
        return unlearning_plan(ids, model=model, dataset=dataset, holdout=holdout, **{**known, **settings})

    def report(
        self,
        out: str | os.PathLike[str] = "report.html",
        *,
        images: Any = None,
        top: int | None = 500,
        ids: Sequence[Any] | None = None,
        **options: Any,
    ) -> list[Path]:
        """Write a page on which people look and decide: one HTML file that needs no server; returns where.

        Args:
            out: the file; with reviewers, each name is put before its suffix: ``report-ann.html``.
            images: where pictures, texts or rows are: a folder, a URL, a table, tar shards, a dataset, or a function of
                an id.
            top: how many examples, most suspicious first; None or 0 for all.
            ids: show these instead.
            options: further fields of :class:`sgoif.report.make.ReportSettings`: ``pictures`` (``"embed"`` them into
                the page, ``"link"`` to them, or ``"none"``); ``display``, a function that makes something to look at
                of an item of the data; ``decisions``, files of earlier decisions, which are not asked again and
                correct the rest; ``reviewers``, names of people who share the work and get a page each; ``overlap``,
                the share of the cards that all of them get, and ``checks``, random examples among the cards, both 0.05;
                ``blind``, to hide what the run thinks; ``title`` of the page; ``seed`` of what is drawn. The page of a
                run about sequences takes those of :class:`sgoif.report.sequences.SequenceReportSettings`: ``by``, the
                column that they are ranked by; ``tokens``, a file of :func:`sgoif.experimental.write_token_harms`;
                ``decisions`` and ``title``. There ``images`` are the texts, in a table with ``id`` and ``prompt`` and
                ``completion``, or ``messages``, or ``text``.

        Raises:
            SgoifError: An option is unknown, there is nothing to show, or pictures cannot be found.
        """
        from sgoif.report.make import ReportSettings, make_report
        from sgoif.report.sequences import SequenceReportSettings, make_sequence_report

        if not self.has_sequences:
            self.need_classes()
        kind = SequenceReportSettings if self.has_sequences else ReportSettings
        known = [item.name for item in fields(kind)]
        unknown = [name for name in options if name not in known]
        if unknown:
            whose = " of a run about sequences" if self.has_sequences else ""
            raise SgoifError(f"report(){whose} has no option {unknown[0]!r}; it has {', '.join(known)}.")
        settings = kind(images=images, top=top, ids=ids, **options)
        if isinstance(settings, SequenceReportSettings):
            return make_sequence_report(self, out, settings, run_url=self.url)
        return make_report(self, out, settings, run_url=self.url)

    def show(
        self,
        ids: Sequence[Any] | None = None,
        *,
        images: Any = None,
        top: int = 24,
        display: Callable[[Any], Any] | None = None,
    ) -> PictureGrid:
        """Show some examples in a notebook, or the most suspicious ones; see :meth:`report` for the arguments."""
        from sgoif.report.notebook import picture_grid

        self.need_classes()
        return picture_grid(self, ids, images=images, top=top, display=display)

    def summary(self) -> AnySummary:
        """What the run found, as a few numbers; its ``lines()`` are what ``print(run)`` shows."""
        name = self.url or "run in memory"
        if self.info.get("task") == "multilabel":
            return summarise_tags(self.sql, self.info, run=name)
        if self.info.get("task") == "annotators":
            return summarise_annotators(self.sql, self.info, run=name)
        if self.has_values:
            return summarise_values(self.sql, self.info, run=name)
        if self.has_sequences:
            return summarise_sequences(self.sql, self.info, run=name)
        return summarise(self.sql, self.info, run=name, class_names=self.class_names)

    def __repr__(self) -> str:
        try:
            return "\n".join(self.summary().lines())
        except Exception as error:  # a debugger asks for it too, whatever the state of the files
            return f"<sgoif.Run {self.url or 'in memory'}: {type(error).__name__}: {error}>"

    def _repr_html_(self) -> str:
        from sgoif.report.notebook import run_html

        if self.has_values or self.has_sequences:
            return f"<pre>{escape(repr(self))}</pre>"
        return run_html(self)

    @property
    def url(self) -> str | None:
        """Where the run lies; None for one in memory."""
        return self._tables.url

    @property
    def files(self) -> RunFiles:
        """The files of the run.

        Raises:
            SgoifError: The run is in memory.
        """
        if not isinstance(self._tables, FileTables):
            raise SgoifError("this run is in memory and has no files; pass out= to write it into a folder.")
        return self._tables.files

    def worst(self, count: int = 20, by: str | None = None) -> dict[str, NDArray[Any]]:
        """The training examples with the largest value of a column, most suspicious first, as arrays.

        Hold-out examples are not among them; :meth:`label_issues` ranks both. Without a column, by ``p_mislabeled``
        where the run could be calibrated, else by the lowest ``label_score`` of a scan, and by ``worst``.
        """
        name = by or ("p_mislabeled" if self.is_calibrated and not self.has_sequences else "worst")
        is_by_score = by is None and name == "worst" and "label_score" in self.table
        values = (-self.table["label_score"] if is_by_score else self.table[name]).astype(np.float64)
        order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")[:count]
        return {name: column[order] for name, column in self.table.items()}


def load(path: str | os.PathLike[str]) -> Run:
    """Open a run written by :func:`sgoif.watch`, an audit or a scan: a folder or any fsspec URL."""
    run = open_run(path)
    files = run.files
    if not files.is_finished and not files.parts("examples"):
        from sgoif.store.holding import count_visits, describe_unclosed

        visits = count_visits(files)
        said = describe_unclosed(path, files.info, has_visits=visits > 0)
        log.warning("%s It has %s visits.", said, f"{visits:,}")
    if "why_not_checked" in run.info:
        log.warning("%s: %s.", path, run.info["why_not_checked"])
    return run


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run without a word about its state."""
    from sgoif.review.verify import read_checked

    tables = FileTables(path)
    info = {name: value for name, value in tables.files.info.items() if name not in ("facts", "faults")}
    info |= {"writing_faults": tables.files.info.get("faults", {}), **(tables.files.info.get("facts") or {})}
    info |= {name: n for name, n in (info.get("added_up") or {}).items() if name.startswith("num_")}
    checked, why_not = read_checked(str(path), tables.sql, info)
    found = {"checked": checked, "why_not_checked": why_not}
    if info.get("task") == "sequences":  # which have no probabilities but those of a sample
        found["no_p_reason"] = why_not
    return Run(info | {name: value for name, value in found.items() if value is not None}, tables)
