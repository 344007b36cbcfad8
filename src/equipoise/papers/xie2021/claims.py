"""z = μ⁻¹ Wᵀσ(W z + c),  c = U x + b: the claims of [xie2021] about the convex problem behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch import Tensor

from ..framework.claims import Outcome, all_of, at_least, at_most, beside, corrected, equal, register
from ..framework.small import draw, eye, norm

Map = Callable[[Tensor], Tensor]


def _qp(H: Tensor, b: Tensor) -> Tensor:
    """argmin ½vᵀHv − bᵀv over v ≥ 0, for H ≻ 0."""
    L = torch.linalg.cholesky(H)
    target = torch.linalg.solve_triangular(L, b[:, None], upper=False)[:, 0]
    return torch.from_numpy(nnls(L.T.numpy(), target.numpy())[0])


@dataclass(frozen=True)
class Layer:
    """f(z) = μ⁻¹ Wᵀ relu(W z + c) = prox_φ(z),  φ(μ⁻¹Wᵀv) = μ⁻¹(½‖v‖² − cᵀv) − ½‖μ⁻¹Wᵀv‖² on v ≥ 0."""

    W: Tensor  # (n, m)
    c: Tensor  # (n,)
    mu: float = 1.0

    def __call__(self, z: Tensor) -> Tensor:
        return self.W.T @ (self.W @ z + self.c).relu() / self.mu

    def prox(self, scale: float, x: Tensor) -> tuple[Tensor, float]:
        """p = prox_{scale·φ}(x) by its quadratic programme over v, and φ(p)."""
        gram = self.W @ self.W.T / self.mu**2
        v = _qp(
            scale / self.mu * eye(len(self.c)) + (1 - scale) * gram, (scale * self.c + self.W @ x) / self.mu
        )
        p = self.W.T @ v / self.mu
        return p, ((v @ v / 2 - self.c @ v) / self.mu - p @ p / 2).item()

    def envelope(self, scale: float, x: Tensor) -> float:
        """M_φ^scale(x) = min_p φ(p) + ‖x − p‖²/(2·scale)."""
        p, value = self.prox(scale, x)
        return value + ((x - p) @ (x - p)).item() / (2 * scale)

    def envelope_gradient(self, scale: float, x: Tensor) -> Tensor:
        """∇M_φ^scale(x) = (x − prox_{scale·φ}(x))/scale."""
        return (x - self.prox(scale, x)[0]) / scale


def _layer(seed: int, n: int = 4, m: int = 4, size: float = 0.9, mu: float = 1.0) -> Layer:
    """A layer with ‖W‖ = size·√μ and a unit that is active at 0, so that the equilibrium is not 0."""
    W, c = draw(seed, n, m), draw(seed + 1, n)
    c[0] = 1 + c[0].abs()
    return Layer(size * mu**0.5 * W / norm(W), c, mu)


def _iterate(T: Map, z: Tensor, steps: int = 600) -> Tensor:
    for _ in range(steps):
        z = T(z)
    return z


def _skip(layers: Sequence[Layer], alpha: float) -> Map:
    """T = f_L∘…∘f_1,  f_l(z) = α·layer(z) + (1−α) z."""

    def T(z: Tensor) -> Tensor:
        for layer in layers:
            z = alpha * layer(z) + (1 - alpha) * z
        return z

    return T


@register("xie2021.theorem1.prox", "Theorem 1", scale=1.05)
def theorem_1_prox(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """f(z) = μ⁻¹Wᵀσ(Wz + c) is a proximal map for μ ≥ L_σ‖W‖²: ⟨f(x) − f(y), x − y⟩ ≥ ‖f(x) − f(y)‖².

    Attained by ‖W‖² = μ and active units, where f is a projection.
    """
    turn = Layer(2**0.5 * torch.linalg.qr(draw(seed, 4, 4)).Q, torch.full((4,), 50.0).double(), 2.0)
    found = []
    for f in (turn, _layer(seed, size=1.0, mu=2.0)):
        for k in range(10):
            x, y = draw(seed + 10 + k, 2, 4)
            change = f(x) - f(y)
            found.append(at_least((change @ (x - y)).item(), scale * (change @ change).item()))
    return all_of(*found)


@register("xie2021.theorem1.conjugate", "Theorem 1", half=0.4)
def theorem_1_conjugate(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """f = prox_φ,  φ = ψ* − ½‖·‖²,  ψ(z) = μ⁻¹1ᵀσ̃(Wz + c),  σ̃' = σ, for a smooth σ too.

    Here softplus in one dimension: σ̃ by quadrature, ψ* and the proximal problem by search on a grid.
    """
    w, c, z = 0.9, 0.3, draw(seed, 1).item()
    f = w * math.log1p(math.exp(w * z + c))
    t = torch.linspace(z - 3, z + 3, 6001, dtype=torch.float64)
    psi = torch.cumulative_trapezoid(w * torch.nn.functional.softplus(w * t + c), t)  # up to a constant
    x = f + torch.linspace(-0.2, 0.2, 401, dtype=torch.float64)
    conjugate = (x[:, None] * t[1:] - psi).max(dim=1).values  # ψ*(x)
    objective = conjugate - half * x**2 + (x - z) ** 2 / 2
    return at_most((x[objective.argmin()] - f).abs().item(), 2e-3, "distance of the minimiser from f(z)")


@register("xie2021.theorem1.relu", "Theorem 1, ReLU", half=0.4)
def theorem_1_relu(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """z = μ⁻¹Wᵀv,  v = argmin_{v≥0} μ⁻¹(½‖v‖² − cᵀv) − ½‖μ⁻¹Wᵀv‖²: the equilibrium solves a QP, for any W."""
    found = []
    for n, m in ((4, 4), (6, 3), (3, 6)):
        f = _layer(seed, n, m, mu=1.5)
        z = _iterate(f, torch.zeros(m, dtype=torch.float64))
        v = _qp(eye(n) / f.mu - 2 * half * f.W @ f.W.T / f.mu**2, f.c / f.mu)
        found.append(equal(f.W.T @ v / f.mu, z, f"{n}×{m}", rtol=1e-6))
    return all_of(*found)


@register("xie2021.theorem1.invertible", "after Theorem 1", half=0.6)
@corrected("W⁻¹ for W⁻ᵀ, throughout or in the linear term, and a W that is not symmetric: another minimiser.")
def theorem_1_invertible(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """z minimises (μ/2)‖W⁻ᵀz‖² − ⟨c, W⁻ᵀz⟩ − ½‖z‖² on W⁻ᵀz ≥ 0, for an invertible W: printed with W⁻¹."""
    f = _layer(seed, mu=1.5)
    z = _iterate(f, torch.zeros(4, dtype=torch.float64))

    def minimiser(W: Tensor, c: Tensor) -> Tensor:  # over z = Wᵀt, t ≥ 0
        return W.T @ _qp(2 * half * f.mu * eye(4) - W @ W.T, c)

    right = equal(minimiser(f.W, f.c), z, "W⁻ᵀ", rtol=1e-6)
    other = f.W @ torch.linalg.solve(f.W.T, f.c)  # W⁻¹ in the linear term alone
    readings = [minimiser(f.W.T, f.c), minimiser(f.W, other)]
    printed = min((equal(x, z, "W⁻¹", rtol=1e-3) for x in readings), key=lambda o: o.measured)
    return beside(right, printed)


@register("xie2021.unique", "after Theorem 1", scale=0.97)
def unique(seed: int = 0, *, scale: float = 1.0) -> Outcome:
    """‖f(x) − f(y)‖ ≤ (L_σ‖W‖²/μ)‖x − y‖: one equilibrium where that is below 1; attained by active units."""
    active = Layer(0.9 * eye(4), torch.full((4,), 50.0).double())
    found = []
    for f in (active, _layer(seed, 5, 4, mu=2.0)):
        x, y = draw(seed + 3, 2, 4)
        factor = scale * norm(f.W) ** 2 / f.mu
        found.append(at_most((f(x) - f(y)).norm().item(), factor * (x - y).norm().item()))
    return all_of(*found)


@register("xie2021.skip", "§2.2, skip connection", power=0.0)
@corrected("the Moreau envelope without the factor α: its proximal map is another one.")
def skip(seed: int = 0, *, power: float = 1.0) -> Outcome:
    """α f + (1−α)I = prox of α M_φ^{1−α}, M the Moreau envelope: printed without the factor α.

    Checked by z − x = α∇M(x) at x = αf(z) + (1−α)z; the fixed points are those of f.
    """
    f, alpha, z = _layer(seed), 0.4, draw(seed + 5, 4)
    x = alpha * f(z) + (1 - alpha) * z
    gradient = f.envelope_gradient(1 - alpha, x)
    same = equal(_iterate(_skip([f], alpha), z), _iterate(f, z), "fixed points", rtol=1e-6)
    right = all_of(equal(z - x, alpha**power * gradient, "z − x", rtol=1e-6), same)
    return beside(right, equal(z - x, gradient, "without α", rtol=1e-3))


def _averaged(T: Map, constant: float, pairs: Tensor) -> float:
    """The largest ‖N x − N y‖/‖x − y‖ of N = (1 − 1/κ)I + T/κ: at most 1 where T is κ-averaged."""
    reflect = lambda z: (1 - 1 / constant) * z + T(z) / constant
    return max(((reflect(x) - reflect(y)).norm() / (x - y).norm()).item() for x, y in pairs)


@register("xie2021.averaged.layer", "§2.3", half=0.48)
def averaged_layer(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """f_l = αW_lᵀσ(W_lz + c_l) + (1−α)z is α/2-averaged where ‖W_l‖ ≤ 1; attained by inactive units."""
    found, alpha, pairs = [], 0.6, draw(seed, 20, 2, 4)
    for layer in (Layer(eye(4), torch.full((4,), -50.0).double()), _layer(seed, size=1.0)):
        found.append(at_most(_averaged(_skip([layer], alpha), half * alpha, pairs), 1.0))
    return all_of(*found)


@register("xie2021.averaged.deep", "§2.3", two=2.1)
def averaged_deep(seed: int = 0, *, two: float = 2.0) -> Outcome:
    """T = f_L∘…∘f_1 is Lα/(2 + (L−1)α)-averaged; nearly attained by projections on two lines."""
    found = []
    for alpha, angles in ((1.0, torch.linspace(0.001, 0.5, 60)), (0.5, torch.linspace(0.001, 0.5, 60))):
        constant = 2 * alpha / (two + alpha)
        for angle in angles.tolist():
            maps = []
            for t in (0.0, angle):
                u = torch.tensor([math.cos(t), math.sin(t)], dtype=torch.float64)
                maps.append((1 - alpha) * eye(2) + alpha * torch.outer(u, u))
            found.append(at_most(norm((1 - 1 / constant) * eye(2) + maps[1] @ maps[0] / constant), 1.0))
    layers = [_layer(seed + 20 * l, size=1.0) for l in range(3)]
    found.append(at_most(_averaged(_skip(layers, 0.7), 3 * 0.7 / (two + 2 * 0.7), draw(seed, 20, 2, 4)), 1.0))
    return all_of(*found)


@register("xie2021.lemma3", "Lemma 3, Theorem 2", factor=1.2)
def lemma_3(seed: int = 0, *, factor: float = 1.0) -> Outcome:
    """0 = α/(1−α)(z_i − prox_{(1−α)φ_i}(z_i)) + z_i − z_{i−1}: the blocks of a deep equilibrium, z_0 = z_L.

    The first term is the gradient of αM_i^{1−α}. Three layers.
    """
    layers, alpha = [_layer(seed + 20 * l) for l in range(3)], 0.4
    z = _iterate(_skip(layers, alpha), torch.zeros(4, dtype=torch.float64))
    found = []
    for layer in layers:
        before, z = z, alpha * layer(z) + (1 - alpha) * z
        gradient = factor * alpha / (1 - alpha) * (z - layer.prox(1 - alpha, z)[0])
        found.append(equal(gradient, before - z, rtol=1e-6))
    return all_of(*found)


@register("xie2021.corollary1", "Corollary 1", half=0.6)
def corollary_1(seed: int = 0, *, half: float = 0.5) -> Outcome:
    """(z_1, z_0) minimises αM_1^{1−α}(z_1) + αM_2^{1−α}(z_0) + ½‖z_1 − z_0‖², for two layers.

    Compared with the value at nearby and at distant points.
    """
    layers, alpha = [_layer(seed), _layer(seed + 20)], 0.4
    z0 = _iterate(_skip(layers, alpha), torch.zeros(4, dtype=torch.float64))
    z1 = alpha * layers[0](z0) + (1 - alpha) * z0

    def value(z1: Tensor, z0: Tensor) -> float:
        moreau = layers[0].envelope(1 - alpha, z1) + layers[1].envelope(1 - alpha, z0)
        return alpha * moreau + half * ((z1 - z0) @ (z1 - z0)).item()

    best, others = value(z1, z0), []
    toward = z1 - z0
    for size in (1e-3, 1.0):
        for d1, d0 in draw(seed + 7, 10, 2, 4):
            others.append(value(z1 + size * d1, z0 + size * d0) - best)
    for t in (-0.02, 0.02):
        others.append(value(z1 + t * toward, z0 - t * toward) - best)
    return at_least(min(others), 0.0, "least value elsewhere, less the value here")


@register("xie2021.theorem3", "Theorem 3", order=2.0)
def theorem_3(seed: int = 0, *, order: float = 1.0) -> Outcome:
    """z(α) → y,  y = L⁻¹ΣW_lᵀσ(W_ly + c_l), the wide equilibrium, as α → 0, with an error O(α)."""
    layers = [_layer(seed), _layer(seed + 20)]
    y = _iterate(lambda z: (layers[0](z) + layers[1](z)) / 2, torch.zeros(4, dtype=torch.float64))
    errors = [(_iterate(_skip(layers, alpha), y, 1500) - y).norm().item() for alpha in (0.02, 0.01)]
    measured = math.log2(errors[0] / errors[1])
    return equal(measured, order, f"order {measured:.3f}", rtol=0.1)


@register("xie2021.lemma1", "Lemma 1", offset=-1.0)
@corrected("W_k = 0 of size 1 × 1 and m = 1 = max n: two numbers that are not 0 do not have the product 0.")
def lemma_1(seed: int = 0, *, offset: float = 0.0) -> Outcome:
    """W_k = W̄_kW̄_{k−1}ᵀ with both of full rank exists iff m ≥ n_k + n_{k−1} − rank W_k: printed m ≥ max n.

    Built backwards: W̄_{k−1}ᵀ = W̄_k⁺W_k + N Y with N the null space of W̄_k.
    """

    def ranks(W: Tensor, m: int) -> Outcome:
        n, n1 = W.shape
        top = torch.linalg.qr(draw(seed + 1, m, n)).Q.T if m >= n else draw(seed + 1, n, m)
        null = torch.linalg.svd(top).Vh[n:].T  # (m, m − n)
        low = torch.linalg.pinv(top) @ W + null @ draw(seed + 2, m - n, n1)
        product = equal(top @ low, W, "product") if W.any() else at_most((top @ low).abs().max(), 1e-12)
        rank = min(torch.linalg.matrix_rank(top).item() - n, torch.linalg.matrix_rank(low).item() - n1)
        return all_of(product, at_least(rank, 0.0, f"rank at m = {m}"))

    W = draw(seed, 4, 2) @ draw(seed + 5, 2, 5)  # 4 × 5 of rank 2
    zero = torch.zeros(1, 1, dtype=torch.float64)
    right = all_of(ranks(W, 4 + 5 - 2 + int(offset)), ranks(zero, 2 + int(offset)))
    return beside(right, ranks(zero, 1))


@register("xie2021.lemma2", "Lemma 2", coupling=0.3)
@corrected("W_1 = 0, as the printed proof takes: z_1 = W_1ᵀh_1 = 0, and the input is lost.")
def lemma_2(seed: int = 0, *, coupling: float = 0.0) -> Outcome:
    """W_{l+1}W_lᵀ = A_{l+1} and W_1W_Lᵀ = 0 make a deep OptEq the net h_{l+1} = σ(A_{l+1}h_l + b_{l+1}).

    With α = 1, blocks that are orthogonal, and m = Σ min(n_l, n_{l+1}): exact after two iterations.
    """
    n, (A2, A3) = 3, draw(seed, 2, 3, 3) / 3
    x, b = draw(seed + 1, n).abs(), draw(seed + 2, 3, n).abs() + 0.5
    h = x.relu()
    for A, shift in ((A2, b[1]), (A3, b[2])):
        h = (A @ h + shift).relu()

    def output(first: float) -> Tensor:
        W1 = torch.cat([first * eye(n), coupling * eye(n)], dim=1)  # W_1W_3ᵀ = coupling · A_3
        W2 = torch.cat([A2, eye(n)], dim=1)
        W3 = torch.cat([torch.zeros(n, n), A3], dim=1).double()
        z = draw(seed + 3, 2 * n)
        for _ in range(2):
            for W, c in ((W1, x), (W2, b[1]), (W3, b[2])):
                inner = (W @ z + c).relu()
                z = W.T @ inner
        return inner

    return beside(equal(output(1.0), h, "h_L"), equal(output(0.0), h, "W_1 = 0", rtol=1e-3))
