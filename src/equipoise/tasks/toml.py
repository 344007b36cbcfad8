"""TOML of plain values, for `tomllib` to read back exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of strings, numbers, booleans and lists of them. None, which TOML has not, is left out."""
    return "\n".join("".join([f"[{_key(name)}]\n", *_lines(table)]) for name, table in tables.items())


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}\n" for key, value in table.items() if value is not None]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _string(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v) for v in value)}]"
    raise TypeError(f"a configuration holds strings, numbers, booleans and lists. Got {value!r} instead.")


def _string(text: str) -> str:
    """A basic string; JSON escapes alike, but for the character 7f and halves of surrogate pairs."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
