// Choose an example, or send an image: picked, dropped or pasted. It is sent as base64.
const MAX_BYTES = __MAX_BYTES__;

function send(file) {
  if (!file) return;
  if (file.size > MAX_BYTES) {
    trigger("upload", { refused: "large" });
    return;
  }
  const reader = new FileReader();
  reader.onload = () => trigger("upload", { text: String(reader.result).split(",", 2)[1] || "" });
  reader.onerror = () => trigger("upload", { refused: "unread" });
  reader.readAsDataURL(file);
}

function press(thumb) {
  for (const button of element.querySelectorAll(".thumb")) {
    button.setAttribute("aria-pressed", button === thumb ? "true" : "false");
  }
}

element.addEventListener("click", (event) => {
  const thumb = event.target.closest(".thumb");
  if (!thumb) return;
  press(thumb);
  const at = thumb.dataset.at;
  trigger("select", { at: at === "uploaded" ? at : Number(at) });
});
element.addEventListener("change", (event) => {
  if (!event.target.matches(".file")) return;
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
