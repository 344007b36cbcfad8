"""Safeguarded descent keeps its promise at every step, and its hidden layer learns."""

from __future__ import annotations

import copy
import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import equipoise as eq
from certifiable import FAMILIES, instance
from equipoise.theory.features import reachable_targets
from equipoise.theory.instance import Instance
from equipoise.theory.watch import FeatureWatch
from equipoise.train import guarded_run
from equipoise.train.guarded_run import GuardedRun
from equipoise.train.safeguarded import accuracy

TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)
READOUTS = ("gradient", "gauss-newton")
SHAPES = [(f, 10, 30, 0.0) for f in FAMILIES] + [(f, 10, 30, 0.5) for f in FAMILIES]
SHAPES += [(f, 40, 30, 0.5) for f in FAMILIES] + [("kawaguchi2021", 40, 30, 0.0)]
# Every shape with either readout and either number of outputs; all their pairs are slow.
PAIRS = pytest.mark.parametrize(
    ("readout", "outputs"),
    [
        ("gradient", 1),
        ("gauss-newton", 3),
        pytest.param("gradient", 3, marks=pytest.mark.slow),
        pytest.param("gauss-newton", 1, marks=pytest.mark.slow),
    ],
)
# Of runs of hundreds of steps, those that are not slow.
QUICK = {(10, 30, 0.0): ("gradient", 1), (40, 30, 0.5): ("gauss-newton", 3), (40, 30, 0.0): ("gradient", 3)}


def features(Z, slack):
    eye = math.sqrt(slack) * torch.eye(len(Z), dtype=Z.dtype)
    return torch.cat([Z, eye], dim=1) if slack else Z


def resolvent(model, family):
    """R of the model: the better of both bounds, where a family may contract or be monotone."""
    R = model.resolvent_bound()
    if family in ("gao2022", "ling2023"):
        W = model.weight()
        margin = float(torch.linalg.eigvalsh(torch.eye(len(W), dtype=W.dtype) - (W + W.T) / 2)[0])
        R = min(R, 1 / margin) if margin > 0 else R
    return R


# -- the promise, and every check behind it, by exact quantities --------------------------------------------


@PAIRS
@pytest.mark.parametrize(("family", "N", "width", "slack"), SHAPES)
def test_every_accepted_step_is_safe(family, N, width, slack, readout, outputs):
    """(S1)-(S4) at each step, measured independently: solves to 1e-13, an SVD, the residual on its own."""
    model, X, y = instance(family, N, width, outputs)
    certificate = eq.certify(model, X, y, theorem="safeguarded", readout=readout, slack=slack)
    known = certificate.constants
    targets = reachable_targets(Instance(model, X, y), slack).y
    run = GuardedRun(model, X, y, certificate, None, "gradient")
    R0, before, moved = None, None, 0
    for k in range(25):
        Z = run.model.solve(X, stop=TIGHT).value
        r = Z @ run.readout.a + math.sqrt(slack) * run.readout.e - targets
        size = float(r.norm())
        assert size == pytest.approx(run.residual.norm, rel=1e-3)
        if before is not None:
            assert size <= known["rate"] * before * (1 + 1e-9)  # (S1)
        s = torch.linalg.svdvals(features(Z, slack))
        assert float(s[-1]) >= known["sigma_floor"] * (1 - 1e-9)  # (S2)
        assert float(s[0]) <= known["S_bar"] * (1 + 1e-9)  # (S3)
        run.model.check_wellposed()  # (S4)
        R = resolvent(run.model, family)
        R0 = R if R0 is None else R0
        assert R <= 4 * R0 * (1 + 1e-9)
        assert float((run.point.Z - Z).norm()) <= run.point.error
        assert run.residual.size.lo <= size * (1 + 1e-12)
        before = size
        with torch.no_grad():
            step = run.step()
        assert step.verified or size <= math.sqrt(certificate.floor) * known["r0"]
        moved += step.hidden > 0
        if k == 10:
            assert moved >= 5
        if not step.verified:
            break


