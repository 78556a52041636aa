// From a mark, a row or a link to its Case: what it is, how its inputs are made, how to replay it.
(() => {
  const { all, data, make } = page;
  const [SPEC, LAW, STATUS, PHASE, CASE, ROOM, KEY, NEAR, BROKEN, AGAINST, WORDS] = Array(11).keys();
  const dialog = document.getElementById("case");
  const at = (name) => document.getElementById(`case-${name}`);
  const byKey = new Map(data.rows.map((row, number) => [row[KEY], number]));
  let walk = [];
  let place = 0;

  // As Python's shlex.quote does it, so that a copied line is the one that numcheck prints.
  const quote = (text) =>
    /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
  const plain = (value) => (value === true ? "True" : value === false ? "False" : String(value));
  const figure = (room) => (room === null ? "no gate that could have failed" : String(Number(room.toPrecision(3))));

  page.row = (number) => {
    const row = data.rows[number];
    const [specs, spec, device, anchor] = data.kernels[row[SPEC]];
    const [line, short] = data.cases[row[CASE]];
    const law = data.names[row[LAW]];
    const replay = `numcheck replay --specs ${[specs, spec, law, line].map(quote).join(" ")}`;
    const status = data.statuses[row[STATUS]];
    const [phase, nearest, broken, against, words] = [PHASE, NEAR, BROKEN, AGAINST, WORDS].map((column) => data.names[row[column]]);
    return { specs, spec, device, anchor, line, short, law, status, phase, room: row[ROOM], key: row[KEY], nearest, broken, against, words, replay };
  };

  page.made = (line) => {
    const one = JSON.parse(line);
    const { regimes, layouts, rounded, placed, facts, seeded } = data.sentences;
    const own = Object.entries(one.facts ?? {}).map(([name, value]) => `${name} ${plain(value)}`).join(", ");
    return [
      Object.hasOwn(regimes, one.regime) ? regimes[one.regime] : `Regime ${one.regime}.`,
      rounded.replace("{dtype}", () => one.dtype),
      Object.hasOwn(layouts, one.layout) ? layouts[one.layout] : `Layout ${one.layout}.`,
      one.offset ? placed.replace("{offset}", () => one.offset) : "",
      own ? facts.replace("{facts}", () => own) : "",
      seeded.replace("{seed}", () => one.seed ?? 0),
    ].filter(Boolean).join(" ");
  };

  const facts = (line) => {
    const one = JSON.parse(line);
    const shown = { ...one.sizes, dtype: one.dtype, regime: one.regime, layout: one.layout, offset: one.offset, ...one.facts, seed: one.seed ?? 0 };
    return Object.entries(shown).map(([name, value]) => {
      const pair = make("div");
      pair.append(make("dt", name), make("dd", plain(value)));
      return pair;
    });
  };

  const show = () => {
    const row = page.row(walk[place]);
    at("h").textContent = row.short;
    at("claim").textContent = [
      `${row.status}${row.broken && ` of ${row.broken}`}: ${row.spec} under ${row.law}, ${row.device}, phase ${row.phase}`,
      row.against && `against the base: ${row.against}`,
      `lowest headroom ${figure(row.room)}${row.nearest && `, ${row.nearest}`}.`,
    ].filter(Boolean).join("; ");
    at("facts").replaceChildren(...facts(row.line));
    at("made").textContent = page.made(row.line);
    at("replay").textContent = row.replay;
    at("card").href = `#${row.anchor}`;
    at("place").textContent = walk.length > 1 ? `${place + 1} of ${walk.length}` : "";
    at("back").hidden = at("on").hidden = walk.length < 2;
    at("back").disabled = place === 0;
    at("on").disabled = place === walk.length - 1;
    page.keep({ case: row.key });
    if (!dialog.open) dialog.showModal();
  };

  // numbers: the Cases to walk through, least headroom first; first: the one to begin with.
  page.open = (numbers, first) => {
    const room = (number) => data.rows[number][ROOM] ?? Infinity;
    walk = [...new Set(numbers)].sort((a, b) => room(a) - room(b) || a - b);
    place = Math.max(0, walk.indexOf(first ?? walk[0]));
    show();
  };
  page.openKey = (key) => {
    if (byKey.has(key)) page.open([byKey.get(key)]);
    else if (dialog.open) dialog.close();
  };
  const step = (by) => {
    const next = place + by;
    if (next < 0 || next >= walk.length) return;
    place = next;
    show();
  };
  at("back").addEventListener("click", () => step(-1));
  at("on").addEventListener("click", () => step(1));
  at("close").addEventListener("click", () => dialog.close());
  at("card").addEventListener("click", () => { page.keep({ case: "" }); dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  dialog.addEventListener("close", () => page.keep({ case: "" }));

  page.link = (node) => {
    const key = node.dataset.case;
    if (!byKey.has(key)) return;
    const link = make("a", node.textContent, { href: `#?case=${key}`, class: "case" });
    link.addEventListener("click", (event) => {
      event.preventDefault();
      page.open([byKey.get(key)]);
    });
    node.replaceWith(link);
  };
  all(".case[data-case]").forEach(page.link);

  // Pictures: a click takes the nearest mark, Enter the one with the least headroom, arrows move between pictures.
  const marks = (svg) =>
    all("path[data-rows]", svg).flatMap((path) => {
      const spots = [...path.getAttribute("d").matchAll(/M(-?[\d.]+) (-?[\d.]+)/g)];
      return path.dataset.rows.split(" ").map((row, i) => ({ row: Number(row), x: Number(spots[i][1]), y: Number(spots[i][2]) }));
    });
  const nearest = (svg, event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const far = (mark) => (mark.x - x) ** 2 + (mark.y - y) ** 2;
    return marks(svg).reduce((best, mark) => (far(mark) < far(best) ? mark : best)).row;
  };
  const groups = new Map();
  for (const svg of all("svg:has(path[data-rows])")) {
    const group = svg.closest("table, .beside");
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(svg);
    svg.setAttribute("role", "button");
    svg.setAttribute("tabindex", groups.get(group).length === 1 ? "0" : "-1");
    svg.setAttribute("aria-label", `${svg.getAttribute("aria-label")}; walk through its Cases`);
    svg.classList.add("walkable");
    svg.addEventListener("click", (event) => page.open(marks(svg).map((mark) => mark.row), nearest(svg, event)));
    svg.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        page.open(marks(svg).map((mark) => mark.row));
      }
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = by && groups.get(group)[groups.get(group).indexOf(svg) + by];
      if (!next) return;
      event.preventDefault();
      svg.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  }
})();
