"""A figure as SVG inside a page: its colours are the page's variables, its words are text, its names its own.

Every colour of the light theme becomes `var(--fig-…)`, which `variables()` defines for light and dark, so one
drawing serves both. Styles become attributes: a page may then forbid inline styles.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

from ..plain import plain
from .style import LIGHT, Theme, to_svg

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_DEFAULTS = {"stroke-dashoffset": "0", "stroke-linejoin": "round", "stroke-linecap": "butt"}


def variables(theme: Theme) -> dict[str, str]:
    """The names of a theme's colours in a page."""
    named = {f"--fig-{i}": colour for i, colour in enumerate(theme.series)}
    roles = {f"--fig-{role}": getattr(theme, role) for role in ("paper", "ink", "soft", "rule", "masked")}
    return {**roles, **named}


def inline_svg(figure: Figure, identifier: str, title: str, description: str) -> str:
    """`<svg role="img">` with a title and a description; its ids start with `identifier`."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", identifier):
        raise ValueError(f"identifier must be lower-case letters, digits and -. Got {identifier!r} instead.")
    root = ElementTree.fromstring(to_svg(figure, text=True, salt=identifier))
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{identifier}-title {identifier}-desc",
        "stroke-linejoin": "round",
    }
    used = _references(root)
    for element in list(root.iter()):
        _clean(element, identifier, used)
    for tag, words, at in (("title", title, 0), ("desc", description, 1)):
        child = ElementTree.Element(tag, id=f"{identifier}-{tag}")
        child.text = plain(words)
        root.insert(at, child)
    return ElementTree.tostring(root, encoding="unicode")


def _references(root: ElementTree.Element) -> set[str]:
    """The ids that something in the drawing points to."""
    used = set()
    for element in root.iter():
        used.add(element.attrib.get(_HREF, "").removeprefix("#"))
        used.update(re.findall(r"url\(#([^)]*)\)", element.attrib.get("clip-path", "")))
    return used - {""}


def _clean(element: ElementTree.Element, identifier: str, used: set[str]) -> None:
    """Plain names, short numbers, attributes for styles, variables for colours; no metadata left."""
    element.tag = element.tag.removeprefix(_SVG)
    for child in list(element):
        if child.tag.removeprefix(_SVG) in ("metadata", "style"):
            element.remove(child)
    for child in list(element):
        if child.tag.removeprefix(_SVG) in ("g", "defs") and not len(child):
            element.remove(child)
    attributes = {}
    for name, value in element.attrib.items():
        if name == "style":
            attributes.update(_attributes(value))
        elif name == "id":
            attributes |= {"id": f"{identifier}-{value}"} if value in used else {}
        elif name == _HREF:
            attributes["href"] = value.replace("#", f"#{identifier}-")
        elif name == "clip-path":
            attributes[name] = value.replace("url(#", f"url(#{identifier}-")
        elif name == "transform" and value.startswith("rotate(-0 "):
            continue
        else:
            attributes[name] = _shorten(value)
    element.attrib = attributes
    if element.tag != "text":
        element.text = None
    element.tail = None


def _attributes(style: str) -> dict[str, str]:
    pairs = {}
    for part in style.split(";"):
        name, _, value = (piece.strip() for piece in part.partition(":"))
        if name == "font":  # older matplotlib: "8.5px 'DejaVu Sans'"
            size = re.search(r"[\d.]+px", value)
            pairs["font-size"] = size[0] if size else ""
            pairs |= {"font-weight": "700"} if value.startswith(("700", "bold")) else {}
        elif name and name != "font-family" and _DEFAULTS.get(name) != value:
            pairs[name] = _VARIABLES.get(value, value)
    return pairs


def _shorten(value: str) -> str:
    return _NUMBER.sub(
        lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), value.replace("\n", "")
    ).strip()


_VARIABLES = {colour: f"var({name})" for name, colour in variables(LIGHT).items()}
