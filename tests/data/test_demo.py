"""The built-in model and its images."""

from __future__ import annotations

import torch

from zerotprune.data import demo


def test_images_depend_on_their_number_alone() -> None:
    images, labels = demo.images(40, seed=3)
    assert images.shape == (40, 3, 112, 112)
    assert images.min() >= -1
    assert images.max() <= 1
    part, part_labels = demo.images(7, seed=3, first=20)
    assert torch.equal(part, images[20:27])
    assert torch.equal(part_labels, labels[20:27])
    assert not torch.equal(demo.images(1, seed=4)[0], images[:1])


def test_no_digit_is_both_trained_on_and_tested_on() -> None:
    train, _ = demo._digits("train", "cpu")
    test, _ = demo._digits("test", "cpu")
    assert len(train) + len(test) == 1797
    seen = {bytes(digit.numpy().tobytes()) for digit in train}
    assert not [digit for digit in test if digit.numpy().tobytes() in seen]


def test_all_classes_appear() -> None:
    _, labels = demo.images(300, seed=5)
    assert labels.unique().tolist() == list(range(10))


def test_the_model_reads_unseen_images() -> None:
    images, labels = demo.images(150, seed=11)
    with torch.inference_mode():
        hits = (demo.model()(images).argmax(-1) == labels).float()
    assert hits.mean() > 0.96


def test_the_weights_fit_in_the_package() -> None:
    assert demo.WEIGHTS.stat().st_size <= 4_000_000
