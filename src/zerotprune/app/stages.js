// The schedule as a table: edited here, checked by the server, saved and loaded as JSON.
function number(input) {
  return input.value === "" ? null : Number(input.value);
}

function typed() {
  const stages = [...element.querySelectorAll("tbody tr")].map((row) => {
    const stage = {};
    for (const input of row.querySelectorAll("input")) stage[input.name] = number(input);
    return stage;
  });
  const { method } = JSON.parse(element.querySelector(".stages").dataset.json);
  return JSON.stringify({ version: 2, method, stages });  // edited stages have no budget
}

function save() {
  const text = element.querySelector(".stages").dataset.json;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "schedule.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

element.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.matches(".add")) {
    const row = element.querySelector("template").content.cloneNode(true);
    element.querySelector("tbody").append(row);
    element.querySelector("tbody tr:last-child input").focus();
  } else if (button.matches(".remove")) {
    button.closest("tr").remove();
  } else if (button.matches(".apply")) {
    trigger("submit", { text: typed() });
  } else if (button.matches(".download")) {
    save();
  } else if (button.matches(".load")) {
    element.querySelector(".json").click();
  }
});
element.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("td input")) {
    event.preventDefault();
    trigger("submit", { text: typed() });
  }
});
element.addEventListener("change", (event) => {
  if (!event.target.matches(".json")) return;
  event.stopPropagation();
  const file = event.target.files[0];
  event.target.value = "";
  if (!file) return;
  if (file.size > 65536) return trigger("submit", { text: "" });
  file.text().then((text) => trigger("submit", { text }));
});
