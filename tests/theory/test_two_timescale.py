"""The two-timescale theorem: (9)-(18) of docs/theory.md, its certificate, and runs that keep its promise."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from certifiable import FAMILIES, instance
from equipoise.linalg import Interval
from equipoise.theory import Certificate, TwoTimescale, facts
from equipoise.theory.features import Start, reachable_targets
from equipoise.theory.instance import Instance
from equipoise.theory.search import best_constants
from equipoise.train.readout import Readout, gauss_newton

TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)
SEEDS = st.integers(0, 10_000)
norm = lambda M: float(torch.linalg.matrix_norm(M.detach(), ord=2))
singular = lambda M: torch.linalg.svdvals(M.detach())
READOUTS = ("gradient", "gauss-newton")
# family, N, width, slack: independent rows, then more samples than features
SHAPES = [(f, 10, 30, 0.0) for f in FAMILIES] + [(f, 10, 30, 0.5) for f in FAMILIES]
SHAPES += [(f, 40, 30, 0.5) for f in FAMILIES] + [("kawaguchi2021", 40, 30, 0.0)]


def random(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -- the readout's step -------------------------------------------------------------------------------------


@given(seed=SEEDS, share=st.floats(0.01, 1.0), k=st.sampled_from([1, 3]))
@settings(max_examples=25)
def test_9_a_gradient_step_of_the_readout_contracts(seed, share, k):
    Z, r = random(5, 9, seed=seed), random(5, k, seed=seed + 1)
    s = singular(Z)
    eta = share / float(s[0]) ** 2
    left = r - eta * Z @ (Z.T @ r)
    assert float(left.norm()) <= (1 - eta * float(s[-1]) ** 2) * float(r.norm()) * (1 + 1e-12)


def test_9_is_attained_along_the_least_singular_vector_and_fails_beyond_t1():
    Z = random(5, 9, seed=0)
    U, s, _ = torch.linalg.svd(Z, full_matrices=False)
    contraction = lambda r, eta: float((r - eta * Z @ (Z.T @ r)).norm() / r.norm())
    eta = 1 / float(s[0]) ** 2
    assert contraction(U[:, -1:], eta) == pytest.approx(1 - eta * float(s[-1]) ** 2)
    assert contraction(U[:, :1], 2.5 * eta) > 1  # (T1) is not idle: too large a step overshoots


@given(seed=SEEDS, eta=st.floats(0.05, 1.0), slack=st.sampled_from([0.0, 0.3]), N=st.sampled_from([5, 14]))
@settings(max_examples=25)
def test_10_a_gauss_newton_step_contracts_by_exactly_its_size(seed, eta, slack, N):
    Z, r = random(N, 9, seed=seed), random(N, 2, seed=seed + 1)
    if N > 9 and slack == 0:  # the linear family: what can be fitted
        r = Z @ random(9, 2, seed=seed + 2)
    da, de = gauss_newton(Z, r, slack)
    left = r - eta * (Z @ da + math.sqrt(slack) * de)
    torch.testing.assert_close(left, (1 - eta) * r, rtol=1e-8, atol=1e-9)


@given(seed=SEEDS, slack=st.floats(1e-3, 30.0), N=st.sampled_from([4, 12]))
@settings(max_examples=25)
def test_16_and_17_slack_shifts_the_squares_and_bounds_the_inverse(seed, slack, N):
    Z = random(N, 8, seed=seed)
    wide = torch.cat([Z, math.sqrt(slack) * torch.eye(N, dtype=Z.dtype)], dim=1)
    squares = torch.zeros(N, dtype=Z.dtype)
    squares[: min(N, 8)] = singular(Z) ** 2
    torch.testing.assert_close(singular(wide) ** 2, squares + slack, rtol=1e-9, atol=1e-9)
    inverse = norm(Z.T @ torch.linalg.inv(Z @ Z.T + slack * torch.eye(N, dtype=Z.dtype)))
    assert inverse <= min(1 / float(singular(wide)[-1]), 1 / (2 * math.sqrt(slack))) * (1 + 1e-9)


def test_17_is_attained_at_sigma_equal_to_the_root_of_the_slack():
    Z, slack = 0.6 * torch.eye(2, dtype=torch.float64), 0.36
    assert norm(Z.T @ torch.linalg.inv(Z @ Z.T + slack * torch.eye(2))) == pytest.approx(1 / (2 * 0.6))


@given(seed=SEEDS, off=st.floats(1e-9, 1.0))
@settings(max_examples=20)
def test_18_the_distance_to_a_projection_is_bounded_by_its_residual(seed, off):
    Phi, y = random(12, 5, seed=seed), random(12, 2, seed=seed + 1)
    M = torch.linalg.lstsq(Phi, y).solution + off * random(5, 2, seed=seed + 2)
    Q = torch.linalg.qr(Phi).Q
    bound = float((Phi.T @ (y - Phi @ M)).norm()) / float(singular(Phi)[-1])
    assert float((Q @ (Q.T @ y) - Phi @ M).norm()) <= bound * (1 + 1e-9)


def test_reachable_targets_enclose_the_projection():
    model, X, y = instance("kawaguchi2021", N=40, outputs=2)
    found = reachable_targets(Instance(model, X, y), 0.0)
    Q = torch.linalg.qr(X).Q
    assert 0 < found.error < 1e-9
    assert float((Q @ (Q.T @ y) - found.y).norm()) <= found.error
    assert found.least == pytest.approx(float((y - Q @ (Q.T @ y)).square().sum()))
    assert reachable_targets(Instance(model, X, y), 0.1).error == 0  # slack fits everything
    X[:, 3] = X[:, 4] + 1e-7 * X[:, 3]  # ill-conditioned features: a small gradient is no small distance
    found = reachable_targets(Instance(model, X, y), 0.0)
    assert found.error >= float((X.T @ (y - found.y)).norm()) / float(singular(X)[-1]) > 1e-10


# -- a run under the microscope -----------------------------------------------------------------------------


class Watched:
    """The dynamics of the theorem by hand, at exact equilibria, with every quantity of the proof."""

    def __init__(self, model, X, y, certificate):
        self.model, self.X, self.certificate = model, X, certificate
        known = certificate.constants
        targets = y.reshape(len(X), -1)
        if known["least"]:
            Q = torch.linalg.qr(model.injection(X).detach()).Q
            targets = Q @ (Q.T @ targets)
        self.y_shape = y.shape
        a = model.readout_weight.detach().reshape(model.width, -1).clone()
        self.readout = Readout(a, targets, known["slack"], known["readout"])
        self.factor = 2.0 if certificate.loss == "square" else 1.0
        self.hidden = self.factor * certificate.step_sizes["hidden"]
        eta = certificate.step_sizes["readout"]
        self.eta = eta if known["readout"] == "gauss-newton" else self.factor * eta
        self.Z = model.solve(X, stop=TIGHT).value
        self.r = self.readout.residual(self.Z)

    @torch.no_grad()
    def step(self):
        V = self.model.adjoint(self.Z, self.X, stop=TIGHT)
        gradients = self.model.pullback(V, self.r.reshape(self.y_shape), self.Z, self.X)
        self.readout.a, self.readout.e = self.readout.stepped(self.Z, self.r, self.eta)
        for name in self.model.hidden_names:
            self.model.get_parameter(name).sub_(self.hidden * gradients[name])
        self.model.readout_weight.copy_(self.readout.a.reshape(self.model.readout_weight.shape))
        self.Z = self.model.solve(self.X, stop=TIGHT).value
        self.r = self.readout.residual(self.Z)

    @property
    def features(self):
        N, slack = len(self.X), self.certificate.constants["slack"]
        eye = math.sqrt(slack) * torch.eye(N, dtype=self.Z.dtype)
        return torch.cat([self.Z, eye], dim=1) if slack else self.Z


def coordinate(model):
    if isinstance(model, eq.ScaledReLU):
        return model.gamma * model.A.detach()
    return (model.W if isinstance(model, eq.GaussianReLU) else model.A).detach()


# Every shape with either readout and either number of outputs; all their pairs are slow.
@pytest.mark.parametrize(
    ("readout", "outputs"),
    [
        ("gradient", 1),
        ("gauss-newton", 3),
        pytest.param("gradient", 3, marks=pytest.mark.slow),
        pytest.param("gauss-newton", 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("family", "N", "width", "slack"), SHAPES)
def test_every_inequality_of_the_proof_holds_along_a_run(family, N, width, slack, readout, outputs):
    model, X, y = instance(family, N, width, outputs)
    # Wide constants, so that the hidden layer moves as far as the theorem can ever allow.
    certificate = eq.certify(
        model, X, y, theorem="two_timescale", readout=readout, slack=slack, tau=0.5, theta=0.5
    )
    assert certificate.proved, certificate.explain()
    k = certificate.constants
    rate = 1 - (1 - k["theta"]) * k["nu"]
    at = facts(model).geometry(Instance(model, X, y)).ball(Interval(k["delta_w"]), Interval(k["S_bar"]))
    run = Watched(model, X, y, certificate)
    Z0, c0, r0 = run.Z.clone(), coordinate(model).clone(), float(run.r.norm())
    small, total, floor = 1 + 1e-9, 0.0, math.sqrt(certificate.floor) * r0
    assert r0 <= k["r0"]
    for _ in range(40):
        Z, c, r, a = run.Z, coordinate(model).clone(), float(run.r.norm()), norm(run.readout.a)
        total += r
        run.step()
        left = float(run.r.norm())
        assert left <= max(rate * r * small, floor)  # (11), (T2)
        step = run.hidden * at.R.hi * a * r
        assert float((run.Z - Z).norm()) <= step * at.R.hi * at.K.hi * small + 1e-12 * float(Z.norm())  # (4)
        assert float((coordinate(model) - c).norm()) <= step * at.beta.hi * small + 1e-14  # (5)
        assert norm(run.readout.a) <= k["a_bar"] * small  # (13)-(15)
        assert float((coordinate(model) - c0).norm()) <= k["delta_w"] * small  # (T3)
        assert float((run.Z - Z0).norm()) <= k["tau"] * k["s"] * small  # (T4)
        # (the reachable part of) the features stay conditioned
        s = singular(run.features)
        assert float(s[0]) <= k["S_bar"] * small
        assert float(s[-1]) >= k["sigma_floor"] / small
    assert total <= r0 / (1 - rate) * small  # (12)
    assert float((run.Z - Z0).norm() / Z0.norm()) <= certificate.movement


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize(("family", "N", "width", "slack"), SHAPES)
def test_gradient_descent_keeps_the_promise(family, N, width, slack, readout):
    model, X, y = instance(family, N, width)
    certificate = eq.certify(model, X, y, theorem="two_timescale", readout=readout, slack=slack)
    history = eq.gradient_descent(model, X, y, steps=50, step_size=certificate)
    if certificate.constants["least"]:
        history = replace(history, least_loss=certificate.constants["least"])
    assert history.violations() == []
    assert history.loss[50] < history.loss[0]


def test_13_the_gauss_newton_readout_moves_as_far_as_its_bound_says():
    """With τ, θ → 0 the bound is r₀/s, attained where r(0) is the least singular vector."""
    model, X, y = instance("ling2023")
    Z = model.solve(X, stop=TIGHT).value
    U = torch.linalg.svd(Z, full_matrices=False).U
    with torch.no_grad():
        y = model.readout(Z) - U[:, -1]
    certificate = eq.certify(model, X, y, "two_timescale", readout="gauss-newton", tau=1e-6, theta=1e-6)
    da, _ = gauss_newton(Z, U[:, -1:])
    assert certificate.constants["a_bar"] - norm(model.a[:, None]) == pytest.approx(
        float(da.norm()), rel=1e-4
    )


def test_17_halves_the_bound_of_the_readout_where_slack_alone_makes_the_rows_independent():
    model, X, y = instance("ling2023", N=40)
    certificate = eq.certify(
        model, X, y, "two_timescale", readout="gauss-newton", slack=0.36, tau=0.1, theta=0.2
    )
    k, a0 = certificate.constants, float(model.a.detach().norm())
    assert k["s"] == pytest.approx(0.6)
    assert k["a_bar"] == pytest.approx(a0 + k["r0"] / 0.8 / (2 * 0.6))
    wide = eq.certify(
        model, X[:10], y[:10], "two_timescale", readout="gauss-newton", slack=1e-4, tau=0.1, theta=0.2
    )
    k = wide.constants
    assert k["a_bar"] == pytest.approx(a0 + k["r0"] / 0.8 / (0.9 * k["s"]))


def test_15_is_the_smaller_form_where_z_is_ill_conditioned():
    model, X, y = instance("ling2023", N=25)
    theorem, instance_ = TwoTimescale(), Instance(model, X, y)
    start = Start.of(instance_, 0.0)
    S, s, Z, _, r0 = start.floats
    tau, theta = 0.01, 0.1
    c = 1 / ((1 - theta) * (1 - tau) ** 2)
    first = (Z + tau * s) * c * r0 / s**2
    second = (2 * r0 + 2 * (Z + tau * s) * tau * c * r0 / s + theta / (1 - theta) * r0) / s + tau * c * r0 / s
    found = theorem._travel(start, s, Z + tau * s, r0, tau, theta)
    assert S / s > 10
    assert float(found) == pytest.approx(min(first, second))
    assert second < first / 2


# -- the certificate ----------------------------------------------------------------------------------------


def test_the_claims_are_those_of_the_theorem():
    model, X, y = instance("ling2023")
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    assert [c.name for c in certificate.claims] == [
        "‖W‖ < 1",
        "s > 0",
        "δ",
        "(T1)",
        "(T2)",
        "(T3)",
        "(T4)",
        "η_h > 0",
    ]
    k, at = certificate.constants, facts(model).geometry(Instance(model, X, y))
    h, eta = certificate.step_sizes["hidden"], certificate.step_sizes["readout"]
    ball = at.ball(Interval(k["delta_w"]), Interval(k["S_bar"]))
    left = (1 - k["theta"]) * k["nu"]
    expected = {
        "(T1)": (eta * k["S_bar"] ** 2, 1.0),
        "(T2)": (h * ball.R.hi**2 * k["a_bar"] ** 2 * ball.K.hi, k["theta"] * k["nu"]),
        "(T3)": (h * ball.R.hi * k["a_bar"] * ball.beta.hi * k["r0"], left * k["delta_w"]),
        "(T4)": (h * ball.R.hi**2 * k["a_bar"] * ball.K.hi * k["r0"], left * k["tau"] * k["s"]),
    }
    for name, (lhs, rhs) in expected.items():
        assert certificate[name].lhs == pytest.approx(lhs, rel=1e-9), name
        assert certificate[name].rhs == pytest.approx(rhs, rel=1e-9), name
    margins = [certificate[name].margin for name in ("(T2)", "(T3)", "(T4)")]
    assert max(margins) == pytest.approx(0.9, rel=1e-6)  # the hidden step is the largest but for a tenth
    assert k["nu"] == pytest.approx(eta * (1 - k["tau"]) ** 2 * k["s"] ** 2)
    assert certificate.factor == pytest.approx((1 - left) ** 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_linear_loss_without_its_half_takes_half_the_steps(family):
    model, X, y = instance(family)
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    ratio = certificate["(T1)"].lhs / (
        certificate.step_sizes["readout"] * certificate.constants["S_bar"] ** 2
    )
    assert ratio == pytest.approx(2.0 if family == "kawaguchi2021" else 1.0)
    newton = eq.certify(model, X, y, theorem="two_timescale", readout="gauss-newton", eta=0.5)
    assert newton.step_sizes["readout"] == 0.5
    assert newton.constants["nu"] == 0.5


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_constants_are_optimal_and_leave_half_of_the_rate(family, readout):
    model, X, y = instance(family)
    theorem, instance_ = TwoTimescale(readout=readout), Instance(model, X, y)
    start, at = Start.of(instance_, 0.0), facts(model).geometry(instance_).as_floats()
    chosen = theorem._choose(start, facts(model).geometry(instance_))
    S, s = start.floats[:2]
    ideal = 1.0 if readout == "gauss-newton" else s**2 / S**2

    def score(constants):
        tau, theta, delta = constants
        if not (tau < 1 and theta < 1 and delta < at.room):
            return -math.inf
        found = theorem._argue(start, at, tau, theta, delta)
        return math.log(found.largest) if 2 * (1 - theta) * found.nu >= ideal else -math.inf

    other = best_constants(score, [chosen, (0.05, 0.2, chosen[2]), (0.2, 0.2, 10 * chosen[2])])
    assert score(chosen) >= score(other) - 0.02
    certificate = theorem.prove(instance_)
    assert (1 - certificate.constants["theta"]) * certificate.constants["nu"] >= 0.499 * ideal


def test_given_constants_are_used():
    model, X, y = instance("hieu2022")
    certificate = eq.certify(model, X, y, theorem="two_timescale", tau=0.3, theta=0.4, delta_w=0.01)
    k = certificate.constants
    assert (k["tau"], k["theta"], k["delta_w"]) == (0.3, 0.4, 0.01)
    assert k["S_bar"] == pytest.approx(k["S"] + 0.3 * k["s"])


def test_a_ball_that_reaches_beyond_well_posedness_is_refused():
    model, X, y = instance("ling2023")
    margin = 1 - float(torch.linalg.eigvalsh((model.W + model.W.T).detach() / 2)[-1])  # above 1 − ‖W‖
    certificate = eq.certify(model, X, y, theorem="two_timescale", delta_w=margin + 0.01)
    assert not certificate.proved
    assert not certificate["δ"].holds
    assert certificate.bound(3) == math.inf


def test_the_bound_falls_and_ends_at_the_floor():
    model, X, y = instance("ling2023")
    certificate = eq.certify(model, X, y, theorem="two_timescale", readout="gauss-newton")
    assert certificate.bound(0) == 1.0
    assert certificate.bound(2) == pytest.approx(certificate.factor**2)
    assert certificate.bound(10_000) == certificate.floor
    assert 0 < certificate.floor < 1e-12


def test_the_floor_grows_with_the_tolerance_and_the_dtype():
    model, X, y = instance("ling2023")
    floor = lambda model, X, y, **o: (
        eq.certify(model, X, y, theorem="two_timescale", readout="gauss-newton", **o).floor
    )
    tight, loose = floor(model, X, y), floor(model, X, y, rtol=1e-8)
    single = floor(model.float(), X.float(), y.float())
    assert tight < 1e-12 < loose < 1e-6
    assert 1e-9 < single < 1
    certificate = eq.certify(model, X.float(), y.float(), theorem="two_timescale")
    eq.Stop(rtol=certificate.constants["rtol"]).resolve(torch.float32)  # a tolerance that float32 can reach


@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded"])
def test_certificates_survive_json(theorem, tmp_path):
    model, X, y = instance("kawaguchi2021", N=40)
    certificate = eq.certify(model, X, y, theorem=theorem, readout="gauss-newton", eta=0.3)
    again = Certificate.load(certificate.save(tmp_path / "certificate.json"))
    assert again == certificate
    assert again.bound(7) == certificate.bound(7)
    text = json.loads((tmp_path / "certificate.json").read_text())
    text["claims"][-1]["holds"] = False
    (tmp_path / "altered.json").write_text(json.dumps(text))
    with pytest.raises(ValueError, match="altered"):
        Certificate.load(tmp_path / "altered.json")
