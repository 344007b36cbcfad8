"""Make text from outside safe to show: characters that control a terminal or reverse a line are written out.

Labels, names of columns and of files may hold any character. The escape character commands a terminal, a
carriage return overwrites a line, U+202E shows what follows backwards, and an XML file may hold none of the
first two. Whatever prints or draws text that came from outside shows it by `plain`.
"""

from __future__ import annotations

import json
import re
import unicodedata

_FORMULA = "=+-@＝＋－＠−"
_KEPT = "\n\t\u200c\u200d"  # lines, tabs, and the joiners that Persian, Indic scripts and emoji need


def hidden(character: str) -> bool:
    """Whether a character is invisible: a control, a direction, half a surrogate pair, a line separator."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") or character in "\ufffe\uffff"


def plain(text: str) -> str:
    """The text with hidden characters written out, as in \\x1b and \\u202e; any other text is unchanged."""
    if text.isprintable():
        return text
    return "".join(ascii(c)[1:-1] if hidden(c) and c not in _KEPT else c for c in text)


def plain_json(written: str) -> str:
    """JSON of the same meaning, in which hidden characters of strings are written as \\u and four digits."""
    return "".join(json.dumps(c)[1:-1] if hidden(c) and c not in _KEPT else c for c in written)


def spreadsheet_cell(value: object) -> object:
    """A cell of a table that a spreadsheet may open: text that it would run as a formula gets an apostrophe.

    Such text begins with =, +, − or @ (after spaces), a tab or a line's end, and is no number.
    """
    if not isinstance(value, str) or not re.match(rf"\s*[{re.escape(_FORMULA)}]|[\t\r\n]", value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