@pytest.mark.parametrize(
    ("family", "N", "width", "slack", "readout", "outputs"),
    [
        pytest.param(*at, *pair, marks=() if pair == QUICK.get(at[1:]) else pytest.mark.slow)
        for at in SHAPES
        for pair in itertools.product(READOUTS, (1, 3))
    ],
)
def test_hundreds_of_steps_without_a_violation(family, N, width, slack, readout, outputs):
    model, X, y = instance(family, N, width, outputs)
    certificate = eq.certify(model, X, y, theorem="safeguarded", readout=readout, slack=slack)
    history = eq.safeguarded_descent(model, X, y, steps=200, certificate=certificate)
    assert history.steps == 200
    assert history.violations() == []
    assert all(history.relative_loss[k] <= certificate.bound(k) for k in range(201))
    apriori = eq.certify(
        instance(family, N, width, outputs)[0], X, y, "two_timescale", readout=readout, slack=slack
    )
    assert history.accepted["hidden"].max() > 100 * apriori.step_sizes["hidden"]
    assert history.movement[200] > 1e-2
    if slack == 0 and readout == "gradient":
        assert history.movement[200] > apriori.movement


@pytest.mark.parametrize("family", FAMILIES)
def test_the_hidden_layer_moves_much_further_than_the_a_priori_step_allows(family):
    model, X, y = instance(family)
    frozen = copy.deepcopy(model)
    options = {"readout": "gauss-newton", "eta": 0.1}
    certificate = eq.certify(model, X, y, theorem="safeguarded", **options)
    history = eq.safeguarded_descent(model, X, y, steps=60, certificate=certificate)
    apriori = eq.certify(frozen, X, y, theorem="two_timescale", **options)
    slow = eq.gradient_descent(frozen, X, y, steps=60, step_size=apriori)
    assert history.movement[60] > 100 * slow.movement[60]
    assert history.movement[60] > apriori.movement  # further than that theorem certifies at all
    assert all(history.travelled[name][60] > 0 for name in model.hidden_names if name != "bias")


@pytest.mark.parametrize("readout", READOUTS)
def test_float32_weights_are_judged_as_they_are_stored(readout):
    model, X, y = instance("ling2023")
    model, X, y = model.float(), X.float(), y.float()
    certificate = eq.certify(model, X, y, theorem="safeguarded", readout=readout)
    history = eq.safeguarded_descent(model, X, y, steps=60, certificate=certificate)
    assert history.violations() == []
    assert history.accepted["hidden"].max() > 0
    assert model.W.dtype == torch.float32
    with torch.no_grad():
        exact = copy.deepcopy(model).double()
        loss = 0.5 * (exact(X.double(), stop=TIGHT) - y.double()).square().sum()
    assert float(loss) == pytest.approx(history.loss[-1], rel=1e-3)


def test_the_model_is_left_at_its_last_weights_and_slack_starts_at_zero():
    model, X, y = instance("gao2022", N=40)
    certificate = eq.certify(model, X, y, theorem="safeguarded", slack=0.5)
    history = eq.safeguarded_descent(model, X, y, steps=30, certificate=certificate)
    with torch.no_grad():
        left = model(X, stop=TIGHT) - y
    assert history.plain_loss is not None
    assert history.plain_loss[0] == pytest.approx(history.loss[0])  # e = 0
    # Solves are as tight as a step needs, to 1e-5 at the loosest: far below what one step changes.
    assert 0.5 * float(left.square().sum()) == pytest.approx(history.plain_loss[30], rel=2e-5)
    assert history.plain_loss[29] != pytest.approx(history.plain_loss[30], rel=1e-3)
    assert history.loss[30] < 0.1 * history.plain_loss[30]  # the slack takes what is not worth fitting


def test_a_broken_acceptance_check_breaks_the_promise(monkeypatch):
    """What the checks are for: without them the same run leaves what was promised."""

    def run(seed=0):
        model, X, y = instance("ling2023", seed=seed)
        certificate = eq.certify(model, X, y, theorem="safeguarded", eta=0.5)
        return eq.safeguarded_descent(model, X, y, steps=12, certificate=certificate, hidden_step=1e3)

    assert run().violations() == []
    monkeypatch.setattr(guarded_run, "_within", lambda size, limit: True)
    monkeypatch.setattr(FeatureWatch, "admits", lambda self, Z, error: True)
    assert run().violations() != []


def test_a_broken_spectral_check_lets_the_features_degenerate(monkeypatch):
    def least(seed):
        model, X, y = instance("ling2023", N=28, seed=seed)
        certificate = eq.certify(model, X, y, theorem="safeguarded", tau=0.02)
        eq.safeguarded_descent(model, X, y, steps=20, certificate=certificate)
        s = torch.linalg.svdvals(model.solve(X, stop=TIGHT).value)
        return float(s[-1]) / certificate.constants["sigma_floor"]

    assert min(least(seed) for seed in range(4)) >= 1
    monkeypatch.setattr(FeatureWatch, "admits", lambda self, Z, error: True)
    assert min(least(seed) for seed in range(4)) < 1


