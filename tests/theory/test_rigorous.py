"""The tier `rigorous`: the same verdicts from ball arithmetic, tighter, and resting on less."""

import builtins
import math
from fractions import Fraction

import pytest
import torch

import equipoise as eq
from equipoise.linalg import singular_bounds
from equipoise.theory.hieu2022 import certified_start
from equipoise.theory.instance import Instance
from equipoise.theory.rigorous import RigorousInstance, frobenius, singular
from exact_spectra import singular_values_above

flint = pytest.importorskip("flint")

F64 = torch.float64


def family(name, seed=0):
    settings = {"dtype": F64, "generator": torch.Generator().manual_seed(seed)}
    model = {
        "gao2022": lambda: eq.ScaledReLU(3, 8, init="section5.2", **settings),
        "ling2023": lambda: eq.GaussianReLU(3, 8, sigma_w2=0.03, **settings),
        "hieu2022": lambda: eq.Monotone(3, 8, margin=0.3, **settings),
        "hieu2022 bias": lambda: eq.Monotone(3, 8, margin=0.3, bias=True, **settings),
        "kawaguchi2021": lambda: eq.LinearEquilibrium(3, **settings),
    }[name]()
    if name == "hieu2022 bias":
        torch.nn.init.normal_(model.bias, generator=settings["generator"])
    return model


FAMILIES = ["gao2022", "ling2023", "hieu2022", "hieu2022 bias", "kawaguchi2021"]


def data(name, N=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, 3, dtype=F64, generator=generator)
    y = torch.randn(N, dtype=F64, generator=generator)
    return X, y[:, None] if name == "kawaguchi2021" else y


def inside(inner, outer):
    return outer.lo <= inner.lo and inner.hi <= outer.hi


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_every_input_of_a_theorem_is_tighter(name, seed):
    model, (X, y) = family(name, seed), data(name)
    sharp, plain = RigorousInstance(model, X, y), Instance(model, X, y)
    assert inside(sharp.sigma_N, plain.sigma_N)
    assert inside(sharp.residual_norm, plain.residual_norm)
    assert inside(sharp.X_frobenius, plain.X_frobenius)
    assert sharp.equilibria.error < plain.equilibria.error
    assert sharp.enclosure.weight_error <= plain.enclosure.weight_error
    assert sharp.enclosure.injection_error <= plain.enclosure.injection_error
    assert torch.equal(sharp.Z, plain.Z)
    for parameter, _ in model.named_parameters():
        assert inside(sharp.norm(parameter), plain.norm(parameter))
    assert inside(sharp.one_norm(X), plain.one_norm(X))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (5, 3), (4, 4)])
@pytest.mark.parametrize("scale", [1.0, 1e150, 1e-150, 1e-300])
def test_singular_values_are_enclosed_exactly(shape, scale):
    for seed in range(5):
        M = scale * torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
        found, plain = singular(M), singular_bounds(M)
        p = min(shape)
        for value, rank in ((found.norm, 1), (found.sigma_min, p)):
            low, high = math.nextafter(value.lo, 0), value.hi
            above_low, above_high = singular_values_above(M, [low, high])
            assert above_low >= rank > above_high
        assert found.norm.hi <= plain.norm.hi
        assert found.sigma_min.lo >= plain.sigma_min.lo
        assert found.norm.hi - found.norm.lo <= 1e-13 * found.norm.hi


def test_norms_of_singular_and_zero_matrices():
    zero = singular(torch.zeros(2, 3, dtype=F64))
    assert zero.norm.lo == 0
    assert zero.norm.hi < 1e-300
    tie = singular(torch.ones(3, 3, dtype=F64))
    assert tie.sigma_min.lo == 0
    assert 0 <= tie.sigma_min.hi < 1e-14
    assert 3.0 in tie.norm


def test_frobenius_encloses_the_exact_sum():
    M = torch.randn(7, 5, dtype=F64, generator=torch.Generator().manual_seed(0))
    found = frobenius([[flint.arb(x) for x in row] for row in M.tolist()])
    exact = sum(Fraction(x) ** 2 for x in M.flatten().tolist())
    assert Fraction(found.lo) ** 2 <= exact <= Fraction(found.hi) ** 2
    assert found.hi - found.lo <= 1e-15 * found.hi


def test_frobenius_of_uncertain_numbers():
    found = frobenius([[flint.arb(1, 0.1), flint.arb(0, 0.1)]])
    assert found.lo <= 0.9
    assert found.hi >= (1.1**2 + 0.1**2) ** 0.5


