// The slider over the stages: all of them are on the page already, one is shown.
const seen = { at: null, partners: false, timer: null }; // at null: the last stage

function show() {
  const view = element.querySelector(".view");
  if (!view) return;
  const blocks = JSON.parse(view.dataset.blocks);
  const last = blocks.length - 1;
  const at = seen.at === null ? last : Math.min(seen.at, last);
  const block = blocks[at];
  const range = view.querySelector(".stage");
  range.value = at;
  const words = block === 0 ? "before the first stage" : `after block ${block} of ${view.dataset.depth}`;
  range.setAttribute("aria-valuetext", words);
  view.querySelector(".where").textContent = last === 0 ? "nothing is pruned" : words;
  view.querySelector(".partners-on").checked = seen.partners;
  view.classList.toggle("with-partners", seen.partners);
  for (const group of view.querySelectorAll("svg, figcaption")) {
    let shown = null;
    for (const part of group.querySelectorAll("[data-block]")) {
      part.classList.remove("on");
      if (Number(part.dataset.block) <= block) shown = part;
    }
    if (shown) shown.classList.add("on");
  }
}

function stop() {
  clearInterval(seen.timer);
  seen.timer = null;
  const play = element.querySelector(".play");
  if (play) play.textContent = "▶";
}

function move(at) {
  const range = element.querySelector(".stage");
  seen.at = at >= Number(range.max) ? null : at;
  show();
}

element.addEventListener("input", (event) => {
  if (event.target.matches(".stage")) {
    stop();
    move(Number(event.target.value));
  } else if (event.target.matches(".partners-on")) {
    seen.partners = event.target.checked;
    show();
  }
});

element.addEventListener("click", (event) => {
  if (!event.target.closest(".play")) return;
  if (seen.timer) return stop();
  move(0);
  element.querySelector(".play").textContent = "❚❚";
  seen.timer = setInterval(() => {
    const range = element.querySelector(".stage");
    if (!range || range.value === range.max) return stop();
    move(Number(range.value) + 1);
  }, 700);
});

watch("value", () => { stop(); show(); });
show();
