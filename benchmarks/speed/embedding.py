"""What the loop around a model costs: an Embedder beside the model alone, then with JPEG decoding.

The model is DINOv2-B with random weights, which are as fast as any. Images in memory: images a
second of the embedder, unpruned and pruned, beside those of the compiled model on a batch that
lies on the device, measured in turn by the clock of `bench`. Then JPEG files of 500 × 375 pixels,
decoded by one process or several. Prints JSON, which --out writes, and the tables of
docs/embedding.md. Needs torch, timm, torchvision and Pillow; no pyarrow, since it writes npy.
Command: python -m benchmarks.speed.embedding --out embedding.json (a GPU; three minutes)
"""

from __future__ import annotations

import argparse
import io
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image, ImageFilter

from zerotprune.clock import now, quartiles, race, room_for, stopwatch
from zerotprune.embed.embedder import Embedder
from zerotprune.embed.engines import Collector, Tally, run_here
from zerotprune.embed.shards import find_shards
from zerotprune.embed.writing import VectorFolder

WIDTH, HEIGHT, DIFFERENT = 500, 375, 64


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    add = options.add_argument
    add("--model", default="vit_base_patch14_dinov2")
    add("--size", type=int, default=224)
    add("--cost", type=float, default=0.7)
    add("--batch", type=int, default=256)
    add("--batches", type=int, default=12, help="in memory")
    add("--decoders", type=int, nargs="+", default=[1, 4, 16])
    add("--per-decoder", type=int, default=768, help="images to decode for each decoder")
    add("--precision", default="bfloat16")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--rounds", type=int, default=10)
    add("--out", type=Path)
    chosen = options.parse_args()
    name = torch.cuda.get_device_name() if chosen.device == "cuda" else "cpu"
    about = {"model": chosen.model, "size": chosen.size, "cost": chosen.cost, "device": name,
             "batch": chosen.batch, "precision": chosen.precision, "cores": os.cpu_count(),
             "torch": torch.__version__}  # fmt: skip
    torch.manual_seed(0)
    model = timm.create_model(chosen.model, img_size=chosen.size).eval()
    with room_for(2):
        pruned = {"unpruned": None, "pruned": chosen.cost}
        embedders = {
            label: Embedder(model, cost=cost, batch_size=chosen.batch, compile=True,
                            dtype=chosen.precision, device=chosen.device)
            for label, cost in pruned.items()
        }  # fmt: skip
        memory = in_memory(embedders, chosen)
        report = {**about, "in_memory": memory, "from_jpeg": from_files(embedders, chosen)}
    text = json.dumps(report, indent=2)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n", "utf-8")
    print(as_markdown(report))


def as_markdown(report: dict[str, Any]) -> str:
    """Write the report as the tables of docs/embedding.md."""
    memory = report["in_memory"]
    lines = [
        f"{report['model']} at {report['size']} px, {report['precision']}, batch "
        f"{report['batch']}, compiled, on one {report['device']}; pruned: cost {report['cost']}.",
        "",
        "| images in memory | unpruned | pruned | speedup |",
        "|---|---|---|---|",
    ]
    for who in ("model", "embedder"):
        speeds = memory[f"{who}_images_per_second"]
        cells = " | ".join(f"{speeds[label]:.0f} images/s" for label in ("unpruned", "pruned"))
        lines.append(f"| {who} | {cells} | {memory[f'{who}_speedup']:.2f}× |")
    loss = " and ".join(f"{share:.1%} {label}" for label, share in memory["overhead"].items())
    lines += [
        "",
        f"The loop costs {loss}; {memory['share_of_speedup']:.2f} of the speedup is left.",
    ]
    lines += ["", "| decoders | model | images/s | bound by |", "|---|---|---|---|"]
    for row in report["from_jpeg"]:
        lines.append(f"| {row['decoders']} | {row['model']} | {row['images_per_second']:.0f} | "
                     f"{row['bound']} |")  # fmt: skip
    return "\n".join(lines)


def in_memory(embedders: dict[str, Embedder], chosen: Any) -> dict[str, Any]:
    """Measure images/s of the loop and of the model alone, and what pruning gains in both."""
    shape = (chosen.batch, 3, chosen.size, chosen.size)
    precision = getattr(torch, chosen.precision)
    batch = torch.randn(shape).to(precision)
    images = batch.pin_memory() if chosen.device == "cuda" else batch
    there = batch.to(chosen.device)
    calls = []
    with torch.inference_mode():
        for embedder in embedders.values():
            run = embedder.build().run
            run(there)
            calls.append(partial(run, there))
        *_, timings = race(calls, chosen.rounds, stopwatch(chosen.device))
    alone = {label: chosen.batch / seconds.median
             for label, seconds in zip(embedders, timings, strict=True)}  # fmt: skip
    loop: dict[str, list[float]] = {label: [] for label in embedders}
    for _ in range(5):
        for label, embedder in embedders.items():
            started = now(chosen.device)
            count = sum(map(len, embedder.stream(images for _ in range(chosen.batches))))
            loop[label].append(count / (now(chosen.device) - started))
    middle = {label: quartiles(speeds)[1] for label, speeds in loop.items()}
    gain, gain_alone = (rates["pruned"] / rates["unpruned"] for rates in (middle, alone))
    return {
        "model_images_per_second": {label: round(speed, 1) for label, speed in alone.items()},
        "embedder_images_per_second": {label: round(speed, 1) for label, speed in middle.items()},
        "model_speedup": round(gain_alone, 4),
        "embedder_speedup": round(gain, 4),
        "share_of_speedup": round(gain / gain_alone, 4),
        "overhead": {label: round(alone[label] / middle[label] - 1, 4) for label in embedders},
    }


def from_files(embedders: dict[str, Embedder], chosen: Any) -> list[dict[str, Any]]:
    """Measure images/s from JPEG files, by the number of decoding processes."""
    rows = []
    with tempfile.TemporaryDirectory() as home:
        sources = [write_jpeg(Path(home, f"{number}.jpg"), number) for number in range(DIFFERENT)]
        for decoders in chosen.decoders:
            folder = Path(home, f"images-{decoders}")
            folder.mkdir()
            for number in range(decoders * chosen.per_decoder):
                os.link(sources[number % DIFFERENT], folder / f"{number:06d}.jpg")
            for label, embedder in embedders.items():
                shards = find_shards(str(folder), images=4096)
                out = VectorFolder(Path(home, f"{label}-{decoders}"), {}, "npy")
                out.path.mkdir()
                tally = Tally(sum(shard.weight for shard in shards))
                collector = Collector(out, shards, embedder, tally, lambda tally: None)
                run_here(embedder, list(enumerate(shards)), collector, decoders)
                rows.append({
                    "decoders": decoders, "model": label, "images": tally.images,
                    "images_per_second": round(tally.images_per_second, 1), "bound": tally.bound,
                })  # fmt: skip
    return rows


def write_jpeg(path: Path, seed: int) -> Path:
    """Write an image that compresses about as a photograph does: noise, made soft."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    soft = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(2))
    buffer = io.BytesIO()
    soft.save(buffer, "JPEG", quality=92)
    path.write_bytes(buffer.getvalue())
    return path


if __name__ == "__main__":
    main()
