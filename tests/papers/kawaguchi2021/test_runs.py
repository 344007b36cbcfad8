"""Runs of the depth comparison, batched: each is what it is alone, and one that is lost is not shown."""

import numpy as np
import pytest
import torch

from equipoise.papers.kawaguchi2021.runs import BATCH, MOMENTUM, Kind, chosen, train

KINDS = [Kind("linear"), Kind("delm"), Kind("dnn", 3), Kind("dnn", 3, bias=False)]
RATES, EPOCHS = (50.0, 0.01, 0.001), 12


def trial(seed, N=150, m=6):
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)
    return normal(N, m), normal(N), normal(40, m), normal(40)


def alone(kind, data, rate, seed):
    """The same in a plain loop with torch's own optimiser: losses at the start and the end."""
    X, y, X_test, y_test = data
    parameters = [
        p[None].requires_grad_() for p in kind.start(X.shape[1], torch.Generator().manual_seed(seed))
    ]
    optimiser = torch.optim.SGD(parameters, rate, momentum=MOMENTUM)
    loss = lambda X, y: (kind.predict(parameters, X[None])[0] - y).square().mean()
    found = [(loss(X, y).item(), loss(X_test, y_test).item())]
    shuffle = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(X), generator=shuffle).split(BATCH):
            optimiser.zero_grad()
            loss(X[rows], y[rows]).backward()
            optimiser.step()
    return np.array([*found, (loss(X, y).item(), loss(X_test, y_test).item())])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.label}, bias={kind.bias}")
def test_a_run_of_a_batch_is_the_run_alone(kind):
    data = [trial(seed) for seed in (3, 4)]
    found = train(kind, data, RATES, EPOCHS, lambda share: None, moments=4)
    assert found["at"] == [0, 4, 8, 12]
    measured = np.stack(
        [found["train"].numpy(), found["test"].numpy()], axis=-1
    )  # (trials, rates, moments, 2)
    assert np.isfinite(measured[:, :, 0]).all()
    assert np.isnan(measured[:, 0, 1:]).all()  # lost before the second moment
    for t in range(2):
        for r in (1, 2):
            np.testing.assert_allclose(
                measured[t, r][[0, -1]], alone(kind, data[t], RATES[r], seed=t), rtol=1e-9
            )
    assert chosen({**found, "test": found["test"].numpy()})["lost"] == [50.0]


def test_all_may_be_lost():
    found = train(KINDS[2], [trial(0)], (50.0, 60.0), EPOCHS, lambda share: None, moments=4)
    assert np.isnan(found["train"].numpy()[:, :, 1:]).all()
    lost = {"lost": [50.0, 60.0], "best": None, "worst": None}
    assert chosen({**found, "test": found["test"].numpy()}) == lost
