"""A certificate that was read or altered is certified again before anything relies on it."""

from __future__ import annotations

import copy
import importlib
import pickle
from dataclasses import replace

import pytest
import torch

import equipoise as eq
from certifiable import instance
from equipoise.linalg import Interval
from equipoise.theory import Certificate, Recorder
from equipoise.theory.verification import intact

certifying = importlib.import_module("equipoise.theory.certify")
THEOREMS = {"two_timescale": "ling2023", "safeguarded": "gao2022", "kawaguchi2021": "kawaguchi2021"}


@pytest.fixture(scope="module")
def proved():
    made = {}
    for theorem, family in THEOREMS.items():
        model, X, y = instance(family, N=6, width=16)
        made[theorem] = model, X, y, eq.certify(model, X, y, theorem=theorem)
        assert made[theorem][-1].proved
    return made


def run(theorem, model, X, y, certificate):
    model = copy.deepcopy(model)
    if theorem == "kawaguchi2021":
        return eq.gradient_flow(model, X, y, 0.1, certificate=certificate)
    train = eq.gradient_descent if theorem == "two_timescale" else eq.safeguarded_descent
    return train(model, X, y, 3, certificate)


def larger_steps(c):
    return replace(c, step_sizes={name: 1e4 * step for name, step in c.step_sizes.items()})


def larger_steps_in_place(c):
    c = copy.deepcopy(c)
    c.step_sizes["readout"] *= 1.01
    return c


def another_constant(c):
    name = next(n for n, v in c.constants.items() if isinstance(v, float) and v > 0)
    return replace(c, constants={**c.constants, name: 1.001 * c.constants[name]})


ALTERED = {
    "another constant": another_constant,
    "no constant": lambda c: replace(c, constants={}),
    "a claim left out": lambda c: replace(c, claims=c.claims[:-1]),
    "a claim made stronger": lambda c: replace(
        c, claims=(replace(c.claims[0], left=c.claims[0].left * Interval(0.5)), *c.claims[1:])
    ),
    "a claim called printed": lambda c: replace(
        c, claims=(*c.claims[:-1], replace(c.claims[-1], printed=True))
    ),
    "another promise": lambda c: replace(c, promise=c.promise + " The test error falls too."),
    "no hypotheses": lambda c: replace(c, hypotheses=()),
    "a lower floor": lambda c: replace(c, floor=c.floor / 2 or -1.0),
    "another tier": lambda c: replace(c, tier="exact"),
    "a number that is a word": lambda c: replace(c, options={**c.options, "tau": "small"}),
}


@pytest.mark.parametrize("how", ALTERED)
@pytest.mark.parametrize("theorem", THEOREMS)
def test_no_run_relies_on_an_altered_certificate(proved, theorem, how):
    model, X, y, certificate = proved[theorem]
    altered = ALTERED[how](certificate)
    with pytest.raises(ValueError, match=r"certificate|must|tau"):
        run(theorem, model, X, y, altered)
    with pytest.raises(ValueError, match=r"certificate|must|tau"):
        altered.verify(model, X, y)


@pytest.mark.parametrize("how", [larger_steps, larger_steps_in_place])
@pytest.mark.parametrize("theorem", ["two_timescale", "safeguarded"])
def test_steps_that_were_changed_are_refused(proved, theorem, how):
    model, X, y, certificate = proved[theorem]
    with pytest.raises(ValueError, match=r"step_sizes\["):
        run(theorem, model, X, y, how(certificate))


def test_a_changed_hidden_step_is_recorded_by_no_one(proved):
    model, X, y, certificate = proved["two_timescale"]
    with pytest.raises(ValueError, match=r"step_sizes\["):
        Recorder(model, X, y, larger_steps(certificate)).record()


UNCHANGED = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda c: pickle.loads(pickle.dumps(c)),
    "replace": replace,
    "from_dict": lambda c: Certificate.from_dict(c.to_dict()),
}


@pytest.mark.parametrize("how", UNCHANGED)
def test_what_was_copied_or_read_is_certified_again_and_serves(proved, how, monkeypatch):
    """It is made anew where a run begins, and what certify has just returned is not."""
    model, X, y, certificate = proved["two_timescale"]
    calls, certify = [], certifying.certify
    monkeypatch.setattr(certifying, "certify", lambda *a, **k: calls.append(k) or certify(*a, **k))
    run("two_timescale", model, X, y, certificate)
    assert not calls
    assert intact(certificate, model)
    copied = UNCHANGED[how](certificate)
    assert not intact(copied, model)
    run("two_timescale", model, X, y, copied)
    assert len(calls) == 1


def test_what_certify_returned_is_not_trusted_once_its_dicts_are_changed(proved):
    model, X, y, _ = proved["two_timescale"]
    certificate = eq.certify(model, X, y, theorem="two_timescale")
    certificate.step_sizes["hidden"] *= 1e4
    assert not intact(certificate, model)
    with pytest.raises(ValueError, match=r"step_sizes\['hidden'\]"):
        eq.gradient_descent(copy.deepcopy(model), X, y, 3, certificate)


def test_what_was_verified_can_be_relied_on_and_keeps_the_options_that_were_given(proved):
    for model, X, y, certificate in proved.values():
        again = Certificate.from_dict(certificate.to_dict()).verify(model, X, y)
        assert intact(again, model)
        assert again.options == certificate.options
        assert again == certificate


def test_a_hook_that_came_after_the_certificate_is_refused(proved):
    model, X, y, certificate = proved["two_timescale"]
    model = copy.deepcopy(model)
    model.register_forward_hook(lambda module, args, out: -out)
    with pytest.raises(ValueError, match="hook"):
        eq.gradient_descent(model, X, y, 3, certificate)


@pytest.mark.parametrize("name", ["claims", "numbers", "library"])
@pytest.mark.parametrize("value", [3, None, [3], "word"])
def test_what_is_no_certificate_is_refused_with_words(proved, name, value):
    content = {**proved["two_timescale"][-1].to_dict(), name: value}
    with pytest.raises(ValueError, match=r"certificate|says"):
        Certificate.from_dict(content)


def test_a_model_that_was_built_anew_since_its_certificate_is_refused():
    """Its weights and settings are the same, and the features that its head reads are not."""
    draw = torch.Generator().manual_seed(0)
    model = eq.ConvMonotone((1, 4, 4), 2, outputs=3, features=2, pool=2, dtype=torch.float64, generator=draw)
    X, y = torch.rand(4, 1, 4, 4, dtype=torch.float64, generator=draw), torch.arange(4) % 3
    certificate = eq.certify(model, X, y, theorem="anchored", ridge=0.1)
    assert certificate.proved
    assert intact(certificate, model)
    model.head.normalise = False
    with pytest.raises(ValueError, match="Certified again, it is"):
        eq.Trainer(model, "cross_entropy", rate=0.01, epochs=1, certificate=certificate).fit(X, y)
