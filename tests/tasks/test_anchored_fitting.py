"""fit by default: anchored training, whose promise is kept and proved again."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_wine

from equipoise.tasks import Recipe, fit


def test_anchored_training_keeps_its_promise_and_is_certified_again():
    X, y = load_wine(return_X_y=True)
    X, y, Xt, yt = X[::2], y[::2], X[1::2], y[1::2]
    seen = []
    recipe = Recipe(width=24, epochs=8, batch_size=32)
    found = fit(X, y, "classification", recipe, test=(Xt, yt), begin=seen.append)
    assert found.recipe.theorem == found.certificate.theorem == "anchored"
    assert found.certificate.proved
    told = found.history.anchored
    assert told["F_end"][1] <= told["F_start"] <= found.certificate.constants["F_zero"]
    assert [c["epoch"] for c in told["checkpoints"]] == [3, 6, 8]
    found.certificate.verify(found.start(), *found.training(X, y))
    assert found.wellposed.proved
    assert np.mean(found.predict(Xt) == yt) > 0.9
    assert seen[0].seconds > 0
    assert seen[0].bytes > 0
