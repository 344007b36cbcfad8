"""Units of work on disk: numbers in JSON, with what they were computed from and a seal of the whole."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ... import __version__
from ...files import write_atomically


def digest(group: str, inputs: Mapping[str, Any]) -> str:
    """The hash by which a unit is found: of its group, its settings and the version of the library."""
    key = json.dumps({"group": group, "inputs": inputs, "version": __version__}, sort_keys=True)
    return hashlib.sha256(key.encode()).hexdigest()


def read(path: Path, digest: str, code: Mapping[str, str] | None) -> tuple[dict[str, Any] | None, str]:
    """Read a stored unit, if it is whole and was computed with these settings by this code.

    Otherwise it is None, and the words beside it say why the file cannot be used; without a file there are
    no words.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError):
        return None, "the file was damaged"
    if not isinstance(stored, dict) or stored.get("hash") != digest:
        return None, "the file was damaged"
    content = {key: value for key, value in stored.items() if key != "sha256"}
    whole = stored.get("sha256", _sha256(content)) == _sha256(content)  # the oldest have none
    typed = isinstance(stored.get("result"), dict) and isinstance(stored.get("processor_seconds"), float)
    if not (whole and typed):
        return None, "the file was damaged"
    before = stored.get("code")
    if not isinstance(before, dict):
        return None, "which code computed it was not on record"
    if code is None:
        return None, "the source of its code cannot be read"
    changed = sorted(name for name in {*before, *code} if before.get(name) != code.get(name))
    return (None, f"its code has changed in {', '.join(changed)}") if changed else (stored, "")


def write(path: Path, stored: Mapping[str, Any]) -> None:
    """Store a unit with the seal of its content."""
    sealed = {**stored, "sha256": _sha256(stored)}
    write_atomically(path, (json.dumps(sealed, ensure_ascii=False) + "\n").encode())


def _sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Lists, dicts, numbers and words: JSON, in which a number that is not finite is null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, torch.Tensor | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
