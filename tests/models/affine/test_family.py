"""The pieces that the affine families share."""

import pytest
import torch

import equipoise as eq
from equipoise.differentiate.affine import MaskedMap, transposed
from equipoise.models.affine import AffineFamily, pairs, readout_block, squeeze_blocks, weigh
from equipoise.models.norms import norm_estimate
from problems import contraction, monotone_weight


def masked_problem(n=30, m=12, seed=0, weight=None):
    W, G = contraction(n, m, 0.9, seed)
    G = G * torch.logspace(-4, 4, n, dtype=G.dtype)[:, None]  # rows that end at different steps
    D = (torch.rand(n, m, generator=torch.Generator().manual_seed(seed)) > 0.4).double()
    W = W if weight is None else weight
    eye = torch.eye(m, dtype=W.dtype)
    exact = torch.stack([torch.linalg.solve(eye - d[:, None] * W, d * g) for d, g in zip(D, G, strict=True)])
    return MaskedMap(W, G, D), exact


@pytest.mark.parametrize(
    "solver", [eq.Picard(), eq.Anderson(), eq.solve.Newton(), eq.solve.PeacemanRachford()], ids=repr
)
@pytest.mark.parametrize("precision", ["native", "mixed"])
def test_a_masked_map_is_solved_row_by_row_by_every_solver(solver, precision):
    problem, exact = masked_problem()
    stop = eq.Stop(rtol=1e-11, max_steps=3000)
    solution = eq.fixed_point(problem, solver=solver, stop=stop, precision=precision).raise_if_failed()
    error = (solution.value - exact).norm(dim=1)
    assert (error <= 1e-9 * exact.norm(dim=1)).all()
    assert solution.value[problem.mask == 0].abs().max() == 0


def test_a_masked_map_of_large_norm_is_solved_by_splitting_with_transposed_factorisations(monkeypatch):
    W = monotone_weight(12, margin=0.4, scale=2.0, seed=3)
    forward = eq.AffineMap(W, torch.randn(4, 12, dtype=W.dtype, generator=torch.Generator().manual_seed(0)))
    solver = eq.solve.PeacemanRachford(step_size=0.5)
    eq.fixed_point(forward, solver=solver)
    problem, exact = masked_problem(weight=W.T)
    problem.cache = transposed(forward.cache)

    def forbidden(*_):
        raise AssertionError("what was derived of W serves Wᵀ")

    for name in ("inv", "eigvalsh", "svdvals"):
        monkeypatch.setattr(torch.linalg, name, forbidden)
    found = eq.fixed_point(problem, solver=solver, stop=eq.Stop(rtol=1e-11)).raise_if_failed().value
    assert ((found - exact).norm(dim=1) <= 1e-9 * exact.norm(dim=1)).all()


