"""Real digits in an order that no writer shows in, and a small network that has learnt some of them."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def shuffled_digits() -> tuple[Tensor, Tensor]:
    """Images of 8 x 8 pixels and labels; they come writer by writer."""
    found = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(found.images).float()[order, None] / 16, torch.tensor(found.target)[order]


def train_network(images: Tensor, labels: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model
