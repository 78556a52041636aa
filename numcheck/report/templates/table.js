// The table of Cases: those that match, out of all that were judged.
(() => {
  const { all, data, make } = page;
  const [CASES, TOLD] = ["cases-table", "cases-told"].map((name) => document.getElementById(name));
  const texts = [];

  const text = (number) => {
    if (texts[number] === undefined) {
      const { specs, spec, device, law, status, phase, short, against, words } = page.row(number);
      texts[number] = `${spec} ${specs} ${device} ${law} ${status} ${phase} ${short} ${words} ${against}`.toLowerCase();
    }
    return texts[number];
  };

  const cell = (content, under = "", attributes = {}) => {
    const node = make("td", "", attributes);
    node.append(content);
    if (under) node.append(make("span", under, { class: "sub" }));
    return node;
  };
  const line = (number) => {
    const row = page.row(number);
    const head = make("th", "", { scope: "row" });
    const spot = make("span", row.short, { "data-case": row.key });
    head.append(spot);
    const kernel = cell(page.kernel(row.spec));
    kernel.append(make("span", row.device, { class: "ran" }));
    const room = row.room === null ? "none" : String(row.room);
    const made = make("tr");
    made.append(head, kernel, cell(row.law), cell(page.badge(row.status), row.broken), cell(row.phase));
    if (data.compared) made.append(cell(row.against || "not compared", "", page.moved(row) ? { class: "otherwise" } : {}));
    made.append(cell(room, row.nearest, { class: "n" }));
    page.link(spot);
    return made;
  };

  page.moved = (row) => !data.still.includes(row.against);
  // Shows the Cases that hold all words, one of the statuses and, where asked, something that moved; how many there are.
  page.cases = (words, wanted, moved) => {
    if (!CASES) return 0;
    const kept = data.order.filter((number) => {
      const status = data.statuses[data.rows[number][2]];
      if (wanted.size && !wanted.has(status)) return false;
      return words.every((word) => text(number).includes(word)) && (!moved || page.moved(page.row(number)));
    });
    CASES.tBodies[0].replaceChildren(...kept.slice(0, data.shown).map(line));
    const total = data.rows.length.toLocaleString("en");
    const some = kept.length > data.shown ? `, the first ${data.shown} shown` : "";
    TOLD.textContent = `${kept.length.toLocaleString("en")} of ${total} judged Cases${some}`;
    page.unsorted?.(CASES);
    return kept.length;
  };
})();
