"""Theorem 5 of xie2021: its constants, and the network that shows why it is not certified."""

from __future__ import annotations

import math

import pytest
import torch

from equipoise.linalg import Interval
from equipoise.theory.certificate import Certificate
from equipoise.theory.xie2021 import Theorem5

NUMBERS = {
    "N": 3,
    "width": 12,
    "layers": 4,
    "iterations": 5,
    "alpha": 0.5,
    "B_star": 2.0,
    "B_x": 7.0,
    "B_Ub": 1.5,
    "B_L": 3.0,
    "sigma_m": 0.2,
    "sigma_readout": 0.8,
    "kappa": 0.25,
    "L_sigma": 0.75,
    "loss": 9.0,
    "L_g": 1.25,
    "sigma_zero": -0.5,
}


def test_the_constants_are_the_printed_ones():
    got = Theorem5(**NUMBERS).constants
    C_D, C_z = 7.0, 6 * 0.5 + 12 + 31.5
    B_J = 2 * 0.5 * 2 * 5 * C_z
    C_J = 9 * 0.5 * 2 * 2 * 0.75 * C_z * 1.25 + 2 * math.sqrt(12) * 0.5 * 5 * 2 * 0.75 * C_D
    Q0 = 0.25 * 25 * 4 * 0.25 * 0.0625 * 0.04 * 3 * 0.64
    Q1 = C_J * 3 + 2 * 0.5 * 2 * 5 * C_z * 1.25 * B_J * 3 + B_J * 3
    expected = {"C_D": C_D, "C_z": C_z, "B_J": B_J, "C_J": C_J, "Q0": Q0, "Q1": Q1}
    expected |= {"Q2": 10 * C_z * 3 * 1.25 / Q0, "max_step_size": min(1 / Q0, 1 / Q1)}
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name].lo <= value * (1 + 1e-14), name
        assert got[name].hi >= value * (1 - 1e-14), name
        assert got[name].hi - got[name].lo < 1e-12 * value, name


def test_a_constant_of_two_numbers_covers_the_larger():
    assert Theorem5(**NUMBERS | {"B_x": 5.0}).constants["C_D"].hi >= 3 * NUMBERS["B_star"]
    eye, first = torch.eye(2, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    rest = {n: NUMBERS[n] for n in ("iterations", "alpha", "B_star", "kappa", "L_sigma", "loss")}
    for U, b in ((3 * eye, first), (eye, 3 * first)):
        assert Theorem5.of_weights([eye], [U], [b], eye, eye, **rest).B_Ub.hi >= 3.0


def test_the_certificate_is_never_proved_and_says_why(tmp_path):
    certificate = Theorem5(**NUMBERS).certificate()
    assert certificate.verdict == "hypotheses_fail"
    assert certificate.bound(10) == math.inf
    assert "wrong singular value" in certificate.explain()
    again = Certificate.load(certificate.save(tmp_path / "c.json"))
    assert again.constants["Q0"] == certificate.constants["Q0"]
    assert again.verdict == "hypotheses_fail"


def smooth(t):
    """Slope in [½, 1]: strongly monotone, smooth, 1-Lipschitz, 0 at 0."""
    return 0.5 * t + 0.5 * torch.tanh(t)


def opteq(weights, X, K):
    """y = W_{L+1} z, z = K steps of z ← α Wᵀσ(W z + U x + b) + (1 − α)z."""
    W, U, b, readout = weights
    z = torch.zeros(len(X), W.shape[1], dtype=torch.float64)
    for _ in range(K):
        z = 0.5 * smooth(z @ W.T + X @ U.T + b) @ W + 0.5 * z
    return z @ readout.T


def test_equal_inputs_with_opposite_residuals_refute_lemma_16():
    g = torch.Generator().manual_seed(0)
    W = torch.randn(3, 3, dtype=torch.float64, generator=g)
    W *= 0.7 / torch.linalg.matrix_norm(W, 2)
    U, b, readout = (torch.randn(*s, dtype=torch.float64, generator=g) for s in ((3, 2), (3,), (1, 3)))
    x = torch.randn(2, dtype=torch.float64, generator=g)
    weights = [t.requires_grad_(True) for t in (W, U, b, readout)]
    X, K = torch.stack([x, x]), 20
    residual = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)

    def gradient(X):
        """Jᵀr, the gradient of ½‖y − y₀‖² at targets with that residual."""
        parts = torch.autograd.grad((opteq(weights, X, K) * residual).sum(), weights)
        return float(torch.cat([p.flatten() for p in parts]).norm())

    theorem = Theorem5.of_weights(
        *([t.detach()] for t in (W, U, b)),
        readout.detach(),
        X,
        iterations=K,
        alpha=0.5,
        B_star=10.0,
        kappa=0.5,
        L_sigma=1.0,
        loss=1.0,
    )
    assert theorem.constants["Q0"].lo > 0.01
    assert theorem.lemma16(Interval(0.0, gradient(X) + 1e-12), math.sqrt(2)).refuted
    assert gradient(X) < 1e-12
    assert gradient(torch.stack([x, -x])) > 0.1  # it is the equality of the inputs that does it


def test_weights_give_sound_ends():
    W = [torch.diag(torch.tensor([0.5, 0.3], dtype=torch.float64))]
    U, b = [torch.eye(2, dtype=torch.float64)], [torch.tensor([3.0, 4.0], dtype=torch.float64)]
    readout = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    X = torch.ones(4, 2, dtype=torch.float64)
    rest = {"iterations": 2, "alpha": 1.0, "B_star": 1.0, "kappa": 0.5, "L_sigma": 1.0, "loss": 1.0}
    theorem = Theorem5.of_weights(W, U, b, readout, X, **rest)
    for value, found in (
        (0.3, theorem.sigma_m),
        (1.0, theorem.B_L),
        (5.0, theorem.B_Ub),
        (8**0.5, theorem.B_x),
    ):
        assert found.lo <= value * (1 + 1e-15)
        assert found.hi >= value * (1 - 1e-15)
        assert found.hi - found.lo < 1e-13


@pytest.mark.parametrize("wrong", [{"kappa": -1.0}, {"loss": math.nan}, {"N": 0}])
def test_numbers_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        Theorem5(**(NUMBERS | wrong))
