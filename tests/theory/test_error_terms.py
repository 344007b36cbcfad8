"""The error of an OptEq's equilibria, term by term: ‖z − T(z)‖/(1 − q) and the rounding of every layer."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import equipoise as eq
from conv_networks import CASES, IMAGE, build, drawn
from equipoise.linalg import Interval, gamma
from equipoise.models.proximal import DeepOptEq, OptEq
from equipoise.models.proximal.properties import L1, GradientStep
from equipoise.solve import half_squared_norm
from equipoise.theory import facts
from equipoise.theory.conv_robustness import ConvNetwork
from equipoise.theory.families.opteq import effective_norm, equilibria_error

F64 = torch.float64
ULPS = gamma(16)
norm = lambda M: float(M.norm())
largest = lambda W: float(torch.linalg.matrix_norm(W, 2))
rounded = lambda A, B: gamma(A.shape[1] + 2) * norm(A) * norm(B)  # of the product A B
smooth = GradientStep(half_squared_norm(), 0.5)


def networks():
    g = torch.Generator().manual_seed(0)
    more = {"dtype": F64, "generator": g, "activation": "tanh"}
    yield "one", OptEq(3, 4, 6, mu=2.0, **more)
    yield "a part", OptEq(3, 4, 6, mu=0.5, alpha=0.7, **more)
    yield "deep", DeepOptEq(3, 4, [5, 6], alpha=0.6, **more)
    yield "sparse", DeepOptEq(3, 4, [5, 6], alpha=0.6, regulariser=L1(0.01), **more)
    yield "smooth", OptEq(3, 4, 6, mu=2.0, regulariser=smooth, **more)


@pytest.mark.parametrize(("name", "model"), list(networks()))
@torch.no_grad()
def test_every_rounding_of_a_layer_counts(name, model):
    alpha, mu = model.alpha, getattr(model, "mu", 1.0)
    for block in model.blocks:
        block.W.mul_(0.7 * math.sqrt(mu) / largest(block.W))
        block.b.copy_(torch.linspace(-1, 1, len(block.b)))
    X = drawn(5, 3)
    Z = model.solve(X, stop=eq.Stop(rtol=1e-14, max_steps=2000)).value
    z, off, q = Z, 0.0, 1.0
    for block in model.blocks:
        W, size = block.W, largest(block.W)
        c = X @ block.U.T + block.b
        pre = z @ W.T + c
        h = torch.tanh(pre)
        out = alpha / mu * (h @ W)
        new = out if alpha == 1 else out + (1 - alpha) * z
        at_pre = rounded(X, block.U.T) + rounded(z, W.T) + gamma(8) * (norm(c) + norm(pre) + norm(z) * size)
        at_h = at_pre + ULPS * norm(h)
        at_out = alpha / mu * (size * at_h + rounded(h, W))
        at_out += gamma(8) * (norm(out) + norm(h) * size * alpha / mu + norm(z) + norm(new))
        grow = 1 - alpha + alpha * size**2 / mu
        off, z, q = grow * off + at_out, new, q * grow
    if model.regulariser is not None:
        before, z = z, model.regulariser(z)
        inner = 4 if name == "sparse" else 16  # a proximal map sums over the state at most
        off += ULPS * (norm(before) + norm(z) + norm(Z)) * (1 + inner)
    truth = (norm(Z - z) + off) / (1 - q)
    assert equilibria_error(model, X, Z, Interval(q)) == pytest.approx(truth, rel=1e-3, abs=0.0)


@pytest.mark.parametrize(("name", "model"), list(networks()))
@torch.no_grad()
def test_the_state_follows_its_input_through_every_layer(name, model):
    """(24): Σ_l (α/μ)L_σ‖W_l‖‖U_l‖ ∏_{j>l} g_j over 1 − q."""
    alpha, mu, moved, q = model.alpha, getattr(model, "mu", 1.0), 0.0, 1.0
    for l, block in enumerate(model.blocks):
        block.W.mul_((0.7 + 0.2 * l) * math.sqrt(mu) / largest(block.W))
        grow = 1 - alpha + alpha / mu * largest(block.W) ** 2
        moved = grow * moved + alpha / mu * largest(block.W) * largest(block.U)
        q *= grow
    found = facts(model).bounds().state_bound()
    assert moved / (1 - q) * (1 - 1e-12) <= found <= moved / (1 - q) * (1 + 1e-9)


def test_what_is_not_proved_unique_moves_without_bound():
    model = OptEq(3, 4, 6, dtype=F64)
    with torch.no_grad():
        model.W.copy_(2 * torch.eye(6, 4))
    assert facts(model).bounds().state_bound() == facts(model).bounds().output_bound() == math.inf


@pytest.mark.parametrize("case", list(CASES))
@torch.no_grad()
def test_every_rounding_of_a_convolution_counts(case):
    model = build(**CASES[case])
    network, X = ConvNetwork(model), drawn(2, *IMAGE, seed=2)
    Z = model.solve(X, stop=eq.Stop(rtol=1e-13, max_steps=3000)).value
    alpha = model.alpha

    def conv_rounded(K, x):
        taps = K.shape[2] * K.shape[3]
        return gamma(max(K.shape[:2]) * taps + 2) * norm(K) * norm(x) * math.sqrt(taps)

    g, g_off, sizes = X, 0.0, iter(network.extractor_norms)
    for part in model.extractor:
        if isinstance(part, nn.Conv2d):
            g_off = next(sizes).hi * g_off + conv_rounded(part.weight, g)
            g = part(g)
            g_off += gamma(2) * norm(g)
        else:
            g = torch.relu(g)
    z, off, q = Z, 0.0, 1.0
    for part, W, U in zip(model.layers, network.norms, network.injection_norms, strict=True):
        placed = {"stride": part.stride, "padding": part.padding}
        c = F.conv2d(g, part.U, stride=part.stride, padding=part.reach // 2) + part.b[:, None, None]
        pre = F.conv2d(z, part.W, **placed) + c
        h = model.activation(pre)
        target = F.conv_transpose2d(h, part.W, output_padding=part.lost, **placed)
        new = target if alpha == 1 else z + alpha * (target - z)
        at_pre = U.hi * g_off + conv_rounded(part.U, g) + conv_rounded(part.W, z)
        at_h = at_pre + gamma(4) * (norm(c) + norm(pre)) + ULPS * norm(h)
        at_new = alpha * (W.hi * at_h + conv_rounded(part.W, h))
        if alpha < 1:
            at_new += gamma(8) * (alpha * (norm(target) + norm(z)) + norm(new))
        grow = 1 - alpha + alpha * W.hi**2
        off, z, q = grow * off + at_new, new, q * grow
    if model.regulariser is not None:
        before, z = z, model.regulariser(z.flatten(1)).reshape(z.shape)
        off += ULPS * (norm(before) + norm(z) + norm(Z)) * (1 + Z[0].numel())
    truth = (norm(Z - z) + off) / (1 - q)
    assert network.error(X, Z) == pytest.approx(truth, rel=1e-3, abs=0.0)


def test_a_weight_that_was_scaled_may_have_all_of_its_bound():
    """Its norm was divided by one that rounds otherwise elsewhere: what holds is bound·√(μ/L_σ) alone."""
    model = OptEq(3, 4, 6, mu=4.0, bound=0.5, dtype=F64)  # a bound of 1
    for computed in (1 - 2.0**-50, 0.99):
        assert 1 <= effective_norm(model, Interval(computed)).hi <= 1 + 1e-14
    assert effective_norm(model, Interval(0.9)).hi == 0.9  # well below it: not scaled
    model.bound = None
    assert effective_norm(model, Interval(0.99)).hi == 0.99