# -- options ------------------------------------------------------------------------------------------------


def test_any_direction_may_be_followed():
    """Adam's directions, and even uphill ones: the promise does not ask where an update comes from."""
    model, X, y = instance("hieu2022")
    seen = []

    def adam(gradients, moments={}):  # noqa: B006
        seen.append(set(gradients))
        step = {}
        for name, g in gradients.items():
            m, v = moments.get(name, (0.0, 0.0))
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
            moments[name] = m, v
            step[name] = m / (v.sqrt() + 1e-8)
        return step

    uphill = lambda gradients: {name: -g for name, g in gradients.items()}
    for direction in (adam, uphill):
        copied = copy.deepcopy(model)
        history = eq.safeguarded_descent(copied, X, y, steps=40, direction=direction)
        assert history.violations() == []
        assert history.accepted["hidden"].max() > 0
    assert seen[0] == set(model.hidden_names)


def test_a_hidden_step_of_zero_fits_the_readout_alone():
    model, X, y = instance("ling2023")
    start = copy.deepcopy(model)
    history = eq.safeguarded_descent(model, X, y, steps=20, hidden_step=0.0)
    assert torch.equal(model.W, start.W)
    assert history.accepted["tries"].sum() == 0
    np.testing.assert_allclose(history.relative_loss, 0.9 ** (2 * np.arange(21)), rtol=1e-6)
    assert history.violations() == []


def test_a_given_hidden_step_is_a_cap():
    model, X, y = instance("ling2023")
    history = eq.safeguarded_descent(model, X, y, steps=20, hidden_step=1e-5)
    assert history.accepted["hidden"].max() == 1e-5


def test_rounding_level_is_said_and_the_bound_stays_above_it():
    model, X, y = instance("ling2023")
    certificate = eq.certify(model, X, y, theorem="safeguarded", eta=1.0)
    history = eq.safeguarded_descent(model, X, y, steps=200, certificate=certificate)
    assert "rounding level" in history.stopped
    assert history.steps == 200
    assert history.relative_loss[200] < certificate.floor == history.promised[200]
    assert not history.accepted["verified"][-1]
    assert history.accepted["verified"][:5].all()


def test_targets_already_fitted():
    model, X, _ = instance("ling2023")
    y = model(X, stop=TIGHT).detach()
    history = eq.safeguarded_descent(model, X, y, steps=5)
    assert history.violations() == []


def test_test_data_are_measured_where_asked():
    model, X, y = instance("ling2023", N=20)
    y, seen = y.sign(), []
    history = eq.safeguarded_descent(
        model,
        X[:10],
        y[:10],
        steps=10,
        X_test=X[10:],
        y_test=y[10:],
        measure=5,
        progress=lambda k, L: seen.append(k),
    )
    assert set(history.test_loss) == set(history.test_accuracy) == {0, 5, 10}
    assert seen == list(range(11))
    with torch.no_grad():
        yhat = model(X[10:], stop=TIGHT)
    assert history.test_accuracy[10] == float((yhat.sign() == y[10:]).double().mean())
    assert history.test_loss[10] == pytest.approx(0.5 * float((yhat - y[10:]).square().sum()), rel=1e-6)


def test_accuracy_knows_labels_from_numbers():
    y = torch.tensor([0.0, 1.0, 1.0])
    assert accuracy(torch.tensor([0.4, 0.6, 0.4]), y) == pytest.approx(2 / 3)
    assert accuracy(torch.tensor([0.4, 0.6, 0.4]), torch.tensor([0.1, 0.2, 0.3])) is None
    one_hot = torch.eye(3)
    assert accuracy(torch.tensor([[2.0, 1, 1], [0, 1, 3], [0, 0, 1]]), one_hot) == pytest.approx(2 / 3)
    assert accuracy(torch.randn(3, 3), torch.randn(3, 3)) is None


# -- refusals -----------------------------------------------------------------------------------------------


def test_certificates_of_something_else_are_refused():
    model, X, y = instance("ling2023")
    certificate = eq.certify(model, X, y, theorem="safeguarded")
    with pytest.raises(ValueError, match="other X"):
        eq.safeguarded_descent(model, X + 1e-12, y, 5, certificate)
    with pytest.raises(ValueError, match="other y"):
        eq.safeguarded_descent(model, X, -y, 5, certificate)
    with pytest.raises(ValueError, match="theorem 'safeguarded'"):
        eq.safeguarded_descent(model, X, y, 5, eq.certify(model, X, y, theorem="two_timescale"))
    eq.safeguarded_descent(model, X, y, 1, certificate)
    with pytest.raises(ValueError, match="other weights"):
        eq.safeguarded_descent(model, X, y, 5, certificate)


