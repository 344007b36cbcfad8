"""metrics.jsonl: what was measured, one JSON object on each line, appended as the run goes.

A file that grows has no seal of its own. Each checkpoint holds a seal of the lines before it; the lines after
it are computed again when the run is resumed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import parse_json, strict, sync


class Metrics:
    """Records of a run. A number that is not finite is null in the file and nan when read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._mended = False

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line, after removing what a killed process may have left of an unfinished one."""
        line = json.dumps(strict(record), allow_nan=False, ensure_ascii=False).encode() + b"\n"
        with open(self.path, "ab") as file:
            if not self._mended:
                file.truncate(self._whole())
                self._mended = True
            try:
                file.write(line)
                file.flush()
            except OSError as error:
                raise OSError(
                    error.errno, f"could not be written ({error.strerror})", str(self.path)
                ) from error

    def read(self) -> list[dict[str, Any]]:
        """Every record. An unfinished last line is left out; any other line that is damaged is an error."""
        if not self.path.exists():
            return []
        *lines, _ = self.path.read_bytes().split(b"\n")
        return [self._parse(number, line) for number, line in enumerate(lines, 1)]

    def seal(self) -> dict[str, Any]:
        """Length and SHA-256 of all whole lines, which have reached the disk."""
        if not self.path.exists():
            return {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
            content = file.read(self._whole())
        sync(self.path.parent)
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def agrees(self, seal: Mapping[str, Any] | None) -> bool:
        """Whether the file still begins with the lines that were sealed; None seals no line."""
        if seal is None or seal["bytes"] == 0:
            return True
        content = self.path.read_bytes()[: seal["bytes"]] if self.path.exists() else b""
        return len(content) == seal["bytes"] and hashlib.sha256(content).hexdigest() == seal["sha256"]

    def truncate(self, seal: Mapping[str, Any] | None) -> None:
        """Leave out the lines after those that were sealed."""
        if self.path.exists():
            with open(self.path, "rb+") as file:
                file.truncate(0 if seal is None else seal["bytes"])
                os.fsync(file.fileno())

    def _whole(self) -> int:
        """The length of the file up to the end of its last whole line."""
        if not self.path.exists():
            return 0
        with open(self.path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            while end > 0:
                start = max(end - 4096, 0)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                end = start
        return 0

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        record = parse_json(line, f"{self.path}: line {number}")
        return {key: math.nan if value is None else value for key, value in record.items()}
