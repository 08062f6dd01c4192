"""The command: rows for every image, finished shards skipped, nothing mixed, nothing lost."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import zerotprune as ztp
from tests.commands import quickly
from tests.data.files import refusal, write_tar
from tests.nursery import Done, nursery
from tests.waiting import wait_until
from zerotprune.embed.shards import FolderShard
from zerotprune.embed.writing import Rows, VectorFolder, leftovers, lock_folder
from zerotprune.methods import ToMe
from zerotprune.saving import read_saved

pytest.importorskip("pyarrow")
from tests.embed.runs import BROKEN, MAIN, arguments, assert_same, embed, make_images, rows_in

COUNT = 10


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("embed") / "images", COUNT)


@pytest.fixture(scope="module")
def whole(images: Path) -> Path:
    """Return the output of an undisturbed run."""
    out = images.parent / "whole"
    embed(images, out)
    return out


def again(images: Path, out: Path, *more: str) -> Done:
    return quickly(*arguments(images, out, *more))


def test_rows(whole: Path) -> None:
    rows = rows_in(whole)
    assert list(rows) == [f"{number:02d}.png" for number in range(COUNT)]
    for key, (vector, error) in rows.items():
        assert (vector is None) == (error is not None) == (key == BROKEN)
        if vector is not None:
            assert abs(np.linalg.norm(vector) - 1) < 1e-5
    assert str(rows[BROKEN][1]).startswith(f"{BROKEN} is not an image")


def test_finished_shards_are_skipped_and_lost_ones_made_again(
    whole: Path, images: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    (out / "images-00001.parquet").unlink()
    (out / ".zerotprune-0123.tmp").write_bytes(b"left by a killed run")
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
    done = again(images, out, "--json")
    assert (done.returncode, done.stderr.strip()) == (0, "")
    report = json.loads(done.stdout)
    assert (report["images"], report["unreadable"], report["shards"]) == (4, 1, 1)
    assert report["shards_in_all"] == 3
    assert_same(out, whole)
    assert before.items() <= {path.name: path.stat().st_mtime_ns
                              for path in out.glob("*.parquet")}.items()  # fmt: skip
    done = again(images, out)
    assert re.search(r"\ball 3 shards\b", done.stdout), done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_tars_and_numpy_files(whole: Path, images: Path, tmp_path: Path) -> None:
    files = sorted(images.iterdir())
    for number in range(2):
        members = [(image.name, image.read_bytes()) for image in files[number * 5 : number * 5 + 5]]
        write_tar(tmp_path / "tars" / f"{number}.tar", members)
    done = again(tmp_path / "tars", tmp_path / "out", "--form", "npy")
    assert done.returncode == 0, done.stderr
    rows = np.concatenate([np.load(tmp_path / "out" / f"{number}.npy") for number in range(2)])
    wanted = rows_in(whole)
    assert [f"{key}.png" for key in rows["key"]] == list(wanted)
    for row, (vector, error) in zip(rows, wanted.values(), strict=True):
        assert bool(row["error"]) == (error is not None)
        if vector is None:
            assert np.isnan(row["vector"]).all()
        else:
            np.testing.assert_allclose(row["vector"], vector, atol=1e-5)


def test_another_column_of_images_is_refused(images: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    files = [path for path in sorted(images.iterdir()) if path.name != BROKEN][:2]
    data, (one, two) = tmp_path / "one.parquet", (path.read_bytes() for path in files)
    parquet.write_table(pa.table({"id": ["a", "b"], "image": [one, two], "crop": [two, one]}), data)
    assert again(data, tmp_path / "out").returncode == 0
    assert again(data, tmp_path / "out", "--column", "image", "--key", "id").returncode == 0
    done = again(data, tmp_path / "out", "--column", "crop")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "different one" in done.stderr
    assert "--column" in done.stderr


@pytest.mark.parametrize(("options", "message"), [
    (("--cost", "0.7"), "has other vectors: asked --cost 0.6 there, --cost 0.7 here"),
    (("--method", "tome"), "asked --cost 0.6 there, --cost 0.6 --method tome here"),
    (("--pool", "mean"), "has other vectors: pool own there, mean here"),
    (("--raw",), "has other vectors: normalize True there, False here"),
    (("--precision", "bfloat16"), "has other vectors: model weights"),
    (("--form", "npy"), "has other vectors: form parquet there, npy here"),
    (("--images", "5"), "vectors of a different images-00000"),
])  # fmt: skip
def test_other_settings_are_refused(
    whole: Path, images: Path, options: tuple[str, ...], message: str
) -> None:
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    done = again(images, whole, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "give another --out" in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


@pytest.fixture
def few(images: Path, tmp_path: Path) -> Path:
    """A folder of two images that a test may change."""
    (tmp_path / "few").mkdir()
    for name in ("00.png", "01.png"):
        shutil.copy2(images / name, tmp_path / "few" / name)
    return tmp_path / "few"


def embed_folder(model: Path, data: Path, *more: str) -> Done:
    out = data.parent / "out"
    return quickly("embed", str(model), str(data), "--out", str(out), "--workers", "0", *more)


def save_model(home: Path) -> Path:
    torch.manual_seed(1)
    model = timm.create_model("test_vit", num_classes=5, depth=3).eval()
    return ztp.save(ztp.prune_(model, cost=0.6), home / "my-vit")


def test_a_saved_model_is_pruned_as_it_was_saved(few: Path, tmp_path: Path) -> None:
    saved = save_model(tmp_path)
    done = embed_folder(saved, few)
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "out" / "manifest.json").read_text())["settings"]
    assert settings["method"] == "fold"
    assert ztp.Schedule.from_json(settings["schedule"]) == read_saved(saved).schedule
    expected = ztp.Embedder(ztp.load(saved), device="cpu").embed(sorted(few.iterdir())).vectors
    for (vector, _), wanted in zip(rows_in(tmp_path / "out").values(), expected, strict=True):
        assert vector is not None
        np.testing.assert_allclose(vector, wanted, atol=1e-6)
    config = json.loads((saved / "config.json").read_text())
    config["pretrained_cfg"]["mean"] = [0.1, 0.2, 0.3]
    (saved / "config.json").write_text(json.dumps(config))
    done = embed_folder(saved, few)
    assert done.returncode == 2
    assert "has other vectors: transform mean" in done.stderr
    assert "needs a budget" in embed_folder(saved, few, "--method", "tome").stderr


def test_a_saved_method_of_ones_own_is_named(few: Path, tmp_path: Path) -> None:
    (tmp_path / "my_tome.py").write_text(METHOD_FILE)
    named = f"{tmp_path}/my_tome.py:MyToMe"
    model = timm.create_model("test_vit", num_classes=5, depth=3).eval()
    saved = ztp.save(ztp.prune_(model, cost=0.6, method=named), tmp_path / "my-vit")
    done = embed_folder(saved, few)
    assert "imported only if you name it" in done.stderr
    done = embed_folder(saved, few, "--method", named)
    assert done.returncode == 0, done.stderr
    (tmp_path / "my_tome.py").write_text(METHOD_FILE + "\n# as if changed")
    done = embed_folder(saved, few, "--method", named)
    assert done.returncode == 2
    assert "has other vectors: asked --method" in done.stderr


METHOD_FILE = "from zerotprune.methods import ToMe\n\nclass MyToMe(ToMe):\n    pass\n"


def test_a_changed_schedule_is_refused(few: Path, tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    for block, code in ((2, 0), (2, 0), (1, 2)):
        ztp.Schedule((ztp.Stage(block, similar=4),), ToMe()).save(file)
        done = again(few, tmp_path / "out", "--schedule", str(file))
        assert done.returncode == code, done.stderr
    assert "has other vectors: asked --schedule" in done.stderr
    done = again(few, tmp_path / "tuned")
    assert done.returncode == 0, done.stderr
    assert again(few, tmp_path / "tuned", "--tuned").returncode == 2


def test_a_replaced_image_is_refused(few: Path, tmp_path: Path) -> None:
    assert again(few, tmp_path / "out").returncode == 0
    assert again(few, tmp_path / "out").returncode == 0
    image = few / "01.png"
    data = image.read_bytes()
    image.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = again(few, tmp_path / "out")
    assert done.returncode == 2
    assert re.search("images-00000.*changed", done.stderr), done.stderr


def test_random_weights_are_for_a_first_try(few: Path, tmp_path: Path) -> None:
    for _ in range(2):
        done = quickly("embed", "test_vit", str(few), "--out", str(tmp_path / "out"),
                       "--random-weights", "--workers", "0")  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert "has weights of its own" in again(few, tmp_path / "out", "--random-weights").stderr


def test_a_bad_shard_is_named_and_the_others_are_finished(images: Path, tmp_path: Path) -> None:
    one = images / "00.png"
    for name in ("0", "1"):
        write_tar(tmp_path / "tars" / f"{name}.tar", [("a.png", one.read_bytes())])
    bad = tmp_path / "tars" / "0.tar"
    data = bad.read_bytes()
    bad.write_bytes(data[:600])
    out = tmp_path / "out"
    done = again(tmp_path / "tars", out)
    assert done.returncode == 2
    assert "1 of 2 shards" in done.stderr
    assert " 0: cannot index" in done.stderr
    assert [path.name for path in out.glob("*.parquet")] == ["1.parquet"]
    assert "1 of 2 shards" in again(tmp_path / "tars", out).stdout


def test_refusals_before_any_work(images: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("")
    tars = write_tar(tmp_path / "tars" / "0.tar", [("a.png", b"")]).parent
    for data, out, more, message in (
        (tmp_path / "empty", tmp_path / "new", (), "no images in"),
        (images, tmp_path / "file", (), "is a file: --out must be a folder"),
        (images, tmp_path / "other", (), "has mine.txt and no manifest"),
        (images, tmp_path / "new", ("--actors", "2"), "are for --engine ray"),
        (images, tmp_path / "new", ("--key", "x"), "--column and --key are for parquet"),
        (tars, tars / "new", (), "is inside"),
        (images, tmp_path / "new", ("--engine", "ray", "--device", "tpu"), "--device"),
    ):
        done = again(data, out, *more)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_torchrun_splits_the_shards(whole: Path, images: Path, tmp_path: Path) -> None:
    code = "import os, sys\nos.environ.update(RANK=sys.argv.pop(), WORLD_SIZE='2')\n" + MAIN
    born = nursery()
    words = arguments(images, tmp_path / "out")
    running = [born.start(code, *words, rank) for rank in ("1", "0")]  # the second waits
    for child in running:
        done = born.wait(child)
        assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "out", whole)


def test_a_process_with_a_broken_shard_waits_for_the_others(images: Path, tmp_path: Path) -> None:
    """torchrun ends them all when one fails: the others would never finish their shards."""
    for number in range(2):
        write_tar(
            tmp_path / "tars" / f"{number}.tar", [("a.png", (images / "00.png").read_bytes())]
        )
    (tmp_path / "tars" / "1.tar").write_bytes(b"no tar")
    code = "import os, sys\nos.environ.update(RANK=sys.argv.pop(), WORLD_SIZE='2')\n" + MAIN
    born, out = nursery(), tmp_path / "out"
    words = arguments(tmp_path / "tars", out)
    first = born.run(code, *words, "0")
    assert first.returncode == 0, first.stderr
    assert (out / "0.parquet").exists()
    (out / ".ended-0").unlink()
    second = born.start(code, *words, "1")

    def ended() -> bool:
        assert born.lives(second), born.wait(second)
        return (out / ".ended-1").exists()

    wait_until(ended, "the end of its share", pause=0.05)
    (out / ".ended-0").touch()
    done = born.wait(second)
    assert done.returncode == 2, done.stderr
    assert "1 of 2 shards" in done.stderr


def test_two_runs_do_not_meet_in_a_folder(whole: Path, images: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    script = "import sys, time\nfrom pathlib import Path"
    script += "\nfrom zerotprune.embed.writing import lock_folder"
    script += (
        "\nwith lock_folder(Path(sys.argv[1])):\n    print('in', flush=True)\n    time.sleep(600)"
    )
    born = nursery()
    other = born.start(script, str(out))
    wait_until(lambda: again(images, out).returncode == 2, "the refusal")
    refusal = again(images, out).stderr
    assert "another process" in refusal
    assert "--out" in refusal
    os.kill(other, signal.SIGKILL)
    born.wait(other)
    assert again(images, out).returncode == 0


def test_a_run_removes_what_was_left_before_it_and_nothing_newer(tmp_path: Path) -> None:
    """Another process of the same run may be writing a file before the first one has the lock."""
    old, new = (tmp_path / f".zerotprune-{name}.tmp" for name in ("old", "new"))
    old.write_bytes(b"")
    left = leftovers(tmp_path)
    new.write_bytes(b"")
    with lock_folder(tmp_path, left=left):
        assert (old.exists(), new.exists()) == (False, True)


def test_a_full_disk_is_told_and_nothing_half_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = VectorFolder(tmp_path, {"pool": "own"})
    shard = FolderShard("a", tmp_path, ("x.png",))
    with lock_folder(tmp_path):
        folder.admit([shard])

        def full(number: int) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        rows = Rows(("x.png",), np.zeros((1, 2), np.float32), (None,))
        with refusal(OSError, "a.parquet: No space left on device: free some space"):
            folder.write("a", [rows])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "manifest.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 9}', "\x00"])
def test_a_broken_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with refusal(ValueError, "manifest.json"):
        VectorFolder(tmp_path, {}).admit([])
