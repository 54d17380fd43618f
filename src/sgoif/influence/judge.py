"""What judges a batch at the head: directions, a re-fitted head and anchors of single classes. Tensors in, signals out.

A monitor changes what it judges by at every step, an audit once; a snapshot keeps it in a file. All three score here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sgoif.gradients.contractions import dots, pool_positions
from sgoif.influence.class_anchors import ClassAnchors
from sgoif.influence.near_outputs import NearOutputs
from sgoif.influence.scoring import KnownAnchors, Scores, Weighting, near_classes, score, score_near
from sgoif.records import SIGNALS, GradientRows

__all__ = ["INFLUENCE_SIGNALS", "HeadJudge"]

# tracked, with H = I, and solved at the last refresh: the form in which canaries can be scored too
INFLUENCE_SIGNALS = SIGNALS[SIGNALS.index("harm") : SIGNALS.index("worst_solved") + 1]


@dataclass(frozen=True, slots=True)
class HeadJudge:
    """All that the signals of an example depend on, beside the example itself."""

    # tracked, plain and solved, one kind after the other, [3·K, 1, C, I]; None where inner products will be given
    directions: Tensor | None
    known: KnownAnchors
    confidence: Tensor | None  # of the anchors, [K], or [B, K] by example; None before there is a direction
    probe: Tensor | None  # the head re-fitted on the hold-out, [C, I]
    class_anchors: ClassAnchors | None = None  # where there are too many classes for a direction each
    weighting: Weighting = "equal"

    def signals(
        self,
        rows: GradientRows,
        outputs: Tensor,
        labels: Tensor,
        products: Tensor | None = None,
        near: NearOutputs | None = None,
    ) -> dict[str, Tensor]:
        """All signals of a batch but its flags, ``[B]`` each, without host synchronisation.

        Args:
            rows: what the head saw.
            outputs: logits, ``[B, C]``, in float32 or wider.
            labels: given classes, ``[B]``.
            products: inner products with the directions, ``[B, 3·K]``, where they are not those of the head alone.
            near: the largest entries of the gradients at the outputs, where the re-fitted head is asked for those only.
        """
        a, b = pool_positions(rows)
        classes = None
        if self.class_anchors is not None:
            classes = near_classes(outputs, labels) if near is None else near.most_probable(outputs, labels)
        found = self._plain(a, outputs, labels, classes, near)
        if self.confidence is None:
            empty = torch.zeros_like(outputs[:, 0])
            return found | {name: empty for name in (*INFLUENCE_SIGNALS, "confidence", "confidence_worst")}
        products = (self.dots(rows) if products is None else products).unflatten(1, (3, -1))  # [B, 3, K]
        if self.class_anchors is None or classes is None:
            return found | self._by_class(products, labels, self.confidence)
        return found | self._by_near_class(products, self.class_anchors, classes, a, b, self.confidence)

    def dots(self, rows: GradientRows) -> Tensor:
        """Inner products with the directions, ``[B, 3·K]``."""
        assert self.directions is not None, "they are given where there are no directions"
        return dots(rows, self.directions)

    def _plain(
        self, features: Tensor, outputs: Tensor, labels: Tensor, classes: Tensor | None, near: NearOutputs | None
    ) -> dict[str, Tensor]:
        """Loss and margin under the head as it is, whose most probable classes may be known, and the re-fitted one."""
        loss, margin, runner_up = _stand(outputs, labels, None if classes is None else classes[:, :-1])
        found = {"loss": loss, "p_given": (-loss).exp(), "margin": margin, "runner_up": runner_up}
        if self.probe is None:
            return found | {"probe_loss": torch.zeros_like(loss), "probe_margin": torch.zeros_like(loss)}
        features, probe = features.to(outputs.dtype), self.probe.to(outputs.dtype)
        if near is None:
            moved, moved_margin, _ = _stand(features @ probe.mT, labels)
        else:
            moved, moved_margin = _stand_near(features, probe, outputs, loss, labels, near.columns)
        return found | {"probe_loss": moved - loss, "probe_margin": moved_margin}

    def _by_class(self, products: Tensor, labels: Tensor, confidence: Tensor) -> dict[str, Tensor]:
        """One anchor per class; only the tracked kind has a gate, so only its anchors may be weighed by it."""
        found: Scores = score(products, labels, confidence, known=self.known)
        if self.weighting != "equal":
            weighed = score(products[:, 0], labels, confidence, known=self.known, weighting=self.weighting)
            found = replace(found, harm=torch.cat([weighed.harm[:, None], found.harm[:, 1:]], 1))
        gates = {"confidence": found.confidence, "confidence_worst": found.confidence_worst[:, 0]}
        return gates | _named(found.harm, found.worst, found.own, found.worst_anchor)

    def _by_near_class(
        self,
        products: Tensor,
        anchors: ClassAnchors,
        classes: Tensor,
        a: Tensor,
        b: Tensor,
        confidence: Tensor,
    ) -> dict[str, Tensor]:
        """One anchor for all; of single classes those that are near."""
        solved, plain = anchors.dots_of(a, b, classes)
        kinds = torch.stack([solved, plain, solved], 1)  # no direction per class is tracked: solved serves
        worst, anchor, own = score_near(kinds, classes, anchors.known)
        gate, harm = confidence[..., 0].expand(len(classes)), -products[:, :, 0]
        if self.weighting == "paper":  # one anchor's weight is 1, its confidence is not
            harm = torch.cat([gate[:, None] * harm[:, :1], harm[:, 1:]], 1)
        return {"confidence": gate, "confidence_worst": gate} | _named(harm, worst, own, anchor)


def _stand(logits: Tensor, labels: Tensor, largest: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of the given classes, their lead over the best other one, and which that is, ``[B]`` each.

    Where two or more of the ``largest`` are known, ``[B, n]``, the best other one is among these.
    """
    index = labels[:, None]
    given, loss = logits.gather(1, index)[:, 0], logits.logsumexp(1)
    if largest is None:
        best = logits.scatter(1, index, float("-inf")).max(1)
        return loss - given, given - best.values, best.indices
    best = logits.gather(1, largest).masked_fill(largest == index, float("-inf")).max(1)
    return loss - given, given - best.values, largest.gather(1, best.indices[:, None])[:, 0]


