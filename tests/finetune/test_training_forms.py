"""What each training form computes: masked is gathered, gradients are slopes, losses have twins."""

from __future__ import annotations

import copy
import math
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zerotprune as ztp
from tests import libraries
from tests.families import build, images_for
from zerotprune.finetune.a_vit import AViT, Halt, Halting, ponder_loss, prior_loss
from zerotprune.finetune.dynamicvit import (
    Decisions,
    DynamicViT,
    masked_attention,
    ratio_loss,
)
from zerotprune.finetune.forms import SoftMask, form_for, soft_mask
from zerotprune.methods import resolve
from zerotprune.scoring.attention import Heads

STAGES = (ztp.Stage(1, 0.8), ztp.Stage(3, 0.6), ztp.Stage(4, 0.5))
FORMS: dict[str, Any] = {
    "soft mask": lambda: SoftMask(ztp.ZeroTPrune()),
    "decisions": lambda: Decisions(DynamicViT()),
    "halting": lambda: Halting(AViT(gamma=2, beta=-1)),
}
all_forms = pytest.mark.parametrize("name", FORMS)


def put_on(form: Any, family: str = "deit", seed: int = 0) -> tuple[Any, ztp.Schedule]:
    """Return a model in training in that form, in float64."""
    model: Any = build(family, seed=seed).double()
    schedule = ztp.Schedule(STAGES, form.method)
    form.put_on(model, schedule)
    return model.train(), schedule


def loosened(model: Any) -> None:
    """Spread the predictors' scores far apart."""
    with torch.no_grad():
        for weight in model.zerotprune.parameters():
            weight.normal_(std=0.3)


# The mask in the place of a smaller tensor: what leaves it out and what masks it are the same.


@pytest.mark.parametrize("family", ["deit", "deit distilled", "mae, average pooling", "qk norm",
                                    "eva-02, rotary", "beit, relative bias"])  # fmt: skip
def test_masked_decisions_equal_gathered_inference(family: str) -> None:
    form = Decisions(DynamicViT(), draw=False)
    model, schedule = put_on(form, family)
    loosened(model)
    images = images_for(model, 3).double()
    with torch.no_grad():
        masked, kept = model(images), form.kept(model)
        assert kept is not None
        assert kept.sum(dim=1).tolist() == [8] * 3  # 36 → 28 → 16 → 8
        form.take_off(model.eval(), schedule)
        torch.testing.assert_close(model(images), masked, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["torchvision", "open_clip, mean", "open_clip, attention pool"])
