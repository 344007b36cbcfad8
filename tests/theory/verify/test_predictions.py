"""What is proved is true, what is refuted is broken, and the two meet where activation patterns are few."""

import itertools
from dataclasses import dataclass, field

import pytest
import torch
from verified_networks import FAMILIES, inputs, least_values, network, outputs

import equipoise as eq
from equipoise.models.proximal.properties import L1
from equipoise.theory.register import facts
from equipoise.theory.verify import verified_radius
from equipoise.theory.verify.attack import attacked
from equipoise.theory.verify.bounds import Problem
from equipoise.theory.verify.outputs import Wanted
from equipoise.theory.verify.sets import InputSets

LOW, HIGH = torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)


def classes(model, X):
    return outputs(model, X).argmax(dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_form_in_which_a_family_is_verified_has_its_outputs(family):
    model, X = network(family), inputs()
    net = facts(model).unit_network()
    b, error = net.injection(X)
    h = net.equilibria(b)
    scores, off = net.scores(h, net.equilibrium_error(h, b, error))
    assert torch.allclose(scores, outputs(model, X).reshape(scores.shape), atol=1e-9)
    assert float(off.max()) < 1e-9


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("epsilon", [0.05, 0.4])
def test_branching_agrees_with_every_activation_pattern(family, epsilon):
    model, X = network(family), inputs(N=4)
    net = facts(model).unit_network()
    sets = InputSets.around(X, epsilon, "linf", LOW, HIGH)
    # A threshold between the least values of the rows: some hold it, some do not.
    Q = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    least = least_values(net, sets.lower, sets.upper, Q, 0.0)
    q = -float(least.min() + least.max()) / 2
    found = eq.verify_predictions(
        model,
        X,
        epsilon=epsilon,
        box=(0.0, 1.0),
        inequalities=(Q[None], torch.tensor([q], dtype=torch.float64)),
    )
    assert found.proved.tolist() == (least + q > 0).tolist()
    assert found.refuted.tolist() == (least + q < 0).tolist()
    assert bool((found.margin <= least + q + 1e-9).all())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("family", ["monotone", "scaled", "deep"])
def test_no_proved_row_is_ever_attacked(family, norm):
    proved = 0
    for seed in range(2):
        model, X = network(family, d=4, n=6, seed=seed), inputs(4, 8, seed)
        y = classes(model, X)
        epsilon = 0.1 if norm == "linf" else 0.2
        found = eq.verify_predictions(model, X, y, epsilon=epsilon, norm=norm, box=(0.0, 1.0), nodes=200)
        proved += int(found.proved.sum())
        rows = torch.nonzero(found.proved).flatten()
        sets = InputSets.around(X[rows], epsilon, norm, LOW, HIGH)
        problem = Problem.of(facts(model).unit_network(), sets)
        x = attacked(problem, Wanted(3, labels=y[rows]), steps=10, restarts=3, seed=seed)
        assert torch.equal(classes(model, x), y[rows])
        draw = torch.rand(
            len(rows), 200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        for k in range(200):
            point = sets.projected(sets.lower + draw[:, k] * (sets.upper - sets.lower))
            assert torch.equal(classes(model, point), y[rows]) if k % 20 == 0 else True
        bad = torch.nonzero(found.refuted).flatten()
        assert bool((classes(model, found.counterexample[bad]) != y[bad]).all())
    assert proved >= 3


@dataclass(frozen=True)
class Towards(Wanted):
    """One class for each row, which is to come out behind the row's own."""

    others: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    def coefficients(self, sample, target, outputs):
        Q, at = torch.zeros(len(sample), outputs, dtype=torch.float64), torch.arange(len(sample))
        Q[at, self.labels[sample]] = 1.0
        Q[at, self.others[sample]] = -1.0
        return Q, Q[:, 0] * 0


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_proved_rows_withstand_strong_attacks(family, norm):
    """Fifty steps from each of eleven starts at the worst class, and from five towards every class alone."""
    proved, seed, k = 0, 0, 3 if family == "linear" else 4
    how = {"steps": 50, "restarts": 3}
    while proved < 1000:
        seed += 1
        model, X = network(family, d=6, n=10, k=k, seed=seed), inputs(6, 200, seed)
        y = classes(model, X)
        epsilon = 0.05 if norm == "linf" else 0.1
        found = eq.verify_predictions(model, X, y, epsilon=epsilon, norm=norm, box=(0.0, 1.0), nodes=50)
        X, y = X[found.proved], y[found.proved]
        proved += len(y)
        sets = InputSets.around(X, epsilon, norm, LOW, HIGH)
        problem = Problem.of(facts(model).unit_network(), sets)
        # Copies of a row start at the centre and at two places each.
        rows = torch.arange(len(y)).repeat(5)
        worst = attacked(problem.take(rows), Wanted(k, labels=y[rows]), seed=seed, **how)
        rows = torch.arange(len(y)).repeat(2 * (k - 1))
        others = (y[rows] + 1 + torch.arange(k - 1).repeat_interleave(2 * len(y))) % k
        x = attacked(problem.take(rows), Towards(1, labels=y[rows], others=others), seed=seed, **how)
        for found_at, row in ((worst, torch.arange(len(y)).repeat(5)), (x, rows)):
            assert bool(sets.take(row).contains(found_at).all())
            assert torch.equal(classes(model, found_at), y[row])


def test_a_row_that_is_misclassified_is_its_own_counterexample():
    model, X = network("monotone"), inputs()
    wrong = (classes(model, X) + 1) % 3
    found = eq.verify_predictions(model, X, wrong, epsilon=0.01)
    assert bool(found.refuted.all())
    assert torch.equal(found.counterexample, X)
    assert not bool(found.proved.any() | found.unknown.any())
    right = eq.verify_predictions(model, X, classes(model, X), epsilon=0.0)
    assert bool(right.proved.all())
    assert bool(right.counterexample.isnan().all())


def test_limits_leave_rows_unknown_and_results_repeat():
    model, X = network("monotone", d=4, n=10, seed=3), inputs(4, 8)
    y = classes(model, X)
    hard = {"epsilon": 0.3, "box": (0.0, 1.0), "attack": (0, 1)}
    few = eq.verify_predictions(model, X, y, nodes=1, **hard)
    many = eq.verify_predictions(model, X, y, nodes=3000, **hard)
    assert bool(few.unknown.any())
    assert bool((few.nodes == 1).all())
    assert bool((many.proved >= few.proved).all())
    assert int(many.proved.sum() + many.refuted.sum()) > int(few.proved.sum())
    again = eq.verify_predictions(model, X, y, nodes=3000, **hard)
    for name in ("proved", "refuted", "nodes", "margin"):
        assert torch.equal(getattr(many, name), getattr(again, name)), name
    late = eq.verify_predictions(model, X, y, seconds=0.0, **hard)
    assert torch.equal(late.proved, few.proved)


def test_inputs_of_any_float_dtype_are_the_numbers_they_are():
    model, X = network("gaussian"), inputs()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        narrow = X.to(dtype)
        y = classes(model, narrow.double())
        a = eq.verify_predictions(model, narrow, y, epsilon=0.05)
        b = eq.verify_predictions(model, narrow.double(), y, epsilon=0.05)
        assert torch.equal(a.proved, b.proved)
        assert torch.equal(a.margin, b.margin)
    images = eq.verify_predictions(model.float(), X.reshape(6, 1, 3), y, epsilon=0.05)
    assert images.counterexample.shape == (6, 1, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_rows_of_any_float_boxes_of_a_user_and_inequalities(family, dtype):
    model, X = network(family, seed=2), inputs(N=5).to(dtype)
    narrow = X.double()
    low, high = narrow - torch.tensor([0.0, 0.3, 0.1]), narrow + torch.tensor([0.2, 0.0, 0.1])
    Q = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.5, 1.0]])
    corners = [torch.tensor(c) for c in itertools.product((0.0, 1.0), repeat=3)]
    near = torch.stack([outputs(model, low + c * (high - low)) @ Q.double().T for c in corners]).amin(dim=0)
    q = torch.tensor([-float(near[:, 0].min() + near[:, 0].max()) / 2, 1.0 - float(near[:, 1].min())])
    found = eq.verify_predictions(model, X, box=(low, high), inequalities=(Q, q))
    assert not bool(found.unknown.any())
    assert bool(found.proved.any() & found.refuted.any())
    for seed in range(20):
        share = torch.rand(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).round()
        margin = outputs(model, low + share * (high - low)) @ Q.double().T + q.double()
        assert bool((margin[found.proved] > 0).all())
        assert bool((margin.amin(dim=1) >= found.margin)[found.proved].all())
    x, bad = found.counterexample, found.refuted
    assert bool(((x >= low) & (x <= high))[bad].all())
    assert bool((outputs(model, x[bad]) @ Q.double().T + q.double() < 0).any(dim=1).all())


