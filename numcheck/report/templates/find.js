// Search and filters over the sections and over all Cases; a link carries them.
(() => {
  const { all, data, make } = page;
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const chips = document.querySelector(".chips");
  const entries = all("[data-find]").map((node) => ({
    node,
    text: node.textContent.toLowerCase(),
    cells: all("td[data-status]", node),
    own: (node.dataset.status ?? "").split(" ").filter(Boolean),
  }));
  const statuses = new Set([...entries.flatMap((e) => [...e.own, ...e.cells.map((cell) => cell.dataset.status)])]);
  const wanted = new Set();
  const buttons = new Map();
  const texts = [];
  let moved = false;

  const text = (number) => {
    if (texts[number] === undefined) {
      const { spec, device, law, status, phase, short } = page.row(number);
      texts[number] = `${spec} ${device} ${law} ${status} ${phase} ${short}`.toLowerCase();
    }
    return texts[number];
  };

  const table = document.getElementById("cases-table");
  const told = document.getElementById("cases-told");
  const cell = (content, attributes) => {
    const node = make("td", typeof content === "string" ? content : "", attributes);
    if (typeof content !== "string") node.append(content);
    return node;
  };
  const line = (number) => {
    const row = page.row(number);
    const head = make("th", "", { scope: "row" });
    const spot = make("span", row.short, { "data-case": row.key });
    head.append(spot);
    const kernel = make("span", row.spec, { class: "kernel-name" });
    const where = cell(kernel);
    where.append(make("span", row.device, { class: "ran" }));
    const badge = make("span", row.status, { class: `badge s-${row.status}` });
    const line = make("tr");
    const room = row.room === null ? "none" : String(row.room);
    line.append(head, where, cell(row.law), cell(badge), cell(row.phase), cell(room, { class: "n" }));
    page.link(spot);
    return line;
  };
  const cases = (words) => {
    if (!table) return;
    const kept = data.order.filter((number) => {
      const status = data.statuses[data.rows[number][2]];
      return (!wanted.size || wanted.has(status)) && words.every((word) => text(number).includes(word));
    });
    table.tBodies[0].replaceChildren(...kept.slice(0, data.shown).map(line));
    const all = data.rows.length.toLocaleString("en");
    const some = kept.length > data.shown ? `, the first ${data.shown} shown` : "";
    told.textContent = `${kept.length.toLocaleString("en")} of ${all} judged Cases${some}`;
    page.unsorted?.(table);
  };

  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { node, text, cells, own } of entries) {
      const here = cells.length ? cells.map((one) => one.dataset.status) : own;
      const status = !wanted.size || here.some((name) => wanted.has(name));
      const keep = status && words.every((word) => text.includes(word)) && (!moved || "moved" in node.dataset || !node.matches(".card"));
      node.classList.toggle("hide", !keep);
      for (const one of cells) one.classList.toggle("dim", wanted.size > 0 && !wanted.has(one.dataset.status));
      shown += keep;
    }
    for (const [name, button] of buttons) button.setAttribute("aria-pressed", String(name === "moved" ? moved : wanted.has(name)));
    found.textContent = words.length || wanted.size || moved ? `${shown} of ${entries.length} entries` : "";
    cases(words);
    page.keep({ q: search.value.trim(), status: [...wanted].join(","), moved: moved ? "1" : "" });
  };

  const chip = (name, label, toggle) => {
    const button = make("button", label, { type: "button", "aria-pressed": "false" });
    button.addEventListener("click", () => { toggle(); apply(); });
    buttons.set(name, button);
    chips.append(button);
  };
  for (const status of data.statuses) {
    if (statuses.has(status)) chip(status, status, () => { if (!wanted.delete(status)) wanted.add(status); });
  }
  if (document.querySelector("[data-moved]")) chip("moved", "what moved", () => { moved = !moved; });

  // The hash is what a link gives: filters and a Case, or a place, which no filter may then hide.
  const follow = () => {
    const state = page.state();
    const target = location.hash.startsWith("#?") ? null : document.getElementById(location.hash.slice(1));
    if (location.hash.startsWith("#?")) {
      search.value = state.get("q") ?? "";
      wanted.clear();
      for (const status of (state.get("status") ?? "").split(",")) if (statuses.has(status)) wanted.add(status);
      moved = state.has("moved") && buttons.has("moved");
      apply();
    } else if (target?.closest(".hide")) {
      search.value = "";
      wanted.clear();
      moved = false;
      apply();
    }
    if (target) {
      for (let node = target.parentElement; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
      target.scrollIntoView();
    }
    page.openKey(state.get("case") ?? "");
  };
  addEventListener("hashchange", follow);
  search.addEventListener("input", apply);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, textarea, dialog")) {
      event.preventDefault();
      search.focus();
    }
    if (event.key === "Escape" && event.target === search) {
      search.value = "";
      apply();
    }
  });
  document.querySelector(".filter").hidden = false;
  if (location.hash) follow();
})();
