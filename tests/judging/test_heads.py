"""Predictions that cannot be made again."""

import numpy as np
import torch

from sgoif.judging.heads import PredictedHead


def test_what_they_say_of_the_true_class_is_recovered():
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.full(4, 0.3), 40)
    noise = 0.8 * np.eye(4) + 0.05
    seen = torch.from_numpy(true @ noise).log().float()
    head = PredictedHead(seen, "teacher")
    assert head.name == "teacher" and head.fit(torch.zeros(40)) is seen
    found = head.refit(torch.zeros(40), torch.from_numpy(noise).float(), lambda rows: rows, restart=True).exp().numpy()
    np.testing.assert_allclose(found @ noise, true @ noise, atol=0.02)
