"""The theorem "anchored": F and its gradient are enclosed, the best readout of the start is, and no less."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from certifiable import FAMILIES, instance, network
from convex_references import exact_loss, exact_slope, targets
from equipoise.linalg import Interval
from equipoise.theory import Certificate, readout_solver
from equipoise.theory.anchored import Anchor, Anchored
from equipoise.theory.anchored_objective import Objective, SampleRows, Terms
from equipoise.theory.convex_losses import CONVEX
from equipoise.theory.register import facts

TIGHT = eq.Stop(rtol=1e-13, max_steps=5000)
mp = mpmath.mp.clone() if hasattr(mpmath.mp, "clone") else mpmath.mp
numbers = st.floats(-60, 60, allow_nan=False, allow_subnormal=False)


@pytest.mark.parametrize("loss", CONVEX)
@settings(max_examples=30, deadline=None)
@given(q=st.lists(numbers, min_size=3, max_size=3), other=st.lists(numbers, min_size=3, max_size=3))
def test_a_loss_its_slope_and_its_smoothness_hold_in_fifty_digits(loss, q, other):
    convex = CONVEX[loss]
    y = convex.targets(targets(loss, 1, 3), 3)
    found = convex.rows(torch.tensor([q], dtype=torch.float64), y)
    with mpmath.workdps(50):
        values, row = exact_loss(loss, q, y[0].tolist()), y[0].tolist()
        assert abs(values - found.value.item()) <= found.value_error.item()
        slopes = exact_slope(loss, q, row)
        off = mpmath.sqrt(sum((a - b) ** 2 for a, b in zip(slopes, found.slope[0].tolist(), strict=True)))
        assert off <= found.slope_error.item()
        step = [mpmath.mpf(b) - mpmath.mpf(a) for a, b in zip(q, other, strict=True)]
        rise = exact_loss(loss, other, row) - values - sum(s * d for s, d in zip(slopes, step, strict=True))
        assert -(mpmath.mpf(10) ** -30) <= rise
        assert rise <= convex.smoothness / 2 * sum(d * d for d in step) + mpmath.mpf(10) ** -30


def exact_features(model, X) -> list:
    """z of relu(Wz + u) in fifty digits: linear on its active units, whose signs are checked."""
    W = mpmath.matrix(model.weight().tolist())
    out = []
    for x, z in zip(X, model.solve(X, stop=TIGHT).value, strict=True):
        u = mpmath.matrix(model.U.tolist()) * mpmath.matrix(x.tolist())
        on = [i for i in range(len(z)) if float(z[i]) > 1e-9]
        system = mpmath.matrix(len(on), len(on))
        for r, i in enumerate(on):
            for c, j in enumerate(on):
                system[r, c] = (i == j) - W[i, j]
        part = mpmath.lu_solve(system, mpmath.matrix([u[i] for i in on]))
        full = mpmath.matrix([0] * len(z))
        for r, i in enumerate(on):
            full[i] = part[r]
        pre = W * full + u
        assert all((pre[i] > 0) == (i in on) for i in range(len(z)))
        out.append(list(full))
    return out


@pytest.mark.parametrize("rtol", [1e-1, 1e-4, 1e-9])
@pytest.mark.parametrize("loss", CONVEX)
def test_f_and_its_gradient_in_fifty_digits_lie_in_the_enclosure(loss, rtol):
    model = network("ling2023", width=5, inputs=3, outputs=2)
    X = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    w = torch.tensor([0.5, 0.0, 2.0, 1.0], dtype=torch.float64)
    y = targets(loss, 4, 2)
    objective = Objective(facts(model).reads(), SampleRows(X, y, Terms(CONVEX[loss], 0.7, 0.3, w), 2))
    a = objective.readout.stored()
    (found,) = objective.enclosed(objective.blocks(rtol), [a], gradient=True)
    rows = CONVEX[loss].targets(y, 2).tolist()
    with mpmath.workdps(50):
        Phi, A = exact_features(model, X), mpmath.matrix(a.tolist())
        F = mpmath.mpf(0.7) / 2 * sum(x**2 for x in A)
        for p in (model.W, model.U):
            F += mpmath.mpf(0.3) / 2 * sum(mpmath.mpf(x) ** 2 for x in p.flatten().tolist())
        gradient = mpmath.mpf(0.7) * A
        for z, row, weight in zip(Phi, rows, w.tolist(), strict=True):
            q = [sum(z[i] * A[i, c] for i in range(5)) for c in range(2)]
            F += weight * exact_loss(loss, q, row)
            for c, slope in enumerate(exact_slope(loss, q, row)):
                for i in range(5):
                    gradient[i, c] += weight * z[i] * slope
        assert found.F.lo <= F <= found.F.hi
        off = [gradient[i, c] - found.gradient[i, c].item() for i in range(5) for c in range(2)]
        assert mpmath.sqrt(sum(x**2 for x in off)) <= found.slack.hi
    assert found.F.hi - found.F.lo < 100 * rtol * found.F.hi  # and says something
    assert rtol > 1e-5 or found.slack.hi < 1e-5


@pytest.mark.parametrize("loss", ["half_square", "square", "cross_entropy"])
def test_no_readout_is_further_from_the_best_than_its_gap(loss):
    model = network("hieu2022", width=6, inputs=3, outputs=2)
    X = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    objective = Objective(
        facts(model).reads(), SampleRows(X, targets(loss, 9, 2), Terms(CONVEX[loss], 0.5), 2)
    )
    held = readout_solver.HeldFeatures(objective, 1e-12)
    best = readout_solver.solve_readout(held, torch.zeros(6, 2, dtype=torch.float64), 1e-15)
    if loss != "cross_entropy":  # the normal equations say what the best one is
        Phi, beta = model.solve(X, stop=TIGHT).value, CONVEX[loss].smoothness
        y = targets(loss, 9, 2)
        G = beta * Phi.T @ Phi + 0.5 * torch.eye(6, dtype=torch.float64)
        torch.testing.assert_close(best, torch.linalg.solve(G, beta * Phi.T @ y), atol=1e-7, rtol=1e-7)
    generator = torch.Generator().manual_seed(1)
    some = [best + s * torch.randn(6, 2, dtype=torch.float64, generator=generator) for s in (1e-6, 1e-2, 1.0)]
    least, *found = objective.enclosed(held.blocks(), [best, *some], gradient=True)
    for one in found:
        assert one.gap(0.5).hi >= one.F.lo - least.F.hi
    assert least.gap(0.5).hi < 1e-9 * least.F.hi


def plain_objective(model, X, y, loss, ridge, decay=0.0, w=None):
    """F of a model from a tight solve in float64, by torch's own losses."""
    exact = copy.deepcopy(model).double()
    q = exact.readout(exact.solve(X.double(), stop=eq.Stop(rtol=1e-12, max_steps=5000)).value)
    q = q.reshape(len(X), -1).detach()
    each = {
        "cross_entropy": lambda: torch.nn.functional.cross_entropy(q, y, reduction="none"),
        "half_square": lambda: (q - y.reshape(q.shape)).square().sum(dim=1) / 2,
        "logistic": lambda: torch.nn.functional.binary_cross_entropy_with_logits(
            q, y.reshape(q.shape), reduction="none"
        ).sum(dim=1),
    }[loss]()
    readout = facts(exact).reads().readout_of(exact)
    a, read = readout.stored(), readout.parameters(exact)
    hidden = sum(float(p.detach().square().sum()) for n, p in exact.named_parameters() if n not in read)
    total = float((each if w is None else w * each).sum())
    return total + ridge / 2 * float(a.square().sum()) + decay / 2 * hidden


