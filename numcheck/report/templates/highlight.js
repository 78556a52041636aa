// Marks the words of a search where they stand, without touching the page's own nodes.
(() => {
  // Beyond, a reader no longer looks from mark to mark.
  const MOST = 3000;
  const SHORTEST = 2;

  const ranges = (words) => {
    const found = [];
    const bar = document.getElementById("filtered");
    const nodes = document.createTreeWalker(document.getElementById("main"), NodeFilter.SHOW_ALL, (node) =>
      node === bar ? NodeFilter.FILTER_REJECT : node.nodeType === Node.TEXT_NODE ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_SKIP);
    for (let node = nodes.nextNode(); node && found.length < MOST; node = nodes.nextNode()) {
      const text = node.data.toLowerCase();
      for (const word of words) {
        for (let i = text.indexOf(word); i >= 0 && found.length < MOST; i = text.indexOf(word, i + word.length)) {
          const range = new Range();
          range.setStart(node, i);
          range.setEnd(node, Math.min(i + word.length, node.length));
          found.push(range);
        }
      }
    }
    return found;
  };

  page.highlight = (words) => {
    if (typeof Highlight === "undefined") return;
    CSS.highlights.delete("found");
    const marked = words.filter((word) => word.length >= SHORTEST);
    if (marked.length) CSS.highlights.set("found", new Highlight(...ranges(marked)));
  };
})();
