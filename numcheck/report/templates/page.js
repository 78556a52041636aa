"use strict";
// Everything reads without this script; it adds copying, finding and filtering.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  for (const block of all(".replay")) {
    const button = document.createElement("button");
    const code = block.querySelector("code");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the replay line");
    button.addEventListener("click", async () => {
      const select = () => {
        const range = document.createRange();
        range.selectNodeContents(code);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
      };
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        select();
        button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
    block.append(button);
  }

  const filter = document.querySelector(".filter");
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const chips = document.querySelector(".chips");
  const entries = all("[data-find]").map((node) => ({
    node,
    text: node.textContent.toLowerCase(),
    cells: all("td[data-status]", node),
  }));
  const statuses = new Set(all("[data-status]").map((node) => node.dataset.status));
  const wanted = new Set();

  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { node, text, cells } of entries) {
      const own = cells.length ? cells.map((cell) => cell.dataset.status) : [node.dataset.status].filter(Boolean);
      const status = !wanted.size || own.some((name) => wanted.has(name));
      const keep = status && words.every((word) => text.includes(word));
      node.classList.toggle("hide", !keep);
      for (const cell of cells) cell.classList.toggle("dim", wanted.size > 0 && !wanted.has(cell.dataset.status));
      shown += keep;
    }
    found.textContent = words.length || wanted.size ? `${shown} of ${entries.length} entries` : "";
  };

  for (const status of ["FAIL", "ERROR", "ORDER_DEPENDENT", "VACUOUS", "UNAVAILABLE", "PASS"]) {
    if (!statuses.has(status)) continue;
    const chip = document.createElement("button");
    chip.type = "button";
    chip.textContent = status;
    chip.setAttribute("aria-pressed", "false");
    chip.addEventListener("click", () => {
      if (!wanted.delete(status)) wanted.add(status);
      chip.setAttribute("aria-pressed", String(wanted.has(status)));
      apply();
    });
    chips.append(chip);
  }
  search.addEventListener("input", apply);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, textarea")) {
      event.preventDefault();
      search.focus();
    }
    if (event.key === "Escape" && event.target === search) {
      search.value = "";
      apply();
    }
  });
  filter.hidden = false;
})();
