"""What MkDocs calls while it builds the site."""

from __future__ import annotations

import html
import os
import re
from typing import Any

from latex2mathml.converter import convert

_TEX = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_config(config: Any) -> Any:
    """Offer the other versions of the site, where mike publishes several beside each other."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_page_content(text: str, **_: object) -> str:
    """Turn the TeX of a page into MathML, so that no script is needed to read it."""
    return _TEX.sub(
        lambda found: convert(
            html.unescape(found.group(3)), display="inline" if found.group(2) == "(" else "block"
        ),
        text,
    )
