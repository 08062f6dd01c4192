"""An embedder gives the library's own vectors, whatever images come as, and can be sent away."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor

import zerotprune as ztp
from tests import hf_families
from zerotprune import block
from zerotprune.backbones import backbone, featurize_, transformer
from zerotprune.methods import ToMe

SIDE = 160
SCHEDULE = ztp.Schedule((ztp.Stage(1, similar=20), ztp.Stage(3, similar=15)), ToMe())


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(1)
    return timm.create_model("test_vit", num_classes=5).eval()


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(3)
    return [Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))
            for _ in range(5)]  # fmt: skip


def encoded(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def embedder(model: Any, **options: Any) -> ztp.Embedder:
    return ztp.Embedder(model, **{"device": "cpu", "batch_size": 2, **options})


@pytest.mark.parametrize("pool", ["own", "cls", "mean"])
def test_unpruned_vectors_are_the_librarys(
    model: Any, pictures: list[Image.Image], pool: Any
) -> None:
    actual = embedder(model, pool=pool).embed(pictures).vectors
    transform = backbone(model).transform()
    with torch.inference_mode():
        tokens = model.forward_features(torch.stack([transform(picture) for picture in pictures]))
        pooled = tokens[:, model.num_prefix_tokens :].mean(1) if pool == "mean" else tokens[:, 0]
        pooled = model.fc_norm(pooled)
    expected = pooled.double().numpy()
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    assert actual.dtype == np.float32
    assert model.num_classes == 5, "the model itself keeps its head"


def test_every_kind_of_image_gives_the_same_vector(
    model: Any, pictures: list[Image.Image], tmp_path: Path
) -> None:
    picture = pictures[0]
    (tmp_path / "a.png").write_bytes(encoded(picture))
    kinds = [picture, encoded(picture), np.asarray(picture), tmp_path / "a.png",
             str(tmp_path / "a.png")]  # fmt: skip
    one = embedder(model, cost=0.7)
    actual, errors = one.embed(kinds)
    assert errors == [None] * 5
    np.testing.assert_allclose(actual, np.repeat(actual[:1], 5, axis=0), atol=1e-6)
    images = torch.stack([one.decoder.transform(picture) for picture in pictures])
    np.testing.assert_allclose(one.embed(images).vectors, one.embed(pictures).vectors, atol=1e-6)


def test_a_broken_image_has_an_error_and_the_others_go_on(
    model: Any, pictures: list[Image.Image]
) -> None:
    one = embedder(model, cost=0.7)
    whole = [encoded(picture) for picture in pictures]
    broken = [whole[0], b"nothing", whole[1], whole[2][:99], whole[3], b""]
    rows = one({"name": np.arange(6), "bytes": np.array(broken, dtype=object)})
    assert set(rows) == {"name", "vector", "error"}
    assert [error is None for error in rows["error"]] == [True, False, True, False, True, False]
    good = np.array([0, 2, 4])
    np.testing.assert_allclose(rows["vector"][good], one.embed(whole[:2] + whole[3:4]).vectors,
                               atol=1e-5)  # fmt: skip
    assert np.isnan(np.delete(rows["vector"], good, axis=0)).all()
    with pytest.raises(ValueError, match=r"expected a column image .* got name"):
        one({"name": np.arange(2)})
    assert one.embed([b"", b""]).vectors.shape == (2, one.width)


@pytest.mark.parametrize("bad", [
    np.zeros((8, 8, 1), np.uint8), np.zeros((8, 8, 5), np.uint8), np.zeros((0, 0, 3), np.uint8),
    np.zeros((2, 100, 3), np.uint8), np.zeros((8, 8, 3)), Image.new("RGB", (2, 100)),
    Image.new("RGB", (0, 0)), None, [[1], [2, 3]],
], ids=["gray", "five channels", "empty", "strip", "floats", "strip of PIL", "empty of PIL",
        "nothing", "ragged list"])  # fmt: skip
def test_a_bad_array_does_not_end_its_batch(
    model: Any, pictures: list[Image.Image], bad: Any
) -> None:
    one = embedder(model)
    vectors, errors = one.embed([pictures[0], bad])
    assert errors[0] is None
    assert str(errors[1]).startswith("image 1 ")
    assert np.isfinite(vectors[0]).all()
    assert np.isnan(vectors[1]).all()


def test_a_pickled_one_gives_the_same_and_carries_no_model_that_was_built(
    pictures: list[Image.Image],
) -> None:
    one = ztp.Embedder("demo", cost=0.6, device="cpu", vectors="float16")
    sent = pickle.dumps(one)
    expected = one.embed(pictures).vectors
    assert len(pickle.dumps(one)) == len(sent) < 10_000
    actual = pickle.loads(sent).embed(pictures).vectors
    assert actual.dtype == np.float16
    np.testing.assert_array_equal(actual, expected)


def test_a_pruned_model_stays_pruned_as_it_is(model: Any, pictures: list[Image.Image]) -> None:
    pruned = ztp.pruned(model, SCHEDULE)
    first, second = embedder(pruned), embedder(model, schedule=SCHEDULE)
    expected = second.embed(pictures).vectors
    np.testing.assert_array_equal(first.embed(pictures).vectors, expected)
    sent = pickle.loads(pickle.dumps(first))
    np.testing.assert_allclose(sent.embed(pictures).vectors, expected, atol=1e-6)
    assert first.about() == second.about()
    assert np.abs(embedder(model).embed(pictures).vectors - expected).max() > 1e-4
    settled = embedder(model, cost=0.7).settled()
    assert settled.cost is None
    assert settled.schedule == ztp.schedule_for(featurize_(ztp.pruned(model, SCHEDULE)), cost=0.7)


@pytest.mark.parametrize("outputs", ["tokens", "grid"])
def test_a_folder_is_pruned_as_it_was_saved(
    model: Any, pictures: list[Image.Image], tmp_path: Path, outputs: Any
) -> None:
    pruned = ztp.pruned(model, SCHEDULE, outputs=outputs)
    folder = str(ztp.save(pruned, tmp_path / "it"))
    reference = embedder(pruned)
    expected = reference.embed(pictures).vectors
    one = embedder(folder)
    for loaded in (one, pickle.loads(pickle.dumps(one.settled()))):
        np.testing.assert_allclose(loaded.embed(pictures).vectors, expected, atol=1e-6)
    different = ("model",)  # its name
    assert {key: value for key, value in one.about().items() if key not in different} == {
        key: value for key, value in reference.about().items() if key not in different
    }
    assert one.about()["outputs"] == outputs
    assert embedder(folder, cost=0.7).about()["schedule"] != one.about()["schedule"]
    with pytest.raises(ValueError, match="a method needs a budget"):
        embedder(folder, method="evit").build()


def test_a_folder_of_a_method_of_ones_own(
    model: Any, pictures: list[Image.Image], tmp_path: Path
) -> None:
    (tmp_path / "own_tome.py").write_text(
        "from zerotprune.methods import ToMe\n\nclass OwnToMe(ToMe):\n    pass\n"
    )
    named = f"{tmp_path}/own_tome.py:OwnToMe"
    pruned = ztp.pruned(model, SCHEDULE.by(named))
    folder = ztp.save(pruned, tmp_path / "it")
    actual = embedder(folder, method=named).embed(pictures).vectors
    np.testing.assert_allclose(actual, embedder(pruned).embed(pictures).vectors, atol=1e-6)


def test_the_users_model_is_not_changed(pictures: list[Image.Image]) -> None:
    torch.manual_seed(1)
    model = timm.create_model("test_vit", num_classes=5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    single, half = (embedder(model, dtype=dtype) for dtype in ("float32", "bfloat16"))
    expected = single.embed(pictures).vectors
    assert half.build().precision == torch.bfloat16
    np.testing.assert_allclose(half.embed(pictures).vectors, expected, atol=0.05)
    np.testing.assert_array_equal(single.embed(pictures).vectors, expected)
    assert model.training
    for name, value in model.named_parameters():
        assert (value.dtype, value.device.type, value.requires_grad) == (torch.float32, "cpu", True)
        assert torch.equal(value, before[name])
    shared = {value.data_ptr() for value in model.parameters()}
    assert {value.data_ptr() for value in single.build().model.parameters()} <= shared


def test_images_of_another_transform_are_other_vectors(model: Any) -> None:
    """The same weights, which see other values."""
    other = copy.deepcopy(model)
    other.pretrained_cfg = {**other.pretrained_cfg, "mean": (0.1, 0.2, 0.3)}
    one, two = embedder(model).about(), embedder(other).about()
    assert {key for key in one if one[key] != two[key]} == {"transform"}
    assert two["transform"]["mean"] == [0.1, 0.2, 0.3]
    assert embedder(copy.deepcopy(model)).about() == one


def test_random_weights_are_the_same_everywhere(pictures: list[Image.Image]) -> None:
    state = torch.random.get_rng_state()
    one = embedder("test_vit", random_weights=True)
    actual = one.embed(pictures).vectors
    assert torch.equal(torch.random.get_rng_state(), state)
    again = pickle.loads(pickle.dumps(one)).embed(pictures).vectors
    np.testing.assert_array_equal(actual, again)


def test_compiled_batches_are_all_of_one_shape(
    model: Any, pictures: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a compiler that only counts: torch's is tested by torch."""
    seen: list[tuple[int, ...]] = []

    def compiled(inner: Any, **options: Any) -> Any:
        assert options == {"fullgraph": True, "dynamic": False}

        def run(images: Tensor) -> Any:
            seen.append(tuple(images.shape))
            return inner(images)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(block, "_COMPILER_IS_OLD", False)
    actual = embedder(model, cost=0.7, compile=True).embed(pictures).vectors
    assert seen == [(2, 3, SIDE, SIDE)] * 3
    expected = embedder(model, cost=0.7).embed(pictures).vectors
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_raw_vectors_keep_their_lengths(model: Any, pictures: list[Image.Image]) -> None:
    raw = embedder(model, normalize=False).embed(pictures).vectors
    unit = embedder(model).embed(pictures).vectors
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    np.testing.assert_allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), unit, atol=1e-5)


