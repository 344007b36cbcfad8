"""What is true of a small network, by other means than the library's: long double, pivoting, dense solves."""

from __future__ import annotations

import numpy as np
import torch

LONG = np.longdouble
EPS = float(np.finfo(LONG).eps)


def wide(t) -> np.ndarray:
    """The numbers of a tensor, whatever its dtype, exactly."""
    return t.detach().double().numpy().astype(LONG)


def norms(rows: np.ndarray) -> np.ndarray:
    """‖·‖ of each row, of any size."""
    size = np.abs(rows).max(axis=1, initial=0)
    unit = np.where(size > 0, size, 1)
    return unit * np.sqrt(((rows / unit[:, None]) ** 2).sum(axis=1))


ACTIVATIONS = {
    "relu": lambda p: np.maximum(p, 0),
    "identity": lambda p: p,
    "tanh": np.tanh,
}


def equilibria(W: np.ndarray, b: np.ndarray, activation: str = "relu") -> np.ndarray:
    """z = σ(W z + b) of each row of b (N, m), in long double; W has one such z for every b."""
    if activation == "tanh":
        z = np.zeros_like(b)
        for _ in range(3000):
            z, before = np.tanh(z @ W.T + b), z
            if (np.abs(z - before) <= 4 * EPS * np.abs(z)).all():
                break
        return z
    rows = []
    for row in b:
        size = np.abs(row).max(initial=0)
        unit = LONG(2) ** int(np.floor(np.log2(size))) if size > 0 else LONG(1)
        every = np.ones(len(row), dtype=bool)
        found = _solved(W, row / unit, every) if activation == "identity" else _pivoted(W, row / unit)
        rows.append(found * unit)
    return np.stack(rows)


def _pivoted(W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Murty's least-index principal pivoting, which ends for P-matrices I − W, with exact enough solves."""
    active = np.zeros(len(b), dtype=bool)
    for _ in range(5000):
        z = _solved(W, b, active)
        wrong = np.where(active, z < 0, W @ z + b > 1e-17)
        if not wrong.any():
            return z
        index = int(np.argmax(wrong))
        active[index] = ~active[index]
    raise AssertionError("principal pivoting did not end")


def _solved(W: np.ndarray, b: np.ndarray, active: np.ndarray) -> np.ndarray:
    """z_S = (I − W_SS)⁻¹ b_S, by a float64 solve that is refined in long double; 0 elsewhere."""
    z = np.zeros_like(b)
    at = np.flatnonzero(active)
    if len(at):
        M = np.eye(len(at), dtype=LONG) - W[np.ix_(at, at)]
        inverse = np.linalg.inv(M.astype(np.float64))
        part = np.zeros(len(at), dtype=LONG)
        for _ in range(6):
            part = part + inverse @ (b[at] - M @ part)
        z[at] = part
    return z


def error_factor(W: np.ndarray) -> float:
    """About κ with ‖z − z*‖ ≤ κ‖z − f(z)‖: the least of 1/(1 − ‖W‖) and 1 + ‖W‖/μ, ∞ if neither is."""
    W = W.astype(np.float64)
    q = np.linalg.norm(W, 2)
    margin = np.linalg.eigvalsh(np.eye(len(W)) - (W + W.T) / 2)[0]
    return min(1 / (1 - q) if q < 1 else np.inf, 1 + q / margin if margin > 0 else np.inf)


def parts(model, X) -> tuple[np.ndarray, np.ndarray]:
    """W(θ) and u(X; θ) of an affine family in long double, from what it stores."""
    get = lambda name: wide(getattr(model, name))
    kind, x = type(model).__name__, wide(X)
    if kind == "GaussianReLU":
        return get("W"), x @ get("U").T
    if kind == "ScaledReLU":
        return LONG(model.gamma) * get("A").T, np.maximum(x @ get("W"), 0)
    if kind == "Monotone":
        A, B = get("A"), get("B")
        u = x @ get("U").T
        W = (1 - LONG(model.margin)) * np.eye(len(A), dtype=LONG) - A.T @ A + B - B.T
        return W, u if model.bias is None else u + get("bias")
    A = get("A")
    S = np.exp(A - A.max(axis=0))
    return LONG(model.gamma) * S / S.sum(axis=0), x


def readout(model, Z: np.ndarray) -> np.ndarray:
    """(N, k)."""
    return Z @ wide(model.readout_weight).reshape(model.width, model.outputs)


def dense_gradients(f, z, tensors, cotangent):
    """Of ⟨cotangent, z*⟩ where z* = f(z*), with the whole batch as one state, by a dense solve in float64."""
    z = z.detach().requires_grad_()
    image = f(z)
    rows = [torch.autograd.grad(one, z, retain_graph=True)[0].flatten() for one in image.flatten()]
    J = torch.stack(rows)
    adjoint = torch.linalg.solve(torch.eye(len(J), dtype=J.dtype) - J.T, cotangent.flatten())
    return torch.autograd.grad(image, tensors, adjoint.view_as(image), allow_unused=True)
