from __future__ import annotations

import pytest
import torch

from benchmarks import loops, models

CASES = {
    "resnet9": (models.ResNet9, 412_954),
    "resnet18": (models.ResNet18, 11_173_962),  # the published size of the CIFAR variant
    "vit": (models.SmallViT, 2_693_194),
}


@pytest.mark.parametrize("name", CASES)
def test_shapes_sizes_and_gradients(name):
    build, num_parameters = CASES[name]
    model = build()
    assert sum(p.numel() for p in model.parameters()) == num_parameters
    outputs = model(torch.randn(2, 3, 32, 32))
    assert outputs.shape == (2, 10)
    outputs.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


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


def test_attention_is_that_of_torch():
    torch.manual_seed(0)
    ours, theirs = models._Attention(24, 3).double(), torch.nn.MultiheadAttention(24, 3, batch_first=True).double()
    named = {"qkv.": "in_proj_", "proj.": "out_proj."}
    states = ours.state_dict().items()
    theirs.load_state_dict(
        {name.replace(key, named[key]): value for name, value in states for key in named if name.startswith(key)}
    )
    tokens = torch.randn(2, 16, 24, dtype=torch.float64)
    torch.testing.assert_close(ours(tokens), theirs(tokens, tokens, tokens, need_weights=False)[0])


def test_vit_refuses_what_does_not_divide():
    with pytest.raises(ValueError, match="must divide"):
        models.SmallViT(patch=5)


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


@pytest.mark.parametrize("bf16", [False, True])
def test_training_learns_and_repeats(bf16):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 2
    images = torch.randn(60, 3, 8, 8, generator=generator) + 2 * labels.view(-1, 1, 1, 1)
    recipe = loops.Recipe(num_epochs=4, batch_size=20, lr=0.05, bf16=bf16)

    def run():
        torch.manual_seed(0)
        model = models.ResNet9(widths=(4, 4, 4, 4), num_classes=2)
        hits = []
        loops.train(
            model, images, labels, recipe, 0, lambda batch, z: hits.append((z.argmax(1) == batch.labels).float().mean())
        )
        return model.head.weight.detach(), torch.stack(hits)

    weight, hits = run()
    assert len(hits) == 12
    assert hits[-3:].mean() > 0.9
    assert torch.equal(weight, run()[0])


def test_accuracy_runs_in_eval_mode_and_puts_the_mode_back():
    model = torch.nn.Sequential(torch.nn.Dropout(1.0), torch.nn.Identity())  # zero in train mode
    outputs = torch.eye(3)[torch.tensor([0, 1, 2, 2])]
    recipe = loops.Recipe(bf16=False)
    assert loops.accuracy(model, outputs, torch.tensor([0, 1, 2, 0]), recipe, batch_size=3) == 0.75
    assert model.training
