"""Algorithm 1 of the paper, written out with dense matrices, beside what ``Method.paper()`` does while a model trains.

The transcript shares no code with the library: per-example gradients come from autograd, curvature is a
dense matrix, every solve is dense. It takes as given what Algorithm 1 takes as given: the step sizes ρ_t. Where the
paper leaves a choice or contradicts itself, it follows the readings that ``docs/paper.md`` states.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sgoif

CLASSES, FEATURES, HELD, BATCH, STEPS = 3, 4, 25, 12, 40
TRAIN = 60
PLAN = sgoif.Plan(refresh_every=1, observe_every=1, early_steps=0, examples_per_refresh=CLASSES * HELD)
RATE, DECAY = 0.1, 1e-3
SYMBOLS = {"residual": "e", "beta": "beta", "gamma": "Gamma", "tau": "tau", "confidence": "c"}
EXACT = {"rtol": 1e-10, "atol": 1e-12}


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(5, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.fc(torch.tanh(self.body(x)))


def draw(per_class, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(per_class * CLASSES) % CLASSES
    centres = 0.7 * torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return torch.randn(len(labels), 5, generator=generator, dtype=torch.float64) + centres[labels], labels


def head_gradients(model, inputs, labels):
    """Per-example gradients at the head as rows ``[B, C·(I+1)]``: the Jacobian of all losses, by autograd."""
    features = torch.tanh(model.body(inputs)).detach()

    def losses(weight, bias):
        return F.cross_entropy(features @ weight.mT + bias, labels, reduction="none")

    weight, bias = torch.autograd.functional.jacobian(losses, (model.fc.weight, model.fc.bias), vectorize=True)
    return torch.cat([weight, bias[:, :, None]], 2).flatten(1)


class Transcript:
    """Lines 1 to 6 of Algorithm 1; symbols are the paper's."""

    def __init__(self, size, method, n):
        self.method, self.n = method, n
        self.phi = torch.zeros(size, CLASSES, dtype=torch.float64)  # line 1
        self.c = None
        self.F, self.weight, self.t = torch.zeros(size, size, dtype=torch.float64), 0.0, 0
        self.Q, self.G_bar, self.early = None, None, []
        self.level, self.replaced, self.refined = float("inf"), torch.zeros(CLASSES), torch.zeros(CLASSES)

    def score(self, g):
        """Line 5 with Eq. 1 and 5: Î(z) = Σ_v w_v (-c_v φ_v·g), w_v = c_v / Σc; and which anchors scored large."""
        if self.c is None:
            return torch.zeros(len(g), dtype=torch.float64)
        products = g @ self.phi
        sizes = products.abs()
        self.large = (sizes > self.level).any(0)
        found = torch.quantile(sizes.flatten(), 0.99)
        self.level = found if np.isinf(float(self.level)) else 0.9 * self.level + 0.1 * found
        total = self.c.sum()
        return -(products * self.c * self.c / total).sum(1) if total > 0 else torch.zeros(len(g), dtype=torch.float64)

    def curvature(self, g):
        """Line 3: H_t, the Fisher averaged with 0.95 and damped by a tenth of its mean eigenvalue; Γ_t; Q_r."""
        self.F = 0.95 * self.F + 0.05 * g.T @ g / len(g)
        self.weight = 0.95 * self.weight + 0.05
        fisher = self.F / self.weight
        self.H = fisher + 0.1 * fisher.diagonal().mean() * torch.eye(len(fisher), dtype=torch.float64)
        values = torch.linalg.eigvalsh(self.H)
        self.Gamma = values[-1] / values[0]
        rank = self.method.subspace
        if rank is not None and self.t % self.method.subspace_every == 0:
            steps = 1 if self.Q is not None else 8
            start = torch.randn(len(self.H), rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            self.Q = start if self.Q is None else self.Q
            for _ in range(steps):
                self.Q = torch.linalg.qr(self.H @ self.Q).Q

    def renew_anchors(self, g_v):
        """Line 6: replace the least confident anchor, by T_a or by the Gram matrix; refine what is low and large."""
        method, reset = self.method, torch.zeros(CLASSES, dtype=torch.bool)
        if self.c is not None:
            if method.replace_every is not None and self.t % method.replace_every == 0:
                reset[self.c.argmin()] = True
            if method.gram_below is not None and bool((self.phi.norm(dim=0) > 0).all()):
                unit = self.phi / self.phi.norm(dim=0)
                values, vectors = torch.linalg.eigh(unit.T @ unit)
                reset[vectors[:, 0].abs().argmax()] |= bool(values[0] < method.gram_below)
            self.phi[:, reset] = 0
            self.replaced += reset
            if method.refine_below is not None:
                due = (self.c < method.refine_below) & self.large
                self.phi[:, due] = torch.linalg.solve(self.H, g_v)[:, due]
                self.refined += due
        self.g_v = g_v

    def update(self, rho, gradient):
        """Line 4: φ by Richardson in the two levels of Eq. 10, r, τ of Eq. 2 and 3, c of Eq. 4."""
        size = gradient.norm()
        self.G_bar = size if self.G_bar is None else 0.95 * self.G_bar + 0.05 * size
        self.beta = (RATE * self.G_bar + DECAY) / self.n
        self.early.append(torch.stack([self.beta, self.Gamma]))
        beta_ref, Gamma_ref = torch.stack(self.early).median(0).values
        self.tau = 0.4 * ((self.beta / beta_ref) * (self.Gamma / Gamma_ref)).clamp(0.75, 2.5)
        r = self.g_v - self.H @ self.phi
        self.e = r.norm(dim=0) / self.g_v.norm(dim=0)
        step = rho * torch.eye(len(self.H), dtype=torch.float64)
        if self.Q is not None:
            inner = torch.linalg.inv(self.Q.T @ self.H @ self.Q)
            outside = torch.eye(len(self.H), dtype=torch.float64) - self.Q @ inner @ self.Q.T @ self.H
            step = self.Q @ inner @ self.Q.T + rho * outside @ outside.T
        self.phi = self.phi + step @ r
        self.c = (1 - self.e / self.tau).clamp(0, 1)
        self.t += 1


def run(method, train_size=TRAIN):
    """Train once; after each step return the transcript's and the monitor's quantities side by side."""
    torch.manual_seed(0)
    model = Small().double()
    (inputs, labels), holdout = draw(TRAIN // CLASSES, 1), draw(HELD, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=DECAY)
    settings = {"trusted": True, "method": method, "budget": sgoif.Budget(plan=PLAN)}
    monitor = sgoif.watch(model, optimizer, anchors=holdout, train_size=train_size, **settings)
    engine, seen = monitor.engine, []
    take = engine.take_scores
    engine.take_scores = lambda: seen.append(take()) or seen[-1]
    transcript, generator = Transcript(CLASSES * (FEATURES + 1), method, train_size), torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        batch = torch.randperm(TRAIN, generator=generator)[:BATCH]
        g = head_gradients(model, inputs[batch], labels[batch])
        by_example = head_gradients(model, *holdout)
        seen.clear()
        with monitor.step(batch, labels[batch]):
            F.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        scores = transcript.score(g)
        transcript.curvature(g)
        transcript.renew_anchors(torch.stack([by_example[holdout[1] == v].mean(0) for v in range(CLASSES)], 1))
        transcript.update(engine.tracker.step_size, g.mean(0))
        found = {ticket: item for taken in seen for ticket, item in taken.items()}
        (packed,) = [item.signals for item in found.values()]
        optimizer.step()
        optimizer.zero_grad()
        yield transcript, engine, scores, packed
    assert monitor.faults == {}


VARIANTS = {
    "as it is": {},
    "no replacement": {"replace_every": None, "gram_below": None},
    "replacement by period": {"replace_every": 7, "gram_below": None},
    "no refinement": {"refine_below": None, "gram_below": None, "replace_every": None},
    "no subspace": {"subspace": None, "gram_below": None, "replace_every": None},
    "Fisher": {"curvature": "fisher", "gram_below": None},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_quantity_of_the_paper_is_that_of_the_dense_transcript(changes):
    method = sgoif.Method.paper(**{"subspace": 4, "subspace_every": 2, **changes})
    harm = sgoif.records.SIGNALS.index("harm")
    opened = 0
    for transcript, engine, scores, packed in run(method):
        reading = engine.reading
        torch.testing.assert_close(engine.curvature.operator().to_dense(), transcript.H, **EXACT)
        goal = torch.cat([engine.anchors.gradients[name].flatten(1) for name in engine.spaces], 1).mT
        torch.testing.assert_close(goal, transcript.g_v, **EXACT)
        torch.testing.assert_close(engine.tracker.columns, transcript.phi, **EXACT)
        for name, symbol in SYMBOLS.items():
            torch.testing.assert_close(getattr(reading, name), getattr(transcript, symbol), **EXACT)
        torch.testing.assert_close(packed[:, harm], scores, **EXACT)
        assert engine.replacement.count.tolist() == transcript.replaced.tolist()
        assert engine.refinement.count.tolist() == transcript.refined.tolist()
        # the step size, which Algorithm 1 takes as given, makes the iteration contract
        values = torch.linalg.eigvalsh(transcript.H)
        assert 0 < engine.tracker.step_size <= 2 / values[-1 if method.subspace is None else -1 - method.subspace]
        opened += int((reading.confidence > 0).any())
    assert opened > STEPS // 2 or "gram_below" not in changes
    assert bool(transcript.replaced.any()) == (method.replace_every is not None or method.gram_below is not None)


def test_the_gate_as_printed_does_not_open_for_what_is_tracked():
    """κβΓ beside an absolute residual: β has a factor 1/n."""
    for _, engine, _, packed in run(sgoif.Method.paper(gate="paper", subspace=4, refine_below=None), 50_000):
        assert (engine.reading.confidence == 0).all()
        assert (packed[:, sgoif.records.SIGNALS.index("harm")] == 0).all()
