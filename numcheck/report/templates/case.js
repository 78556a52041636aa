// From a mark, a row or a link to its Case: what it is, how its inputs are made, how to replay it.
(() => {
  const { all, data, make } = page;
  const [SPEC, LAW, STATUS, PHASE, CASE, ROOM, KEY, NEAR, BROKEN, AGAINST, WORDS] = Array(11).keys();
  const dialog = document.getElementById("case");
  const at = (name) => document.getElementById(`case-${name}`);
  const byKey = new Map(data.rows.map((row, number) => [row[KEY], number]));
  let walk = [];
  let place = 0;
  // On the way back to the entry of the history from which a Case was opened, and which Case to open once there.
  let [returning, waiting] = [false, null];

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

  const table = (heads, rows, caption) => {
    const [node, head, body] = ["table", "thead", "tbody"].map((tag) => make(tag));
    const top = make("tr");
    top.append(...heads.map((text) => make("th", text, { scope: "col" })));
    head.append(top);
    body.append(...rows.map(([first, ...rest]) => {
      const line = make("tr");
      line.append(make("th", first, { scope: "row" }), ...rest);
      return line;
    }));
    node.append(make("caption", caption), head, body);
    return node;
  };
  // Why it did not hold, output by output: the worst element, and each gate's value against its limit, then and now.
  const explain = (number) => {
    const [outputs, gates] = data.why[number] ?? [[], []];
    const parts = outputs.flatMap(([name, status, before, why, element]) => {
      const said = make("p");
      said.append(make("b", name), " ", page.badge(status), before && before !== status ? ` (${before} at the base) ${why}` : ` ${why}`);
      const list = make("dl", "", { class: "case-facts element" });
      list.append(...element.map(([fact, value]) => {
        const pair = make("div");
        pair.append(make("dt", fact), make("dd", value));
        return pair;
      }));
      return element.length ? [said, list] : [said];
    });
    if (gates.length) {
      const rows = gates.map(([output, kind, value, allowed, before, holds, why]) => [
        output,
        make("td", kind),
        make("td", value, { class: holds ? "n" : "n bad" }),
        make("td", allowed, { class: "n" }),
        make("td", holds ? "holds" : "beyond"),
        ...(data.compared ? [make("td", before)] : []),
        make("td", why, { class: "why" }),
      ]);
      const heads = ["Output", "Gate", "Value", "Allowed", "Holds", ...(data.compared ? ["At the base"] : []), "Why that limit"];
      const wide = make("div", "", { class: "wide", role: "region", "aria-label": "Table: gates of this Case", tabindex: "0" });
      wide.append(table(heads, rows, "The gate furthest beyond its limit, or nearest to it, first"));
      parts.push(wide);
    }
    if (!parts.length && data.rows[number][STATUS] < data.statuses.indexOf("PASS")) {
      parts.push(make("p", "Why is in the records: the page has no room for all Cases.", { class: "soft" }));
    }
    at("why").replaceChildren(...parts);
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
    explain(walk[place]);
    // A link to a Case has its entry already; from a mark, Back leads to the mark.
    page.keep({ case: row.key }, !dialog.open && page.state().get("case") !== row.key);
    if (!dialog.open) dialog.showModal();
  };

  // numbers: the Cases to walk through, least headroom first; first: the one to begin with.
  page.open = (numbers, first) => {
    if (returning) {
      waiting = [numbers, first];
      return;
    }
    const room = (number) => data.rows[number][ROOM] ?? Infinity;
    walk = [...new Set(numbers)].sort((a, b) => room(a) - room(b) || a - b);
    place = Math.max(0, walk.indexOf(first ?? walk[0]));
    show();
  };
  // Opens the Case that an address names, or closes the one that it names no more: whether nothing but that was asked for.
  page.openKey = (key) => {
    if (returning) {
      returning = false;
      if (waiting) page.open(...waiting);
      waiting = null;
      return true;
    }
    if (byKey.has(key)) {
      if (!dialog.open || data.rows[walk[place]][KEY] !== key) page.open([byKey.get(key)]);
      return false;
    }
    if (!dialog.open) return false;
    dialog.close();
    return !key;
  };
  page.knows = (key) => byKey.has(key);
  const step = (by) => {
    const next = place + by;
    if (next < 0 || next >= walk.length) return;
    place = next;
    show();
  };
  at("back").addEventListener("click", () => step(-1));
  at("on").addEventListener("click", () => step(1));
  at("close").addEventListener("click", () => dialog.close());
  // Its entry stays: from the kernel, Back leads to the Case again.
  at("card").addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  dialog.addEventListener("close", () => {
    if (!page.state().has("case")) return;
    if (!history.state?.own) return page.keep({ case: "" });
    returning = true;
    history.back();
  });

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
