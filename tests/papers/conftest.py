"""Units of tiny experiments: computed once a session, for every test that asks what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from once import made_once


@pytest.fixture(scope="session")
def with_units(tmp_path_factory) -> Callable[[Path], Path]:
    """Gives a directory of results the units that other tests, of any process, have computed before."""
    store = made_once(tmp_path_factory, "tiny_units", lambda at: None)

    def give(out: Path) -> Path:
        (out / "units").symlink_to(store)
        return out

    return give
