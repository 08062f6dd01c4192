"""The Python lines that make what is on the page."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..methods import Method, ZeroTPrune
from ..schedule import Schedule, Stage
from .catalog import BUILT_IN
from .view_model import ViewModel


def write_python(shown: ViewModel) -> str:
    """Ready to run: the model, the stages, the method. A rival comes after, at the same budget."""
    methods = [type(each.contender.method) for each in shown.methods]
    methods = [kind for kind in dict.fromkeys(methods) if kind is not ZeroTPrune]
    built_in = shown.entry.name == BUILT_IN
    lines = ["import zerotprune as ztp"] if built_in else ["import timm, zerotprune as ztp"]
    if built_in:
        lines.append("from zerotprune.data import demo")
    if methods:
        names = ", ".join(sorted(kind.__name__ for kind in methods))
        lines.append(f"from zerotprune.methods import {names}")
    lines += ["", f"model = {_write_model(shown)}"]
    for number, each in enumerate(shown.methods):
        chosen = each.contender
        if number:
            lines += ["", f"# beside it: {chosen.name} at the same budget"]
        else:
            lines.append(f"# {chosen.name}: {each.gmacs:.4f} of {shown.entry.unpruned:.4f} GMACs")
        lines += [*_write_schedule(chosen.schedule), _write_call(chosen.method)]
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
    given = ([str(stage.block), *_list_changes(stage, Stage(stage.block))]
             for stage in schedule.stages)  # fmt: skip
    stages = [f"    ztp.Stage({', '.join(each)})," for each in given]
    return ["schedule = ztp.Schedule((", *stages, "))"]


def _write_call(method: Method) -> str:
    made = f"{type(method).__name__}({', '.join(_list_changes(method, type(method)()))})"
    if isinstance(method, ZeroTPrune):
        made = f"ztp.{made}"
    return f"ztp.prune_(model, schedule{'' if made == 'ztp.ZeroTPrune()' else ', ' + made})"


def _list_changes(made: Any, usual: Any) -> list[str]:
    """What differs from the defaults, as keyword arguments."""
    return [
        f"{each.name}={getattr(made, each.name)!r}"
        for each in fields(made)
        if getattr(made, each.name) != getattr(usual, each.name)
    ]
