"""The printed blocks of OptEq's tangent kernel, against Jacobians of the exact equilibrium."""

import pytest
import torch

import equipoise as eq
from equipoise.kernels import kernel_prediction
from equipoise.kernels.opteq import adjoints, has_formula
from equipoise.kernels.rows import ModuleRows
from equipoise.kernels.tiles import PairTiles
from equipoise.models.proximal import DeepOptEq, MultiBlockOptEq, OptEq
from equipoise.models.proximal.properties import L1, SquaredL2
from equipoise.solve import Stop

TIGHT = Stop(rtol=1e-14, atol=1e-15, max_steps=5000)


def build(activation="relu", outputs=1, seed=0, mu=1.3, **options):
    generator = torch.Generator().manual_seed(seed)
    model = OptEq(
        3,
        5,
        7,
        mu,
        outputs=outputs,
        activation=activation,
        dtype=torch.float64,
        generator=generator,
        **options,
    )
    with torch.no_grad():
        model.b.copy_(torch.randn(7, dtype=torch.float64, generator=generator))
    model.stop = TIGHT
    model.gradient = eq.Implicit(stop=TIGHT)
    return model, torch.randn(9, 3, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("activation", ["relu", "tanh", "softplus", "leaky_relu"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_formula_equals_the_contracted_jacobian(activation, outputs):
    model, X = build(activation, outputs)
    assert has_formula(model)
    for X2 in (None, X[:4] + 0.3):
        found = eq.tangent_kernel(model, X, X2, stop=TIGHT)
        two = None if X2 is None else ModuleRows(model, X2, {})
        want = PairTiles(ModuleRows(model, X, {}), two)(slice(0, 9), slice(0, 9 if X2 is None else 4))
        assert found.blocks.keys() == want.keys() == {"W", "U", "b", "V"}
        for name, block in found.blocks.items():
            torch.testing.assert_close(block, want[name], rtol=1e-10, atol=1e-10)


def test_the_blocks_are_the_printed_ones():
    model, X = build("tanh")
    Z = model.equilibrium(X).detach()
    W, a, mu = model.W.detach(), model.V.detach(), model.mu
    pre = Z @ W.T + model.injection(X).detach()
    H, D = torch.tanh(pre), 1 - torch.tanh(pre) ** 2
    eye = torch.eye(5, dtype=torch.float64)
    w = torch.stack([torch.linalg.solve(eye - W.T @ torch.diag(d) @ W / mu, a) for d in D])
    Q = D * (w @ W.T) / mu
    C = (H @ Q.T) * (w @ Z.T) / mu
    blocks = eq.tangent_kernel(model, X, stop=TIGHT).blocks
    KW = (H @ H.T) * (w @ w.T) / mu**2 + C + C.T + (Q @ Q.T) * (Z @ Z.T)
    for name, want in (("W", KW), ("U", (Q @ Q.T) * (X @ X.T)), ("b", Q @ Q.T), ("V", Z @ Z.T)):
        torch.testing.assert_close(blocks[name], want, rtol=1e-11, atol=1e-11)
    assert adjoints(model, X[:0], TIGHT).w.shape == (0, 1, 5)


def test_slices_and_progress_change_nothing():
    model, X = build()
    whole, seen = eq.tangent_kernel(model, X), []
    parts = eq.tangent_kernel(model, X, block=2, progress=lambda k, n: seen.append((k, n)))
    torch.testing.assert_close(parts.total, whole.total, rtol=1e-12, atol=1e-12)
    assert seen == [(2, 9), (4, 9), (6, 9), (8, 9), (9, 9)]
    assert eq.tangent_kernel(model, X[:0]).total.shape == (0, 0)


def test_the_skip_leaves_the_kernel_alone_and_other_forms_go_by_jacobians():
    model, X = build()
    want = eq.tangent_kernel(model, X).total
    model.alpha = 0.3
    torch.testing.assert_close(eq.tangent_kernel(model, X).total, want, rtol=1e-9, atol=1e-9)
    for options in ({"regulariser": L1(0.1)}, {"bound": 0.5}):
        other, X = build(**options)
        assert not has_formula(other)
        kernel = eq.tangent_kernel(other, X)
        assert kernel.lambda_min > -1e-8 * kernel.lambda_max
    model.gradient = eq.Unrolled(3)
    assert not has_formula(model)
    assert not has_formula(DeepOptEq(3, 4, [5]))


def by_hand(model, X):
    """JJᵀ with ∂z/∂θ = (I − ∂T/∂z)⁻¹∂T/∂θ, at the limit of plain iteration."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    V = parameters.pop("V")
    rename = lambda name: ".".join(reversed(name.split(".")[1:])) if "." in name else f"{name}.0"
    T = lambda z, p: torch.func.functional_call(model.cell, {rename(n): v for n, v in p.items()}, (z, X))
    Z = torch.zeros(len(X), model.state_size, dtype=X.dtype)
    for _ in range(3000):
        Z = T(Z, parameters).detach()
    eye = torch.eye(model.state_size, dtype=X.dtype)
    J = torch.func.jacrev(T)(Z, parameters)  # (N, m, N, m)
    A = torch.stack([eye - J[i, :, i] for i in range(len(X))])
    w = torch.linalg.solve(A.mT, (model.state_of(eye) @ V).expand(len(X), -1))  # (N, m)
    kernel = model.state_of(Z) @ model.state_of(Z).T
    for J in torch.func.jacrev(T, argnums=1)(Z, parameters).values():  # (N, m, …)
        g = torch.einsum("im,imp->ip", w, J.flatten(2))
        kernel = kernel + g @ g.T
    return kernel


def other(kind, alpha=0.4, dtype=torch.float64):
    """A model without a formula, with its own, loose, tolerance."""
    generator = torch.Generator().manual_seed(0)
    how = {"dtype": dtype, "generator": generator, "alpha": alpha}
    if kind == "deep":
        return DeepOptEq(3, 4, [5, 4], **how)
    if kind == "multi-block":
        return MultiBlockOptEq(3, 4, [5, 4], **how)
    return OptEq(3, 5, 7, **how, **({"bound": 0.8} if kind == "bound" else {"regulariser": SquaredL2(0.1)}))


@pytest.mark.parametrize("kind", ["deep", "multi-block", "bound", "regulariser"])
def test_jacobians_are_tight_by_default_and_as_loose_as_asked(kind):
    model = other(kind)
    X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    want = by_hand(model, X)
    error = lambda stop: float((eq.tangent_kernel(model, X, stop=stop).total - want).norm() / want.norm())
    assert error(None) < 1e-11
    assert error(Stop(rtol=1e-6)) < 1e-4
    assert error(Stop(rtol=1e-2)) > 1e-5


@pytest.mark.parametrize("kind", ["deep", "multi-block", "bound", "regulariser"])
def test_the_default_is_within_reach_of_single_precision_for_any_skip(kind):
    model = other(kind, alpha=0.1, dtype=torch.float32)
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    want = eq.tangent_kernel(model.double(), X.double()).total
    found = eq.tangent_kernel(model.float(), X).total.double()
    assert (found - want).norm() < 1e-3 * want.norm()


def test_a_prediction_is_as_tight_as_its_kernel():
    model = other("deep")
    X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loose, tight = model(X).detach(), model(X, stop=TIGHT).detach()
    assert (loose - tight).norm() > 1e-11 * tight.norm()
    start = kernel_prediction(model, X, tight, X, time=0.0)
    assert (start - tight).norm() < 1e-12 * tight.norm()


def test_a_stop_is_refused_where_nothing_takes_it():
    net, X = torch.nn.Linear(3, 1), torch.zeros(2, 3)
    assert eq.tangent_kernel(net, X).total.shape == (2, 2)
    with pytest.raises(ValueError, match=r"stop is for the equilibrium models .* Got Linear: leave it out"):
        eq.tangent_kernel(net, X, stop=TIGHT)


def test_the_pl_inequality_holds_and_duplicates_have_no_gradient():
    """‖∇ℓ‖² ≥ 2λ_min(JJᵀ)ℓ; the same input twice, residuals 1 and −1: a zero gradient (Theorem 5 fails)."""
    model, X = build()
    kernel = eq.tangent_kernel(model, X)
    y = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    loss = 0.5 * (model(X) - y).square().sum()
    square = sum(g.square().sum() for g in torch.autograd.grad(loss, list(model.parameters())))
    assert kernel.lambda_min > 0
    assert square >= 2 * kernel.lambda_min * loss * (1 - 1e-9)
    twice = X[:1].repeat(2, 1)
    y = model(twice).detach() + torch.tensor([1.0, -1.0], dtype=torch.float64)
    loss = 0.5 * (model(twice) - y).square().sum()
    assert loss.item() == pytest.approx(1.0)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    assert max(g.abs().max().item() for g in grads) < 1e-12
    assert abs(eq.tangent_kernel(model, twice).lambda_min) < 1e-12
