"""A page as a browser has it, by the standard library's parser, and what is true of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADS = {"src", "srcset", "href", "data", "poster", "action", "background", "xlink:href"}
HARMLESS = re.compile(r"#[\w-]+|data:image/png;base64,.*", re.DOTALL)
MOST_BYTES = 2_000_000


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    inside: list[str]
    """Tags of those around it."""
    text: str = ""


class Page(HTMLParser):
    """All elements of a page, in their order, each with all of the text in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self._open, [one.tag for one in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, [one.tag for one in self._open])
        assert len(element.attributes) == len(attrs), f"an attribute is there twice: {attrs}"
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        return [
            one for one in self.elements if one.tag == tag and attributes.items() <= one.attributes.items()
        ]

    def texts(self, tag: str) -> list[str]:
        return [" ".join(one.text.split()) for one in self.all(tag)]

    @property
    def commands(self) -> list[str]:
        return self.texts("pre")

    @property
    def lines(self) -> list[list[str]]:
        """Rows of all tables: the class of each, and the texts of its cells."""
        found: list[list[str]] = []
        for one in self.elements:
            if one.tag == "tr":
                found.append([one.attributes.get("class", "")])
            elif one.tag in {"th", "td"}:
                found[-1].append(" ".join(one.text.split()))
        return found

    @property
    def rows(self) -> dict[str, list[str]]:
        """Cells behind the first one of each row, by that; of headings that come again, the first row's."""
        found: dict[str, list[str]] = {}
        for _, heading, *cells in self.lines:
            found.setdefault(heading, cells)
        return found


def read_page(path: Path) -> Page:
    """Read a page, and check what each keeps to: it is whole, small, loads nothing, can be read aloud."""
    page = Page(path)
    assert path.stat().st_size < MOST_BYTES
    ids = [one.attributes["id"] for one in page.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids)), sorted({one for one in ids if ids.count(one) > 1})
    for one in page.elements:
        for name, value in one.attributes.items():
            assert not name.startswith("on"), one
            if name in LOADS:
                assert HARMLESS.fullmatch(value), one
            for to in re.findall(r"url\(([^)]*)\)", value) if name != "content" else ():
                assert to.startswith("#"), one
                assert to[1:] in ids, one
            if name == "href" and value.startswith("#"):
                assert value[1:] in ids, one
            if name in {"aria-labelledby", "aria-describedby"}:
                assert set(value.split()) <= set(ids), one
    assert not page.all("script")
    assert not re.search(r"https?:|@import|url\((?!#)", page.source)
    levels = [int(one.tag[1]) for one in page.elements if re.fullmatch(r"h[1-6]", one.tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(levels)), levels
    assert all(one.attributes.get("scope") in {"row", "col"} for one in page.all("th"))
    for one in page.all("svg"):
        assert one.attributes["role"] == "img"
        names = [
            page.all(tag, id=id_)
            for id_ in one.attributes["aria-labelledby"].split()
            for tag in ("title", "desc")
        ]
        assert any(found and found[0].text.strip() for found in names)
    assert all(
        one.attributes.get("tabindex") == "0" for one in page.all("pre") + page.all("div", role="region")
    )
    return page
