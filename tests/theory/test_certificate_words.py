"""A certificate in words and tables; and what `certify` refuses, in words."""

import pytest
import torch

import equipoise as eq
from certificates import claim, data, descent, network
from equipoise.linalg import Interval
from equipoise.theory import make_theorem

# -- in words ------------------------------------------------------------------------------------------------


def test_the_words_of_a_proof(proved):
    words = proved.explain()
    assert words.startswith("The hidden layer is certified to move by at most")
    assert "Proved by ling2023: with step size η <" in words
    assert f"An e-fold of the loss takes at most {proved.efold:.3g} steps." in words
    assert "½‖ŷ − y‖²" in words
    assert "exact gradients" in words
    assert "round to nearest" in words
    assert "As printed, (9) holds" in words
    assert "vacuous" not in words
    assert "and measured to move by 2.0e-05 times ‖Z(0)‖" in proved.explain(measured_movement=2e-5)


def test_a_hidden_layer_that_stays_is_called_fixed():
    fixed = descent(movement=1e-5)
    assert fixed.explain().startswith("The readout is fitted, the hidden layer is effectively fixed")
    assert fixed.explain(measured_movement=0.5).startswith("The hidden layer is")
    assert not descent(movement=2e-3).explain().startswith("The readout")
    refused = descent(movement=1e-5, claims=(claim(left=0.5),))
    assert "certified to move" not in refused.explain()
    assert descent(kind="flow", movement=1e-5).explain().startswith("The readout is fitted")
    assert descent(kind="static", movement=1e-5).explain().startswith("Proved")


def test_a_vacuous_promise_is_called_so():
    assert "vacuous" in descent(exponent=1e-6).explain()
    assert "vacuous" not in descent(exponent=1e-4).explain()
    assert "rounding decides" in descent(floor=1e-9).explain()


def test_the_words_of_a_refusal():
    failed = claim("(17)", left=2.0, right=10.0, remedy="a larger beta")
    words = descent(claims=(claim(), failed)).explain()
    assert "Not proved: ling2023 does not apply here, so nothing is promised." in words
    assert "(17) fails by a factor 5: it needs 2 >= 10: it is so. Try a larger beta." in words
    assert "(1) " not in words
    unknown = descent(claims=(claim(left=Interval(0.0, 2.0)),)).explain()
    assert "is not decided here" in unknown
    assert "(1) is not decided: it needs 0 >= 1" in unknown
    assert "by a hair" in descent(claims=(claim(left=1.0, right=1.0000001),)).explain()
    obstacle = descent(claims=(), obstacle="X holds NaN in row 3.").explain()
    assert "X holds NaN in row 3." in obstacle
    assert "Not proved" in obstacle


def test_the_table(proved):
    shown = str(proved)
    assert shown.startswith("ling2023: proved (tier float64)")
    for one in proved.claims:
        assert one.name in shown
        assert f"{one.lhs:.4g}" in shown
    assert "(9) printed" in shown
    assert all(len(line) <= 110 for line in shown.splitlines())
    assert "NaN in row 3" in str(descent(claims=(), obstacle="NaN in row 3"))


# -- certify itself ------------------------------------------------------------------------------------------


def test_unknown_names_and_constants_are_errors():
    model, (X, y) = network(), data()
    with pytest.raises(ValueError, match=r"Did you mean 'ling2023'\?"):
        eq.certify(model, X, y, theorem="ling2022")
    with pytest.raises(TypeError, match=r"ling2023 takes delta, printed, rtol\. Got Delta instead"):
        eq.certify(model, X, y, theorem="ling2023", Delta=0.1)
    with pytest.raises(TypeError, match=r"Descent\(delta=…\)"):
        eq.certify(model, X, y, theorem=make_theorem("ling2023"), delta=0.1)
    with pytest.raises(TypeError, match="theorem must be"):
        eq.certify(model, X, y, theorem=3)
    with pytest.raises(ValueError, match="y is required"):
        eq.certify(model, X, theorem="ling2023")
    with pytest.raises(ValueError, match="tier must be one of 'float64', 'rigorous'"):
        eq.certify(model, X, y, tier="float32")


def test_wrong_arguments_are_errors_that_say_what_came():
    model, (X, y) = network(), data()
    with pytest.raises(ValueError, match=r"X must be a real tensor \(N, 10\)"):
        eq.certify(model, X.T)
    with pytest.raises(ValueError, match="Got list instead"):
        eq.certify(model, X.tolist())
    with pytest.raises(ValueError, match="complex"):
        eq.certify(model, X.to(torch.complex128))
    with pytest.raises(ValueError, match="at least one row"):
        eq.certify(model, X[:0])
    with pytest.raises(ValueError, match=r"y must be a real tensor \(2,\).*Try y.reshape\(-1\)"):
        eq.certify(model, X, y[:, None], theorem="ling2023")
    with pytest.raises(ValueError, match="Got list instead"):
        eq.certify(model, X, y.tolist(), theorem="ling2023")
    with pytest.raises(TypeError, match="Got Linear instead"):
        eq.certify(torch.nn.Linear(10, 2), X)


def test_a_theorem_object_and_its_name_say_the_same():
    model, (X, y) = network(), data()
    by_object = eq.certify(model, X, y, theorem=eq.theory.ling2023.Descent(delta=0.078))
    assert by_object == eq.certify(model, X, y, theorem="ling2023", delta=0.078)