def test_boxes_of_a_users_own_and_one_output():
    model = network("gaussian", k=1)
    X = inputs(N=4)
    y = torch.where(outputs(model, X) > 0, 1, -1)
    low, high = X - torch.tensor([0.0, 0.2, 0.0]), X + torch.tensor([0.1, 0.0, 0.0])
    found = eq.verify_predictions(model, X, y, box=(low, high))
    net = facts(model).unit_network()
    least = [least_values(net, low[i : i + 1], high[i : i + 1], y[i : i + 1].double(), 0.0) for i in range(4)]
    assert found.proved.tolist() == (torch.cat(least) > 0).tolist()
    flipped = eq.verify_predictions(model, X, -y, box=(low, high))
    assert bool(flipped.refuted.all())
    same = eq.verify_predictions(model, X, y, epsilon=10.0, box=(low, high))
    assert torch.equal(same.proved, found.proved)


def test_a_ball_proves_more_than_the_box_around_it_and_less_than_a_smaller_one():
    model, X = network("monotone", d=6, n=8, seed=2), inputs(6, 20)
    y = classes(model, X)
    few, some, most = (
        eq.verify_predictions(model, X, y, epsilon=e, norm=norm, nodes=100).proved
        for e, norm in ((0.2, "linf"), (0.2, "l2"), (0.1, "l2"))
    )
    assert bool((few <= some).all())
    assert bool((some <= most).all())
    assert int(most.sum()) > int(few.sum())
    radii = eq.certified_radius(model, X, y)
    assert bool((most >= (radii.radius > 0.1)).all())  # no ball of a global constant is missed


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_radius_is_proved_and_one_little_larger_is_broken(norm):
    model, X = network("gaussian", seed=1), inputs(N=3)
    y = classes(model, X)
    how = {"norm": norm, "box": (0.0, 1.0), "attack": (8, 1)}
    found = verified_radius(model, X, y, most=0.5, steps=6, **how)
    assert bool((found.proved > 0).all())
    assert bool((found.proved < found.refuted).all())
    again = eq.verify_predictions(model, X, y, epsilon=found.proved, **how)
    assert bool(again.proved.all())
    broken = torch.isfinite(found.refuted)
    assert int(broken.sum()) >= 2
    # The first of six steps is at .5, so five halvings are left.
    assert bool(((found.refuted - found.proved)[broken] <= 0.5 / 2**5).all())
    x = found.counterexample
    assert torch.equal(broken, torch.isfinite(x).all(dim=1))
    assert bool((classes(model, x[broken]) != y[broken]).all())
    moved = (x - X)[broken]
    far = moved.abs().amax(dim=1) if norm == "linf" else moved.norm(dim=1)
    assert torch.allclose(far, found.refuted[broken], rtol=1e-12)
    assert bool(((x >= 0) & (x <= 1))[broken].all())


