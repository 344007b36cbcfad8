"""Reproductions as tasks of Ray come to the same numbers as here, bit for bit."""

from __future__ import annotations

import json

import pytest

from equipoise.papers import catalogue

KEYS = ("ling2023.theorem4",)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray has its own
def test_tasks_of_ray_measure_the_same(tmp_path):
    ray = pytest.importorskip("ray")
    settings = catalogue.Settings("tiny")
    try:
        for engine in ("local", "ray"):
            found = catalogue.reproduce(KEYS, settings, tmp_path / engine, engine=engine)
            assert not any(result.error for result in found)
    finally:
        ray.shutdown()
    for key in KEYS:
        one, two = (json.loads((tmp_path / e / key / "measured.json").read_text()) for e in ("local", "ray"))
        assert one == two
