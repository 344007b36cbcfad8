"""Training for certificates: losses of margins that hold for every input near a sample.

`CertifiedMargin` counts a class j as ŷ_j + ε L_yj, with L_yj the Lipschitz constant of ŷ_y − ŷ_j by the
ellipsoid of sym(I − W) (`theory.lipschitz`), so that what the loss separates stays apart within ‖δ‖ ≤ ε.
`CertifiedBox` counts the least margins over |δ_i| ≤ ε (`box_margins`), by bounds of every unit over the box
and one dual bound for each margin, and raises ε slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..models.affine import AffineFamily
from ..theory.facts import AffineFacts, find_facts
from .objective import CrossEntropy

_LEAST = 1e-12  # of a squared distance whose root is differentiated
_ROUNDS = 6  # of bounds, and of multipliers


def pair_constants(model: AffineFamily) -> Tensor:
    """(k, k): Lipschitz constants of ŷ_p − ŷ_q, differentiable; `pairwise_lipschitz` proves them."""
    W, U = model.weight(), _input_matrix(model)
    S = torch.eye(len(W), dtype=W.dtype, device=W.device) - (W + W.T) / 2
    L, info = torch.linalg.cholesky_ex(S)
    if int(info):
        raise ValueError(
            "robust training needs sym(I − W) ≻ 0, as Monotone has by construction, and other families "
            "where Projection keeps ‖W‖ < 1. Got a W for which it is not."
        )
    G = torch.linalg.solve_triangular(L, U, upper=False)  # S^{−½}U, up to a rotation
    a = model.readout_weight.reshape(model.width, model.outputs)
    v = torch.linalg.solve_triangular(L, a, upper=False)  # S^{−½}a
    steepest = torch.linalg.eigvalsh(G @ G.T)[-1].clamp_min(_LEAST).sqrt()
    return (_distances(G.T @ v) + steepest * _distances(v)) / 2


@dataclass(frozen=True)
class CertifiedMargin(CrossEntropy):
    """A loss for `Trainer`: the cross entropy of ŷ_j + ε L_yj, so that margins hold within ‖δ‖ ≤ ε.

        loss = eq.train.CertifiedMargin(model, epsilon=0.45)
        eq.Trainer(model, loss, optimiser="adam", schedule="cosine").fit(X, y)
        eq.certified_radius(model, X_test, y_test).share(0.3)

    Args:
        model: the one that is trained, of a family z = σ(Wz + Ux + b), such as `Monotone`.
        epsilon: > 0, in the units of the inputs. One and a half times the wanted radius works well.
    """

    model: AffineFamily = field(repr=False)
    epsilon: float

    name = "certified_margin"

    def __post_init__(self) -> None:
        _input_matrix(self.model)
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be a finite number > 0. Got {self.epsilon!r} instead.")
        if self.model.outputs < 2:
            raise ValueError("a certified margin is that of classes: outputs must be ≥ 2. Got 1 instead.")

    def each(self, yhat: Tensor, y: Tensor) -> Tensor:
        """ℓ of each sample, (N,)."""
        y = _labels(self, yhat, y)
        L = pair_constants(self.model)
        return super().each(yhat + self.epsilon * (L if yhat.requires_grad else L.detach())[y], y)


@dataclass(frozen=True)
class CertifiedBox(CrossEntropy):
    """A loss for `Trainer`: the cross entropy of the least margins over boxes |δ_i| ≤ ε, by `box_margins`.

    ε is raised from 0 over the first half of training, and the loss is then half that of the margins and half
    that of the outputs, so that answers are learned before they are defended. If no inputs are at hand, as
    when the loss of all rows is measured, it is the plain cross entropy.

    Args:
        model: the one that is trained, of a family z = relu(Wz + Ux + b), such as `Monotone`.
        epsilon: ≥ 0, a number, or a tensor (d,) of how far each input moves.
        box: the ends of the inputs, numbers or tensors (d,).
    """

    model: AffineFamily = field(repr=False)
    epsilon: float | Tensor = field(repr=False)
    box: tuple[float | Tensor, float | Tensor] = field(default=(-math.inf, math.inf), repr=False)
    at: Tensor | None = field(default=None, repr=False)
    share: float = 1.0

    name = "certified_box"

    def __post_init__(self) -> None:
        _input_matrix(self.model)
        if not bool((torch.as_tensor(self.epsilon) >= 0).all()):
            raise ValueError(f"epsilon must be ≥ 0. Got {self.epsilon!r} instead.")

    def near(self, x: Tensor, share: float) -> CertifiedBox:
        """The loss at inputs x, (N, d), when this share of all steps is done."""
        return replace(self, at=x, share=share)

    def each(self, yhat: Tensor, y: Tensor) -> Tensor:
        """ℓ of each sample, (N,)."""
        y = _labels(self, yhat, y)
        plain = super().each(yhat, y)
        if self.at is None:
            return plain
        epsilon = min(1.0, 2 * self.share) * self.epsilon
        margins = box_margins(self.model, self.at, y, epsilon, self.box)
        return (plain + super().each(-margins, y)) / 2


def box_margins(
    model: AffineFamily,
    x: Tensor,
    y: Tensor,
    epsilon: float | Tensor,
    box: tuple[float | Tensor, float | Tensor],
) -> Tensor:
    """(N, k): about lower bounds of ŷ_y − ŷ_j for all |δ_i| ≤ ε within the box, differentiable.

    `verify_predictions` proves better ones: here nothing is tightened, climbed, split or rounded outward.
    Units are bounded by intervals, iterated, and each margin by the multipliers of slopes h/(h − l). A unit's
    own weight W_ii < 1 is divided out first, z_i = relu((Σ_j≠i W_ij z_j + u_i)/(1 − W_ii)): equilibria stay
    the same, and bounds are far better where W_ii is far below 0, as in monotone networks.
    """
    W, U = model.weight(), _input_matrix(model)
    own = 1 / (1 - W.diagonal())
    W, U = own[:, None] * (W - torch.diag(W.diagonal())), own[:, None] * U
    low, high = (torch.as_tensor(end, dtype=x.dtype, device=x.device) for end in box)
    low, high = torch.maximum(x - epsilon, low), torch.minimum(x + epsilon, high)
    reach = (high - low) / 2
    b = own * model.injection((low + high) / 2)
    lower, upper = _unit_bounds(W, U, b, reach)
    a = model.readout_weight.reshape(model.width, model.outputs).T
    w = a[y][:, None] - a  # (N, k, n)
    may = ((lower < 0) & (upper > 0))[:, None]
    lower, upper = lower[:, None], upper[:, None]
    s = torch.where(may, upper / (upper - lower).clamp_min(1e-9), (lower >= 0).to(w))
    nu = s * w
    for _ in range(_ROUNDS):
        nu = s * (w + nu @ W)
    g = w + nu @ W
    tau = torch.minimum(g * torch.relu(lower) - nu * lower, g * torch.relu(upper) - nu * upper)
    tau = torch.where(may, tau.clamp_max(0.0), tau)
    margins = tau.sum(dim=2) + (nu * b[:, None]).sum(dim=2) - ((nu @ U).abs() * reach[:, None]).sum(dim=2)
    c = model.readout_bias
    return margins if c is None else margins + c[y][:, None] - c


def _unit_bounds(W: Tensor, U: Tensor, b: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """(N, n) each: about the least and largest pre-activations within reach of a centre with injection b."""
    far, size = reach @ U.abs().T, W.abs()
    on_low = on_high = torch.relu(b)
    lower = upper = b
    for _ in range(_ROUNDS):
        centre, width = (on_low + on_high) / 2, (on_high - on_low) / 2
        p, r = centre @ W.T + b, width @ size.T + far
        lower, upper = p - r, p + r
        on_low, on_high = torch.relu(lower), torch.relu(upper)
    return lower, upper


def _labels(loss: CrossEntropy, yhat: Tensor, y: Tensor) -> Tensor:
    """Classes (N,), from labels or from their indicators (N, k)."""
    if y.is_floating_point():
        one = y.shape == yhat.shape and bool(((y == 0) | (y == 1)).all() & (y.sum(dim=1) == 1).all())
        if not one:
            raise ValueError(
                f"a certified margin needs labels of integers, or indicators {tuple(yhat.shape)}. Got "
                f"{y.dtype}, {tuple(y.shape)} instead."
            )
        return y.argmax(dim=1)
    CrossEntropy.each(loss, yhat.detach(), y)  # which checks the labels
    return y.long()


def _input_matrix(model: AffineFamily) -> Tensor:
    known = find_facts(model)
    if not isinstance(known, AffineFacts) or not known.linear_injection:
        raise TypeError(
            f"robust training knows families with u(x) = Ux + b, such as Monotone. Got "
            f"{type(model).__name__} instead."
        )
    return known.input_map()


def _distances(columns: Tensor) -> Tensor:
    """(k, k): ‖column_p − column_q‖."""
    G = columns.T @ columns
    square = G.diagonal()[:, None] + G.diagonal() - 2 * G
    apart = ~torch.eye(len(G), dtype=torch.bool, device=G.device)
    return torch.where(apart, square.clamp_min(_LEAST).sqrt(), 0.0)
