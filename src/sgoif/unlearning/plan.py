"""A request to forget some training examples: who of them matters, what would change, and a head without them.

Nothing is read but the examples that go, a sample of those that stay, and the hold-out: one forward pass over these,
then linear algebra over what the head sees. With 10⁹ training examples and 10⁴ that go that is some 30,000 pictures
beside the hold-out, and one look through the ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sgoif.errors import SgoifError
from sgoif.features.extraction import iterate_batches
from sgoif.gradients import quiet_eval
from sgoif.gradients.models import plain_model
from sgoif.inputs.examples import Examples
from sgoif.unlearning.newton import Certificate, Removal, Request, anchor_table, priority_table, remove
from sgoif.unlearning.view import HeadView

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Predictions", "UnlearningPlan", "unlearning_plan"]

_SHOWN = 10  # unknown ids in a message


class Predictions(NamedTuple):
    """Logits of some inputs, with the head as it is and with that of the plan."""

    before: NDArray[np.float64]  # [Q, C]
    after: NDArray[np.float64]  # [Q, C]

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """After the removal, ``[Q, C]``."""
        return torch.softmax(torch.from_numpy(self.after), 1).numpy()


@dataclass(frozen=True)
class UnlearningPlan:
    """What is predicted for a model without the examples asked about. Made by :func:`unlearning_plan`.

    The layers before the head are taken as they are: what they learnt from those examples stays.

    >>> _ = torch.manual_seed(0)
    >>> examples = torch.randn(50, 2), torch.arange(50) % 2
    >>> plan = unlearning_plan([3, 7], model=nn.Linear(2, 2), dataset=examples, holdout=examples, weight_decay=0.1)
    >>> sorted(plan.table["id"].to_pylist()), plan.certificate.relative < 0.1
    ([3, 7], True)
    """

    table: pa.Table  # one row per example, those that matter most first
    anchors: pa.Table  # mean loss of the hold-out and its predicted change when all go, in all and by class
    certificate: Certificate  # of the step
    _view: HeadView
    _removal: Removal

    def predictions(self, queries: Any) -> Predictions:
        """Predict for other inputs: a tensor ``[Q, ...]``, a dataset or a loader; labels are not looked at."""
        heads, found = (self._view.theta, self._removal.theta), []
        with quiet_eval(self._view.model):
            for _, inputs in iterate_batches(queries, self._view.batch_size):
                features = self._view.features(inputs)
                found.append([(features @ theta.mT).cpu().numpy() for theta in heads])
        return Predictions(*(np.concatenate(side) for side in zip(*found, strict=True)))

    def removed_weights(self) -> dict[str, Tensor]:
        """The head without the examples, under the names and in the type of the model's state dict."""
        return self._view.to_state(self._removal.theta)

    def apply(self, model: nn.Module) -> nn.Module:
        """Put that head into a model, in place, and return it: ``plan.apply(copy.deepcopy(model))``.

        Raises:
            SgoifError: Its head is not the one that the plan was made for.
        """
        now, expected = plain_model(model).state_dict(), self._view.to_state(self._view.theta)
        if any(name not in now or not torch.equal(now[name].cpu(), old.cpu()) for name, old in expected.items()):
            raise SgoifError("the model's head is not the one that the plan was made for; make a new plan for it.")
        with torch.no_grad():
            for name, value in self.removed_weights().items():
                now[name].copy_(value)
        return model