def image(kind):
    generator = torch.Generator().manual_seed(0)
    if kind == "ConvMonotone":
        return eq.ConvMonotone((1, 6, 6), channels=3, outputs=3, pool=2, generator=generator)
    model = eq.ConvOptEq((1, 6, 6), 3, [4], outputs=3, pool=2, generator=generator)
    model.project_()
    return model


def proximal(kind, dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = {"OptEq": (4, 6, 5), "DeepOptEq": (4, 6, [5, 4]), "MultiBlockOptEq": (4, 6, [5, 4])}[kind]
    made = {"OptEq": eq.OptEq, "DeepOptEq": eq.DeepOptEq}.get(kind) or eq.models.MultiBlockOptEq
    return made(*sizes, outputs=3, generator=generator, dtype=dtype)


def any_family(kind, dtype=torch.float64):
    if kind in FAMILIES:
        return network(kind, width=12, inputs=4, outputs=3).to(dtype)
    return image(kind).to(dtype) if kind.startswith("Conv") else proximal(kind, dtype)


KINDS = (*FAMILIES, "OptEq", "DeepOptEq", "ConvMonotone", "ConvOptEq")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_is_certified_and_left_as_it_was(kind, dtype):
    model = any_family(kind, dtype)
    shape = model.inputs if kind.startswith("Conv") else (model.inputs,)
    X = torch.rand(20, *shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    y = torch.arange(20) % 3
    before = copy.deepcopy(model.state_dict())
    cert = eq.certify(model, X, y, theorem="anchored", loss="cross_entropy", ridge=0.5, decay=0.1)
    assert cert.proved
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    k = cert.constants
    assert k["F_least"] <= k["F_start"] <= k["F_zero"]
    facts(model).reads().readout_of(model).store(cert._witness.a)
    F = plain_objective(model, X, y, "cross_entropy", 0.5, 0.1)
    assert k["F_least"] * (1 - 1e-9) <= F <= k["F_start"] * (1 + 1e-9)
    assert F == pytest.approx(k["F_start"], rel=1e-4)
    decay = k["rho"]
    assert k["F_zero"] - decay == pytest.approx(20 * math.log(3))
    assert cert.bound(0) == 1
    assert cert.bound(1) == cert.bound(7) == pytest.approx(k["F_start"] / k["F_zero"])


@pytest.mark.parametrize("kind", ["ling2023", "OptEq", "ConvMonotone", "ConvOptEq"])
def test_a_loose_solve_widens_the_enclosure_and_never_misses(kind):
    model = any_family(kind)
    shape = model.inputs if kind.startswith("Conv") else (model.inputs,)
    X = torch.rand(6, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    y = torch.arange(6) % 3
    F = plain_objective(model, X, y, "cross_entropy", 1.0)
    widths = []
    for rtol in (0.3, 1e-3, 1e-7):
        objective = Objective(facts(model).reads(), SampleRows(X, y, Terms(CONVEX["cross_entropy"], 1.0), 3))
        (found,) = objective.enclosed(objective.blocks(rtol), [objective.readout.stored()])
        assert found.F.lo <= F + 1e-10
        assert found.F.hi >= F - 1e-10
        widths.append(found.F.hi - found.F.lo)
    assert widths[0] > 10 * widths[1] > 100 * widths[2]


def test_a_bias_is_read_from_a_feature_that_is_one():
    model = eq.Monotone(3, 6, outputs=2, output_bias=True, generator=torch.Generator().manual_seed(0))
    X, y = torch.rand(12, 3), torch.arange(12) % 2
    cert = eq.certify(model, X, y, theorem="anchored", ridge=0.1)
    assert cert.proved
    assert cert._witness.a.shape == (7, 2)
    facts(model).reads().readout_of(model).store(cert._witness.a)
    assert bool(model.c.any())
    assert plain_objective(model, X, y, "cross_entropy", 0.1) <= cert.constants["F_start"] * (1 + 1e-9)


def test_features_in_a_file_say_the_same(monkeypatch):
    model, X, y = instance("ling2023", outputs=2)
    here = eq.certify(model, X, y, theorem="anchored")
    monkeypatch.setattr(readout_solver, "_HELD", 0)
    there = eq.certify(model, X, y, theorem="anchored")
    assert dict(there.constants) == dict(here.constants)


# -- what is never proved ------------------------------------------------------------------------------------


def hooked(model):
    model.register_forward_hook(lambda *_: None)


def expanding(model):
    with torch.no_grad():
        model.W.copy_(torch.eye(len(model.W)))


def poisoned(model):
    with torch.no_grad():
        model.U[0, 0] = math.nan


def overridden(model):
    model.readout = lambda Z: 2 * (Z @ model.a)


@pytest.mark.parametrize("spoil", [hooked, expanding, poisoned, overridden])
def test_a_network_that_does_not_meet_the_hypotheses_is_not_certified(spoil):
    model, X, y = instance("ling2023", outputs=2)
    spoil(model)
    cert = eq.certify(model, X, y, theorem="anchored")
    assert not cert.proved
    assert cert.bound(1) == math.inf
    assert "Not proved" in cert.explain()


class Doubled(eq.GaussianReLU):
    def readout(self, Z):
        return 2 * super().readout(Z)


def test_a_subclass_that_reads_otherwise_is_not_certified():
    model = Doubled(4, 10, outputs=2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cert = eq.certify(model, torch.rand(5, 4).double(), torch.arange(5) % 2, theorem="anchored")
    assert cert.verdict == "hypotheses_fail"
    assert "readout" in cert.obstacle


def test_nan_in_the_data_names_its_row():
    model, X, y = instance("ling2023", outputs=2)
    X[7, 1] = math.nan
    assert "row 7" in eq.certify(model, X, y, theorem="anchored").obstacle


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ridge": 0.0}, "ridge must be"),
        ({"ridge": math.nan}, "ridge must be"),
        ({"decay": -1.0}, "decay must be"),
        ({"loss": "absolute"}, "loss must be one of"),
        ({"sample_weight": [1.0, -1.0]}, "sample_weight must be"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Anchored(**options)


def test_targets_must_fit_the_outputs():
    model, X, _ = instance("ling2023", outputs=2)
    with pytest.raises(ValueError, match=r"classes \(10,\) in 0…1"):
        eq.certify(model, X, torch.arange(10), theorem="anchored")


def test_rows_must_match_and_be_there():
    terms, none = Terms(CONVEX["half_square"], 1.0), torch.zeros(0, 2)
    for X, y in ((none, none), (torch.zeros(3, 2), torch.zeros(2, 2))):
        with pytest.raises(ValueError, match="at least one"):
            SampleRows(X, y, terms, 2)


def test_the_factor_holds_for_the_least_f_without_a_readout(monkeypatch):
    """F without a readout lies in an interval, and its smaller end makes the larger factor."""
    model, X, y = instance("ling2023", outputs=2)
    true = Anchor.of

    def wide(*args):
        found = true(*args)
        return replace(found, zero=Interval(found.zero.lo, 2 * found.zero.hi))

    factor = eq.certify(model, X, y, theorem="anchored").factor
    monkeypatch.setattr(Anchor, "of", wide)
    assert 0 < factor < 1
    assert eq.certify(model, X, y, theorem="anchored").factor == factor


def test_pixels_and_strange_networks_are_refused_in_words():
    pixels = eq.ConvMonotone((1, 6, 6), channels=3, outputs=3, task="segmentation")
    with pytest.raises(TypeError, match="those of pixels"):
        eq.certify(pixels, torch.rand(2, 1, 6, 6), torch.zeros(2).long(), theorem="anchored")
    with pytest.raises(TypeError, match="Got Linear instead"):
        eq.certify(torch.nn.Linear(2, 2), torch.rand(2, 2), torch.zeros(2).long(), theorem="anchored")


# -- the certificate -----------------------------------------------------------------------------------------


def test_a_certificate_survives_a_file_and_is_verified(tmp_path):
    model, X, y = instance("ling2023", N=30, outputs=2)
    w = torch.linspace(0.5, 2, 30, dtype=torch.float64)
    cert = eq.certify(model, X, y, theorem="anchored", ridge=0.3, sample_weight=w)
    read = Certificate.load(cert.save(tmp_path / "c.json"))
    assert read.to_dict() == cert.to_dict()
    assert read._witness is None
    assert read.verify(model, X, y).proved
    forged = json.loads(json.dumps(cert.to_dict()))
    forged["constants"]["map"]["F_start"] = {"hex": (cert.constants["F_start"] / 2).hex()}
    with pytest.raises(ValueError, match="F_start"):
        Certificate.from_dict(forged).verify(model, X, y)
    with torch.no_grad():
        model.U.mul_(2)
    with pytest.raises(ValueError, match="other weights"):
        read.verify(model, X, y)


def test_it_says_what_is_promised_and_what_is_not():
    model, X, y = instance("ling2023", outputs=2)
    words = eq.certify(model, X, y, theorem="anchored").explain()
    assert "best readout of the features at the start" in words
    assert "Nothing is promised of data that were not trained on" in words


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    family=st.sampled_from(FAMILIES),
    loss=st.sampled_from(["half_square", "cross_entropy", "logistic"]),
    ridge=st.floats(1e-3, 1e3),
    N=st.integers(1, 12),
    scale=st.floats(1e-3, 30),
)
def test_the_start_is_enclosed_whatever_the_data(seed, family, loss, ridge, N, scale):
    model = network(family, width=7, inputs=7 if family == "kawaguchi2021" else 3, outputs=2, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    X = scale * torch.randn(N, model.inputs, generator=generator, dtype=torch.float64)
    y = targets(loss, N, 2, seed)
    anchor = Anchor.of(facts(model).reads(), SampleRows(X, y, Anchored(loss=loss, ridge=ridge).terms(y), 2))
    assert 0 <= anchor.lower <= anchor.F.hi
    facts(model).reads().readout_of(model).store(anchor.a)
    F = plain_objective(model, X, y, loss, ridge)
    assert anchor.lower * (1 - 1e-9) <= F
    assert anchor.F.lo * (1 - 1e-9) <= F <= anchor.F.hi * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("kind", [list, tuple])
def test_targets_that_are_no_tensor_are_refused(kind):
    """torch would keep half of their digits, and no fingerprint knew them."""
    model, X, y = instance("gao2022", N=6, width=8)
    with pytest.raises(TypeError, match="y must be a tensor"):
        eq.certify(model, X, kind(y.tolist()), theorem="anchored")
    taken = eq.certify(model, X.numpy(), y.numpy(), theorem="anchored")
    assert taken.constants == eq.certify(model, X, y, theorem="anchored").constants
