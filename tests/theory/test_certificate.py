"""A certificate keeps what it says: in files, in words, and when it is certified once more."""

import json
import math
from dataclasses import replace

import pytest
import torch

import equipoise as eq
from certificates import F64, claim, data, descent, network
from equipoise.linalg import Interval
from equipoise.theory import Certificate, fingerprint
from equipoise.theory.certify import constants_of
from equipoise.theory.claim import Claims
from equipoise.theory.common import step_exists

# -- the verdict ---------------------------------------------------------------------------------------------


def test_the_verdict():
    holds, fails, open_ = claim(), claim(left=0.5), claim(left=Interval(0, 2))
    assert descent().verdict == "proved"
    assert descent(claims=(holds, fails)).verdict == "hypotheses_fail"
    assert descent(claims=(holds, open_)).verdict == "inconclusive"
    assert descent(claims=(open_, fails)).verdict == "hypotheses_fail"
    assert descent(claims=()).verdict == "inconclusive"
    assert descent(obstacle="NaN").verdict == "hypotheses_fail"
    assert not descent(claims=(claim(left=math.nan),)).proved


def test_printed_claims_are_shown_and_not_counted():
    printed = claim(left=0.5, printed=True)
    assert descent(claims=(claim(), printed)).proved
    assert descent(claims=(replace(printed, left=Interval(9.0)),)).verdict == "inconclusive"
    assert "As printed, (1) fails" in descent(claims=(claim(), printed)).explain()


def test_a_claim_is_found_by_its_label():
    corrected, printed = claim(left=3.0), claim(left=2.0, printed=True)
    assert descent(claims=(printed, corrected))["(1)"] is corrected
    with pytest.raises(KeyError, match=r"\(99\)"):
        descent()["(99)"]


# -- the promise ---------------------------------------------------------------------------------------------


def test_the_bound_of_a_descent():
    cert = descent()
    assert cert.step_size == pytest.approx(0.0999)
    assert cert.bound(7) == pytest.approx((1 - 0.0999 * 0.5) ** 7, rel=1e-12)
    assert cert.bound(7, step_size=0.05) == pytest.approx(0.975**7, rel=1e-12)
    assert cert.bound(0) == 1
    assert cert.efold == pytest.approx(-1 / math.log(1 - 0.0999 * 0.5))
    assert descent(factor=0.0).efold == 0
    assert descent(factor=1.0).efold == math.inf
    with pytest.raises(ValueError, match="step_size must lie in"):
        cert.bound(7, step_size=0.1)
    with pytest.raises(ValueError, match="≥ 0"):
        cert.bound(-1)
    with pytest.raises(ValueError, match="finite"):
        cert.bound(math.inf)


def test_the_bound_of_a_flow_and_of_given_steps():
    flow = descent(kind="flow", exponent=0.3)
    assert flow.bound(2.5) == pytest.approx(math.exp(-0.75), rel=1e-12)
    assert flow.efold == pytest.approx(1 / 0.3)
    fixed = descent(factor=0.9, exponent=None, max_step_size=None, step_sizes={"readout": 1.0, "hidden": 0.1})
    assert fixed.bound(3) == pytest.approx(0.9**3, rel=1e-12)
    with pytest.raises(ValueError, match="own step sizes"):
        fixed.bound(3, step_size=0.1)
    for nowhere in ({"max_step_size": None}, {"exponent": None}):
        with pytest.raises(ValueError, match="own step sizes"):
            descent(**nowhere).bound(3, step_size=0.05)
    with pytest.raises(ValueError, match="promises no rate"):
        descent(kind="static").bound(1)


@pytest.mark.parametrize("exponent", [1e-17, 1e-9, 0.1, 3.0, 9.99])
@pytest.mark.parametrize("k", [1, 2, 3, 10, 1000, 10**18])
def test_the_bound_is_rounded_up(exponent, k):
    fractions = pytest.importorskip("fractions")
    cert = descent(exponent=exponent)
    exact = 1 - fractions.Fraction(cert.step_size) * fractions.Fraction(exponent)
    if k <= 10:
        assert fractions.Fraction(cert.bound(k)) >= exact**k
    flow = descent(kind="flow", exponent=exponent)
    assert flow.bound(k) >= math.exp(-exponent * k) * (1 - 1e-15)
    assert cert.bound(k) <= 1


def test_the_bound_never_goes_below_the_floor_nor_speaks_of_what_is_not_proved():
    assert descent(floor=1e-3).bound(10**6) == 1e-3
    assert descent(floor=3.0).bound(0) == 3.0  # a loss within its own rounding
    assert descent(claims=(claim(left=0.5),)).bound(1) == math.inf
    assert descent(claims=(claim(left=0.5),)).efold == math.inf


