"""The page: gradio's controls around our panels, wired to the controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from ..methods import names
from .connections import impatient
from .controller import METHOD, PERCENT, RIVAL, Controller, PageUpdate, TabState
from .firewall import Firewall
from .server import ADDRESS
from .uploads import MOST_BYTES
from .view_model import NO_RIVAL, PERCENTS

TITLE = "Zero-TPrune: see what a Vision Transformer can do without"
_HEADER = (
    "<header><h1>Which patches does a Vision Transformer need?</h1>"
    "<p>Choose an image and move the slider: the rest is pruned while the model runs, with no "
    "training.</p></header>"
)
_FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
_MOST_TABS = 64
_MOST_WAITING = 64


def build(controller: Controller) -> gr.Blocks:
    """The page, wired to the controller."""
    catalog = controller.catalog
    blocks = gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True)
    with blocks:
        tab = gr.State(TabState())
        gr.HTML(_HEADER, elem_id="head")
        with gr.Row(elem_id="body", equal_height=False):
            with gr.Column(scale=1, min_width=300, elem_id="choices"):
                chooser = gr.HTML(
                    controller.chooser(catalog.opening),
                    js_on_load=_script("chooser.js").replace("__MOST_BYTES__", str(MOST_BYTES)),
                    elem_id="chooser",
                )
                model = gr.Dropdown(
                    list(catalog.entries), value=catalog.opening, label="Model", elem_id="model"
                )
                method = gr.Dropdown(names(), value=METHOD, label="Method", elem_id="method")
                rival = gr.Dropdown(
                    [NO_RIVAL, *names()], value=RIVAL, label="Beside it, at the same budget",
                    elem_id="rival",
                )  # fmt: skip
                with gr.Accordion("Edit the stages", open=False, elem_id="edit"):
                    stages = gr.HTML(js_on_load=_script("stages.js"), elem_id="stages")
            with gr.Column(scale=3, min_width=320, elem_id="results"):
                budget = gr.Slider(
                    *PERCENTS, PERCENT, step=1, elem_id="budget",
                    label="Budget slider: % of the unpruned model's GMACs",
                )  # fmt: skip
                status = gr.HTML(elem_id="status")
                photo = gr.HTML(elem_id="photo")
                view = gr.HTML(js_on_load=_script("view.js"), elem_id="view")
                facts = gr.HTML(elem_id="facts")
                lines = _code_box()
        parts = [status, photo, view, facts, stages, lines, budget, chooser, method]
        form = model, method, rival, budget
        _wire(controller, blocks, tab, form, chooser, stages, parts, facts)
    blocks.queue(default_concurrency_limit=1, api_open=False, max_size=_MOST_WAITING)
    return blocks


def _code_box() -> gr.Code:
    """As high as the code, lines wrapped: nothing of it is out of sight."""
    return gr.Code(
        language="python", label="The same in Python", interactive=False, show_line_numbers=False,
        buttons=["copy"], lines=1, max_lines=None, wrap_lines=True, elem_id="lines",
    )  # fmt: skip


def _wire(
    controller: Controller,
    blocks: gr.Blocks,
    tab: gr.State,
    form: tuple[Any, Any, Any, Any],
    chooser: gr.HTML,
    stages: gr.HTML,
    parts: list[Any],
    facts: gr.HTML,
) -> None:
    """Every event updates the page, then measures; only the last of many moves counts."""
    model, method, rival, budget = form
    given: dict[str, Any] = {
        "inputs": [tab, *form],
        "outputs": parts,
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "preprocess": False,  # the controller checks what was sent, and says what is wrong
        "concurrency_id": "update",
        "api_visibility": "private",
    }

    def answer(action: Callable[..., PageUpdate]) -> Callable[..., list[Any]]:
        # gradio tells by its annotation which argument is the event, and takes it by position.
        def handle(own: TabState, a: Any, b: Any, c: Any, d: Any, event: gr.EventData) -> list[Any]:
            sent = event._data if isinstance(event._data, dict) else {}
            return _outputs(action(own, (a, b, c, d), sent))

        return handle

    chosen = [blocks.load, model.input, method.input, rival.input]
    events = [
        gr.on(chosen, answer(controller.select), **given),
        budget.input(answer(controller.set_budget), **given),
        stages.submit(answer(controller.edit), **given),
        chooser.select(answer(controller.show_example), **given),
        chooser.upload(answer(controller.upload), **given),
    ]
    _measure_after(events, controller, tab, facts)


def _measure_after(
    events: list[Any], controller: Controller, tab: gr.State, facts: gr.HTML
) -> None:
    def measure(own: TabState) -> Any:
        return controller.measure(own) or gr.skip()

    # Each must be answered: while an older one is under way, gradio would drop it ("once").
    for event in events:
        event.then(measure, [tab], [facts], show_progress="hidden", concurrency_id="measure",
                   trigger_mode="multiple", api_visibility="private")  # fmt: skip


def _outputs(update: PageUpdate) -> list[Any]:
    *parts, method = astuple(update)
    if method is not None:  # a file may name one that has no name of its own on the list
        method = gr.Dropdown(list(dict.fromkeys([*names(), method])), value=method)
    return [gr.skip() if part is None else part for part in (*parts, method)]


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def launch(blocks: gr.Blocks, port: int | None) -> str:
    """Serve the page in the background; its address. Nothing is shared, recorded or reported."""
    theme = gr.themes.Base(
        primary_hue="violet", neutral_hue="slate", font=list(_FONTS), font_mono=list(_MONO)
    )

    async def drop(session: str) -> None:
        queue = blocks._queue
        await queue.clean_events(session_hash=session)
        queue.pending_messages_per_session.pop(session, None)
        queue.pending_event_ids_session.pop(session, None)

    _, address, _ = blocks.launch(
        server_name=ADDRESS, server_port=port, share=False, quiet=True, prevent_thread_lock=True,
        show_error=False, footer_links=[], run_history=False, enable_monitoring=False,
        ssr_mode=False, pwa=False, mcp_server=False, allowed_paths=[], max_file_size=MOST_BYTES,
        state_session_capacity=_MOST_TABS, theme=theme, css=_script("page.css"),
        app_kwargs={"middleware": [Middleware(Firewall, drop=drop)], "openapi_url": None},
    )  # fmt: skip
    # For all connections from now on: gradio leaves no other way to set it.
    config = blocks.server.config
    config.http_protocol_class = impatient(config.http_protocol_class)
    return str(address)