def test_other_libraries_learn_so_too(name: str) -> None:
    form = Decisions(DynamicViT(), draw=False)
    model = libraries.build(name).double()
    schedule = ztp.Schedule(STAGES, form.method)
    form.put_on(model, schedule)
    loosened(model)
    images = libraries.images_for(model)
    with torch.no_grad():
        masked = model.train()(images)
        form.take_off(model.eval(), schedule)
        torch.testing.assert_close(model(images), masked, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", ["deit", "mae, average pooling"])
@pytest.mark.parametrize(
    "method",
    [
        ztp.ZeroTPrune(),
        ztp.ZeroTPrune(ranking="cls", vhf=None),
        ztp.ZeroTPrune(heads="mean", start="uniform"),
    ],
    ids=str,
)
def test_a_sharp_threshold_equals_hard_pruning(family: str, method: ztp.ZeroTPrune) -> None:
    if family != "deit" and method.ranking == "cls":
        family = "dinov2, registers"
    form = SoftMask(method, temperature=1e-12)
    model, schedule = put_on(form, family)
    images = images_for(model, 3).double()
    with torch.no_grad():
        masked = model(images)
        form.take_off(model.eval(), schedule)
        torch.testing.assert_close(model(images), masked, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["zero-tprune", "zero-tprune-uni", "zero-tprune-paper"])
def test_a_trained_zero_tprune_meets_its_budget_by_i_stages(name: str) -> None:
    """It keeps the same tokens in training and in use, as many as the schedule says."""
    model: Any = build("deit").double()
    asked = resolve(name)
    form: Any = form_for(asked)
    schedule = ztp.schedule_for(model, cost=0.6, method=form.budgeted(asked))
    assert len(schedule.stages) > 2
    assert all(stage.similar == 0 and stage.keep < 1 for stage in schedule.stages)
    assert ztp.gmacs(model, schedule) == pytest.approx(0.6 * ztp.gmacs(model), rel=0.01)
    left = 36
    for stage in schedule.stages:
        left = int(stage.keep * left + 1e-9)
    form = SoftMask(schedule.method, temperature=1e-12)
    form.put_on(model, schedule)
    images = images_for(model, 2).double()
    with torch.no_grad():
        trained = model.train()(images)
        assert form.kept(model).sum(dim=1).tolist() == pytest.approx([left, left])
        form.take_off(model.eval(), schedule)
        torch.testing.assert_close(model(images), trained, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stage", [ztp.Stage(3, similar=5), ztp.Stage(3, 0.5, similar=5)])
def test_a_schedule_with_s_stages_is_not_trained(stage: ztp.Stage) -> None:
    model: Any = build("deit")
    form = form_for(ztp.ZeroTPrune())
    with pytest.raises(ValueError, match=r"I-stages alone.* block 3 prunes 5 similar tokens: set"):
        form.put_on(model, ztp.Schedule((ztp.Stage(1, 0.8), stage)))
    assert not any("forward" in block.__dict__ for block in model.blocks)


@pytest.mark.parametrize("family", ["deit", "deit distilled"])
def test_halting_in_training_is_halting_at_inference(family: str) -> None:
    """Inference loops over single images and really removes tokens: see the twins of methods."""
    form = Halting(AViT(gamma=2, beta=-1))
    model, schedule = put_on(form, family)
    images = images_for(model, 3).double()
    with torch.no_grad():
        trained = model(images)
        form.take_off(model.eval(), schedule)
        torch.testing.assert_close(model(images), trained, rtol=1e-9, atol=1e-9)


@all_forms
def test_in_eval_mode_it_is_the_pruned_model(name: str) -> None:
    form = FORMS[name]()
    model, schedule = put_on(form)
    images = images_for(model).double()
    with torch.no_grad():
        evaluated = model.eval()(images)
        other = copy.deepcopy(model)
        form.take_off(other, schedule)
        torch.testing.assert_close(other(images), evaluated, rtol=1e-9, atol=1e-12)
        assert ztp.gmacs(other) == ztp.gmacs(model)


# Gradients: the slope of the whole, measured; and they reach whatever has to learn.


@pytest.mark.parametrize("name", ["soft mask", "halting"])
def test_gradients_are_slopes(name: str) -> None:
    """Compare logits, extra losses and mask with central differences along a random direction."""
    form = FORMS[name]()
    model, _ = put_on(form)
    images = images_for(model, 2).double()

    def whole() -> Tensor:
        total: Tensor = model(images).square().sum() + 100 * form.extra_loss(model)
        kept: Tensor = form.kept(model)  # of that forward
        return total + kept.sum()

    whole().backward()
    torch.manual_seed(3)
    for weight in (
        model.blocks[0].attn.qkv.weight,
        model.blocks[2].mlp.fc1.weight,
        model.cls_token,
    ):
        direction = torch.randn_like(weight) / math.sqrt(weight.numel())
        values = []
        with torch.no_grad():
            for step in (1e-6, -1e-6):
                weight += step * direction
                values.append(float(whole()))
                weight -= step * direction
        measured = (values[0] - values[1]) / 2e-6
        assert float((weight.grad * direction).sum()) == pytest.approx(measured, rel=1e-4, abs=1e-6)


def test_the_soft_mask_and_its_gradient_equal_their_twin() -> None:
    torch.manual_seed(0)
    score = torch.rand(3, 12, dtype=torch.float64, requires_grad=True)
    before = torch.rand(3, 12, dtype=torch.float64)
    mask = soft_mask(score, before, 5, temperature=0.2)
    for at in range(3):
        s, m = score.detach()[at].numpy(), before[at].numpy()
        mean = (s * m).sum() / m.sum()
        ordered = sorted(s / mean, reverse=True)
        theta = (ordered[4] + ordered[5]) / 2
        soft = 1 / (1 + np.exp(-(s / mean - theta) / 0.2))
        np.testing.assert_allclose(mask[at].detach(), m * soft, rtol=1e-12)
        (slope,) = torch.autograd.grad(mask[at, 0], score, retain_graph=True)
        # Of the scaled scores: the mean moves with every one of them, the threshold with two.
        moves = np.eye(12) / mean - np.outer(s, m / m.sum()) / mean**2
        last, following = np.argsort(-s)[4:6]
        apart = moves[0] - (moves[last] + moves[following]) / 2
        expected = m[0] * soft[0] * (1 - soft[0]) / 0.2 * apart
        np.testing.assert_allclose(slope[at], expected, rtol=1e-10, atol=1e-14)


@all_forms
def test_everything_learns_in_half_precision_too(name: str) -> None:
    form = FORMS[name]()
    model, _ = put_on(form)
    model.float()
    images = images_for(model, 2).float()
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = model(images).float().square().sum() + form.extra_loss(model)
        assert form.kept(model).dtype == torch.float32
        loss.backward()
        for key, weight in model.named_parameters():
            assert weight.grad is not None, key
            assert weight.grad.isfinite().all(), key
        assert model.patch_embed.proj.weight.grad.any()
        for weight in form.new_parameters(model):
            assert weight.grad.any()


def test_decisions_are_for_good_and_drawn_anew() -> None:
    form = Decisions(DynamicViT())
    model, _ = put_on(form)
    images = images_for(model, 4).double()
    torch.manual_seed(1)
    first = model(images)
    kept = [mask.detach() for mask in form._noted]
    assert all(set(mask.unique().tolist()) <= {0.0, 1.0} for mask in kept)
    assert all((later <= sooner).all() for sooner, later in pairwise(kept))
    assert not torch.equal(model(images), first)
    torch.manual_seed(1)
    assert torch.equal(model(images), first)


@all_forms
def test_what_is_noted_is_not_copied(name: str) -> None:
    """A tensor with a history can be neither copied nor pickled, and weight averaging copies."""
    form = FORMS[name]()
    model, _ = put_on(form)
    model(images_for(model).double())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.training
        other(images_for(model).double())
    assert form.kept(model) is not None


# Attention and losses, against twins in float64.


def test_masked_attention_equals_its_twin() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 7, 4, dtype=torch.float64)
    bias = torch.randn(1, 3, 7, 7, dtype=torch.float64)
    kept = torch.tensor([[1, 1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    actual = masked_attention(Heads(q, k, v, 0.5, True, 0.0, bias), kept)
    for image in range(2):
        for head in range(3):
            a = (q[image, head] @ k[image, head].T / 2 + bias[0, head]).numpy()
            for i in range(7):
                paid = np.array([
                    math.exp(a[i, j] - a[i].max()) * (1.0 if i == j else float(kept[image, j]))
                    for j in range(7)
                ])  # fmt: skip
                share = (paid + 1e-6 / 7) / (paid.sum() + 1e-6)
                expected = share @ v[image, head].numpy()
                np.testing.assert_allclose(actual[image, head, i], expected, rtol=1e-12)


def test_the_ratio_loss_equals_its_twin() -> None:
    torch.manual_seed(0)
    form = Decisions(DynamicViT())
    model, _ = put_on(form)
    model(images_for(model, 3).double())
    shares = [28 / 36, 16 / 36, 8 / 36]
    expected = np.mean([
        np.mean([(kept[b].mean() - share) ** 2 for b in range(3)])
        for kept, share in zip((mask.detach().numpy() for mask in form._noted), shares, strict=True)
    ])  # fmt: skip
    assert form.extra_loss(model).item() == pytest.approx(2 * expected, rel=1e-12)
    assert ratio_loss(form._noted, shares).item() == pytest.approx(expected, rel=1e-12)


def test_ponder_and_prior_losses_equal_their_twins() -> None:
    """Compute both token by token from the halting scores h, one block after the other."""
    torch.manual_seed(0)
    method, depth, tokens = AViT(), 12, 5
    h = torch.rand(depth, 2, tokens, dtype=torch.float64) * 0.4
    spent, halts = torch.zeros(2, tokens, dtype=torch.float64), []
    for block in range(depth):
        active = method.goes_on(spent)
        share = method.share(h[block], spent) if block < depth - 1 else (1 - spent) * active
        ends = active & ~method.goes_on(spent + share)
        halts.append(Halt(h[block] * active, active, share * ends))
        spent = spent + share
    ponder, where = [], np.zeros(depth)
    for image in range(2):
        for token in range(tokens):
            total, used = 0.0, 0
            for block in range(depth):
                used += 1
                where[block] += float(h[block, image, token]) / (2 * tokens)
                if block == depth - 1 or total + float(h[block, image, token]) > 0.99:
                    break
                total += float(h[block, image, token])
            ponder.append(used + 1 - total)
    assert float(ponder_loss(halts)) == pytest.approx(np.mean(ponder), rel=1e-12)
    actual = torch.stack([halt.halting.mean() for halt in halts])
    np.testing.assert_allclose(actual, where, rtol=1e-12)
    bell = np.exp(-((np.arange(12) - 8.0) ** 2) / 2) / math.sqrt(2 * math.pi)
    wanted = bell / bell[:8].sum() * 0.98
    share = np.clip(where / where.sum(), 0.01, 0.99)
    expected = (wanted * np.log(wanted / share)).sum() / 12
    assert float(prior_loss(actual, center=8)) == pytest.approx(expected, rel=1e-12)


def test_forms_by_method() -> None:
    for method, kind in (
        (ztp.ZeroTPrune(), SoftMask),
        (DynamicViT(), Decisions),
        (AViT(), Halting),
    ):
        assert type(form_for(method)) is kind


def test_what_has_no_form_is_refused() -> None:
    for family, method, message in (
        ("deit", ztp.ZeroTPrune(ranking="accumulated"), "another ranking"),
        ("mae, average pooling", AViT(), "A-ViT .* CLS alone"),
    ):
        model: Any = build(family)
        with pytest.raises(ValueError, match=message):
            form_for(method).put_on(model, ztp.Schedule(STAGES, method))
        assert not any("forward" in block.__dict__ for block in model.blocks)
