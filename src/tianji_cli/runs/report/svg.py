"""Pictures as SVG inside a page: several of them beside one another, on light and on dark.

A picture may come from another program, through a run's directory, so only elements and attributes that draw
are copied, by name; everything that may act, load or style the page around it is left out. Ids get a prefix
of their own, colours of the house style become variables of the page, and coordinates keep the visible
digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final
from xml.etree import ElementTree as ET

from tianji_cli.telemetry.figures import AMBER, BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY

SVG: Final = "{http://www.w3.org/2000/svg}"
XLINK: Final = "{http://www.w3.org/1999/xlink}"

ELEMENTS: Final = frozenset(
    {
        *("svg", "g", "defs", "symbol", "use", "title", "desc", "clipPath", "marker", "mask", "pattern"),
        *("path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan", "image"),
        *("linearGradient", "radialGradient", "stop"),
    }
)
"""Elements that draw; elements that script, load, link, animate or style are left out."""

ATTRIBUTES: Final = frozenset(
    {
        *("id", "href", "style", "viewBox", "transform", "clip-path", "mask", "preserveAspectRatio"),
        *("d", "points", "x", "y", "x1", "y1", "x2", "y2", "dx", "dy", "cx", "cy", "r", "rx", "ry"),
        *("width", "height", "fill", "fill-opacity", "fill-rule", "stroke", "stroke-width", "opacity"),
        *("stroke-opacity", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "font-size"),
        *("font-family", "font-weight", "font-style", "text-anchor", "dominant-baseline", "offset"),
        *("stop-color", "stop-opacity", "gradientUnits", "gradientTransform", "patternUnits", "clip-rule"),
        *("markerWidth", "markerHeight", "refX", "refY", "orient", "markerUnits", "marker-start"),
        *("marker-mid", "marker-end", "clipPathUnits", "maskUnits"),
    }
)

THEMED: Final[Mapping[str, str]] = {
    "#ffffff": "paper",
    BLACK: "ink",
    "#dddddd": "grid",
    GREY.lower(): "grey",
    BLUE.lower(): "blue",
    ORANGE.lower(): "orange",
    GREEN.lower(): "green",
    PURPLE.lower(): "purple",
    AMBER.lower(): "amber",
    SKY.lower(): "sky",
}
"""Colours of figures, and the variables of the page that replace them."""

MOST_DRAWN: Final = 500_000
"""Most elements that a picture draws, references counted in full: each letter of a figure is one."""

_COLOR: Final = re.compile(r"#(?:[0-9a-fA-F]{6}|[0-9a-fA-F]{3})\b")
_LONG_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_REFERENCE: Final = re.compile(r"url\(\s*['\"]?#([^'\")]+)['\"]?\s*\)")
_CALLS: Final = re.compile(r"([\w-]*)\s*\((#?)")
_FUNCTIONS: Final = frozenset(
    {"translate", "scale", "rotate", "matrix", "skewX", "skewY", "rgb", "rgba", "hsl", "hsla"}
)
"""Functions that a value may call, besides ``url`` with an id of the picture itself."""
_FONTS: Final = re.compile(r"(?<=px )['\"]?DejaVu Sans['\"]?[^;]*")
"""The font list that matplotlib writes behind a size; any sans-serif font will do."""
_PICTURE: Final = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]+")


class NoPictureError(ValueError):
    """A file is no SVG that can stand in a page; the message says why."""


def inline(content: bytes, prefix: str, title: str, description: str) -> str:
    """Convert an SVG file to an element of a page.

    Args:
        prefix: prefix of its ids, which no other picture of the page has.
        title: name of the picture, for those who do not see it.
        description: content of the picture, likewise.

    Raises:
        NoPictureError: the file is no SVG, or has entities, which no picture needs.
    """
    try:
        text = content.decode()  # Another encoding could hide entities.
    except UnicodeDecodeError as cause:
        raise NoPictureError("it is no SVG in UTF-8") from cause
    if "<!ENTITY" in text:
        raise NoPictureError("it has entities")
    try:
        found = ET.fromstring(text)  # noqa: S314 - entities, the danger here, are refused above
    except (ET.ParseError, ValueError, LookupError) as cause:
        raise NoPictureError(f"it is no SVG: {cause}") from cause
    if found.tag != f"{SVG}svg":
        raise NoPictureError("it is no SVG")
    try:
        _check_expansion(found)
        picture = _taken_over(found, prefix)
    except RecursionError as cause:
        raise NoPictureError("it is nested too deeply") from cause
    if "viewBox" not in picture.attrib:
        width, height = (re.sub(r"[^\d.]", "", picture.get(side, "")) for side in ("width", "height"))
        if not (width and height):
            raise NoPictureError("it does not say how large it is")
        picture.set("viewBox", f"0 0 {width} {height}")
    for side in ("width", "height", "style"):  # The page decides its size.
        picture.attrib.pop(side, None)
    picture.attrib |= {"role": "img", "aria-labelledby": f"{prefix}-title {prefix}-desc"}
    for place, (name, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(name, {"id": f"{prefix}-{name}"})
        element.text = text
        picture.insert(place, element)
    return ET.tostring(picture, "unicode")


def _check_expansion(picture: ET.Element) -> None:
    """Refuse a picture that draws more than a page can show by references to its parts.

    Raises:
        NoPictureError: it draws too much, or a part refers to itself.
        RecursionError: it is nested too deeply.
    """
    by_name = {name: element for element in picture.iter() if (name := element.get("id"))}
    sizes: dict[ET.Element, float] = {}

    def size(element: ET.Element) -> float:
        if element not in sizes:
            sizes[element] = math.inf  # A reference to itself never ends.
            named = [by_name[name] for name in _names_in(element) if name in by_name]
            sizes[element] = 1 + sum(map(size, (*element, *named)))
        return sizes[element]

    if size(picture) >= MOST_DRAWN:
        raise NoPictureError("its parts name one another too often")


def _names_in(element: ET.Element) -> Iterator[str]:
    for attribute, value in element.items():
        if attribute.removeprefix(XLINK) == "href" and value.startswith("#"):
            yield value[1:]
        yield from _REFERENCE.findall(value)


def _taken_over(element: ET.Element, prefix: str) -> ET.Element:
    """Copy the drawing parts of an element, without namespaces, which HTML does not have."""
    copy = ET.Element(element.tag.removeprefix(SVG), dict(_attributes(element, prefix)))
    copy.text, copy.tail = _kept(element.text), None
    for child in element:
        name = child.tag.removeprefix(SVG) if isinstance(child.tag, str) else ""  # Comments have none.
        if name in ELEMENTS and not (name in {"title", "desc"} and element.tag == f"{SVG}svg"):
            below = _taken_over(child, prefix)
            below.tail = _kept(child.tail)
            if name != "image" or "href" in below.attrib:
                copy.append(below)
    return copy


def _kept(text: str | None) -> str | None:
    """Keep text between tags, but not line breaks and blanks that only lay a file out."""
    return text if text is not None and text.strip() else None


def _attributes(element: ET.Element, prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in element.attrib.items():
        plain = name.removeprefix(XLINK)
        if plain not in ATTRIBUTES or (plain != "href" and not _is_harmless(value)):
            continue
        if plain == "id":
            yield plain, f"{prefix}-{value}"
        elif plain == "href":
            if value.startswith("#"):
                yield plain, f"#{prefix}-{value[1:]}"
            elif element.tag == f"{SVG}image" and _PICTURE.fullmatch(value):
                yield plain, value
        else:
            yield plain, _shortened(_REFERENCE.sub(rf"url(#{prefix}-\1)", value))


def _is_harmless(value: str) -> bool:
    """Whether a value calls no function that could load something, however its name is spelt."""
    calls = _CALLS.findall(value)
    return "\\" not in value and all(
        name in _FUNCTIONS or (name == "url" and inside) for name, inside in calls
    )


def _shortened(value: str) -> str:
    value = _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
    value = _COLOR.sub(_themed, _FONTS.sub("sans-serif", value))
    return " ".join(value.split())


def _themed(color: re.Match[str]) -> str:
    written = color[0].lower()
    whole = written if len(written) == 7 else "#" + "".join(2 * digit for digit in written[1:])
    return f"var(--{THEMED[whole]})" if whole in THEMED else written
