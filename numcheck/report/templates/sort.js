// Tables sort by a column: numbers as numbers, statuses the gravest first, then words, in which numbers count as numbers;
// the order of the page comes back with the third press.
(() => {
  const { all, data, make } = page;
  const natural = new Intl.Collator("en", { numeric: true });
  const FIXED = ".matrix, .ladder, .trellis, .facts-table, .gates:not(.plain), .environment";
  const number = (text) => {
    const plain = text.replace("∞", "Infinity").replace("−", "-").replace(/^(all|≤|≥) ?/, "").replaceAll(",", "").trim();
    const grave = data.statuses.findIndex((status) => plain.split(" ")[1] === status);
    if (grave >= 0) return grave;
    const found = /^-?(Infinity|\d+(\.\d+)?(e[+-]?\d+)?)/.exec(plain);
    return found ? Number(found[0]) : NaN;
  };
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
    return Number.isNaN(x) || x === y ? natural.compare(a, b) : x - y;
  };

  const sort = (table, head, index) => {
    const next = { none: "ascending", ascending: "descending", descending: "none" }[head.getAttribute("aria-sort")];
    for (const other of all("th[aria-sort]", table)) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", next);
    if (table.resort) return table.resort(index, next);
    const body = table.tBodies[0];
    table.ordered ??= [...body.rows];
    const rows = [...table.ordered];
    if (next !== "none") {
      const text = new Map(rows.map((row) => [row, row.cells[index].textContent.trim()]));
      rows.sort((a, b) => (next === "ascending" ? 1 : -1) * compare(text.get(a), text.get(b)));
    }
    return body.append(...rows);
  };

  for (const table of all(".wide > table")) {
    if (table.matches(FIXED) || table.tBodies[0].rows.length < 2) continue;
    all("thead th", table).forEach((head, index) => {
      if (!head.textContent.trim()) return;
      const button = make("button", "", { type: "button", class: "sort" });
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sort(table, head, index));
    });
  }
})();
