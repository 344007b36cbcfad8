"""Z = relu(γ Z A + relu(X W)),  ŷ = Z b: the ReLU implicit network scaled by γ of [gao2022]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...checks import one_of, within
from ...solve.autocast import unlowered
from ..checks import slope_at_zero
from ..draws import Draws
from ..norms import spectral_norm, wellposed_norms
from .blocks import pairs, readout_block, squeeze_blocks, weigh
from .family import AffineFamily

INITS = ("experiments", "section5.1", "section5.2")


class ScaledReLU(AffineFamily):
    """Z = relu(γ Z A + Φ),  Φ = relu(X W),  ŷ = Z b.    [gao2022, (2)-(3)]

    Every input has exactly one equilibrium if γ‖A‖ < 1 [gao2022, Lemma 3.1] or γλ_max(sym A) < 1.

    Args:
        inputs, width, outputs: d, m and k.
        gamma: γ ∈ (0, 1). The default is ½ for "experiments". For the other two it is chosen so that
            γ(‖A(0)‖ + 1) = ½, the γ₀ of the theorems with C₂ = 1.
        init: "experiments" (§7): W ~ N(0, 1/m), A = I, b = 0.
            "section5.1": W ~ β N(0, 1/d) (LeCun), A = ‖W‖ I, b = 0.
            "section5.2": W ~ N(0, 1), A ~ |N(0, 1)|, b ~ N(0, 1/m).
        beta: β of §5.1, the factor on the start that makes the theorem's conditions hold.
        relu_at_zero: relu'(0), 0 or 1. With a diagonal A(0) every pre-activation with x·W ≤ 0 ties at 0, so
            the loss has a kink in A there and the choice shows in ∇A.
    """

    readout_name = "b"
    scaled_name = "A"
    settings = ("inputs", "width", "outputs", "gamma", "init", "beta", "relu_at_zero")
    described = (
        "Z = relu(γ Z A + relu(X W)), ŷ = Z b; d={0.inputs}, m={0.width}, k={0.outputs}, gamma={0.gamma:g}"
    )

    def __init__(
        self,
        inputs: int,
        width: int,
        gamma: float | None = None,
        outputs: int = 1,
        *,
        init: str = "experiments",
        beta: float = 1.0,
        relu_at_zero: float = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(inputs, width, outputs)
        one_of("init", init, INITS)
        self.init = init
        if not 0 < beta < float("inf") or (beta != 1 and init != "section5.1"):
            raise ValueError(
                f"beta must be a finite number > 0, and is the factor of init='section5.1' alone. "
                f"Got beta={beta} with init={init!r} instead."
            )
        self.beta = float(beta)
        self.relu_at_zero = slope_at_zero(relu_at_zero)
        make, d, m = Draws(dtype, device, generator), inputs, width
        W, b = make.normal(d, m), make.zeros(*self.readout_shape)
        eye = torch.eye(m, dtype=dtype, device=device)
        if init == "experiments":
            W, A = W / m**0.5, eye
        elif init == "section5.1":
            W = beta * W / d**0.5
            A = spectral_norm(W) * eye
        else:
            A, b = make.normal(m, m).abs(), make.normal(*self.readout_shape) / m**0.5
        if gamma is None:
            gamma = 0.5 if init == "experiments" else 1 / (2 * (spectral_norm(A) + 1))
        within("gamma", gamma, "(0, 1)")
        self.gamma = float(gamma)
        self.W, self.A, self.b = nn.Parameter(W), nn.Parameter(A), nn.Parameter(b)

    def weight(self) -> Tensor:
        """γAᵀ, (m, m)."""
        return self.gamma * self.A.T

    def injection(self, X: Tensor) -> Tensor:
        """Φ = relu(X W), (N, m), with the chosen slope at 0."""
        P = X @ self.W
        return torch.where(P <= 0 if self.relu_at_zero == 0 else P < 0, 0.0, P)

    @unlowered
    def pullback(self, V: Tensor, R: Tensor, Z: Tensor, X: Tensor) -> dict[str, Tensor]:
        """∇W = Xᵀ diag(r) (E∘V),  ∇A = γ Zᵀ diag(r) V,  ∇b = Zᵀ r,  E = relu'(X W).    [gao2022, (7)-(9)]"""
        L = weigh(V, R)  # (N, m)
        E = self.slope(X @ self.W)
        return {"W": X.T @ (E * L), "A": self.gamma * (Z.T @ L), "b": Z.T @ R}

    @unlowered
    def gram(self, V: Tensor, Z: Tensor, X: Tensor, V2: Tensor, Z2: Tensor, X2: Tensor) -> dict[str, Tensor]:
        """H_b = ZZᵀ,  H_A = γ² ZZᵀ ∘ VVᵀ,  H_W = XXᵀ ∘ (E∘V)(E∘V)ᵀ.    [gao2022, (11)-(13)]"""
        return squeeze_blocks(
            {
                "W": pairs(X, X2) * pairs(self._through_features(V, X), self._through_features(V2, X2)),
                "A": self.gamma**2 * pairs(Z, Z2) * pairs(V, V2),
                "b": readout_block(Z, Z2, self.outputs),
            }
        )

    def _through_features(self, V: Tensor, X: Tensor) -> Tensor:
        E = self.slope(X @ self.W)
        return (E if V.ndim == 2 else E[:, None, :]) * V

    def closed_form(self, X: Tensor) -> Tensor:
        """Z = Φ (I − γA)⁻¹, if A ≥ 0 entrywise and `check_wellposed` passes [gao2022, Lemma 5.1].

        It is differentiable. A gradient step usually makes entries of A negative, so `solve` does not use it.
        """
        self._check_inputs(X)
        if bool((self.A < 0).any()):
            i, j = torch.nonzero(self.A < 0)[0].tolist()
            raise ValueError(
                f"the closed form needs A ≥ 0 entrywise. Got A[{i}, {j}] = {self.A[i, j].item():.3g} "
                f"instead: use equilibrium(X)."
            )
        self.check_wellposed()
        eye = torch.eye(self.width, dtype=X.dtype, device=X.device)
        return torch.linalg.solve(eye - self.gamma * self.A, self.injection(X), left=False)

    def check_wellposed(self) -> None:
        """Raise a ValueError unless γ‖A‖ < 1 or γλ_max(sym A) < 1."""
        norm, top = wellposed_norms(self.A)
        q = self.gamma * top
        if not (self.gamma * norm < 1 or q < 1):
            raise ValueError(
                f"γλ_max(sym A) or γ‖A‖ must be < 1 for every input to have one equilibrium. Got "
                f"{self.gamma:.4g}·{top:.4g} = {q:.6g}, which is {q - 1:.2g} too much: take γ < "
                f"{1 / top:.4g}, multiply A by less than {1 / q:.4g}, or train with smaller steps. (γ‖A‖ is "
                f"{self.gamma * norm:.6g}.)"
            )
