from __future__ import annotations

import pytest
import torch

from benchmarks import loops, models


@pytest.mark.parametrize(
    ("build", "num_parameters"),
    [(models.ResNet9, 412_954), (models.ResNet18, 11_173_962), (models.SmallViT, 2_693_194)],  # the second: published
)
def test_networks_have_the_sizes_that_tables_name(build, num_parameters):
    assert sum(p.numel() for p in build().parameters()) == num_parameters


def test_resnet9_is_its_formula():
    torch.manual_seed(0)
    model = models.ResNet9(widths=(4, 6, 8, 10), num_classes=7).double().eval()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)

    def block(module, x, pool=False):
        x = torch.nn.functional.conv2d(x, module.conv.weight, padding=1)
        x = torch.nn.functional.max_pool2d(x, 2) if pool else x
        return module.norm(x).clamp(min=0)

    x = block(model.down1, block(model.stem, images), pool=True)
    x = x + block(model.res1[1], block(model.res1[0], x))
    x = block(model.down3, block(model.down2, x, pool=True), pool=True)
    x = x + block(model.res3[1], block(model.res3[0], x))
    torch.testing.assert_close(model(images), model.head(x.amax((2, 3))))


def test_batches_visit_every_example_once_per_epoch_and_repeat_with_the_seed():
    images, labels = torch.randn(23, 3, 8, 8), torch.arange(23)
    recipe = loops.Recipe(num_epochs=2, batch_size=5)
    batches = list(loops.epochs(images, labels, recipe, seed=1))
    assert [b.step for b in batches] == list(range(10))
    for epoch in range(2):
        seen = torch.cat([b.indices for b in batches if b.epoch == epoch])
        assert sorted(seen.tolist()) == list(range(23))
    torch.manual_seed(5)  # what else the process draws does not matter
    again = list(loops.epochs(images, labels, recipe, seed=1))
    assert all(torch.equal(a.images, b.images) and torch.equal(a.labels, a.indices) for a, b in zip(batches, again))


def test_augment_moves_pixels_and_changes_none():
    images = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        moved = loops.augment(images, generator)
        torch.testing.assert_close(moved.flatten(1).sort(1).values, images.flatten(1).sort(1).values)
