"use strict";
// Everything reads without these scripts; they add copying, finding, filtering, sorting, and the way from a mark to its Case.
const page = {
  all: (selector, root = document) => [...root.querySelectorAll(selector)],
  data: JSON.parse(document.getElementById("data").textContent),
  make(tag, text = "", attributes = {}) {
    const node = document.createElement(tag);
    node.textContent = text;
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  },
};

// The state that a link carries: #?q=...&status=FAIL,ERROR&moved=1&case=... ; other hashes are places in the page.
page.state = () => new URLSearchParams(location.hash.startsWith("#?") ? location.hash.slice(2) : "");
// page.keep changes it; own: in an entry of its own in the history, which the browser's Back leaves again.
page.keep = (changes, own = false) => {
  const state = page.state();
  for (const [name, value] of Object.entries(changes)) {
    if (value) state.set(name, value);
    else state.delete(name);
  }
  const text = state.toString();
  const to = text ? `#?${text}` : "#";
  if (own) history.pushState({ own }, "", to);
  else if (text || location.hash.startsWith("#?")) history.replaceState(history.state, "", to);
};

// A kernel's name, which may break after an underscore, and nowhere else where that is enough.
page.kernel = (name) => {
  const node = page.make("span", "", { class: "kernel-name" });
  name.split(/(?<=_)/).forEach((part, i) => node.append(...(i ? [page.make("wbr"), part] : [part])));
  return node;
};

page.badge = (status) => {
  const badge = page.make("span", "", { class: `badge s-${status}` });
  badge.append(page.make("span", page.data.glyphs[status], { "aria-hidden": "true" }), ` ${status}`);
  return badge;
};

page.copier = (block) => {
  const code = block.querySelector("code");
  const button = page.make("button", "Copy", { type: "button", "aria-label": "Copy the replay line" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
  block.append(button);
};
page.all(".replay").forEach(page.copier);
for (const node of page.all(".with-script")) node.hidden = false;
