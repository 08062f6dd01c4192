"""The seven sets: their published numbers, and tiny ones laid out as the real ones are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torchvision
from scipy.io import savemat

from zerotprune.data import sets
from zerotprune.data.images import open_data
from zerotprune.data.sets import SETS, images_of, set_named


def test_published_numbers() -> None:
    """Compare categories and test instances with the paper's Table 5."""
    assert {name: (dataset.classes, dataset.test) for name, dataset in SETS.items()} == {
        "flowers": (102, 6149), "pets": (37, 3669), "dtd": (47, 1880), "indoor67": (67, 1340),
        "cub200": (200, 5794), "aircraft": (100, 3333), "cars": (196, 8041),
    }  # fmt: skip


def test_names() -> None:
    assert set_named("pets:a/b:c") == ("pets", Path("a/b:c"))
    assert set_named("pets") is set_named("hf:pets") is set_named("dogs:x") is None


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def pets(root: Path) -> None:
    home = root / "oxford-iiit-pet"
    write(home / "annotations" / "trainval.txt", "Abyssinian_2 1 1 1\nbeagle_1 2 2 1\n")
    write(home / "annotations" / "test.txt", "beagle_7 2 2 1\nAbyssinian_9 1 1 1\n")
    (home / "images").mkdir()


def dtd(root: Path) -> None:
    home = root / "dtd" / "dtd"
    write(home / "labels" / "train1.txt", "dotted/a.jpg\n")
    write(home / "labels" / "val1.txt", "woven/b.jpg\ndotted/c.jpg\n")
    write(home / "labels" / "test1.txt", "woven/d.jpg\ndotted/e.jpg\n")
    (home / "images").mkdir()


def aircraft(root: Path) -> None:
    home = root / "fgvc-aircraft-2013b" / "data"
    write(home / "variants.txt", "A 300\nB 2\n")
    write(home / "images_variant_trainval.txt", "1 B 2\n2 A 300\n")
    write(home / "images_variant_test.txt", "3 A 300\n4 B 2\n")


def cars(root: Path) -> None:
    home = root / "stanford_cars"
    (home / "devkit").mkdir(parents=True)
    for part in ("train", "test"):
        (home / f"cars_{part}").mkdir()
    savemat(home / "devkit" / "cars_meta.mat", {"class_names": ["a car", "another"]})
    rows = [{"fname": f"{at}.jpg", "class": at} for at in (1, 2)]
    for file in ("devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat"):
        savemat(home / file, {"annotations": rows})


def flowers(root: Path) -> None:
    home = root / "flowers-102"
    (home / "jpg").mkdir(parents=True)
    savemat(home / "imagelabels.mat", {"labels": [1, 2, 1, 2, 2, 1]})
    savemat(home / "setid.mat", {"trnid": [1, 2], "valid": [3, 4], "tstid": [5, 6]})


def cub200(root: Path) -> None:
    home = root / "CUB_200_2011"
    write(home / "images.txt", "1 001.A b/x.jpg\n2 002.C/y.jpg\n3 001.A b/z.jpg\n4 002.C/w.jpg\n")
    write(home / "image_class_labels.txt", "1 1\n2 2\n3 1\n4 2\n")
    write(home / "train_test_split.txt", "1 1\n2 1\n3 0\n4 0\n")


def indoor67(root: Path) -> None:
    write(root / "TrainImages.txt", "bar/a.jpg\nattic/b.jpg\n")
    write(root / "TestImages.txt", "attic/c.jpg\nbar/d.jpg\n")


LAID = {
    "pets": (pets, [("Abyssinian_2.jpg", 0), ("beagle_1.jpg", 1)],
             [("beagle_7.jpg", 1), ("Abyssinian_9.jpg", 0)]),
    "dtd": (dtd, [("a.jpg", 0), ("b.jpg", 1), ("c.jpg", 0)], [("d.jpg", 1), ("e.jpg", 0)]),
    "aircraft": (aircraft, [("1.jpg", 1), ("2.jpg", 0)], [("3.jpg", 0), ("4.jpg", 1)]),
    "cars": (cars, [("1.jpg", 0), ("2.jpg", 1)], [("1.jpg", 0), ("2.jpg", 1)]),
    "flowers": (flowers, [("image_00001.jpg", 0), ("image_00002.jpg", 1), ("image_00003.jpg", 0),
                          ("image_00004.jpg", 1)],
                [("image_00005.jpg", 1), ("image_00006.jpg", 0)]),
    "cub200": (cub200, [("x.jpg", 0), ("y.jpg", 1)], [("z.jpg", 0), ("w.jpg", 1)]),
    "indoor67": (indoor67, [("a.jpg", 1), ("b.jpg", 0)], [("c.jpg", 0), ("d.jpg", 1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_laid_out_as_the_real_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay, train, test = LAID[name]
    lay(tmp_path)
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_check_integrity", lambda self: True)
    small = SETS[name]._replace(classes=2, train=len(train), test=len(test))
    with pytest.raises(ValueError, match="is incomplete"):
        images_of(name, tmp_path, train=False)
    monkeypatch.setitem(sets.SETS, name, small)
    with pytest.raises(ValueError, match=r"train and test, got val$"):
        open_data(f"{name}:{tmp_path}", split="val")
    for split, wanted in (("train", train), ("validation", test), ("test", test)):
        data = open_data(f"{name}:{tmp_path}", split=split)
        assert [(Path(item.path).name, item.label) for item in data.items] == wanted
        assert (data.classes, data.exact) == (2, True)


@pytest.mark.parametrize("name", SETS)
def test_what_is_not_there_is_not_fetched(name: str, tmp_path: Path) -> None:
    """The error names who would fetch it, or which file is missing."""
    with pytest.raises((ValueError, OSError), match=r"download=True|No such file") as error:
        open_data(f"{name}:{tmp_path}")
    assert str(tmp_path) in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_set_takes_no_mapping(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--mapping"):
        open_data(f"pets:{tmp_path}", mapping=tmp_path / "m.csv")
