"""The page: gradio's controls around our HTML, wired to the controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from fastapi import FastAPI
from starlette.middleware import Middleware

from ..methods import names
from .controller import METHOD, PERCENT, RIVAL, Controller, PageUpdate, TabState
from .uploads import MAX_UPLOAD_BYTES
from .view_model import NO_RIVAL, PERCENTS

_TITLE = "Zero-TPrune: see what a Vision Transformer can do without"
_HEADER = (
    "<header><h1>Which patches does a Vision Transformer need?</h1>"
    "<p>Choose an image and move the slider. The model drops or merges the other patches as it "
    "runs; it was not trained for this.</p></header>"
)
_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
_MONO_FONTS = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
_MAX_TABS = 64
_MAX_WAITING = 64
#: what our HTML controls send with their events; gradio's controls send none of it
_EVENT_FIELDS = ("at", "text", "refused")


@dataclass(frozen=True)
class _Controls:
    """The controls of the page."""

    chooser: gr.HTML
    model: gr.Dropdown
    method: gr.Dropdown
    rival: gr.Dropdown
    stages: gr.HTML
    budget: gr.Slider


def build_page(controller: Controller) -> gr.Blocks:
    """Lay out the page and connect it to the controller."""
    blocks = gr.Blocks(title=_TITLE, analytics_enabled=False, fill_width=True)
    blocks.state_session_capacity = _MAX_TABS
    with blocks:
        tab = gr.State(TabState())
        gr.HTML(_HEADER, elem_id="head")
        with gr.Row(elem_id="body", equal_height=False):
            with gr.Column(scale=1, min_width=300, elem_id="choices"):
                chooser, model, method, rival, stages = _choices(controller)
            with gr.Column(scale=3, min_width=320, elem_id="results"):
                budget = gr.Slider(
                    *PERCENTS,
                    PERCENT,
                    step=1,
                    label="Budget: % of the unpruned model's GMACs",
                    elem_id="budget",
                )
                status = gr.HTML(elem_id="status")
                photo = gr.HTML(elem_id="photo")
                view = gr.HTML(js_on_load=_asset("view.js"), elem_id="view")
                facts = gr.HTML(elem_id="facts")
                code = _code_box()
        # In the order of PageUpdate's fields.
        outputs = [status, photo, view, facts, stages, code, budget, chooser, method]
        controls = _Controls(chooser, model, method, rival, stages, budget)
        _connect(controller, blocks, tab, controls, outputs, facts)
    blocks.queue(default_concurrency_limit=1, api_open=False, max_size=_MAX_WAITING)
    return blocks


def _choices(controller: Controller) -> tuple[Any, Any, Any, Any, Any]:
    catalog = controller.catalog
    script = _asset("chooser.js").replace("__MAX_BYTES__", str(MAX_UPLOAD_BYTES))
    chooser = gr.HTML(controller.chooser(catalog.opening), js_on_load=script, elem_id="chooser")
    model = gr.Dropdown(
        list(catalog.entries), value=catalog.opening, label="Model", elem_id="model"
    )
    method = gr.Dropdown(names(), value=METHOD, label="Method", elem_id="method")
    rival = gr.Dropdown(
        [NO_RIVAL, *names()], value=RIVAL, label="Compare with, at the same cost", elem_id="rival"
    )
    with gr.Accordion("Edit the stages", open=False, elem_id="edit"):
        stages = gr.HTML(js_on_load=_asset("stages.js"), elem_id="stages")
    return chooser, model, method, rival, stages


def _code_box() -> gr.Code:
    """Return a box that shows all of the code: as high as needed, with wrapped lines."""
    return gr.Code(
        language="python",
        label="The same in Python",
        interactive=False,
        show_line_numbers=False,
        buttons=["copy"],
        lines=1,
        max_lines=None,
        wrap_lines=True,
        elem_id="lines",
    )


def _connect(
    controller: Controller,
    blocks: gr.Blocks,
    tab: gr.State,
    controls: _Controls,
    outputs: list[Any],
    facts: gr.HTML,
) -> None:
    """Let every event update the page, then measure. Of many moves only the last counts."""
    form = [controls.model, controls.method, controls.rival, controls.budget]
    options: dict[str, Any] = {
        "inputs": [tab, *form],
        "outputs": outputs,
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "preprocess": False,  # the controller checks the values and says what is wrong
        "concurrency_id": "update",
        "api_visibility": "private",
    }

    def handler(action: Callable[..., PageUpdate]) -> Callable[..., list[Any]]:
        # gradio finds the event by its annotation and passes it by position.
        def handle(
            state: TabState, model: Any, method: Any, rival: Any, budget: Any, event: gr.EventData
        ) -> list[Any]:
            update = action(state, (model, method, rival, budget), _event_fields(event))
            return _output_values(update)

        return handle

    selected = [blocks.load, controls.model.input, controls.method.input, controls.rival.input]
    events = [
        gr.on(selected, handler(controller.select), **options),
        controls.budget.input(handler(controller.set_budget), **options),
        controls.stages.submit(handler(controller.edit), **options),
        controls.chooser.select(handler(controller.show_example), **options),
        controls.chooser.upload(handler(controller.upload), **options),
    ]

    def measure(state: TabState) -> Any:
        return controller.measure(state) or gr.skip()

    for event in events:
        # "multiple": with "once" gradio drops a measurement while an older one is running.
        event.then(
            measure,
            [tab],
            [facts],
            show_progress="hidden",
            concurrency_id="measure",
            trigger_mode="multiple",
            api_visibility="private",
        )


def _event_fields(event: gr.EventData) -> dict[str, object]:
    try:
        return {name: getattr(event, name, None) for name in _EVENT_FIELDS}
    except TypeError:  # the event came without data
        return {}


def _output_values(update: PageUpdate) -> list[Any]:
    *parts, method = astuple(update)
    if method is not None:  # a file may name a method that the list does not offer
        method = gr.Dropdown(list(dict.fromkeys([*names(), method])), value=method)
    return [gr.skip() if part is None else part for part in (*parts, method)]


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def mount(blocks: gr.Blocks, *middleware: Any) -> FastAPI:
    """Return the page as an application. Nothing is shared, recorded or reported.

    Args:
        blocks: The page.
        middleware: ASGI classes to put around gradio's routes.
    """
    theme = gr.themes.Base(
        primary_hue="violet", neutral_hue="slate", font=_FONTS, font_mono=_MONO_FONTS
    )
    app: FastAPI = gr.mount_gradio_app(
        FastAPI(openapi_url=None),
        blocks,
        path="/",
        app_kwargs={"openapi_url": None, "middleware": [Middleware(cls) for cls in middleware]},
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        show_error=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        allowed_paths=[],
        max_file_size=MAX_UPLOAD_BYTES,
        theme=theme,
        css=_asset("page.css"),
    )
    return app
