"""A parsed page: what a browser would see of it, without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "input", "wbr", "img", "hr"}
# SVG leaves that the page closes itself.
RAW = {"script", "style"}


@dataclass
class Node:
    """An element: its tag, attributes, and children (elements and text)."""

    tag: str
    attrs: dict[str, str]
    children: list[Node | str] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """This element and all below it, in document order."""
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def all(self, tag: str = "", cls: str = "", **attrs: str) -> list[Node]:
        """Elements by tag, class and attributes."""
        return [
            node
            for node in self.walk()
            if (not tag or node.tag == tag)
            and (not cls or cls in node.attrs.get("class", "").split())
            and all(node.attrs.get(k.rstrip("_").replace("_", "-")) == v for k, v in attrs.items())
        ]

    def one(self, tag: str = "", cls: str = "", **attrs: str) -> Node:
        """The only element of that kind."""
        (found,) = self.all(tag, cls, **attrs)
        return found

    @property
    def text(self) -> str:
        """All text in it, white space folded."""
        return " ".join("".join(self._strings()).split())

    def _strings(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, Node):
                if child.tag not in RAW:
                    yield from child._strings()
                    yield "" if child.tag in ("b", "wbr", "span", "sup") else " "
            else:
                yield child


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(html: str) -> Node:
    """The page as a tree; every element must be closed by its own end tag."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert builder.open == [builder.root], f"left open: {[node.tag for node in builder.open[1:]]}"
    return builder.root


def table_rows(node: Node) -> list[list[str]]:
    """The body rows of the tables in `node`, cell by cell as text."""
    return [
        [cell.text for cell in row.children if isinstance(cell, Node)]
        for body in node.all("tbody")
        for row in body.all("tr")
    ]
