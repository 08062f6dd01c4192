"""The tables' commands at a small size: any classifier, its images/s, the paper's larger models."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from benchmarks import report
from benchmarks.figures import head_filter
from benchmarks.search import settings
from benchmarks.tables import ablations, contribution, large, table, vhf
from benchmarks.tables.printed import TABLE_3
from benchmarks.tables.table import Claim, preset_for
from tests.families import plain_geometry
from tests.finetune.test_command import save_images
from tests.thorough import THOROUGH
from zerotprune import Schedule, Stage
from zerotprune.measure.accuracy import Contender, Result
from zerotprune.plan import Plan
from zerotprune.search.objective import Outcome

Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save random weights of a tiny classifier, and ten images of five classes."""
    folder = tmp_path_factory.mktemp("any-model")
    torch.manual_seed(0)
    save_file(
        timm.create_model("test_vit", num_classes=5).state_dict(), folder / "tiny.safetensors"
    )
    for part, seed in (("val", 0), ("train", 1)):
        save_images(folder / part, 5, 2, seed)
    return folder


def rows_of(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def command(module: str, folder: Path, csv_file: Path, *more: str) -> list[str]:
    return [module, "--model", "test_vit", "--weights", str(folder / "tiny.safetensors"), "--data",
            str(folder / "val"), "--csv", str(csv_file), "--device", "cpu", "--batch", "5",
            *more]  # fmt: skip


def test_ablations_and_their_speed_run_on_any_classifier(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.csv"
    speed = ("--timed", "--speed-batch", "2", "--rounds", "1")
    monkeypatch.setattr(table, "DRAWS", 2)
    # The others have the same rows for values of other options.
    some = [at for at in ablations.TABLES if THOROUGH or at.name == "attention, S-stage on"]
    for module, tables in ((contribution, [contribution.TABLE]), (ablations, some)):
        monkeypatch.setattr(sys, "argv", command(module.__name__, shared, out, *speed))
        table.main(module.__doc__, tables)
    rows = rows_of(out)
    for planned in (contribution.TABLE, *some):
        of_table = [row for row in rows if row["table"] == planned.name]
        assert {row["images"] for row in of_table} == {"10"}
        assert {row["data"] for row in of_table} == {"val"}
        assert {claim.text for claim in planned.claims} <= {row["name"] for row in of_table}
        timed = [row for row in rows if row["table"] == planned.speeds]
        measured = [row["name"] for row in of_table if " − " not in row["measure"]]
        assert [row["name"] for row in timed] == (measured if planned.timed else [])
        assert all(float(row["images_per_second"]) > 0 for row in timed)
    report.write(out, tmp_path)
    page = (tmp_path / "results-appendix.md").read_text("utf-8")
    (header,) = {line for line in page.splitlines() if "images/s, float32, eager" in line}
    assert header.endswith("| paper: images/s, A100 |")
    assert "2189.2 (1.45×)" in page  # Table 13, accumulated attention
    assert "test_vit" not in (tmp_path / "results.md").read_text("utf-8")  # two models stand there


def test_settings_are_searched_on_other_images(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.csv"
    few = ("--settings", "2", "--trials", "2", "--paper-trials", "3", "--starts", "I + S")
    arguments = command("settings", shared, out, *few)
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match="--tune"):
        settings.main()
    monkeypatch.setattr(sys, "argv", [*arguments, "--tune", str(shared / "train")])
    settings.main()
    names = [row["name"] for row in rows_of(out)]
    assert names[:6] == ["unpruned", "I + S", "I + S, searched", "I + S, searched as in the paper",
                         "the paper's search helps", "the search helps"]  # fmt: skip
    assert names[-2:] == ["setting 1", "setting 2"]


def test_large_models_are_measured_where_their_weights_are(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = large.beside(TABLE_3, "LV-ViT-S", [large.LESS_LOSS])
    entries = (
        large.Large("test_vit", "tiny.safetensors", column),
        large.Large("deit_base_patch16_224", "not-there.safetensors", column),
    )
    monkeypatch.setattr(large, "MODELS", entries)
    out = tmp_path / "rows.csv"
    monkeypatch.setattr(sys, "argv", [
        "large", "--weights", str(shared), "--data", str(shared / "val"), "--csv", str(out),
        "--device", "cpu", "--batch", "5",
    ])  # fmt: skip
    large.main()
    rows = {row["name"]: row for row in rows_of(out)}
    assert {row["model"] for row in rows.values()} == {"test_vit"}
    assert {"unpruned", "ToMe", "Zero-TP", "Zero-TP, early", "Fold"} <= rows.keys()
    claims = {"Zero-TP beats ToMe", "Zero-TP loses 49 % less than ToMe"}
    assert claims <= rows.keys()
    # At the share of the cost that the paper has: 3.5 of 6.6 G, ToMe 3.6.
    shares = {name: float(rows[name]["gmacs"]) / float(rows["unpruned"]["gmacs"])
              for name in ("Zero-TP", "ToMe", "Fold")}  # fmt: skip
    assert shares == pytest.approx({"Zero-TP": 3.5 / 6.6, "ToMe": 3.6 / 6.6, "Fold": 3.5 / 6.6},
                                   rel=0.02)  # fmt: skip


def test_the_papers_column_says_who_is_best() -> None:
    by_table = {entry.table.name: entry.table for entry in large.MODELS}
    assert [claim.text for claim in by_table["Table 14, SWAG"].claims] == [
        "ToMe beats ATS",
        "ToMe beats Zero-TP",
    ]
    assert large.LESS_LOSS in by_table["Table 3, LV-ViT-S"].claims


def test_presets_are_the_papers_at_its_size_and_scaled_to_others() -> None:
    deit = timm.create_model("deit_tiny_patch16_224")
    assert preset_for(deit, "ablation-is") == Schedule.preset("ablation-is")
    tiny = preset_for(timm.create_model("test_vit"), "ablation-is")  # 6 blocks, 100 patches
    assert [stage.block for stage in tiny.stages] == [1, 2, 3, 4, 5]
    assert {stage.similar for stage in tiny.stages} == {5}
    assert [stage.keep for stage in tiny.stages] == [1, 0.9, 0.8, 0.7, 1]


def test_a_share_less_is_judged_by_what_remains() -> None:
    """The second loses two of four images. The claim allows half as many, one."""
    plan = Plan(Schedule((Stage(1, 0.5),)), plain_geometry(4, 4, 1, 64))
    whole, two, one = (Result(Contender(name), plan, hits=hits) for name, hits in (
        ("unpruned", [1.0] * 4), ("two", [1.0, 1.0, 0.0, 0.0]), ("one", [1.0] * 3 + [0.0])
    ))  # fmt: skip
    claim = Claim("loses half less", "one", "two", less=0.5)
    assert claim.difference(one, two, whole).value == pytest.approx(0)
    assert replace(claim, less=0.0).difference(one, two, whole).value == pytest.approx(25)
    assert replace(claim, less=0.75).difference(one, two, whole).value == pytest.approx(-12.5)
    assert claim.difference(one, two, whole).error > 0


def test_no_partition_is_tested_as_the_paper_words_it() -> None:
    """All tokens are in both groups; every claim of Tables 8 to 10 and 13 has both its cells."""
    partition = next(table for table in ablations.TABLES if table.name == "partition")
    assert ("sequential-u", "none-both") in {(c.first, c.second) for c in partition.claims}
    for ablation in ablations.TABLES:
        for claim in ablation.claims:
            assert claim.ours or ablation.printed is not None
            if ablation.printed is not None:
                assert {claim.first, claim.second} <= ablation.printed.cells.keys()


def test_each_setting_of_the_papers_search_has_its_own_images() -> None:
    hits = torch.arange(1000) % 2 == 0
    outcome = Outcome(torch.zeros(1000), hits, hits)
    rates = [settings.hit_rate(outcome, number) for number in range(20)]
    assert len(set(rates)) > 10
    assert settings.hit_rate(outcome, 3) == rates[3]
    assert sum(rates) / 20 == pytest.approx(0.5, abs=0.02)


def test_a_model_of_ones_own_needs_images(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = command("contribution", shared, tmp_path / "rows.csv")
    at = arguments.index("--data")
    monkeypatch.setattr(sys, "argv", arguments[:at] + arguments[at + 2 :])
    with pytest.raises(SystemExit, match="--data"):
        table.main(contribution.__doc__, [contribution.TABLE])


def test_where_no_head_passes_all_count() -> None:
    """Two heads, four images: both pass, one, none by too much, none by too much and too little."""
    variance = torch.tensor([[0.1, 0.2], [0.1, 9.0], [8.0, 9.0], [8.0, 0.001]])
    shares = vhf.shares_of(variance)
    assert shares == vhf.Shares(every=25, acts=25, none=50)
    figure = head_filter.drawn({"a model": [shares, shares._replace(none=75)]}, "four images")
    bars: list[Any] = list(figure.axes[0].patches)
    heights = [bar.get_height() for bar in bars]  # block by block, three parts
    assert heights == [25, 25, 25, 25, 50, 75]
