"""The patch embedding as a matrix product: the convolution's values, and gone after restore_."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn

import zerotprune as ztp
from tests.families import build
from zerotprune.backbones import patch_embedding
from zerotprune.backbones.patch_embedding import PatchProduct, attach_products, multiply_patches


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("patch", [(16, 16), (14, 14), (4, 8)])
def test_the_product_is_the_convolution(patch: tuple[int, int], bias: bool) -> None:
    """The oracle slides a window over the image and takes every patch-th position."""
    generator = np.random.default_rng(0)
    images = generator.standard_normal((2, 3, 3 * patch[0], 5 * patch[1]))
    weight = generator.standard_normal((7, 3, *patch))
    shift = generator.standard_normal(7) if bias else np.zeros(7)
    windows = sliding_window_view(images, patch, axis=(2, 3))[:, :, :: patch[0], :: patch[1]]
    expected = np.einsum("bcrkhw,ochw->bork", windows, weight) + shift[:, None, None]
    made = multiply_patches(
        torch.from_numpy(images),
        torch.from_numpy(weight),
        torch.from_numpy(shift) if bias else None,
    )
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-12, atol=1e-10)


def logits(model: nn.Module, images: Tensor) -> Tensor:
    output = model(images)
    return output if isinstance(output, Tensor) else output.logits


def products(model: nn.Module) -> list[nn.Module]:
    """Return the convolutions that multiply matrices."""
    return [
        module
        for module in model.modules()
        if isinstance(getattr(module.__dict__.get("forward"), "__self__", None), PatchProduct)
    ]


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a CPU multiply as a GPU does, and count how often it does."""
    calls: list[int] = []

    def counted(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(len(images))
        return multiply_patches(images, weight, bias)

    monkeypatch.setattr(patch_embedding, "_DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(patch_embedding, "multiply_patches", counted)
    return calls


def made(library: str) -> nn.Module:
    """Import the library's models here: the test on a GPU needs timm alone."""
    if library == "timm":
        return build("deit")
    from tests import hf_families, libraries

    model: nn.Module = (
        hf_families.build("vit") if library == "transformers" else libraries.build(library)
    )
    return model


@pytest.mark.parametrize("library", ["timm", "torchvision", "open_clip", "transformers"])
def test_a_pruned_model_multiplies_and_a_restored_one_does_not(
    library: str, anywhere: list[int]
) -> None:
    model = made(library).to(torch.bfloat16)
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.inference_mode():
        before = logits(model, images)
        ztp.prune_(model, cost=0.8)
        assert len(products(model)) == 1
        assert not anywhere
        after = logits(model, images)
        assert anywhere == [2]
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert products(copied)[0] is not products(model)[0]
            assert torch.equal(logits(copied, images), after)
        assert len(anywhere) == 3
        ztp.restore_(model)
        assert not products(model)
        assert torch.equal(logits(model, images), before)


def test_logits_change_by_rounding_alone(anywhere: list[int]) -> None:
    model = ztp.prune_(build("deit").to(torch.bfloat16), cost=0.8)
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    (conv,) = products(model)
    assert isinstance(conv, nn.Conv2d)
    with torch.inference_mode():
        product = conv(images).float()
        assert anywhere == [2]
        exact = nn.Conv2d.forward(conv.float(), images.float())
    torch.testing.assert_close(product, exact, rtol=2**-7, atol=2**-7 * exact.abs().max().item())


def test_autocast_multiplies_too(anywhere: list[int]) -> None:
    conv = nn.Conv2d(3, 8, 16, stride=16)
    images = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    exact = conv(images)
    attach_products(conv)
    with torch.autocast("cpu", torch.bfloat16):
        product = conv(images)
    assert anywhere == [2]
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product.float(), exact, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(1, 3, 96, 96),  # float32: cuDNN has TF32 for it
        torch.zeros(1, 3, 100, 96, dtype=torch.bfloat16),  # the convolution leaves out the rest
    ],
)
def test_other_images_go_through_the_convolution(images: Tensor, anywhere: list[int]) -> None:
    conv = nn.Conv2d(3, 8, 16, stride=16).to(images.dtype)
    expected = conv(images)
    attach_products(conv)
    assert torch.equal(conv(images), expected)
    assert not anywhere


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(3, 8, 1),
        nn.Conv2d(3, 8, 16, stride=8),
        nn.Conv2d(64, 8, 2, stride=2),  # aligned channels: cuDNN is fast
        nn.Conv2d(3, 9, 4, stride=4, groups=3),
        nn.Conv2d(3, 8, 4, stride=4, dilation=2),
    ],
)
def test_other_convolutions_are_left_alone(conv: nn.Conv2d) -> None:
    attach_products(conv)
    assert not products(conv)


def test_a_forward_that_was_replaced_is_left_alone() -> None:
    conv = nn.Conv2d(3, 8, 16, stride=16)
    conv.forward = torch.nn.Identity().forward  # type: ignore[method-assign]
    attach_products(conv)
    assert not products(conv)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device found")
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("patch", "size", "batch"), [(16, 224, 256), (14, 518, 32)])
def test_a_full_gpu_multiplies_right(
    patch: int, size: int, batch: int, precision: torch.dtype
) -> None:
    conv = nn.Conv2d(3, 192, patch, stride=patch).to("cuda", precision)
    images = torch.randn(batch, 3, size, size, device="cuda", dtype=precision)
    attach_products(conv)
    with torch.inference_mode():
        product = conv(images).double()
        exact = conv.double()(images.double())
    error = (product - exact).norm() / exact.norm()
    assert error < (4e-3 if precision == torch.bfloat16 else 5e-4)
