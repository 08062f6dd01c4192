"""The page: gradio's controls around our panels, wired to the desk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from ..budgets.contenders import METHODS
from . import controls as ours
from .controller import METHOD, PERCENT, RIVAL, Desk, Session, Shown
from .firewall import ADDRESS, Gate
from .uploads import MOST_BYTES
from .view_model import NO_RIVAL, PERCENTS

TITLE = "Zero-TPrune: see what a Vision Transformer can do without"
_HEADER = (
    "<header><h1>Which patches does a Vision Transformer need?</h1>"
    "<p>Choose a picture and turn the dial: the rest is pruned while the model runs, with no "
    "training.</p></header>"
)
_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
_MOST_SESSIONS = 64
_MOST_WAITING = 64


def build(desk: Desk) -> gr.Blocks:
    """The page, wired to the desk."""
    blocks = gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True)
    with blocks:
        session = gr.State(Session())
        gr.HTML(_HEADER, elem_id="head")
        with gr.Row(elem_id="body", equal_height=False):
            with gr.Column(scale=1, min_width=300, elem_id="choices"):
                chooser = gr.HTML(
                    ours.chooser(desk.examples),
                    js_on_load=_script("chooser.js").replace("__MOST_BYTES__", str(MOST_BYTES)),
                    elem_id="chooser",
                )
                model = gr.Dropdown(list(desk.offers), label="Model", elem_id="model")
                method = gr.Dropdown(list(METHODS), value=METHOD, label="Method", elem_id="method")
                rival = gr.Dropdown(
                    [NO_RIVAL, *METHODS], value=RIVAL, label="Beside it, at the same budget",
                    elem_id="rival",
                )  # fmt: skip
                with gr.Accordion("Edit the stages", open=False, elem_id="edit"):
                    stages = gr.HTML(js_on_load=_script("stages.js"), elem_id="stages")
            with gr.Column(scale=3, min_width=320, elem_id="results"):
                dial = gr.Slider(
                    *PERCENTS, PERCENT, step=1, elem_id="dial",
                    label="Budget: % of the unpruned model's GMACs",
                )  # fmt: skip
                status = gr.HTML(elem_id="status")
                picture = gr.HTML(elem_id="picture")
                view = gr.HTML(js_on_load=_script("view.js"), elem_id="view")
                facts = gr.HTML(elem_id="facts")
                lines = gr.Code(
                    language="python", label="The same in Python", interactive=False,
                    show_line_numbers=False, buttons=["copy"], lines=1, max_lines=18,
                    elem_id="lines",
                )  # fmt: skip
        _wire(desk, blocks, session, (model, method, rival, dial), chooser, stages,
              [status, picture, view, facts, stages, lines, dial], facts)  # fmt: skip
    blocks.queue(default_concurrency_limit=1, api_open=False, max_size=_MOST_WAITING)
    return blocks


def _wire(
    desk: Desk,
    blocks: gr.Blocks,
    session: gr.State,
    controls: tuple[Any, Any, Any, Any],
    chooser: gr.HTML,
    stages: gr.HTML,
    shown: list[Any],
    facts: gr.HTML,
) -> None:
    """Every event updates the screen, then measures it; only the last of many turns counts."""
    model, method, rival, dial = controls
    given: dict[str, Any] = {
        "inputs": [session, *controls],
        "outputs": shown,
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "preprocess": False,  # the desk checks what was sent, and says what is wrong
        "concurrency_id": "look",
        "api_visibility": "private",
    }

    def sent(event: gr.EventData) -> dict[str, Any]:
        return event._data if isinstance(event._data, dict) else {}

    def choose(own: Session, *values: object) -> list[Any]:
        return _parts(desk.choose(own, values))

    def turn(own: Session, *values: object) -> list[Any]:
        return _parts(desk.dial(own, values))

    # gradio tells by its annotation which argument is the event, and takes it by position.
    def edit(own: Session, a: Any, b: Any, c: Any, d: Any, event: gr.EventData) -> list[Any]:
        return _parts(desk.edit(own, (a, b, c, d), sent(event).get("text")))

    def select(own: Session, a: Any, b: Any, c: Any, d: Any, event: gr.EventData) -> list[Any]:
        return _parts(desk.example(own, (a, b, c, d), sent(event).get("at")))

    def upload(own: Session, a: Any, b: Any, c: Any, d: Any, event: gr.EventData) -> list[Any]:
        return _parts(desk.upload(own, (a, b, c, d), sent(event)))

    def measure(own: Session) -> Any:
        return desk.measure(own) or gr.skip()

    events = [
        gr.on([blocks.load, model.input, method.input, rival.input], choose, **given),
        gr.on([dial.input], turn, **given),
        stages.submit(edit, **given),
        chooser.select(select, **given),
        chooser.upload(upload, **given),
    ]
    for event in events:
        event.then(measure, [session], [facts], show_progress="hidden", concurrency_id="measure",
                   api_visibility="private")  # fmt: skip


def _parts(shown: Shown) -> list[Any]:
    parts = (shown.picture, shown.view, shown.facts, shown.stages, shown.lines, shown.percent)
    return [shown.status, *(gr.skip() if part is None else part for part in parts)]


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def launch(blocks: gr.Blocks, port: int | None) -> str:
    """Serve the page in the background; its address. Nothing is shared, recorded or reported."""
    theme = gr.themes.Base(
        primary_hue="blue", neutral_hue="slate", font=list(_FONTS), font_mono=list(_MONO)
    )
    _, address, _ = blocks.launch(
        server_name=ADDRESS, server_port=port, share=False, quiet=True, prevent_thread_lock=True,
        show_error=False, footer_links=[], run_history=False, enable_monitoring=False,
        ssr_mode=False, pwa=False, mcp_server=False, allowed_paths=[], max_file_size=MOST_BYTES,
        state_session_capacity=_MOST_SESSIONS, theme=theme, css=_script("page.css"),
        app_kwargs={"middleware": [Middleware(Gate)], "openapi_url": None},
    )  # fmt: skip
    return str(address)