def test_what_is_not_proved_is_refused_with_the_reason():
    model, X, y = instance("ling2023", N=40)
    with pytest.raises(ValueError, match="slack"):
        eq.safeguarded_descent(model, X, y, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"steps": 2.0},
        {"hidden_step": -1.0},
        {"direction": "newton"},
        {"direction": lambda g: {}},
        {"direction": lambda g: {n: g[n].sum() for n in g}},
        {"X_test": torch.zeros(2, 8, dtype=torch.float64)},
        {"measure": 0},
    ],
)
def test_options_out_of_range_are_errors(wrong):
    model, X, y = instance("ling2023")
    with pytest.raises(ValueError, match=next(iter(wrong))):
        eq.safeguarded_descent(model, X, y, **{"steps": 3, **wrong})


# -- real data ----------------------------------------------------------------------------------------------


def mnist(per_class, classes=(0, 1)):
    beside = Path(__file__).parents[3] / "shared" / "data"
    directory = os.environ.get("EQUIPOISE_DATA") or (str(beside) if beside.exists() else None)
    try:
        raw = eq.data.load("mnist", data_dir=directory, download=False)
    except eq.data.MissingData:
        pytest.skip("MNIST is not there: set EQUIPOISE_DATA")
    part = eq.data.prepare.two_classes(raw, classes=classes, per_class=per_class)
    rows = lambda x: torch.from_numpy(eq.data.prepare.unit_norm(eq.data.prepare.flatten(x), "sqrt_d"))
    signs = lambda v: torch.from_numpy(2 * eq.data.prepare.zero_one(v) - 1)
    return rows(part.x_train), signs(part.y_train), rows(part.x_test), signs(part.y_test)


@pytest.mark.slow
@pytest.mark.parametrize(("per_class", "width", "slack"), [(500, 2000, 0.0), (2500, 1000, 1.0)])
def test_mnist(per_class, width, slack, capsys):
    """N = 1000, m = 2000, and N = 5000 > m = 1000 with slack: proved, kept for 200 steps, and it learns."""
    X, y, X_test, y_test = mnist(per_class)
    make = lambda: eq.GaussianReLU(
        784, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    model, frozen = make(), make()
    options = {"readout": "gauss-newton", "eta": 0.1, "slack": slack}
    certificate = eq.certify(model, X, y, theorem="safeguarded", **options)
    apriori = eq.certify(frozen, X, y, theorem="two_timescale", **options)
    assert certificate.proved
    assert apriori.proved
    test = {"X_test": X_test, "y_test": y_test}
    history = eq.safeguarded_descent(model, X, y, steps=200, certificate=certificate, **test)
    alone = eq.safeguarded_descent(frozen, X, y, steps=200, certificate=certificate, hidden_step=0.0, **test)
    assert history.violations() == []
    assert alone.violations() == []
    assert history.movement[200] >= 100 * apriori.movement
    with capsys.disabled():
        print(
            f"\nMNIST N={len(X)} m={width} slack={slack}: L/L0 {history.relative_loss[200]:.1e} "
            f"(promised {history.promised[200]:.1e}), moved {history.movement[200]:.2e} "
            f"(a priori at most {apriori.movement:.1e}), test accuracy {history.test_accuracy[200]:.4f} "
            f"(frozen {alone.test_accuracy[200]:.4f}), test loss {history.test_loss[200]:.2f} "
            f"(frozen {alone.test_loss[200]:.2f}), {history.seconds / 200:.2f} s a step"
        )
    assert history.test_accuracy[200] > 0.99


def test_a_forecast_of_equilibria_that_overflows_ends_no_run():
    generator = torch.Generator().manual_seed(1)
    model = eq.Monotone(2, 3, dtype=torch.float64, generator=generator)
    X = 1e60 * torch.randn(2, 2, dtype=torch.float64, generator=generator)
    y = torch.randn(2, dtype=torch.float64, generator=generator)
    certificate = eq.certify(model, X, y, theorem="safeguarded")
    assert certificate.proved
    history = eq.safeguarded_descent(model, X, y, 3, certificate)
    assert not history.violations()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
