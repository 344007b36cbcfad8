"""Files on disk: written whole or not at all, the same bytes for the same content, and read with distrust."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Damaged(ValueError):
    """A file does not hold what was written to it."""


class OtherFormat(ValueError):
    """A file is whole, and was written by a version of equipoise that keeps it in another form."""


def write_atomically(path: str | Path, content: bytes) -> None:
    """Put `content` at `path`: after a crash at any moment there is the old file or the new one, whole."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync(path.parent)
    except OSError as error:
        raise OSError(error.errno, f"could not be written ({error.strerror or error})", str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def remove_leftovers(directory: str | Path) -> None:
    """Remove what a killed writer left behind. The caller is the directory's only writer."""
    for part in Path(directory).glob(".*.part"):
        part.unlink(missing_ok=True)


def make_directory(path: Path) -> bool:
    """Make a directory and its parents so that they outlast a crash; return False if it was there already."""
    if path.is_dir():
        return False
    make_directory(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    sync(path.parent)
    return True


def sync(directory: Path) -> None:
    """Have the directory's entries reach the disk, where the platform lets one ask for it."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parse_json(text: str | bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object, or raise a Damaged that names the place. Nesting too deep to be read is damage."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{where} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise Damaged(f"{where} must hold a JSON object. Got {type(found).__name__} instead")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror or error}") from None
    return parse_json(content, str(path))


def strict(value: Any) -> Any:
    """A value as strict JSON holds it: keys are strings, and None stands for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(name): strict(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(content: dict[str, Any]) -> str:
    """SHA-256 of JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def in_fixed_order(content: bytes) -> bytes:
    """A safetensors file with its header sorted: the writer leaves the order of the metadata to chance."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]