def unlearning_plan(
    ids: Sequence[Any],
    *,
    model: nn.Module,
    dataset: Any,
    holdout: Any,
    weight_decay: float = 0.0,
    damping: float = 0.01,
    num_observed: int = 20_000,
    forward: Callable[[Any], Tensor] | None = None,
    head: str | None = None,
    class_names: Sequence[str] = (),
    batch_size: int = 256,
) -> UnlearningPlan:
    """Predict what training without some examples would change, at the head, and how far to believe it.

    Args:
        ids: of the examples that are to go.
        model: trained with cross-entropy; used in eval mode and left as found.
        dataset: the training examples, as in :func:`sgoif.audit`.
        holdout: labelled examples whose loss is predicted.
        weight_decay: that the head was trained with, on all its parameters: ``λ`` of the mean loss plus ``(λ/2)|θ|²``.
        damping: added to the curvature, for a head that was stopped early; 0 for one at its optimum. A rule of thumb is
            ``(1 - momentum)`` over the sum of the learning rates of all steps: how far training reached.
        num_observed: examples that stay and are looked at, evenly spaced; all of them make the certificate whole.
        forward: as in :func:`sgoif.watch`.
        head: its name, where it cannot be found.
        class_names: for the table of anchors, and for labels that are strings.
        batch_size: examples per forward pass.

    Raises:
        SgoifError: The dataset has no such ids, or nothing else.
    """
    model = plain_model(model)
    with quiet_eval(model):  # around the reading too, for datasets draw random numbers
        examples, held = Examples(dataset, role="dataset"), Examples(holdout, role="holdout")
        gone = _choose(examples, ids)
        left = sample_of_others(gone.positions, gone.total, num_observed)
        view = HeadView.on(model, examples.inputs(torch.arange(2)), forward, head, batch_size)
        request = Request(
            theta=view.theta,
            gone=view.rows(examples, gone.positions, class_names),
            left=view.rows(examples, left, class_names),
            anchors=view.rows(held, np.arange(len(held)), class_names),
            num_left=gone.total - len(gone.positions),
            weight_decay=weight_decay,
            damping=damping,
        )
    return _plan(view, request, gone, class_names)


def _plan(view: HeadView, request: Request, gone: Chosen, class_names: Sequence[str]) -> UnlearningPlan:
    import pyarrow as pa

    removal = remove(request)
    labels, parts, alone = (part.cpu().numpy() for part in (request.gone.labels, removal.parts, removal.alone))
    anchors = request.anchors
    before, after = (anchors.losses(theta).cpu().numpy() for theta in (request.theta, removal.theta))
    return UnlearningPlan(
        pa.table(priority_table(gone.ids, labels, parts, alone, removal.certificate.confidence)),
        pa.table(anchor_table(anchors.labels.cpu().numpy(), before, after, class_names)),
        removal.certificate,
        view,
        removal,
    )


class Chosen(NamedTuple):
    """Examples of a dataset."""

    ids: NDArray[Any]
    positions: NDArray[np.int64]  # ascending
    total: int  # examples of the dataset


def _choose(dataset: Examples, ids: Sequence[Any]) -> Chosen:
    """Where the examples are; one look through the dataset's ids, and no table of them."""
    wanted = {item.item() if hasattr(item, "item") else item for item in ids}
    if not wanted:
        raise SgoifError("no ids were asked about.")
    known = dataset.ids
    if isinstance(known, range):
        pairs = [(known.index(item), item) for item in wanted if item in known]
    else:
        plain = (item.item() if hasattr(item, "item") else item for item in known)
        pairs = [(position, item) for position, item in enumerate(plain) if item in wanted]
    unknown = wanted - {item for _, item in pairs}
    if unknown:
        shown = ", ".join(repr(item) for item in sorted(unknown, key=repr)[:_SHOWN])
        more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
        raise SgoifError(f"{len(unknown):,} of {len(wanted):,} ids are not in the dataset: {shown}{more}.")
    if len(pairs) == len(known):
        raise SgoifError("every example of the dataset was asked about; nothing would be left to train on.")
    pairs.sort()
    return Chosen(np.array([item for _, item in pairs]), np.array([position for position, _ in pairs]), len(known))


def sample_of_others(gone: NDArray[np.int64], total: int, most: int) -> NDArray[np.int64]:
    """Positions of up to ``most`` examples that stay, evenly spaced among them."""
    count = total - len(gone)
    ranks = np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)
    passed = np.searchsorted(gone - np.arange(len(gone)), ranks, side="right")  # those that go and come before
    return np.asarray(ranks + passed, np.int64)
