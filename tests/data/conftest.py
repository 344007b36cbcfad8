"""Where the public data lie on this machine, if they do."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory named by EQUIPOISE_DATA, or `shared/data` beside the repository."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    directory = Path(os.environ.get("EQUIPOISE_DATA") or beside)
    if not directory.is_dir():
        pytest.skip("no data directory: set EQUIPOISE_DATA")
    return directory