def test_a_step_that_no_normal_float_holds_is_none():
    claims = Claims()
    assert step_exists(claims, "(20)", Interval(1e-300)) == 1e-300
    step_exists(claims, "(20)", Interval(5e-324))
    step_exists(claims, "(20)", Interval(-1.0, 1.0))
    assert [c.holds for c in claims.items] == [True, False, False]


@pytest.mark.parametrize("scale", [1e-318, 1e-200, 1e200, 1e307])
def test_numbers_of_any_size_are_certified_or_refused_with_words(scale):
    generator = torch.Generator().manual_seed(0)
    X = scale * torch.randn(3, 4, dtype=F64, generator=generator)
    y = torch.ones(3, dtype=F64)
    for family, theorems in (
        (eq.ScaledReLU, ("gao2022.flow", "gao2022.descent")),
        (eq.GaussianReLU, ("ling2023",)),
        (eq.Monotone, ("hieu2022.flow", "hieu2022.descent")),
    ):
        for factor in (1e-250, 1.0, 1e120):
            model = family(4, 8, dtype=F64, generator=generator)
            with torch.no_grad():
                model.readout_weight.fill_(factor)
            for theorem in theorems:
                cert = eq.certify(model, X, y, theorem=theorem)
                assert not cert.proved
                assert "Not proved" in cert.explain()


# -- files ---------------------------------------------------------------------------------------------------


def test_a_file_gives_back_the_same_certificate(tmp_path, proved):
    path = proved.save(tmp_path / "ling.json")
    again = Certificate.load(path)
    assert again == proved
    assert again.to_dict() == proved.to_dict()
    assert again.bound(50) == proved.bound(50)
    assert json.loads(path.read_text(encoding="utf-8"))["library"]["version"] == eq.__version__


@pytest.mark.parametrize("theorem", ["wellposed", "ling2023", "two_timescale", "safeguarded", "gao2022.flow"])
def test_every_kind_of_certificate_survives_a_file(tmp_path, theorem):
    model, (X, y) = network(), data()
    X = torch.cat([X, X[:1]]) if theorem == "ling2023" else X  # a refusal, with infinite sides
    y = torch.cat([y, y[:1]]) if theorem == "ling2023" else y
    certificate = eq.certify(model, X, y, theorem=theorem)
    assert Certificate.load(certificate.save(tmp_path / "c.json")).to_dict() == certificate.to_dict()


@pytest.mark.parametrize(
    "alter",
    [
        lambda d: d.update(verdict="hypotheses_fail"),
        lambda d: d["numbers"].update(exponent={"hex": (1e6).hex()}),
        lambda d: d["claims"][2].update(lhs=[(0.0).hex(), (0.0).hex()]),
        lambda d: d["fingerprint"].update(weights="0" * 64),
        lambda d: d.update(promise="everything"),
        lambda d: d.pop("sha256"),
        lambda d: d.update(sha256="0" * 64),
        lambda d: d.update(more="than there was"),
    ],
)
def test_an_altered_file_is_refused(tmp_path, proved, alter):
    path = proved.save(tmp_path / "c.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    alter(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="altered"):
        Certificate.load(path)


def test_a_verdict_that_does_not_follow_is_refused_even_without_a_digest(proved):
    content = proved.to_dict()
    with pytest.raises(ValueError, match="altered"):
        Certificate.from_dict({**content, "verdict": "hypotheses_fail"})
    falsified = json.loads(json.dumps(content))
    falsified["claims"][3]["lhs"] = [(0.0).hex(), (0.0).hex()]
    with pytest.raises(ValueError, match="numbers say otherwise"):
        Certificate.from_dict(falsified)


def test_what_is_no_certificate_is_refused(tmp_path, proved):
    path = tmp_path / "c.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a certificate"):
        Certificate.load(path)
    for content in ([1, 2], 3, "words"):
        with pytest.raises(ValueError, match="format 1 is required"):
            Certificate.from_dict(content)
    with pytest.raises(ValueError, match=r"format 1 is required\. Got 99"):
        Certificate.from_dict({**proved.to_dict(), "format": 99})
    incomplete = proved.to_dict()
    del incomplete["tier"]
    with pytest.raises(ValueError, match="'tier'"):
        Certificate.from_dict(incomplete)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, proved, monkeypatch):
    path = proved.save(tmp_path / "c.json")
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        replace(proved, promise="another").save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


def test_what_a_file_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="Tensor"):
        descent(constants={"x": torch.zeros(1)}).to_dict()