def _stand_near(
    features: Tensor, probe: Tensor, outputs: Tensor, loss: Tensor, labels: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss and lead under a re-fitted head that is asked for some outputs ``[B, N]``; others stay as they are."""
    is_given = columns == labels[:, None]
    columns = torch.cat([columns, labels[:, None]], 1)  # the given class last, whether or not it is among them
    rows = probe.index_select(0, columns.flatten()).view(*columns.shape, -1)
    moved = torch.bmm(rows, features[:, :, None])[:, :, 0]
    given, others = moved[:, -1], moved[:, :-1].masked_fill(is_given, float("-inf"))
    before = outputs.gather(1, columns)
    total = loss + before[:, -1]  # log Σ exp over all outputs
    kept = before[:, :-1].masked_fill(is_given, float("-inf"))
    share = torch.cat([kept, before[:, -1:]], 1).logsumexp(1)  # of those asked for, before
    rest = total + torch.log1p(-(share - total).exp().clamp_max(1 - 1e-6))
    after = torch.cat([others, given[:, None], rest[:, None]], 1).logsumexp(1)
    return after - given, given - others.amax(1)


def _named(harm: Tensor, worst: Tensor, own: Tensor, anchor: Tensor) -> dict[str, Tensor]:
    """Columns ``[B]`` of scores ``[B, 3]``."""
    columns = {"worst_anchor": anchor[:, 0], "own": own[:, 0]}
    for kind, suffix in enumerate(("", "_identity", "_solved")):
        columns |= {f"harm{suffix}": harm[:, kind], f"worst{suffix}": worst[:, kind]}
    return columns
