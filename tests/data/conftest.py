"""Where the public data lie on this machine, if they do, and how tests write a table."""

import os
from pathlib import Path

import pytest

from equipoise.data import read_table


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory named by EQUIPOISE_DATA, or `shared/data` beside the repository."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    directory = Path(os.environ.get("EQUIPOISE_DATA") or beside)
    if not directory.is_dir():
        pytest.skip("no data directory: set EQUIPOISE_DATA")
    return directory


@pytest.fixture
def table(tmp_path):
    """Write text (or bytes) as a file and read it."""

    def read(content, target=None, name="table.csv", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_table(path, target, **options)

    return read