# -- fingerprints --------------------------------------------------------------------------------------------


def test_the_fingerprint_is_of_every_number_and_setting():
    X, y = data()
    base = fingerprint(network(), X, y)
    assert base == fingerprint(network(), X, y)
    assert base == fingerprint(network(), X.T.contiguous().T, y)  # the same numbers, laid out otherwise
    other = network()
    with torch.no_grad():
        other.U[3, 4] = torch.nextafter(other.U[3, 4], torch.tensor(9.0, dtype=F64))
    assert fingerprint(other, X, y)["weights"] != base["weights"]
    assert fingerprint(network(relu_at_zero=1), X, y)["weights"] != base["weights"]
    assert fingerprint(network(dtype=torch.float32), X, y)["weights"] != base["weights"]
    assert fingerprint(network(), -X, y)["X"] != base["X"]
    assert fingerprint(network(), X.reshape(1, 2, 10), y)["X"] != base["X"]
    assert fingerprint(network(), X, 2 * y)["y"] != base["y"]
    assert "y" not in fingerprint(network(), X)


def test_the_fingerprint_tells_settings_apart_that_print_alike():
    generator = lambda: torch.Generator().manual_seed(0)
    a, b = (eq.Monotone(2, 3, margin=m, generator=generator()) for m in (0.5, 0.5 + 1e-9))
    assert repr(a) == repr(b)
    assert fingerprint(a) != fingerprint(b)


def test_the_fingerprint_tells_feature_maps_apart():
    X = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    models = [
        eq.LinearEquilibrium(3, feature_map=f, dtype=F64, generator=torch.Generator().manual_seed(0))
        for f in (lambda x: x, lambda x: 2 * x)
    ]
    a, b = (fingerprint(model, X) for model in models)
    assert a["weights"] == b["weights"]
    assert a["features"] != b["features"]


def test_parameters_without_dimensions_are_hashed_too():
    model = torch.nn.BatchNorm1d(3)  # its counter of batches has none
    assert fingerprint(model)["weights"] == fingerprint(torch.nn.BatchNorm1d(3))["weights"]
    model.num_batches_tracked += 1
    assert fingerprint(model)["weights"] != fingerprint(torch.nn.BatchNorm1d(3))["weights"]


# -- once more -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theorem", ["wellposed", "ling2023", "two_timescale", "safeguarded"])
def test_a_certificate_is_verified_from_its_file(tmp_path, theorem):
    model, (X, y) = network(), data()
    certificate = eq.certify(model, X, y, theorem=theorem)
    again = Certificate.load(certificate.save(tmp_path / "c.json")).verify(model, X, y)
    assert again.proved
    assert again.exponent == certificate.exponent
    assert again.factor == certificate.factor


def test_verification_uses_the_constants_that_were_chosen(proved):
    assert "delta" not in proved.options
    chosen = {name: proved.constants[name] for name in ("delta", "rtol")}
    assert constants_of(proved) == {**chosen, "printed": True}


def test_verification_says_what_differs(proved):
    model, (X, y) = network(), data()
    with pytest.raises(ValueError, match="other weights: certify this model"):
        proved.verify(network(seed=1), X, y)
    with pytest.raises(ValueError, match="other X and y"):
        proved.verify(model, -X, 2 * y)
    with pytest.raises(ValueError, match="exponent"):
        replace(proved, exponent=2 * proved.exponent).verify(model, X, y)
    with pytest.raises(ValueError, match="max_step_size"):
        replace(proved, max_step_size=2 * proved.max_step_size).verify(model, X, y)
    with pytest.raises(ValueError, match="it is 'proved'"):
        replace(proved, claims=(claim(left=0.5),)).verify(model, X, y)
    with pytest.raises(ValueError, match="theorem must be one of"):
        replace(proved, theorem="fermat").verify(model, X, y)


def test_a_refusal_is_verified_too():
    model, (X, y) = network(), data()
    certificate = eq.certify(model, X, 100 * y, theorem="ling2023")
    assert not certificate.proved
    assert certificate.verify(model, X, 100 * y).verdict == certificate.verdict


def test_training_refuses_a_certificate_of_something_else(proved):
    model, (X, y) = network(), data()
    history = eq.gradient_descent(network(), X, y, steps=3, step_size=proved)
    assert not history.violations()
    with pytest.raises(ValueError, match="other weights"):
        eq.gradient_descent(network(seed=1), X, y, steps=3, step_size=proved)
    with pytest.raises(ValueError, match="other y"):
        eq.gradient_descent(model, X, y + 1, steps=3, step_size=proved)
