"""How often anchored training is held to its promise, by what a checkpoint costs."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.recipe import Recipe
from equipoise.tasks.fitting import fit


@pytest.mark.parametrize(("model", "expected"), [("conv-monotone", [3, 6]), ("gaussian-relu", [2, 4, 6])])
def test_images_have_two_checkpoints_tables_three_one_at_the_end(model: str, expected: list[int]) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((16, 6, 6)), np.arange(16) % 2
    width = 2 if model == "conv-monotone" else 8
    fitted = fit(X, y, "classification", Recipe(model=model, width=width, epochs=6, batch_size=8))
    assert [c["epoch"] for c in fitted.history.anchored["checkpoints"]] == expected
