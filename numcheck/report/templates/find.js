// Search and filters over the sections and over all Cases: what matches stays, a bar says so, and a link carries it.
(() => {
  const { all, data, make } = page;
  const at = (name) => document.getElementById(name);
  const [search, bar, told, jumps] = ["search", "filtered", "filtered-told", "filtered-jumps"].map(at);
  const lost = make("p", "", { class: "lost", id: "lost", role: "alert" });
  lost.hidden = true;
  bar.before(lost);
  const chips = document.querySelector(".chips");
  const JUMPS = 8;
  const KINDS = [[".card", "kernel"], [".failure", "failure"], ["*", "row elsewhere"]];
  // The words of an entry, without those of lines that are there to be copied and of the names of a Case's facts.
  const SKIPPED = ".replay, .made, .facts-table thead";
  const read = (node) => {
    const words = [];
    const nodes = document.createTreeWalker(node, NodeFilter.SHOW_ALL, (one) =>
      one.nodeType === Node.TEXT_NODE ? NodeFilter.FILTER_ACCEPT
        : one.nodeType === Node.ELEMENT_NODE && one.matches(SKIPPED) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP);
    while (nodes.nextNode()) words.push(nodes.currentNode.data);
    return words.join("");
  };
  const entries = all("[data-find]").map((node) => ({
    node,
    kind: KINDS.findIndex(([selector]) => node.matches(selector)),
    text: `${page.searchable(read(node))} ${node.dataset.find}`.toLowerCase(),
    cells: all("td[data-status]", node),
    own: (node.dataset.status ?? "").split(" ").filter(Boolean),
  }));
  const sections = all("main > section").map((node) => ({ node, entries: entries.filter((one) => node.contains(one.node)) }));
  const links = new Map(all("nav ol a").map((link) => [link.hash.slice(1), link.parentElement]));
  const statuses = new Set(entries.flatMap((one) => [...one.own, ...one.cells.map((cell) => cell.dataset.status)]));
  const wanted = new Set();
  const buttons = new Map();
  let moved = false;

  const many = (n, noun) => `${n.toLocaleString("en")} ${n === 1 ? noun : noun.replace(/^\S+/, "$&s")}`;

  // A cell of the matrix stays bright where its status and, of a word that is part of a law's name, its law are asked for.
  const dim = (cells, words) => {
    const laws = words.filter((word) => data.laws.some((law) => law.includes(word)));
    for (const one of cells) {
      const other = laws.length > 0 && one.dataset.law && !laws.some((word) => one.dataset.law.includes(word));
      one.classList.toggle("dim", other || (wanted.size > 0 && !wanted.has(one.dataset.status)));
    }
  };

  const matches = ({ node, text, cells, own }, words) => {
    const here = cells.length ? cells.map((one) => one.dataset.status) : own;
    if (wanted.size && !here.some((name) => wanted.has(name))) return false;
    return words.every((word) => text.includes(word)) && (!moved || "moved" in node.dataset || !node.matches(".card"));
  };

  // What is left, in words, and links to the cards that are.
  const tell = (kept, cases) => {
    const asked = [search.value.trim() && `“${search.value.trim()}”`, ...wanted, moved && "what moved"].filter(Boolean);
    const parts = KINDS.map(([, noun], kind) => {
      const n = kept.filter((one) => one.kind === kind).length;
      return n ? many(n, noun) : "";
    });
    const found = [...parts, cases ? many(cases, "Case") : ""].filter(Boolean).join(", ");
    told.textContent = `Filtered to ${asked.join(", ")}: ${found || "nothing has all of it"}.`;
    const cards = kept.filter((one) => one.kind === 0).slice(0, JUMPS);
    jumps.replaceChildren(...cards.map(({ node }) => {
      const item = make("li");
      item.append(make("a", node.querySelector("h3").textContent, { href: `#${node.id}`, class: "jump" }));
      return item;
    }));
  };

  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const active = words.length > 0 || wanted.size > 0 || moved;
    const kept = entries.filter((one) => {
      const keep = matches(one, words);
      one.node.classList.toggle("hide", !keep);
      dim(one.cells, words);
      return keep;
    });
    const cases = page.cases(words, wanted, moved);
    // A section in which nothing matches goes, and its place in the list of sections with it.
    for (const { node, entries: own } of sections) {
      const empty = active && (node.id === "cases" ? !cases : own.length > 0 && own.every((one) => one.node.matches(".hide")));
      node.classList.toggle("hide", empty);
      links.get(node.id)?.classList.toggle("hide", empty);
    }
    for (const [name, button] of buttons) button.setAttribute("aria-pressed", String(name === "moved" ? moved : wanted.has(name)));
    bar.hidden = !active;
    if (active) tell(kept, cases);
    page.highlight(words);
    page.keep({ q: search.value.trim(), status: [...wanted].join(","), moved: moved ? "1" : "" });
  };

  const asked = () => {
    lost.hidden = true;
    apply();
  };

  const clear = () => {
    search.value = "";
    wanted.clear();
    moved = false;
    asked();
  };

  const chip = (name, label, toggle) => {
    const button = make("button", label, { type: "button", "aria-pressed": "false" });
    button.addEventListener("click", () => { toggle(); asked(); });
    buttons.set(name, button);
    chips.append(button);
  };
  for (const status of data.statuses) {
    if (statuses.has(status)) chip(status, status, () => { if (!wanted.delete(status)) wanted.add(status); });
  }
  if (document.querySelector("[data-moved]")) chip("moved", "what moved", () => { moved = !moved; });

  // What a link asks for and this page does not have: it may be of another run.
  const lose = (state, target) => {
    const key = state.get("case");
    const unknown = (state.get("status") ?? "").split(",").filter((status) => status && !statuses.has(status));
    const said = [
      key && !page.knows(key) && `the Case ${key}`,
      ...unknown.map((status) => `anything that is ${status}`),
      state.has("moved") && !buttons.has("moved") && "anything that moved",
      !location.hash.startsWith("#?") && location.hash.length > 1 && !target && `the place ${location.hash}`,
    ].filter(Boolean);
    lost.hidden = !said.length;
    if (said.length) lost.textContent = `The link asks for ${said.join(" and ")}, which is not in this page. It may be of another run.`;
  };

  // The hash is what a link gives: filters and a Case, or a place, which no filter may then hide.
  const follow = () => {
    const state = page.state();
    // Back from a Case leads to where its reader was, and to nothing else.
    if (page.openKey(state.get("case") ?? "")) return;
    const target = location.hash.startsWith("#?") ? null : at(location.hash.slice(1));
    lose(state, target);
    if (location.hash.startsWith("#?")) {
      search.value = state.get("q") ?? "";
      wanted.clear();
      for (const status of (state.get("status") ?? "").split(",")) if (statuses.has(status)) wanted.add(status);
      moved = state.has("moved") && buttons.has("moved");
      apply();
    } else if (target?.closest(".hide")) {
      clear();
    }
    if (target) {
      for (let node = target.parentElement; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", follow);
  // A place that is still shown is gone to without letting go of what was asked for.
  jumps.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    const card = at(link.hash.slice(1));
    card.scrollIntoView();
    card.querySelector(".self").focus({ preventScroll: true });
  });
  search.addEventListener("input", asked);
  at("filtered-clear").addEventListener("click", () => { clear(); search.focus(); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, textarea, dialog")) {
      event.preventDefault();
      search.focus();
    }
    if (event.key === "Escape" && event.target === search) clear();
  });
  document.querySelector(".filter").hidden = false;
  if (location.hash) follow();
})();
