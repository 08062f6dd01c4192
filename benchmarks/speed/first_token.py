"""Time to first token of vision-language models, their tower unpruned and pruned.

Expected: with the grid only the tower gains, and the language model takes as long as before; with
fewer image tokens both gain. Shapes are real and weights are random: CLIP-L at 336 px, as in LLaVA,
and SigLIP-so400m at 384 px, each in front of a language model of Qwen2's 0.5 B. It is the time of
`generate` for one token, and that of the tower alone; every case in turn, medians.
Command: python -m benchmarks.speed.first_token (a GPU; with --tiny on any machine, to try it out).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.inputs import measuring, parsed
from zerotprune import Schedule, gmacs, image_tokens, prune_, schedule_for
from zerotprune.clock import Timings, race, room_for, stopwatch
from zerotprune.measure import records
from zerotprune.surgery import sharing_copy
from zerotprune.tokens import Outputs

IMAGE = 7  # the id of an image token
WORDS = 32  # of the question, after the image

_CLIP = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
         "num_attention_heads": 16, "image_size": 336, "patch_size": 14}  # fmt: skip
_SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
           "num_attention_heads": 16, "image_size": 384, "patch_size": 14,
           "vision_use_head": False}  # fmt: skip
_QWEN = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
         "tie_word_embeddings": True}  # fmt: skip
_TINY = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 6,
         "num_attention_heads": 3, "num_key_value_heads": 3, "vocab_size": 64,
         "image_size": 112}  # fmt: skip


class Tower(NamedTuple):
    config: str  # its class
    shape: dict[str, Any]
    reads: dict[str, Any]  # what LLaVA reads of it


TOWERS = {
    "clip-l-336": Tower("CLIPVisionConfig", _CLIP, {}),  # the last layer but one, without CLS
    "siglip-so400m-384": Tower(
        "SiglipVisionConfig",
        _SIGLIP,
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
}
#: name in the table → what leaves the tower; None: it is not pruned
CASES: dict[str, Outputs | None] = {
    "unpruned": None,
    "pruned, grid": "grid",
    "pruned, fewer image tokens": "tokens",
}


@dataclass
class Case:
    """A model to be measured, with its prompt."""

    name: str
    schedule: Schedule
    model: Any
    prompt: dict[str, Tensor]

    @property
    def tower(self) -> nn.Module:
        tower: nn.Module = self.model.model.vision_tower
        return tower

    def first_token(self) -> object:
        return self.model.generate(**self.prompt, max_new_tokens=1, do_sample=False)

    def look(self) -> object:
        return self.tower(self.prompt["pixel_values"], output_hidden_states=True)  # as LLaVA does


def main() -> None:
    chosen = options()
    if chosen.tiny:
        chosen.precision, chosen.batch, chosen.rounds = "float32", [1], 2
    for name in chosen.only:
        model = built(TOWERS[name], chosen)
        for batch in chosen.batch:
            rows = [
                {"table": "first token", "model": f"{name} + qwen2-0.5b", **row}
                for row in measured(model, batch, chosen)
            ]
            if not chosen.tiny:
                records.append(chosen.csv, rows)


def options() -> argparse.Namespace:
    known = measuring(__doc__)
    add = known.add_argument
    add("--only", nargs="+", choices=list(TOWERS), default=list(TOWERS), metavar="NAME",
        help=", ".join(TOWERS))  # fmt: skip
    add("--cost", type=float, default=0.6, help="of the tower, as a share of the unpruned one's")
    add("--batch", nargs="+", type=int, default=[1, 16], help="images at once, a prompt for each")
    add("--precision", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    add("--rounds", type=int, default=11)
    add("--compile", action="store_true", help="compile tower and language model, each by itself")
    add("--tiny", action="store_true", help="tiny shapes, to try it out; no rows are written")
    return parsed(known)


def built(tower: Tower, chosen: argparse.Namespace) -> Any:
    import transformers

    vision, text = ({**shape, **_TINY} if chosen.tiny else shape for shape in (tower.shape, _QWEN))
    config = transformers.LlavaConfig(
        vision_config=getattr(transformers, tower.config)(**vision),
        text_config=transformers.Qwen2Config(**text),
        image_token_id=IMAGE,
        **tower.reads,
    )
    torch.manual_seed(0)
    with torch.device(chosen.device):
        model = transformers.LlavaForConditionalGeneration._from_config(
            config, dtype=getattr(torch, chosen.precision)
        )
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval().requires_grad_(False)


def measured(model: Any, batch: int, chosen: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Return the rows at one batch size: the first token, and the tower alone."""
    cases = [case_of(model, name, outputs, batch, chosen) for name, outputs in CASES.items()]
    torch.compiler.reset()
    with torch.inference_mode(), room_for(2 * len(cases)):
        for measure, call in (("first token", Case.first_token), ("tower", Case.look)):
            times = timed(cases, call, chosen)
            for case, seconds in zip(cases, times, strict=True):
                yield row_of(case, measure, seconds, times[0], batch, chosen)


def case_of(
    model: Any, name: str, outputs: Outputs | None, batch: int, chosen: argparse.Namespace
) -> Case:
    model, schedule = sharing_copy(model), Schedule()
    tower: Any = model.model.vision_tower
    if outputs is not None:
        schedule = schedule_for(tower, cost=chosen.cost, outputs=outputs)
        prune_(tower, schedule, outputs=outputs)
    words = torch.arange(10, 10 + WORDS, device=chosen.device)
    ids = torch.cat((words.new_full((image_tokens(model),), IMAGE), words)).expand(batch, -1)
    shape = (batch, 3, tower.config.image_size, tower.config.image_size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    images = images.to(chosen.device, model.dtype)
    prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": images}
    case = Case(name, schedule, model, prompt)
    if chosen.compile:
        with torch.inference_mode():
            case.look()  # the library puts its hooks on in the first call
        tower.compile(dynamic=False)
        model.model.language_model.compile(dynamic=False)
    return case


def timed(
    cases: list[Case], call: Callable[[Case], object], chosen: argparse.Namespace
) -> list[Timings]:
    """Return the timings of each case, taken in turn."""
    for case in cases:
        for _ in range(2):
            call(case)
    calls = [partial(call, case) for case in cases]
    *_, timings = race(calls, chosen.rounds, stopwatch(chosen.device))
    return timings


def row_of(
    case: Case,
    measure: str,
    seconds: Timings,
    unpruned: Timings,
    batch: int,
    chosen: argparse.Namespace,
) -> dict[str, object]:
    row: dict[str, object] = {
        "measure": measure,
        "name": f"{case.name}: {image_tokens(case.model)} image tokens",
        "method": records.method_json(case.schedule),
        "schedule": case.schedule.one_line(),
        "gmacs": round(gmacs(case.tower), 6),  # of the tower
        "batch": batch,
        "precision": chosen.precision,
        "mode": "compile" if chosen.compile else "eager",
        "images_per_second": round(batch / seconds.median, 1),
        "latency_ms": round(1e3 * seconds.median, 3),
        "latency_spread_ms": round(1e3 * seconds.spread, 3),
        "speedup": round(seconds.speedup(unpruned), 4),
        "seed": 0,
    }
    shown = (row[column] for column in ("batch", "measure", "name", "latency_ms", "speedup"))
    print(" | ".join(map(str, shown)), flush=True)
    return row


if __name__ == "__main__":
    main()
