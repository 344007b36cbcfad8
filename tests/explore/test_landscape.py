"""A slice of a known loss is its closed form; what has no unique equilibrium is masked; nothing is moved."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.explore import (
    affine_loss,
    between,
    differences,
    landscape,
    module_loss,
    path_plane,
    random_directions,
    shifted,
)
from equipoise.models import GaussianReLU, LinearEquilibrium, LinearModel, Monotone, ScaledReLU
from equipoise.models.cell import Equilibrium
from equipoise.solve import Picard, Stop
from equipoise.train import Trainer

AXIS = np.linspace(-1, 1, 5)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def problem(n=6, d=4):
    X = torch.randn(n, d, dtype=torch.float64, generator=generator(1))
    return X, torch.randn(n, dtype=torch.float64, generator=generator(2))


def test_a_plane_of_a_quadratic_is_its_closed_form():
    X, y = problem()
    model = LinearModel(4, dtype=torch.float64, generator=generator())
    d1, d2 = random_directions(model, 2, generator(3))
    loss = lambda m, state: ((m(X)[:, 0] - y) ** 2).sum().item()
    found = landscape(model, module_loss(loss), (d1, d2), AXIS, AXIS[:3])
    for i, t in enumerate(AXIS[:3]):
        for j, s in enumerate(AXIS):
            M = model.M + s * d1["M"] + t * d2["M"]
            assert found.loss[i, j] == pytest.approx(((X @ M.T)[:, 0] - y).square().sum().item(), rel=1e-12)
    assert not found.masked.any()
    assert found.solves == 15


def test_a_line_of_a_linear_equilibrium_is_its_closed_form():
    X, y = problem()
    model = LinearEquilibrium(4, dtype=torch.float64, generator=generator())
    (d,) = random_directions(model, 1, generator(3))
    found = landscape(model, affine_loss(X, y[:, None]), [d], AXIS)
    for s, value in zip(AXIS, found.loss, strict=True):
        S = torch.softmax(model.A + s * d["A"], dim=0)
        Z = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - 0.8 * S, X.T).T
        yhat = Z @ (model.B + s * d["B"]).T
        assert value == pytest.approx((yhat - y[:, None]).square().sum().item(), rel=1e-9)


def test_points_without_a_unique_equilibrium_are_masked_not_faked():
    X, y = problem()
    model = GaussianReLU(4, 5, dtype=torch.float64, generator=generator())
    norm = torch.linalg.matrix_norm(model.W, 2).item()
    top = torch.linalg.eigvalsh((model.W + model.W.T) / 2)[-1].item()
    scale = {"W": model.W.detach().clone()}  # W (1 + s)
    axis = np.linspace(0, 3 / top, 13)
    found = landscape(model, affine_loss(X, y), [scale], axis)
    contracts, monotone = (1 + axis) * norm < 1, (1 + axis) * top < 1
    assert contracts.any()
    assert not monotone.all()
    assert not found.masked[contracts].any()
    assert found.masked[~monotone].all()
    assert found.reasons["equilibrium not proved unique"] == int((~monotone).sum())
    # Between the two there is one equilibrium, which plain iteration need not find.
    assert sum(found.reasons.values()) == int(found.masked.sum())
    assert all(v is None for v, hidden in zip(found.to_dict()["loss"], found.masked, strict=True) if hidden)


def test_points_where_nothing_is_found_are_masked():
    class Affine(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.5]))

        def forward(self, z, x):
            return self.w * z + x

    layer = Equilibrium(Affine(), solver=Picard(), stop=Stop(rtol=1e-6, max_steps=60))
    x = torch.ones(3, 1)
    loss = lambda m, state: m(x).square().sum()
    found = landscape(layer, module_loss(loss), [{"cell.w": torch.tensor([1.0])}], [-0.5, 0.0, 0.25, 1.0])
    assert found.masked.tolist() == [False, False, False, True]
    assert found.reasons == {"equilibrium not found": 1}
    assert found.loss[:3] == pytest.approx([3.0, 3 * 4.0, 3 * 16.0], rel=1e-4)


def test_the_next_solve_starts_where_the_last_one_ended():
    X, y = problem()
    model = Monotone(4, 6, dtype=torch.float64, generator=generator())
    seen = []
    inner = affine_loss(X, y)

    def evaluate(m, state):
        seen.append(state)
        return inner(m, state)

    (d1, d2) = random_directions(model, 2, generator(3))
    warm = landscape(model, evaluate, (d1, d2), AXIS, AXIS)
    assert seen[0] is None
    assert all(s is not None for s in seen[1:])
    cold = landscape(model, lambda m, state: inner(m, None), (d1, d2), AXIS, AXIS)
    assert warm.loss == pytest.approx(cold.loss, rel=1e-6)


def test_the_model_stays_as_it_is():
    X, y = problem()
    model = GaussianReLU(4, 5, dtype=torch.float64, generator=generator())
    before = {n: p.clone() for n, p in model.named_parameters()}
    (d,) = random_directions(model, 1, generator())
    found = landscape(model, affine_loss(X, y), [d], [0.0, 0.1])
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert found.loss[0] == pytest.approx(0.5 * (model(X) - y).square().sum().item(), rel=1e-7)
    moved = shifted(model, [d], [0.1])
    assert found.loss[1] == pytest.approx(0.5 * (moved(X) - y).square().sum().item(), rel=1e-7)


def test_directions_have_the_norms_of_their_filters():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(5, 4))
    (d,) = random_directions(model, 1, generator(), ignore=("0.bias",))
    assert set(d) == {"0.weight", "2.weight", "2.bias"}
    for name, p in model.named_parameters():
        if name != "0.bias":
            rows = (lambda t: t.flatten(1).norm(dim=1)) if p.ndim > 1 else (lambda t: t.norm())
            assert torch.allclose(rows(d[name]), rows(p), rtol=1e-5)
    with pytest.raises(ValueError, match="ignore fewer"):
        random_directions(model, 1, generator(), ignore=[n for n, _ in model.named_parameters()])


def test_a_line_between_two_models_meets_both():
    X, y = problem()
    one, two = (LinearModel(4, dtype=torch.float64, generator=generator(s)) for s in (0, 1))
    loss = lambda m, state: ((m(X)[:, 0] - y) ** 2).sum().item()
    found = landscape(one, module_loss(loss), [between(one, two)], [0.0, 1.0])
    assert found.loss == pytest.approx([loss(one, None), loss(two, None)], rel=1e-12)
    with pytest.raises(ValueError, match=r"differ in parameter M \(\(1, 4, torch.float64\) and \(1, 5, "):
        between(one, LinearModel(5))


def test_a_line_between_models_that_differ_in_more_than_weights_is_refused():
    one = ScaledReLU(4, 5, gamma=0.2, generator=generator())
    assert differences(one, ScaledReLU(4, 5, gamma=0.2, generator=generator(1))) == []
    with pytest.raises(ValueError, match=r"They differ in gamma \(0\.2 and 0\.7\)"):
        between(one, ScaledReLU(4, 5, gamma=0.7, generator=generator()))
    with pytest.raises(ValueError, match=r"class \(ScaledReLU and GaussianReLU\)"):
        between(one, GaussianReLU(4, 5))
    inside = (nn.Sequential(Monotone(4, 5, margin=m)) for m in (0.25, 0.5))
    assert differences(*inside) == ["0.margin (0.25 and 0.5)"]
    shown = differences(nn.LeakyReLU(0.1), nn.LeakyReLU(0.2))
    assert shown == ["constants (negative_slope=0.1 and negative_slope=0.2)"]
    norms = [nn.BatchNorm1d(3) for _ in range(2)]
    norms[1].running_mean += 1
    assert differences(*norms) == ["buffer running_mean"]
    assert differences(nn.Linear(2, 1), nn.Linear(2, 1, dtype=torch.float64))[0].startswith(
        "parameter weight"
    )


def test_the_plane_of_a_path_in_a_plane_holds_it():
    a, b = torch.randn(7, generator=generator(4)), torch.randn(7, generator=generator(5))
    path = [{"p": (3 - k) * a + (3 - k) ** 2 * b} for k in range(4)]
    directions, coordinates, shares = path_plane(path)
    assert sum(shares) == pytest.approx(1.0, abs=1e-9)
    assert coordinates[-1] == pytest.approx([0.0, 0.0], abs=1e-9)
    for point, (s, t) in zip(path, coordinates, strict=True):
        back = path[-1]["p"] + s * directions[0]["p"] + t * directions[1]["p"]
        assert torch.allclose(back, point["p"], atol=1e-4)
    with pytest.raises(ValueError, match="3 points"):
        path_plane(path[:2])


def test_the_plane_of_a_path_is_that_of_its_principal_components():
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(12, 9)) * np.array([5, 3, 2, 1, 1, 1, 0.5, 0.5, 0.1])
    walked = 4.0 + np.cumsum(steps, axis=0)
    path = [{"a": torch.from_numpy(w[:6].reshape(2, 3)), "b": torch.from_numpy(w[6:])} for w in walked]
    directions, way, shares = path_plane(path)
    _, sizes, V = np.linalg.svd(walked - walked.mean(axis=0), full_matrices=False)
    axes = np.stack([torch.cat([d["a"].flatten(), d["b"]]).numpy() for d in directions])
    assert np.abs(axes @ V[:2].T) == pytest.approx(np.eye(2), abs=1e-10)
    assert shares == pytest.approx(sizes[:2] ** 2 / np.sum(sizes**2))
    assert way == pytest.approx((walked - walked[-1]) @ axes.T)


@pytest.mark.parametrize("points", [3, 12])
def test_the_plane_of_a_long_path_is_found_by_lanczos_alike(points, monkeypatch):
    walked = np.cumsum(np.random.default_rng(1).normal(size=(points, 50)), axis=0)
    path = [{"a": torch.from_numpy(w)} for w in walked]
    whole = path_plane(path)
    monkeypatch.setattr("equipoise.explore.trajectory._MANY", 10)
    monkeypatch.delattr("numpy.linalg.svd")  # not needed any more
    directions, way, shares = path_plane(path)
    assert shares == pytest.approx(whole[2], rel=1e-10)
    assert way == pytest.approx(whole[1], abs=1e-9)
    for mine, its in zip(directions, whole[0], strict=True):
        assert torch.allclose(mine["a"], its["a"], atol=1e-10)


def test_a_path_that_does_not_move_has_no_plane():
    with pytest.raises(ValueError, match="4 times the same weights"):
        path_plane([{"a": torch.ones(5)}] * 4)


def test_a_landscape_along_the_path_of_training():
    X, y = problem(12)
    model = GaussianReLU(4, 5, dtype=torch.float64, generator=generator())
    path, losses = [], []

    def keep(measured):
        path.append({n: p.detach().clone() for n, p in model.named_parameters()})
        losses.append(0.5 * (model(X) - y).square().sum().item())

    Trainer(model, "half_square", epochs=8, rate=0.01, batch_size=4).fit(X, y, record=keep)
    directions, way, shares = path_plane(path)
    assert len(way) == 9
    assert 0.9 < sum(shares) <= 1
    s, t = ([c[0], 0.0] for c in way.T)
    found = landscape(model, affine_loss(X, y), directions, s, t)
    assert found.loss[-1, -1] == pytest.approx(losses[-1], rel=1e-6)  # the path ends in the model
    assert found.loss[0, 0] == pytest.approx(losses[0], rel=0.1)  # and its start is near the plane
    assert abs(found.loss[0, 0] - losses[-1]) > 0.1 * losses[0]


def test_the_share_below_a_level_counts_what_is_masked_as_high():
    model = LinearModel(1, dtype=torch.float64)
    loss = lambda m, state: m.M.item() ** 2 if m.M.item() < 0.9 else float("inf")
    with torch.no_grad():
        model.M.zero_()
    axis = np.linspace(-1, 1, 41)
    found = landscape(model, module_loss(loss), [{"M": torch.ones(1, 1, dtype=torch.float64)}], axis)
    assert found.share_below(0.25 + 1e-12) == pytest.approx(21 / 41)
    assert found.share_below(10.0) == pytest.approx(38 / 41)
    assert found.share_error(0.25 + 1e-12) == pytest.approx(abs(21 / 41 - 11 / 21))
    assert found.reasons == {"loss not finite": 3}


def test_a_model_whose_equilibria_cannot_be_proved_unique_is_told_what_measures_it():
    X, y = problem()
    model = LinearModel(4).double()
    directions = random_directions(model, 1, generator())
    with pytest.raises(TypeError, match=r"proved unique.* Got LinearModel instead: module_loss"):
        landscape(model, affine_loss(X, y), directions, AXIS)
    loss = lambda m, state: (m(X).flatten() - y).square().sum().item()
    assert landscape(model, module_loss(loss), directions, [0.0]).loss[0] == pytest.approx(loss(model, None))


def test_a_plane_takes_two_directions():
    model = LinearModel(1)
    with pytest.raises(ValueError, match="two"):
        landscape(model, module_loss(lambda m, s: 0.0), [{"M": torch.ones(1, 1)}], [0.0], [0.0])


@pytest.mark.parametrize("coded", ["labels", "probabilities"])
def test_the_cross_entropy_on_a_plane_is_its_closed_form_and_masked_as_any_loss(coded):
    X, _ = problem()
    labels = torch.tensor([0, 2, 1, 1, 0, 2])
    y = labels if coded == "labels" else torch.eye(3, dtype=torch.float64)[labels]
    model = GaussianReLU(4, 5, outputs=3, dtype=torch.float64, generator=generator())
    d1, d2 = random_directions(model, 2, generator(3))
    axis = np.linspace(-4.0, 4.0, 4)
    found = landscape(model, affine_loss(X, y, "cross_entropy"), (d1, d2), axis, axis)
    squares = landscape(model, affine_loss(X, torch.zeros(6, 3).double()), (d1, d2), axis, axis)
    assert found.masked.any()
    assert found.reasons == squares.reasons
    assert np.array_equal(found.masked, squares.masked)
    for i, j in np.argwhere(~found.masked):
        yhat = shifted(model, (d1, d2), (axis[j], axis[i]))(X)
        by_hand = (yhat.exp().sum(dim=1).log() - yhat[range(6), labels]).sum().item()
        assert found.loss[i, j] == pytest.approx(by_hand, rel=1e-6)


def test_a_loss_may_be_any_function_of_outputs_and_targets():
    X, y = problem()
    model = GaussianReLU(4, 5, dtype=torch.float64, generator=generator())
    mean = lambda yhat, y: (yhat - y).abs().mean()
    expected = mean(model(X), y).item()
    assert affine_loss(X, y, mean)(model, None).loss == pytest.approx(expected, rel=1e-7)
    logistic = affine_loss(X, (y > 0).double(), "logistic")(model, None).loss
    p = torch.sigmoid(model(X))
    assert logistic == pytest.approx(-torch.where(y > 0, p, 1 - p).log().sum().item(), rel=1e-7)
    with pytest.raises(ValueError, match=r"at least one row. Got shape \(0, 4\)"):
        affine_loss(X[:0], y[:0])


@pytest.mark.parametrize(
    ("direction", "said"),
    [
        ({"Q": torch.zeros(2, 2)}, r"parameters of the model \(W, U, a\). Got 'Q'"),
        ({"W": torch.zeros(5)}, r"must be \(5, 5\) in W, like the parameter. Got shape \(5,\)"),
        ({}, "at least one parameter"),
    ],
)
def test_a_direction_that_is_not_of_the_model_is_refused(direction, said):
    model = GaussianReLU(4, 5)
    with pytest.raises(ValueError, match=said):
        landscape(model, module_loss(lambda m, s: 0.0), [direction], [0.0])
    with pytest.raises(ValueError, match=said):
        shifted(model, [direction], [0.0])


def test_names_to_ignore_must_be_there_and_coordinates_must_be_as_many_as_directions():
    model = LinearModel(2)
    with pytest.raises(ValueError, match=r"ignore must name parameters of the model \(M\). Got 'nope'"):
        random_directions(model, 1, generator(), ignore=["nope"])
    with pytest.raises(ValueError, match="coordinates must be 2, one for each direction"):
        shifted(model, random_directions(model, 2, generator()), [0.0])


@pytest.mark.parametrize(
    ("s", "said"),
    [
        ([], r"at least one. Got shape \(0,\)"),
        ([[0.0]], r"Got shape \(1, 1\)"),
        ([0.0, np.inf], "s must be finite. Got inf at 1"),
        ([np.nan], "Got nan at 0"),
    ],
)
def test_coordinates_are_finite_numbers(s, said):
    model = LinearModel(1)
    ones = {"M": torch.ones(1, 1)}
    with pytest.raises(ValueError, match=said):
        landscape(model, module_loss(lambda m, state: 0.0), [ones], s)
    with pytest.raises(ValueError, match=said.replace("s must", "t must")):
        landscape(model, module_loss(lambda m, state: 0.0), [ones, ones], [0.0], s)


@pytest.mark.parametrize("far", [1e38, 1e39])
def test_weights_too_large_to_compute_with_are_masked_with_their_reason(far):
    model = Monotone(4, 5, generator=generator())  # whose weight is a square of its parameters
    X, y = (part.float() for part in problem())
    found = landscape(model, affine_loss(X, y), random_directions(model, 1, generator(1)), [0.0, far])
    assert found.masked.tolist() == [False, True]
    assert found.reasons == {"weights not finite": 1}
