"""The loop: the same weights wherever it was stopped; what learns, and how fast."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from accelerate import Accelerator
from PIL import Image
from torch import Tensor, nn

import zerotprune as ztp
from zerotprune.backbones import backbone
from zerotprune.data.images import open_data
from zerotprune.finetune.forms import form_for
from zerotprune.finetune.images import Feed, ShownImages, identify
from zerotprune.finetune.recipe import Recipe
from zerotprune.finetune.training import Trainer, top1
from zerotprune.methods import resolve

RECIPE = Recipe(epochs=3, lr=1e-3)


def model_() -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = timm.create_model("test_vit", num_classes=3, img_size=96)
    return made


def batches_(number: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(number)
    for _ in range(2):
        yield torch.randn(4, 3, 96, 96, generator=source), torch.tensor([0, 1, 2, 0])


def trainer_(recipe: Recipe = RECIPE, method: str = "fold", **kwargs: object) -> Trainer:
    model = model_()
    images, _ = next(batches_())
    acting = resolve(method)
    acting = form_for(acting).budgeted(acting)
    schedule = ztp.schedule_for(model.eval(), cost=0.7, method=acting, images=images)
    options = {"teacher": model_(), **kwargs}
    return Trainer(model, schedule, recipe, Accelerator(cpu=True), steps=2, **options)  # type: ignore[arg-type]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("method", "recipe"),
    [
        ("fold", RECIPE),
        ("tome", replace(RECIPE, mixup=0.8, cutmix=1.0, ema=0.9)),
        ("zero-tprune", RECIPE),
        ("dynamicvit", replace(RECIPE, ema=0.9)),
        ("a-vit", RECIPE),
    ],
)
def test_stopped_and_resumed_it_comes_to_the_same_weights(method: str, recipe: Recipe) -> None:
    whole = trainer_(recipe, method)
    for number in range(3):
        whole.epoch(number, batches_(number))
        if number == 0:
            # As a file has it: a copy, which the further steps do not change.
            kept = _copied(whole.state())
    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    resumed = trainer_(recipe, method)
    resumed.resume(kept)
    for number in (1, 2):
        resumed.epoch(number, batches_(number))
    assert same(whole.model.state_dict(), resumed.model.state_dict())
    assert same(whole.trained().state_dict(), resumed.trained().state_dict())
    assert not same(whole.model.state_dict(), kept["model"])


def _copied(part: object) -> Any:
    buffer = io.BytesIO()
    torch.save(part, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_it_learns_and_is_used_as_it_was_pruned() -> None:
    trainer = trainer_(Recipe(epochs=8, lr=2e-3), teacher=None)
    losses = [trainer.epoch(number, batches_()).loss for number in range(8)]
    assert losses[-1] < losses[0] - 0.1
    trained, (images, labels) = trainer.trained(), next(batches_())
    assert "pruned by fold" in repr(trained)
    assert not trained.training
    with torch.no_grad():
        right = (trained(images).argmax(dim=-1) == labels).float().mean()
    assert top1(trained, [(images, labels)], trainer.accelerator) == pytest.approx(100 * right)
    ztp.prune_(again := model_().eval(), trainer.schedule)
    again.load_state_dict(trained.state_dict())
    assert torch.equal(again(images), trained(images))


def test_the_teacher_is_left_alone_and_counts() -> None:
    taught, alone = trainer_(), trainer_(teacher=None)
    before = {name: tensor.clone() for name, tensor in taught.teacher.state_dict().items()}  # type: ignore[union-attr]
    for trainer in (taught, alone):
        trainer.epoch(0, batches_())
    assert same(before, taught.teacher.state_dict())  # type: ignore[union-attr]
    assert not same(taught.model.state_dict(), alone.model.state_dict())


def test_frozen_trains_the_head_alone() -> None:
    trainer = trainer_(frozen=True)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.epoch(0, batches_())
    after = trainer.model.state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_frozen_trains_what_a_method_has_of_its_own() -> None:
    trainer = trainer_(method="dynamicvit", frozen=True)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.epoch(0, batches_())
    after = trainer.model.state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("zerotprune.dynamicvit.") for name in changed)


def test_what_is_new_has_a_rate_of_its_own() -> None:
    model = model_()
    recipe = Recipe(epochs=10, lr=1e-4, new_lr=1e-2)
    optimizer = recipe.optimizer(model, backbone(model).head_parameters())
    rates = recipe.rates(optimizer, 100)
    seen = []
    for step in range(1, 101):
        rates.step_update(step)
        seen.append([group["lr"] for group in optimizer.param_groups])
    groups = {group["lr"] for group in optimizer.param_groups}
    assert len(groups) == 2
    assert max(map(max, seen)) == pytest.approx(1e-2)
    assert min(map(min, seen)) > 0
    peak = [max(row) for row in seen].index(max(map(max, seen)))
    assert 5 <= peak <= 15
    grouped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(map(id, model.parameters()))
    decaying = (group for group in optimizer.param_groups if group["weight_decay"])
    decayed = {id(parameter) for group in decaying for parameter in group["params"]}
    assert id(model.pos_embed) not in decayed
    assert id(model.head.bias) not in decayed  # type: ignore[union-attr]
    assert id(model.head.weight) in decayed  # type: ignore[union-attr]


def test_a_loss_that_is_none_is_said() -> None:
    trainer = trainer_()
    with torch.no_grad():
        trainer.model.head.bias.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(ValueError, match=r"epoch 3.*--lr"):
        trainer.epoch(2, batches_())


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ShownImages:
    folder, dice = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(10):
        place = folder / str(number % 2)
        place.mkdir(exist_ok=True)
        pixels = dice.integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    data = open_data(folder, transform=RECIPE.augmentation(model_()))
    return ShownImages(data.name, data.items, data.classes, data.exact, data.transform, 7)


def _epoch(feed: Feed, number: int = 0) -> Tensor:
    return torch.cat([shown for shown, _ in feed.epoch(number)])


def test_an_epoch_is_drawn_from_its_number_alone(images: ShownImages) -> None:
    alone = _epoch(Feed(images, 4, print))
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    assert torch.equal(alone, _epoch(Feed(images, 4, print)))
    assert torch.equal(alone, _epoch(Feed(images, 4, print, workers=2)))
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert not torch.equal(alone, _epoch(Feed(images, 4, print), 1))
    assert not torch.equal(alone, _epoch(Feed(replace(images, seed=8), 4, print)))


def test_processes_share_an_epoch(images: ShownImages) -> None:
    feeds = [Feed(images, 2, print, rank=rank, world=2) for rank in range(2)]
    assert [feed.steps for feed in feeds] == [2, 2]
    shares = [_epoch(feed) for feed in feeds]
    assert [len(share) for share in shares] == [4, 4]
    assert len({tuple(image.flatten()[:50].tolist()) for share in shares for image in share}) == 8
    small = Feed(images, 64, print, rank=1, world=3)
    assert (small.steps, small.share, len(_epoch(small))) == (1, 3, 3)
    with pytest.raises(ValueError, match="processes"):
        Feed(images, 1, print, world=11)


def test_heads_of_other_sizes(tmp_path: Path) -> None:
    vit = backbone(model_())
    vit.reset_head_(7)
    assert (vit.outputs, [len(parameter) for parameter in vit.head_parameters()]) == (7, [7, 7])
    torchvision = pytest.importorskip("torchvision")
    tiny = torchvision.models.VisionTransformer(32, 16, 1, 1, 8, 8, num_classes=4)
    vit = backbone(tiny)
    vit.reset_head_(3)
    assert (vit.outputs, tiny(torch.zeros(1, 3, 32, 32)).shape) == (3, (1, 3))


def test_weights_that_the_last_step_spoils_are_refused() -> None:
    """The loss of the only batch is still finite."""
    trainer = trainer_()
    first = next(weight for weight in trainer.model.parameters() if weight.requires_grad)
    first.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(ValueError, match="finite in epoch 1"):
        trainer.epoch(0, [next(batches_())])


def test_an_epoch_without_images_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the images"):
        trainer_().epoch(0, [])


def test_images_are_known_by_names_labels_and_content(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / "train" / label).mkdir(parents=True)
        (tmp_path / "train" / label / "0.png").write_bytes(b"one")
    known = identify(open_data(tmp_path / "train"))
    assert known.startswith("train, 2 images ")
    moved = (tmp_path / "train").rename(tmp_path / "moved").rename(tmp_path / "train")
    assert identify(open_data(moved)) == known
    (moved / "b" / "0.png").write_bytes(b"two")
    assert identify(open_data(moved)) != known
    (moved / "b" / "0.png").write_bytes(b"one")
    (moved / "b" / "0.png").rename(moved / "b" / "1.png")
    assert identify(open_data(moved)) != known
