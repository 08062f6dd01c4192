"""The photographs of the package: small, whole, and each with its license."""

from __future__ import annotations

from zerotprune.data.demo import PHOTOGRAPH_NAMES, PHOTOGRAPHS, load_photographs


def test_each_is_small_whole_and_told_of() -> None:
    files = sorted(PHOTOGRAPHS.glob("*.jpg"))
    assert [file.stem for file in files] == sorted(PHOTOGRAPH_NAMES)
    readme = (PHOTOGRAPHS / "README.md").read_text(encoding="utf-8")
    for file, (name, image) in zip(
        files, sorted(load_photographs(), key=lambda photo: photo.name), strict=True
    ):
        assert file.stem == name
        assert file.stat().st_size < 100_000
        assert image.mode == "RGB"
        assert 224 <= min(image.size) <= 320
        (line,) = [line for line in readme.splitlines() if f"| `{file.name}` |" in line]
        assert "CC0" in line or "public domain" in line


def test_a_limit_takes_the_first() -> None:
    assert [photo.name for photo in load_photographs(2)] == list(PHOTOGRAPH_NAMES[:2])
    assert len(load_photographs(99)) == len(PHOTOGRAPH_NAMES)
