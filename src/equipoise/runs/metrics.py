"""metrics.jsonl: what was measured, one JSON object a line, appended as the run goes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import Damaged, write_atomically


class Metrics:
    """Records of a run. A number that is not finite is null in the file and nan when read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._mended = False

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line. What a kill left of a line before it is taken away first."""
        line = json.dumps(_finite(record), allow_nan=False, ensure_ascii=False).encode() + b"\n"
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
        """Every record; of the last line only a whole one counts, of the others a spoilt one is an error."""
        if not self.path.exists():
            return []
        *lines, _ = self.path.read_bytes().split(b"\n")
        return [self._parse(number, line) for number, line in enumerate(lines, 1)]

    def truncate(self, step: int) -> None:
        """Leave out the records after this step (or epoch)."""
        records = self.read()
        kept = [r for r in records if r.get("step", r.get("epoch", math.inf)) <= step]
        if len(kept) < len(records):
            text = "".join(json.dumps(_finite(r), ensure_ascii=False) + "\n" for r in kept)
            write_atomically(self.path, text.encode())

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
        try:
            record = json.loads(line)
        except ValueError as error:
            raise Damaged(f"{self.path}: line {number} is no JSON: {error}") from None
        if not isinstance(record, dict):
            raise Damaged(f"{self.path}: line {number} must hold a JSON object")
        return {key: math.nan if value is None else value for key, value in record.items()}


def _finite(record: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
