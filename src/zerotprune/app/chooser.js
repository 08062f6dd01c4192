// Examples to press, and one's own image by choosing, dropping or pasting. It is sent as text.
const MOST = __MOST_BYTES__;

function send(file) {
  if (!file) return;
  if (file.size > MOST) {
    trigger("upload", { refused: "large" });
    return;
  }
  const reader = new FileReader();
  reader.onload = () => trigger("upload", { text: String(reader.result).split(",", 2)[1] || "" });
  reader.onerror = () => trigger("upload", { refused: "unread" });
  reader.readAsDataURL(file);
}

function press(thumb) {
  for (const each of element.querySelectorAll(".thumb")) {
    each.setAttribute("aria-pressed", each === thumb ? "true" : "false");
  }
}

element.addEventListener("click", (event) => {
  const thumb = event.target.closest(".thumb");
  if (!thumb) return;
  press(thumb);
  const at = thumb.dataset.at;
  trigger("select", { at: at === "own" ? at : Number(at) });
});
element.addEventListener("change", (event) => {
  if (!event.target.matches(".own")) return;
  event.stopPropagation();
  send(event.target.files[0]);
  event.target.value = "";
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  element.addEventListener(kind, (event) => {
    event.preventDefault();
    const drop = element.querySelector(".drop");
    if (drop) drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop") send(event.dataTransfer.files[0]);
  });
}
document.addEventListener("paste", (event) => {
  const files = event.clipboardData ? event.clipboardData.files : [];
  if (files.length) send(files[0]);
});
