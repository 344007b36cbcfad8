"""Steps whose batch settles as a whole: the gradient is that of a solver, and what is promised is kept."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys

import pytest
import torch

import equipoise as eq
from equipoise.theory.register import facts
from equipoise.train.checkpoint import Checkpoints
from equipoise.train.loose import LooseSolves
from equipoise.train.optimisers import make_optimiser
from equipoise.train.projection import Projection
from equipoise.train.warm_start import WarmStart

MODELS = {
    "gaussian": lambda **how: eq.GaussianReLU(3, 10, **how),
    "scaled": lambda **how: eq.ScaledReLU(3, 10, **how),
    "conv-monotone": lambda **how: eq.ConvMonotone((1, 1, 3), channels=4, margin=1.0, **how),
    "conv-opteq": lambda **how: eq.ConvOptEq((1, 1, 3), state=4, hidden=[5], **how),
}


def drawn(kind="gaussian", seed=0, N=12):
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[kind](outputs=2, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, dtype=p.dtype, generator=generator))
        Projection(0.9)(model)
    X = torch.randn(N, 3, dtype=torch.float64, generator=generator)
    y = (X[:, 0] * X[:, 1] > 0).long()
    return model, X.reshape(N, 1, 1, 3) if "conv" in kind else X, y


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("warm", [False, True])
def test_outputs_and_gradients_are_those_of_a_solver(kind, warm):
    model, X, y = drawn(kind)
    states, rows = WarmStart(len(X)) if warm else None, torch.arange(len(X))
    loose = LooseSolves(model, 1e-13, states)
    for _ in range(2):  # the second time from what the first has found
        found = loose.outputs(X, rows)
        exact = model(X, stop=eq.Stop(rtol=1e-13))
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12)
        grads = [
            torch.autograd.grad(torch.nn.functional.cross_entropy(out, y), list(model.parameters()))
            for out in (found, exact)
        ]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)
    assert (loose.steps["forward"] <= 6) is warm
    assert loose.work == len(X) * sum(loose.steps.values())


def test_what_does_not_settle_is_left_to_a_solver():
    model, X, y = drawn()
    with torch.no_grad():
        model.W.copy_(3 * torch.eye(10))
    assert LooseSolves(model, 1e-2, None).outputs(X, torch.arange(len(X))) is None
    trainer = eq.Trainer(model, "cross_entropy", batch_size=4, epochs=1, rtol=1e-2, loose=True)
    history = trainer.fit(X, y)
    assert "no equilibrium" in history.stopped


def test_loose_solves_need_a_tolerance():
    with pytest.raises(ValueError, match="give rtol"):
        eq.Trainer(drawn()[0], loose=True)


def test_images_that_do_not_settle_are_left_to_a_solver():
    """‖W‖ is large where B − Bᵀ is: plain steps cycle, and other solvers find the equilibria."""
    model, X, _ = drawn("conv-monotone")
    with torch.no_grad():
        model.B.mul_(30)
    loose = LooseSolves(model, 1e-2, None)
    assert loose.outputs(X, torch.arange(len(X))) is None
    assert loose.work == 0


def test_an_adjoint_that_does_not_settle_is_solved_for():
    model, X, y = drawn("conv-monotone")
    loose = LooseSolves(model, 1e-10, None)
    out, forward = loose.outputs(X, torch.arange(len(X))), loose._settled
    loose._settled = lambda which, z, f: None if which == "adjoint" else forward(which, z, f)
    found, exact = (
        torch.autograd.grad(torch.nn.functional.cross_entropy(o, y), list(model.parameters()))
        for o in (out, model(X, stop=eq.Stop(rtol=1e-12)))
    )
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def train(folder=None, stop_at=0, kind="gaussian", **options):
    model, X, y = drawn(kind, N=40)
    start = copy.deepcopy(model)
    cert = eq.certify(model, X, y, theorem="anchored", loss="cross_entropy", ridge=0.1)
    trainer = eq.Trainer(
        model,
        "cross_entropy",
        certificate=cert,
        optimiser="adam",
        rate=0.02,
        batch_size=8,
        epochs=8,
        check_every=2,
        rtol=1e-2,
        loose=True,
        projection=Projection(0.95, every=2, proved=False),
        **options,
    )
    count = itertools.count(1)

    def progress(step, loss):
        if next(count) == stop_at:
            raise KeyboardInterrupt

    saved = None if folder is None else Checkpoints(folder)
    try:
        return model, start, cert, trainer.fit(X, y, checkpoints=saved, progress=progress)
    except KeyboardInterrupt:
        return None


def test_the_promise_is_kept_and_the_network_learns():
    model, start, cert, history = train()
    kept = [c for c in history.anchored["checkpoints"] if c["accepted"]]
    assert len(kept) >= 3
    assert history.anchored["F_end"][1] < 0.8 * cert.constants["F_start"]
    assert facts(model).reads().unique
    assert not torch.equal(model.W, start.W)
    assert history.forward_steps[1:].min() > 0


@pytest.mark.parametrize("kind", ["gaussian", "conv-monotone"])
def test_a_run_that_goes_on_computes_the_same_bits(tmp_path, kind):
    whole = train(tmp_path / "whole", kind=kind)
    assert train(tmp_path / "broken", stop_at=17, kind=kind) is None
    again = train(tmp_path / "broken", kind=kind)
    assert all(torch.equal(p, q) for p, q in zip(again[0].parameters(), whole[0].parameters(), strict=True))
    assert again[3].anchored == whole[3].anchored


@pytest.mark.parametrize("norm", [0.5, 3.0])
def test_an_estimated_projection_comes_near_its_bound(norm):
    model, _, _ = drawn()
    with torch.no_grad():
        model.W.mul_(norm / torch.linalg.matrix_norm(model.W, 2))
    before = model.W.detach().clone()
    by = Projection(0.95, every=2, proved=False)
    assert by.after(0, model) == 0
    assert by.after(1, model) == (norm > 0.95)
    expected = min(norm, 0.95)
    assert float(torch.linalg.matrix_norm(model.W.detach(), 2)) == pytest.approx(expected, rel=0.05)
    assert torch.equal(model.W, before) is (norm < 0.95)
    assert "proved=False" in repr(by)


@pytest.mark.parametrize("which", ["adam", "adamw", "sgd", "rmsprop", "adagrad"])
def test_named_optimisers_step_as_those_of_torch(which):
    ours, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    mine = make_optimiser(which, ours, 0.05, None, 0.1)
    names = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad"}
    other = getattr(torch.optim, names[which])(theirs.parameters(), lr=0.05, weight_decay=0.1)
    X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for _ in range(4):
        for model, optimiser in ((ours, mine), (theirs, other)):
            optimiser.zero_grad()
            model(X).square().sum().backward()
            optimiser.step()
    assert all(p.requires_grad for p in ours.parameters())
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_fit_does_not_import_the_compiler_of_torch():
    script = (
        "import sys, numpy as np, equipoise as eq\n"
        "X = np.random.default_rng(0).normal(size=(60, 3))\n"
        "eq.EquilibriumRegressor(epochs=2, random_state=0).fit(X, X[:, 0])\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