def test_pairs_and_weights_of_one_and_of_many_outputs():
    generator = torch.Generator().manual_seed(0)
    Z, Z2 = (torch.randn(n, 5, dtype=torch.float64, generator=generator) for n in (4, 3))
    V, V2 = (torch.randn(n, 2, 5, dtype=torch.float64, generator=generator) for n in (4, 3))
    R = torch.randn(4, 2, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(pairs(V, V2)[1, 0, 2, 1], V[1, 0] @ V2[2, 1])
    torch.testing.assert_close(pairs(Z, V2)[1, 0, 2, 1], Z[1] @ V2[2, 1])
    assert pairs(Z, Z2).shape == (4, 1, 3, 1)
    torch.testing.assert_close(squeeze_blocks({"a": pairs(Z, Z2)})["a"], Z @ Z2.T)
    block = readout_block(Z, Z2, 2)
    torch.testing.assert_close(block[:, 1, :, 1], Z @ Z2.T)
    assert block[:, 0, :, 1].abs().max() == 0
    torch.testing.assert_close(weigh(V, R)[3], R[3, 0] * V[3, 0] + R[3, 1] * V[3, 1])
    torch.testing.assert_close(weigh(Z, R[:, 0])[3], R[3, 0] * Z[3])


def test_the_norm_is_exact_for_diagonals_and_near_otherwise():
    assert norm_estimate(torch.diag(torch.tensor([0.3, -0.7, 0.0]))) == pytest.approx(0.7)
    assert norm_estimate(torch.diag(torch.tensor([0.3, -1.7, 0.0]))) == pytest.approx(1.7)
    W, _ = contraction(1, 80, 0.9, seed=0)
    assert 0.85 <= norm_estimate(W) <= 0.9 * (1 + 1e-12)
    assert norm_estimate(torch.zeros(3, 3)) == 0


class Shifted(AffineFamily):
    """Z = relu(½Z + x·c),  ŷ = Z a: a family in a few lines."""

    readout_name = "a"

    def __init__(self, inputs, width, outputs=1, dtype=None, device=None):
        super().__init__(inputs, width, outputs)
        self.c = torch.nn.Parameter(torch.ones(inputs, width, dtype=dtype, device=device))
        self.a = torch.nn.Parameter(torch.ones(width, dtype=dtype, device=device))

    def weight(self):
        return 0.5 * torch.eye(self.width, dtype=self.a.dtype)

    def injection(self, X):
        return X @ self.c

    def pullback(self, V, R, Z, X):
        return {"c": X.T @ weigh(V, R), "a": Z.T @ R}

    def gram(self, V, Z, X, V2, Z2, X2):
        return squeeze_blocks({"c": pairs(X, X2) * pairs(V, V2), "a": pairs(Z, Z2)})

    def check_wellposed(self):
        pass

    def config(self):
        return {"inputs": self.inputs, "width": self.width}


def test_a_user_joins_with_a_family_of_a_few_lines(tmp_path):
    model = Shifted(2, 3, dtype=torch.float64)
    X = torch.tensor([[1.0, 2.0], [-1.0, 0.5]], dtype=torch.float64)
    y = model(X, stop=eq.Stop(rtol=1e-12))
    torch.testing.assert_close(y, 3 * 2 * torch.relu(X.sum(dim=1)), rtol=1e-10, atol=1e-11)
    y.sum().backward()
    torch.testing.assert_close(model.c.grad, 2 * X[:1].T.expand(2, 3), rtol=1e-9, atol=1e-10)
    assert model.contraction() == pytest.approx(0.5)
    assert model.resolvent_bound() == pytest.approx(2)
    model.save(tmp_path / "shifted.safetensors")
    assert torch.equal(eq.models.load(tmp_path / "shifted.safetensors")(X), model(X))


def test_a_start_is_folded_with_its_samples_under_vmap():
    model = Shifted(2, 3, dtype=torch.float64)
    X = torch.randn(4, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = torch.relu(X @ model.c.detach()) * 2
    stop = eq.Stop(rtol=1e-10, max_steps=1)  # only the right start is there in time
    each = torch.func.vmap(lambda x, z: model(x, start=z, stop=stop))(X, start)
    torch.testing.assert_close(each, start.sum(dim=-1))


def test_gradients_reach_the_input_where_the_parameters_are_frozen():
    model = Shifted(2, 3, dtype=torch.float64).requires_grad_(False)
    X = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    model(X).sum().backward()
    torch.testing.assert_close(X.grad, torch.full_like(X, 6.0), rtol=1e-7, atol=0)
    with torch.no_grad():
        assert not model(X).requires_grad


@pytest.mark.parametrize("relu_at_zero", [0, 1])
def test_the_image_of_a_solve_gives_the_masks_it_has_itself(relu_at_zero):
    generator = torch.Generator().manual_seed(0)
    model = eq.ScaledReLU(
        5, 12, gamma=0.5, relu_at_zero=relu_at_zero, dtype=torch.float64, generator=generator
    )
    X = torch.randn(8, 5, dtype=torch.float64, generator=generator)
    X[3] = 0.0  # every coordinate a tie
    with torch.no_grad():
        model.b.normal_(generator=generator)
    solution = model.solve(X, stop=eq.Stop(rtol=1e-4), precision="mixed").raise_if_failed()
    assert torch.equal(solution.image, model.affine_map(X)(solution.value))
    V, known = (model.adjoint(solution.value, X, image=f) for f in (None, solution.image))
    assert torch.equal(V, known)
    wrong = model.adjoint(solution.value, X, image=torch.zeros_like(solution.image))
    assert torch.equal(V, wrong) == (relu_at_zero == 1), (
        "where ties have slope 1 the signs of f(Z) are not enough"
    )


def test_a_solve_whose_rows_end_apart_has_no_image():
    solution = eq.fixed_point(masked_problem()[0], solver=eq.Picard(), stop=eq.Stop(max_steps=3000))
    assert solution.steps.unique().numel() > 1
    assert solution.image is None


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("family", ["gaussian", "monotone", "linear"])
def test_the_adjoint_of_one_weighted_sum_is_the_weighted_sum_of_adjoints(family, outputs):
    options = {"outputs": outputs, "dtype": torch.float64, "generator": torch.Generator().manual_seed(1)}
    model = {
        "gaussian": lambda: eq.GaussianReLU(4, 6, **options),
        "monotone": lambda: eq.Monotone(4, 6, margin=0.5, **options),
        "linear": lambda: eq.LinearEquilibrium(4, gamma=0.5, **options),
    }[family]()
    with torch.no_grad():
        model.readout_weight.normal_(generator=options["generator"])
    X = torch.randn(7, 4, dtype=torch.float64, generator=options["generator"])
    R = torch.randn(7, outputs, dtype=torch.float64, generator=options["generator"])
    Z, stop = model.equilibrium(X).detach(), eq.Stop(rtol=1e-12, max_steps=2000)
    V = model.adjoint(Z, X, stop=stop).reshape(7, outputs, -1)
    L = model.adjoint(Z, X, weights=R, stop=stop)
    torch.testing.assert_close(L, torch.einsum("nk,nkm->nm", R, V), rtol=1e-9, atol=1e-11)
    once = model.pullback(L[:, None], torch.ones(7, 1, dtype=torch.float64), Z, X)
    shape = model.adjoint_shape(7)
    each = model.pullback(V.reshape(shape), R.reshape(shape[:-1]), Z, X)
    for name in model.hidden_names:
        torch.testing.assert_close(once[name], each[name], rtol=1e-9, atol=1e-11)
