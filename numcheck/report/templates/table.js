// The table of Cases: those that match, out of all that were judged, in the order that was asked for.
(() => {
  const { data, make } = page;
  const [CASES, TOLD] = ["cases-table", "cases-told"].map((name) => document.getElementById(name));
  const MORE = make("p", "", { id: "cases-more", class: "more" });
  const [NEXT, REST] = ["next", "rest"].map(() => make("button", "", { type: "button" }));
  // Rows that one press adds.
  const STEP = 200;
  const texts = [];
  const natural = new Intl.Collator("en", { numeric: true });
  // What an output or a gate is called: a search for it is for that, and not for a fact of the problem of the same name.
  const named = new Set(data.rows.flatMap((row) => data.names[row.at(-1)].split(" ")));
  const alike = new Set(data.cases.flatMap(([line]) => Object.keys(JSON.parse(line).facts ?? {})).filter((name) => named.has(name)));
  let [kept, shown, column, direction] = [data.order, data.shown, -1, "none"];

  page.searchable = (text) => [...alike].reduce((left, name) => left.replaceAll(`· ${name} `, "· "), text);
  const text = (number) => {
    if (texts[number] === undefined) {
      const { specs, spec, device, law, status, phase, short, against, words } = page.row(number);
      const fact = page.searchable(short);
      texts[number] = `${spec} ${specs} ${device} ${law} ${status} ${phase} ${fact} ${words} ${against}`.toLowerCase();
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

  // What a column sorts by: statuses by how grave they are, the gravest first; headroom as a number; words as people read them.
  const KEYS = [
    (row) => row.short,
    (row) => `${row.spec} ${row.device}`,
    (row) => row.law,
    (row) => data.statuses.indexOf(row.status),
    (row) => row.phase,
    ...(data.compared ? [(row) => row.against || "not compared"] : []),
    (row) => row.room ?? Infinity,
  ];
  const sorted = (numbers) => {
    if (direction === "none") return numbers;
    const keys = new Map(numbers.map((number) => [number, KEYS[column](page.row(number))]));
    const order = (a, b) => (typeof a === "string" ? natural.compare(a, b) : a === b ? 0 : a - b);
    return [...numbers].sort((a, b) => (direction === "ascending" ? 1 : -1) * order(keys.get(a), keys.get(b)));
  };

  // A sentence, and where there are more than are shown, buttons for the rest.
  const tell = () => {
    const [some, many, total] = [Math.min(shown, kept.length), kept.length, data.rows.length].map((n) => n.toLocaleString("en"));
    const cut = kept.length > shown;
    if (kept.length === data.rows.length) TOLD.textContent = cut ? `${some} of ${total} judged Cases` : `All ${total} judged Cases`;
    else TOLD.textContent = `${many} of ${total} judged Cases match${cut ? `, ${some} of them shown` : ""}`;
    MORE.hidden = !cut;
    const left = kept.length - shown;
    NEXT.textContent = `Show ${Math.min(STEP, left).toLocaleString("en")} more`;
    REST.textContent = `Show all ${many}`;
    REST.hidden = left <= STEP;
  };
  const draw = () => {
    CASES.tBodies[0].replaceChildren(...sorted(kept).slice(0, shown).map(line));
    tell();
  };
  const more = (by) => {
    const first = shown;
    const added = sorted(kept).slice(first, first + by);
    shown += added.length;
    CASES.tBodies[0].append(...added.map(line));
    tell();
    // To the first of the new ones, so that a keyboard reads on from there.
    CASES.tBodies[0].rows[first]?.querySelector("a")?.focus({ preventScroll: true });
  };

  page.moved = (row) => !data.still.includes(row.against);
  // Shows the Cases that hold all words, one of the statuses and, where asked, something that moved; how many there are.
  page.cases = (words, wanted, moved) => {
    if (!CASES) return 0;
    kept = data.order.filter((number) => {
      const status = data.statuses[data.rows[number][2]];
      if (wanted.size && !wanted.has(status)) return false;
      return words.every((word) => text(number).includes(word)) && (!moved || page.moved(page.row(number)));
    });
    shown = data.shown;
    draw();
    return kept.length;
  };
  if (!CASES) return;
  // All Cases are sorted, not those alone that happen to be shown.
  CASES.resort = (index, next) => {
    [column, direction] = [index, next];
    draw();
  };
  NEXT.addEventListener("click", () => more(STEP));
  REST.addEventListener("click", () => more(kept.length));
  MORE.append(NEXT, " ", REST);
  CASES.closest(".wide").after(MORE);
  tell();
})();
