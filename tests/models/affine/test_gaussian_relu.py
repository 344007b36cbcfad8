import pytest
import torch

import equipoise as eq
from contracts.model import TIGHT, ModelContract
from equipoise.models.affine import GaussianReLU


def kron(A, B):
    return torch.kron(A.contiguous(), B.contiguous())


class TestGaussianReLU(ModelContract):
    family = GaussianReLU
    options = {"sigma_w2": 0.03}  # noqa: RUF012
    equation = "Z = relu(Z Wᵀ + X Uᵀ)"
    curved = "W"

    def kronecker(self, model, X, Z, D):
        """[ling2023, (3)] with samples as columns and R = (I_n ⊗ aᵀ) J⁻¹ D, vec by columns."""
        (n, m), eye = Z.shape, torch.eye(Z.numel(), dtype=Z.dtype)
        one = torch.eye(n, dtype=Z.dtype)
        mask = torch.diag(D.flatten())  # vec of the (m, n) masks
        J = eye - mask @ kron(one, model.W.detach())
        R = kron(one, model.a.detach()[None]) @ torch.linalg.inv(J) @ mask  # (n, mn)

        def by_rows(columns, width):  # from vec by columns of (m, width) to row-major
            return columns.reshape(n, width, m).transpose(1, 2).reshape(n, -1)

        middle = torch.eye(m, dtype=Z.dtype)
        return {
            "W": by_rows(R @ kron(Z, middle), m),
            "U": by_rows(R @ kron(X, middle), model.inputs),
            "a": Z,
        }


def test_the_start_has_the_variances_of_assumption_1():
    generator = torch.Generator().manual_seed(0)
    model = GaussianReLU(300, 500, sigma_w2=0.05, dtype=torch.float64, generator=generator)
    assert model.W.var().item() == pytest.approx(2 * 0.05 / 500, rel=0.02)
    assert model.U.var().item() == pytest.approx(2 / 300, rel=0.02)
    assert model.a.var().item() == pytest.approx(1 / 500, rel=0.2)
    # Lemma 1: ‖W(0)‖ is near 2√2 σ_w.
    assert model.contraction() == pytest.approx(2 * (2 * 0.05) ** 0.5, rel=0.05)
    assert model.resolvent_bound() == pytest.approx(1 / (1 - model.contraction()))


def test_the_repaired_start_has_a_zero_readout_and_the_same_hidden_layer():
    first, repaired = (
        GaussianReLU(3, 8, start=start, generator=torch.Generator().manual_seed(0))
        for start in ("assumption1", "zero_readout")
    )
    assert torch.equal(first.W, repaired.W)
    assert torch.equal(first.U, repaired.U)
    assert repaired.a.abs().max() == 0
    assert first.a.abs().max() > 0


def test_relu_at_zero_is_visible_at_a_tie_and_the_same_from_every_start():
    # W = 0 and U = 0: every pre-activation is 0.
    for slope in (0, 1):
        model = GaussianReLU(2, 3, relu_at_zero=slope, dtype=torch.float64)
        with torch.no_grad():
            model.W.copy_(0.5 * torch.eye(3, dtype=torch.float64))
            model.U.zero_()
            model.a.fill_(1.0)
        X = torch.ones(4, 2, dtype=torch.float64)
        for start in (None, torch.ones(4, 3, dtype=torch.float64)):
            model.zero_grad()
            model(X, start=start).sum().backward()
            # V = D∘(1 + ½V): 2 with slope 1, 0 with slope 0; ∇U = Vᵀ X.
            assert torch.allclose(model.U.grad, torch.full_like(model.U, 8.0 * slope), atol=1e-7)


def test_weights_that_are_not_wellposed_are_told_by_how_much_and_what_to_do():
    model = GaussianReLU(2, 3, dtype=torch.float64)
    with torch.no_grad():
        model.W.copy_(1.25 * torch.eye(3, dtype=torch.float64))
        model.U.fill_(1.0)
    with pytest.raises(ValueError, match=r"‖W‖ must be < 1 .* Got 1\.25, which is 0\.25 too much: .* 0\.8"):
        model.check_wellposed()
    assert model.contraction() is None
    assert model.resolvent_bound() == torch.inf
    X = torch.ones(2, 2, dtype=torch.float64)
    with pytest.raises(eq.EquilibriumError, match=r"row 0: diverged[\s\S]*Got 1\.25"):
        model(X)


def test_options_outside_their_range_are_refused():
    for sigma_w2 in (0.0, -1.0, 0.125, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"sigma_w2 must lie in \(0, 1/8\)"):
            GaussianReLU(2, 3, sigma_w2=sigma_w2)
    with pytest.raises(ValueError, match="start must be one of 'assumption1', 'zero_readout'"):
        GaussianReLU(2, 3, start="zero")
    with pytest.raises(ValueError, match="relu_at_zero must be 0 or 1"):
        GaussianReLU(2, 3, relu_at_zero=0.5)


def test_a_row_of_zeros_has_the_equilibrium_zero():
    model = GaussianReLU(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    X = torch.zeros(2, 3, dtype=torch.float64)
    assert model.equilibrium(X).abs().max() == 0
    Z = model.solve(X, start=torch.ones(2, 5, dtype=torch.float64), stop=TIGHT).value
    assert model.masks(Z, X).sum() == 0


def test_a_large_norm_with_a_small_symmetric_part_is_wellposed():
    model = GaussianReLU(2, 2, dtype=torch.float64)
    with torch.no_grad():
        model.W.copy_(torch.tensor([[0.5, 3.0], [-3.0, 0.5]]))  # sym W = I/2
    model.check_wellposed()
    with torch.no_grad():
        model.W.copy_(torch.tensor([[1.5, 3.0], [-3.0, 0.5]]))
    with pytest.raises(ValueError, match=r"Got 1\.5, which is 0\.5 too much.*\(‖W‖ is 3\.\d+\.\)"):
        model.check_wellposed()
    with torch.no_grad():
        model.W.copy_(torch.eye(2))  # neither is below 1
    with pytest.raises(ValueError, match="Got 1, which is 0 too much"):
        model.check_wellposed()
    with torch.no_grad():
        model.W[0, 0] = torch.nan
    with pytest.raises(ValueError, match="Got nan"):
        model.check_wellposed()


def test_one_equilibrium_of_a_large_norm_is_found_and_differentiated():
    """‖W‖ > 1 and λ_max(sym W) < 1: one equilibrium, about which plain iteration circles outwards."""
    g = torch.Generator().manual_seed(0)
    model = eq.GaussianReLU(5, 40, dtype=torch.float64, generator=g)
    skew = torch.randn(40, 40, dtype=torch.float64, generator=g).triu(1)
    with torch.no_grad():
        W = model.W.copy_(skew - skew.T)
        W *= 1.7 / torch.linalg.matrix_norm(model.weight(), ord=2)
    X = torch.randn(6, 5, dtype=torch.float64, generator=g)
    assert not model.solve(X, solver=eq.Picard()).converged.all()
    assert model.solve(X).converged.all()
    model(X).square().sum().backward()
    assert model.last.adjoint.converged.all()
    with torch.no_grad():
        model.W += 3 * torch.eye(40)  # not monotone any more: no splitting, and no claim of one
    assert "PeacemanRachford" not in model.solve(X).solver