@pytest.mark.parametrize(("name", "pool", "read"), [
    ("vit", "own", lambda out: out.last_hidden_state[:, 0]),
    ("dinov2, base", "own", lambda out: out.pooler_output),
    ("clip, projection", "own", lambda out: out.image_embeds),
    ("clip, projection", "cls", lambda out: out.last_hidden_state[:, 0]),
    ("registers", "mean", lambda out: out.last_hidden_state[:, 5:].mean(1)),
    ("siglip", "own", lambda out: out.pooler_output),
    ("siglip, no head", "own", lambda out: out.last_hidden_state.mean(1)),
])  # fmt: skip
def test_vectors_of_transformers(name: str, pool: Any, read: Any) -> None:
    model: Any = hf_families.build(name)
    images = hf_families.images_for(name)["pixel_values"]
    inner = model if read.__code__.co_names[0] == "image_embeds" else _base(model)
    with torch.inference_mode():
        expected = read(inner(images)).clone()
        actual = featurize_(model, pool)(images)
    assert torch.allclose(actual, expected, atol=1e-6)


def _base(model: Any) -> Any:
    from zerotprune.backbones.transformers.families import base_of

    return base_of(model)


def test_merged_tokens_of_transformers_count_by_their_patches() -> None:
    model: Any = ztp.prune_(featurize_(hf_families.build("dinov2, base"), "mean"), SCHEDULE)
    images, left = hf_families.images_for("dinov2, base")["pixel_values"], list[Any]()
    with torch.inference_mode():
        actual = model(images)
        base: Any = transformer(model)
        tokens = type(base).forward(base, images, left=left).last_hidden_state[:, 1:].double()
    sizes = left[-1].weight()[:, 1:].double().numpy()
    assert sizes.max() > 1
    assert (sizes.sum(axis=1) == 36).all()
    expected = np.einsum("bt,btw->bw", sizes / 36, tokens.numpy())
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-5)
    assert np.abs(tokens.mean(1).numpy() - expected).max() > 1e-4


@pytest.mark.parametrize(("options", "message"), [
    ({"cost": 0.7, "speedup": 1.2}, "give one budget, not several: cost and speedup"),
    ({"method": "tome"}, "a method needs a budget"),
    ({"pool": "max"}, "pool must be one of own, cls, mean, got 'max'"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ({"weights": "x.safetensors"}, "leave weights out"),
])  # fmt: skip
def test_refusals(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ztp.Embedder(model, **options)