def test_rows_that_are_wrong_are_refuted_at_nothing_and_a_far_bound_is_proved_at_once():
    model, X = network("monotone"), inputs()
    y = classes(model, X)
    wrong = verified_radius(model, X, (y + 1) % 3, steps=2)
    assert bool((wrong.proved == 0).all() & (wrong.refuted == 0).all())
    assert torch.equal(wrong.counterexample, X)
    assert "6 wrong as they stand" in str(wrong)
    near = verified_radius(model, X, y, most=1e-9)
    assert bool((near.proved == 1e-9).all() & near.refuted.isinf().all())
    assert bool((near.nodes == 1).all())  # nothing is asked again of a row that is proved at `most`
    for most in (0.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match="most must be"):
            verified_radius(model, X, y, most=most)


def test_every_row_may_have_its_own_epsilon():
    model, X = network("monotone", d=6, n=8, seed=2), inputs(6, 4)
    y, far = classes(model, X), torch.tensor([0.01, 0.2, 0.4, 0.05])
    for norm in ("linf", "l2"):
        how = {"norm": norm, "box": (0.0, 1.0), "nodes": 1}
        together = eq.verify_predictions(model, X, y, epsilon=far, **how)
        alone = [
            eq.verify_predictions(model, X[i : i + 1], y[i : i + 1], epsilon=float(far[i]), **how)
            for i in range(4)
        ]
        assert together.proved.tolist() == [bool(one.proved) for one in alone]
        assert torch.allclose(together.margin, torch.cat([one.margin for one in alone]), rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": [[0.0]]}, "X must be a tensor of floats"),
        ({"X": torch.zeros(2, 4)}, r"X must be \(N, 3\)"),
        ({"X": torch.zeros(3)}, r"X\[None\]"),
        ({"X": torch.zeros(0, 3)}, "at least one row"),
        ({"X": torch.tensor([[0.0, 1.0, torch.nan]] * 2)}, "infinity in row 0"),
        ({"X": torch.tensor([[0.0, 1.0, 2.0]] * 2)}, "Row 0 lies outside"),
        ({"y": torch.tensor([0, 3])}, "Got 3 in row 1"),
        ({"y": torch.tensor([0])}, r"y must be \(2,\)"),
        ({"y": None}, "either y or inequalities"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"epsilon": torch.nan}, "epsilon must be"),
        ({"epsilon": torch.inf}, "epsilon must be"),
        ({"epsilon": torch.zeros(3)}, "one for each row"),
        ({"epsilon": torch.tensor([0.1, -0.1])}, "≥ 0"),
        ({"epsilon": None, "box": None}, "Got neither"),
        ({"norm": "l1"}, "norm must be"),
        ({"nodes": 0}, "nodes must be"),
        ({"box": (torch.zeros(2, 2), 1.0)}, "box must be numbers"),
        ({"y": None, "inequalities": (torch.zeros(1, 2), torch.zeros(1))}, r"Q \(T, 3\)"),
        ({"y": None, "inequalities": ([[0.0, 1.0, torch.nan]], [0.0])}, "inequalities must be finite"),
        ({"y": None, "inequalities": (torch.eye(3), [0.0, 0.0, torch.inf])}, "inequalities must be finite"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(change, words):
    asked = {"X": torch.full((2, 3), 0.5), "y": torch.tensor([0, 1]), "epsilon": 0.1, "box": (0.0, 1.0)}
    asked |= change
    with pytest.raises((ValueError, TypeError), match=words):
        eq.verify_predictions(network("gaussian"), asked.pop("X"), asked.pop("y"), **asked)


def test_models_that_cannot_be_verified_say_why():
    X, y = inputs(), torch.zeros(6, dtype=torch.long)
    wide = network("gaussian")
    with torch.no_grad():
        wide.W.mul_(100)
    refused = {
        "uniqueness of the equilibrium": wide,
        "relu or identity": network("opteq", activation="tanh"),
        "without a regulariser": network("opteq", regulariser=L1(0.1)),
        "without bound=": network("deep", bound=0.9),
    }
    for words, model in refused.items():
        with pytest.raises(ValueError, match=words):
            eq.verify_predictions(model, X, y, epsilon=0.1)
    with pytest.raises(TypeError, match="affine families"):
        eq.verify_predictions(torch.nn.Linear(3, 3), X, y, epsilon=0.1)


def test_inequalities_in_lists_are_the_numbers_that_were_written():
    """0.1 is not the float32 next to it."""
    model, X = network("monotone", k=2), inputs()
    Q, q = [[0.1, -0.7]], [0.1]
    exact = tuple(torch.tensor(t, dtype=torch.float64) for t in (Q, q))
    said, want = (eq.verify_predictions(model, X, epsilon=0.01, inequalities=t) for t in ((Q, q), exact))
    assert torch.equal(said.margin, want.margin)