@pytest.mark.parametrize("name", FAMILIES)
def test_the_spectrum_is_of_the_true_equilibria(name):
    model, (X, y) = family(name), data(name)
    instance = RigorousInstance(model, X, y)
    noise = torch.randn(instance.Z.shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    rough = instance.equilibria_of(instance.Z + 1e-3 * noise)
    values = torch.linalg.svdvals(instance.Z)
    assert rough.error >= 1e-3 * float(noise.norm())
    assert float(values[0]) in rough.spectrum.norm
    assert float(values[-1]) in rough.spectrum.sigma_min
    assert float(instance.Z.norm()) in rough.frobenius


@pytest.mark.parametrize("name", FAMILIES)
def test_well_posedness(name):
    model, (X, _) = family(name), data(name)
    cert, plain = eq.certify(model, X, tier="rigorous"), eq.certify(model, X)
    assert cert.proved
    assert cert.tier == "rigorous"
    assert "(tier rigorous)" in str(cert)
    assert any("ball arithmetic" in h for h in cert.hypotheses)
    assert not any("conventional dot products" in h for h in cert.hypotheses)
    assert cert.constants["error"] < plain.constants["error"]
    assert cert.constants["R"] <= plain.constants["R"]
    assert cert.constants["rate"] <= plain.constants["rate"]


def test_norms_beside_1():
    for distance in (1e-9, 1e-13):
        for sign in (-1, 1):
            model = family("ling2023")
            with torch.no_grad():
                model.W.copy_(model.W @ model.W.T)  # so that λ_max(sym W) is ‖W‖
                model.W.mul_((1 + sign * distance) / torch.linalg.matrix_norm(model.W, 2))
            cert = eq.certify(model, data("ling2023")[0], tier="rigorous")
            assert cert.verdict == ("proved" if sign < 0 else "hypotheses_fail")
    with torch.no_grad():
        model.W.copy_(torch.eye(8))
    assert not eq.certify(model, data("ling2023")[0], tier="rigorous").proved


def starts():
    """A proved instance of every theorem of the papers."""
    generator = torch.Generator().manual_seed(0)
    X = torch.linalg.qr(torch.randn(3, 1, dtype=F64, generator=generator)).Q.T.contiguous()
    y = torch.tensor([1e-4], dtype=F64)
    scaled = eq.ScaledReLU(3, 20, init="section5.1", dtype=F64, generator=generator)
    yield "gao2022.flow", scaled, X, y, {"C": (0.01, 0.1, 0.1)}
    yield "gao2022.descent", scaled, X, y, {"C": (0.01, 0.1, 0.1)}
    gaussian = eq.GaussianReLU(3, 100, sigma_w2=0.001, start="zero_readout", dtype=F64, generator=generator)
    yield "ling2023", gaussian, 3**0.5 * X, y, {"delta": 0.02}
    for kind in ("flow", "descent"):
        monotone = eq.Monotone(3, 6, margin=1.0, dtype=F64, generator=generator)
        radii = certified_start(monotone, X, y, kind=kind)
        yield f"hieu2022.{kind}", monotone, X, y, {"radii": radii}
    linear = eq.LinearEquilibrium(3, dtype=F64, generator=generator)
    X, y = torch.randn(5, 3, dtype=F64, generator=generator), torch.ones(5, 1, dtype=F64)
    yield "kawaguchi2021", linear, X, y, {}
    yield "kawaguchi2021", linear, X, y, {"loss": "logistic", "radius": 40.0}


@pytest.mark.parametrize("case", list(starts()), ids=lambda case: case[0])
def test_every_theorem_agrees_and_promises_no_less(case):
    theorem, model, X, y, constants = case
    sharp, plain = (
        eq.certify(model, X, y, theorem=theorem, tier=tier, **constants) for tier in ("rigorous", "float64")
    )
    assert sharp.proved, sharp.explain()
    assert plain.proved
    assert sharp.tier == "rigorous"
    assert [c.name for c in sharp.claims] == [c.name for c in plain.claims]
    for a, b in zip(sharp.claims, plain.claims, strict=True):
        assert inside(a.left, b.left) or a.name == "γ‖A‖ < 1"
        assert inside(a.right, b.right)
    assert sharp.exponent >= plain.exponent
    assert (sharp.max_step_size or 0) >= (plain.max_step_size or 0)
    again = sharp.verify(model, X, y)
    assert again.tier == "rigorous"


def test_refusals_agree():
    X, y = data("ling2023")
    for model, theorem in ((family("ling2023"), "ling2023"), (family("gao2022"), "gao2022.descent")):
        for N in (1, 2):
            verdicts = {
                eq.certify(model, X[:N], y[:N], theorem=theorem, tier=tier).verdict
                for tier in ("float64", "rigorous")
            }
            assert verdicts == {"hypotheses_fail"}
    cert = eq.certify(family("ling2023"), math.nan * X, tier="rigorous")
    assert "NaN" in cert.explain()
    duplicates = eq.certify(family("ling2023"), X[[0, 0]], y, theorem="ling2023", tier="rigorous")
    assert not duplicates.proved
    assert "equal" in duplicates.explain()


def test_theorems_it_does_not_know_are_refused():
    X, y = data("ling2023")
    for theorem in ("two_timescale", "safeguarded"):
        with pytest.raises(ValueError, match=r"'rigorous' is known for wellposed, gao2022\.flow"):
            eq.certify(family("ling2023"), X, y, theorem=theorem, tier="rigorous")


def test_the_missing_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "flint":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"equipoise\[rigorous\]"):
        eq.certify(family("ling2023"), data("ling2023")[0], tier="rigorous")
    assert eq.certify(family("ling2023"), data("ling2023")[0]).proved
