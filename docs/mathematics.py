"""Turn the TeX of a page into MathML when the site is built, so that no script is needed to read it."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

_TEX = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_page_content(text: str, **_: object) -> str:
    """Called by MkDocs with the HTML of each page."""
    return _TEX.sub(
        lambda found: convert(
            html.unescape(found.group(3)), display="inline" if found.group(2) == "(" else "block"
        ),
        text,
    )
