"""Ways of training: mixed precision, clipping, weight averages, frozen parts; none of them feels the monitor."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sgoif.errors import CaptureError, HeadError
from tests.cases import CheckpointedNet, ResidualNet
from tests.training.loops import GroupNormNet, TwoParts, batches, data, fresh, make_loop, run_twins, take_step, watch


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def amp_loop(train_set, dtype, scaler):
    """The usual loop under autocast: scale, unscale, clip, step."""

    def loop(model, step):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for ids, x, y in batches(train_set):
            with step(ids, y):
                with torch.autocast("cpu", dtype, enabled=dtype is not None):
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return loop


@pytest.mark.parametrize("is_scaled", [False, True])
def test_autocast_clipping_and_a_loss_scale(is_scaled):
    train_set, holdout = data(dtype=torch.float32)
    runs = []
    for precision in (None, torch.bfloat16, torch.float16):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=is_scaled)  # grows after 2,000 steps only
        loop = amp_loop(train_set, precision, scaler)
        monitor, run = run_twins(GroupNormNet, loop, holdout, dtype=torch.float32, scaler=scaler, gate="none")
        assert monitor._seen.autocast == precision
        runs.append(run.visits)
    full, *others = ({name: v[name][v["step"] < 4] for name in ("harm", "loss")} for v in runs)
    for low in others:
        for name in (
            "harm",
            "loss",
        ):  # 4% for bf16, whose rounding is 0.4%; a scale that is not undone gives 1024 times
            assert np.linalg.norm(low[name] - full[name]) < 0.1 * np.linalg.norm(full[name])


def test_a_loss_scale_that_starts_too_high_only_delays_the_check():
    """The first steps under a GradScaler overflow as a matter of course; they are skipped, and no score is lost."""
    train_set, holdout = data(dtype=torch.float32)
    model = fresh(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-8)
    monitor = watch(model, holdout, scaler=scaler)
    amp_loop(train_set, torch.float16, scaler)(model, monitor.step)
    overflows = (40 - math.log2(scaler.get_scale())) / 8
    assert 0 < overflows < 6
    assert monitor.counters["faults"] == 0
    assert monitor.counters["visits_not_finite"] == 12 * (overflows - 1)  # the first step has no direction yet
    assert monitor._seen.is_checked
    assert np.isfinite(monitor.close().table["harm"]).any()


def test_gradient_clipping_and_a_weight_average_see_the_same_numbers():
    train_set, holdout = data()

    def loop(model, step):
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        optimizer = sgd(model)
        seen = []
        for ids, x, y in batches(train_set):
            with step(ids, y):
                F.cross_entropy(model(x), y).backward()
            seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
        assert max(seen) > 0.05
        return {"norms": torch.stack(seen), **{f"average/{key}": value for key, value in average.state_dict().items()}}

    run_twins(ResidualNet, loop, holdout)


@pytest.mark.parametrize(("use_reentrant", "layers"), [(False, "auto"), (False, ["first"]), (True, "auto")])
def test_activation_checkpointing(use_reentrant, layers):
    train_set, holdout = data()

    def without(model):
        model.enabled = False

    runs = []
    for prepare in (None, without):
        loop = make_loop(batches(train_set), prepare=prepare)
        _, run = run_twins(lambda: CheckpointedNet(use_reentrant), loop, holdout, layers=layers)
        runs.append(run.visits)
    np.testing.assert_array_equal(runs[0]["harm"], runs[1]["harm"])


def test_layers_before_a_reentrant_checkpoint_are_refused_on_the_first_step():
    train_set, holdout = data()
    model = fresh(lambda: CheckpointedNet(use_reentrant=True))
    monitor = watch(model, holdout, layers=["first"])
    with pytest.raises(CaptureError, match="use_reentrant=False"):
        make_loop(batches(train_set))(model, monitor.step)


def test_channels_last():
    train_set, holdout = data(dtype=torch.float32)
    layouts = set()

    def make():
        model = GroupNormNet()
        model.conv.register_forward_pre_hook(lambda _, args: layouts.add(args[0].stride(1)))
        return model.to(memory_format=torch.channels_last)

    def call(model, x):
        return model(x.contiguous(memory_format=torch.channels_last))

    run_twins(make, make_loop(batches(train_set), call=call), holdout, dtype=torch.float32)
    assert layouts == {1}  # the hold-out's passes too


@pytest.mark.parametrize("is_eval", [False, True])
def test_a_frozen_backbone(is_eval):
    train_set, holdout = data()
    models = []

    def freeze(model):
        model.backbone.requires_grad_(False)
        model.backbone.train(not is_eval)
        models.append(model)

    monitor, _ = run_twins(TwoParts, make_loop(batches(train_set), prepare=freeze), holdout)
    assert monitor.model.training
    assert all(module.training != is_eval for module in models[1].backbone.modules())


def test_a_frozen_head_is_refused_before_the_first_step():
    model = fresh(TwoParts)
    model.fc.requires_grad_(False)
    with pytest.raises(HeadError, match=r"layer 'fc' gives the model's output but is frozen"):
        watch(model, data()[1])


@pytest.mark.parametrize(("make", "said"), [(ResidualNet, 1), (GroupNormNet, 0)])
def test_a_batch_norm_over_one_example_is_said_once(make, said, caplog):
    (pixels, labels), holdout = data(num=12)
    model = fresh(make)
    monitor = watch(model, holdout, train_size=12)
    for part in torch.arange(12).split([9, 1, 1, 1]):
        take_step(monitor, part, pixels[part], labels[part])
    assert monitor.faults == {} and caplog.text.count("drop_last=True") == said
