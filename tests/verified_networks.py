"""Small networks of every family whose predictions are verified, and what is exactly true of them."""

import itertools
from fractions import Fraction

import numpy as np
import torch
from scipy.optimize import linprog

import equipoise as eq

FAMILIES = ("gaussian", "scaled", "monotone", "linear", "opteq", "deep")


def network(family, d=3, n=4, k=3, seed=0, **more):
    g = torch.Generator().manual_seed(seed)
    at = {"outputs": k, "dtype": torch.float64, "generator": g}
    make = {
        "gaussian": lambda: eq.GaussianReLU(d, n, sigma_w2=0.1, **at, **more),
        "scaled": lambda: eq.ScaledReLU(d, n // 2, init="section5.2", **at, **more),
        "monotone": lambda: eq.Monotone(
            d, n, **{"margin": 0.4, "bias": True, "output_bias": True} | at | more
        ),
        "linear": lambda: eq.LinearEquilibrium(d, k, gamma=0.6, dtype=torch.float64, generator=g, **more),
        "opteq": lambda: eq.OptEq(d, n, n, **{"mu": 1.3, "alpha": 0.7} | at | more),
        "deep": lambda: eq.DeepOptEq(d, n, [n - n // 2, n // 2], **{"alpha": 0.6} | at | more),
    }
    model = make[family]()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.split(".")[-1] in ("bias", "c", "b") and p.ndim == 1 and family != "scaled":
                p.add_(0.3 * torch.randn(p.shape, dtype=torch.float64, generator=g))
    return model


def inputs(d=3, N=6, seed=1):
    return torch.rand(N, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def outputs(model, X):
    return model(X, stop=eq.Stop(rtol=1e-12, max_steps=5000)).detach()


def least_values(net, lower, upper, Q, q):
    """The least value of Q ŷ + q over each box, by a linear program for every activation pattern."""
    n = len(net.weight)
    W, U, u = (t.numpy() for t in (net.weight, net.inputs, net.offset))
    C, shift = Q.numpy() @ net.readout.numpy(), float(Q.numpy() @ net.shift.numpy()) + q
    patterns = [np.ones(n)] if net.linear else [np.array(p) for p in itertools.product((0.0, 1.0), repeat=n)]
    found = []
    for low, high in zip(lower.numpy(), upper.numpy(), strict=True):
        best = []
        for D in patterns:  # p = M(U x + u) with M = (I − W D)⁻¹, and the signs of the pattern
            M, sign = np.linalg.inv(np.eye(n) - W * D), np.where(D > 0, -1.0, 1.0)
            rows = {} if net.linear else {"A_ub": sign[:, None] * (M @ U), "b_ub": -sign * (M @ u)}
            solved = linprog((C * D) @ M @ U, bounds=list(zip(low, high, strict=True)), **rows)
            if solved.status == 0:
                best.append(solved.fun + float((C * D) @ M @ u) + shift)
        found.append(min(best))
    return torch.tensor(found, dtype=torch.float64)


def exact(t):
    """A tensor as nested lists of fractions."""
    return [exact(row) for row in t] if t.ndim else Fraction(float(t))


def exact_units(W, b):
    """h = relu(W h + b) in fractions, for two units at most, by trying every pattern."""
    n = len(b)
    for pattern in itertools.product((0, 1), repeat=n):
        on = [i for i in range(n) if pattern[i]]
        h = _solve([[(i == j) - W[i][j] for j in on] for i in on], [b[i] for i in on])
        if h is None:
            continue
        full = [Fraction(0)] * n
        for i, value in zip(on, h, strict=True):
            full[i] = value
        p = [b[i] + sum(W[i][j] * full[j] for j in range(n)) for i in range(n)]
        if all((p[i] >= 0) if pattern[i] else (p[i] <= 0) for i in range(n)):
            return full
    raise AssertionError("no equilibrium")


def _solve(M, r):
    if len(r) == 0:
        return []
    if len(r) == 1:
        return None if M[0][0] == 0 else [r[0] / M[0][0]]
    det = M[0][0] * M[1][1] - M[0][1] * M[1][0]
    if det == 0:
        return None
    return [(r[0] * M[1][1] - M[0][1] * r[1]) / det, (M[0][0] * r[1] - M[1][0] * r[0]) / det]
