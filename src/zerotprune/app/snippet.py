"""The Python lines that make what is on the page."""

from __future__ import annotations

from ..methods import name_of, to_data
from ..schedule import Schedule, Stage
from .catalog import BUILT_IN
from .view_model import ViewModel


def write_python(shown: ViewModel) -> str:
    """Ready to run: the model, the stages, the method. A rival comes after, at the same budget."""
    built_in = shown.entry.name == BUILT_IN
    lines = ["import zerotprune as ztp"] if built_in else ["import timm, zerotprune as ztp"]
    if built_in:
        lines.append("from zerotprune.data import demo")
    lines += ["", f"model = {_write_model(shown)}"]
    for number, each in enumerate(shown.methods):
        if number:
            lines += ["", f"# beside it: {each.name} at the same budget"]
        else:
            lines.append(f"# {each.name}: {each.gmacs:.4f} of {shown.entry.unpruned:.4f} GMACs")
        lines += [*_write_schedule(each.schedule), "ztp.prune_(model, schedule)"]
        if not number:
            lines.append("logits = model(images)  # the same call as before")
    return "\n".join(lines) + "\n"


def _write_model(shown: ViewModel) -> str:
    if shown.entry.name == BUILT_IN:
        return "demo.model()"
    made = f'timm.create_model("{shown.entry.name}", pretrained=True).eval()'
    return made + ("  # here with weights of its own" if shown.entry.own_weights else "")


def _write_schedule(schedule: Schedule) -> list[str]:
    if not schedule.stages:
        return ["schedule = ztp.Schedule()  # nothing is pruned"]
    stages = [f"    {_write_stage(stage)}," for stage in schedule.stages]
    return ["schedule = ztp.Schedule((", *stages, f"), {_write_method(schedule)})"]


def _write_stage(stage: Stage) -> str:
    given = [f"{stage.block}"]
    for name, usual in (("keep", 1.0), ("similar", 0), ("rounds", None)):
        value = getattr(stage, name)
        if value != usual:
            given.append(f"{name}={value!r}")
    return f"ztp.Stage({', '.join(given)})"


def _write_method(schedule: Schedule) -> str:
    """By its name, where that says all; else with the options that differ from its defaults."""
    data, name = to_data(schedule.method), name_of(schedule.method)
    if not data["options"] or name != data["name"]:
        return f'"{name}"'
    options = ", ".join(f"{key}={value!r}" for key, value in data["options"].items())
    return f"ztp.methods.{type(schedule.method).__name__}({options})"
