"""How far the inputs of an OptEq may move: never further than its equilibria were proved to bear."""

import math

import pytest
import torch

import equipoise as eq
from equipoise.models.proximal.properties import L1, GradientStep
from equipoise.solve import inverse_norm
from equipoise.theory import certified_radius, lipschitz_bound, pairwise_lipschitz

TIGHT = eq.Stop(rtol=1e-12, max_steps=5000)


def drawn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def build(kind="deep", outputs=3, seed=0, **options):
    made = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(seed), "outputs": outputs}
    if kind == "one":
        return eq.OptEq(4, 5, 7, **made, **options)
    deep = eq.DeepOptEq(4, 5, [6, 7], **{"alpha": 0.6, **made, **options})
    return deep.multi_block() if kind == "blocks" else deep


CASES = {
    "one": lambda **o: build("one", mu=2.0, **o),
    "skip, tanh": lambda **o: build("one", alpha=0.3, activation="tanh", **o),
    "deep": build,
    "blocks": lambda **o: build("blocks", **o),
    "bounded": lambda **o: build("deep", bound=0.7, **o),
    "sparse": lambda **o: build("one", regulariser=L1(0.05), **o),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_slope_exceeds_the_bound(case, seed):
    model, X = CASES[case](seed=seed), drawn(40, 4, seed=seed + 9)
    bound, pairs = lipschitz_bound(model), pairwise_lipschitz(model)
    for step in (1e-4, 0.3, 5.0):
        moved = X + step * drawn(40, 4, seed=seed + 17)
        with torch.no_grad():
            change = model(moved, stop=TIGHT) - model(X, stop=TIGHT)
        size = (moved - X).norm(dim=1)
        assert (change.norm(dim=1) <= bound * size + 1e-9).all()
        between = (change[:, :, None] - change[:, None, :]).abs()
        assert (between <= pairs * size[:, None, None] + 1e-9).all()
    steepest = max(
        torch.linalg.matrix_norm(torch.autograd.functional.jacobian(lambda x: model(x[None])[0], x), ord=2)
        for x in X[:8]
    )
    assert 0.02 * bound < steepest <= bound  # and it is no empty promise


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_no_input_within_its_radius_is_called_otherwise(case, outputs):
    model, X = CASES[case](outputs=outputs), drawn(30, 4, seed=5)
    found = certified_radius(model, X)
    assert found.certified.double().mean() > 0.5
    decide = lambda x: (lambda y: y.argmax(dim=1) if outputs > 1 else torch.where(y < 0, -1, 1))(
        model(x, stop=TIGHT).detach()
    )
    assert torch.equal(found.prediction, decide(X))
    ways = [drawn(30, 4, seed=s) for s in range(10)]
    x = X.clone().requires_grad_()
    y = model(x, stop=TIGHT)
    best = y.gather(1, found.prediction[:, None]).sum() if outputs > 1 else (found.prediction * y).sum()
    (down,) = torch.autograd.grad(best, x)
    for way in (*ways, -down):
        unit = way / way.norm(dim=1, keepdim=True).clamp_min(1e-30)
        assert torch.equal(decide(X + 0.999 * found.radius[:, None] * unit), found.prediction)


def test_labels_and_what_is_not_proved():
    model, X = build(), drawn(6, 4)
    labels = certified_radius(model, X).prediction.clone()
    labels[2] = (labels[2] + 1) % 3
    found = certified_radius(model, X, labels)
    assert found.radius[2] == 0
    assert "labelled" in found.uncertified[2]
    with torch.no_grad():
        for layer in model.layers:
            layer.W.mul_(2)
    assert lipschitz_bound(model) == math.inf
    assert not certified_radius(model, X).certified.any()
    assert "uniqueness of the equilibrium is not proved" in certified_radius(model, X).uncertified[0]
    concave = build("one", regulariser=GradientStep(inverse_norm()))
    assert lipschitz_bound(concave) == math.inf
    hooked = build("one")
    assert lipschitz_bound(hooked) < math.inf
    hooked.register_forward_pre_hook(lambda module, args: (100 * args[0],))
    assert lipschitz_bound(hooked) == math.inf
    assert "hook around forward" in certified_radius(hooked, X).uncertified[0]


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="local=True is known for affine families only"):
        certified_radius(build(), drawn(3, 4), local=True)
    with pytest.raises(ValueError, match=r"needs g\(x\) = x"):
        lipschitz_bound(build(feature_map=torch.tanh))
    with pytest.raises(ValueError, match=r"X must be \(N, 4\)"):
        certified_radius(build(), drawn(3, 5))
    with pytest.raises(TypeError, match="X must be a tensor"):
        certified_radius(build(), [[1.0] * 4])
    with pytest.raises(TypeError, match=r"the affine families, OptEq and ConvOptEq\. Got ResidualConv"):
        lipschitz_bound(eq.ResidualConv((1, 6, 6), 8))
