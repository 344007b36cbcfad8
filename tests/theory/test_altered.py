"""Nothing is certified of stored weights that a call of the model does not use."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, remove_spectral_norm, spectral_norm

import equipoise as eq
from equipoise.theory.altered import altered

X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
IMAGES = X[:, None, :, None] * torch.ones(4, dtype=torch.float64)  # (3, 1, 4, 4)
MODELS = {  # with the module and the weight to be altered
    "gaussian": (lambda: made(eq.GaussianReLU, 4, 6, sigma_w2=0.05), "", "W"),
    "scaled": (lambda: made(eq.ScaledReLU, 4, 6), "", "A"),
    "linear": (lambda: made(eq.LinearEquilibrium, 4), "", "A"),
    "monotone": (lambda: made(eq.Monotone, 4, 6), "", "B"),
    "opteq": (lambda: made(eq.OptEq, 4, 6, 9), "", "W"),
    "deep": (lambda: made(eq.DeepOptEq, 4, 6, [5, 7]), "layers.1", "W"),
    "conv": (lambda: made(eq.ConvOptEq, (1, 4, 4), 3, (5,)), "layers.0", "W"),
    "conv monotone": (lambda: made(eq.ConvMonotone, (1, 4, 4), 3), "", "A"),
}


def made(family, *sizes, **options):
    return family(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(0), **options)


def data(model):
    return IMAGES if isinstance(model, eq.ConvOptEq | eq.ConvMonotone) else X


def by_hook(module, name):
    spectral_norm(module, name)
    return lambda: remove_spectral_norm(module, name)


def by_pruning(module, name):
    prune.l1_unstructured(module, name, amount=0.3)
    return lambda: prune.remove(module, name)


def by_parametrisation(module, name):
    parametrizations.weight_norm(module, name)
    return lambda: parametrize.remove_parametrizations(module, name)


@pytest.mark.parametrize("how", [by_hook, by_pruning, by_parametrisation])
@pytest.mark.parametrize("name", MODELS)
def test_weights_computed_at_each_call_are_an_obstacle_until_they_are_stored(name, how):
    build, path, weight = MODELS[name]
    model = build()
    assert eq.certify(model, data(model)).proved
    restore = how(model.get_submodule(path), weight)
    for _ in range(2):  # before a call and after it
        found = eq.certify(model, data(model))
        assert found.verdict == "hypotheses_fail"
        assert found.obstacle
        assert not found.proved
        if model.last.forward is None:
            try:
                model(data(model))
            except eq.EquilibriumError:  # a spectral norm of about 1 may be none that contracts
                assert how is by_hook
    restore()
    assert not altered(model)


def test_a_certificate_would_have_been_false():
    model = spectral_norm(made(eq.OptEq, 4, 6, 9), "W")
    with pytest.raises(eq.EquilibriumError):
        model(X)
    assert "OptEq has W computed at each call" in eq.certify(model, X).obstacle
    assert eq.equilibrium_error(model, X, torch.zeros(3, 6, dtype=torch.float64)) == float("inf")


@pytest.mark.parametrize("name", MODELS)
def test_hooks_and_methods_of_ones_own_are_named_and_can_be_taken_off(name):
    model = MODELS[name][0]()
    for register in (model.register_forward_pre_hook, model.register_forward_hook):
        hook = register(lambda *_: None)
        assert "a hook around forward" in eq.certify(model, data(model)).obstacle
        hook.remove()
    model.forward = lambda x: x
    assert "an attribute forward in place of its method" in eq.certify(model, data(model)).obstacle
    del model.forward
    assert eq.certify(model, data(model)).proved


def test_what_stands_before_and_behind_the_equilibrium_may_be_anything():
    features = spectral_norm(nn.Linear(4, 4, dtype=torch.float64))
    model = made(eq.LinearEquilibrium, 4, feature_map=features)
    model(X)
    assert eq.certify(model.eval(), X).proved
    net = made(eq.ConvOptEq, (1, 4, 4), 3, (5,))
    parametrizations.weight_norm(net.extractor[0])
    net.head.register_forward_hook(lambda *_: None)
    assert eq.certify(net, IMAGES).proved
    assert "ConvOptEq.extractor.0 has a parametrised weight" in altered(net, outside=())
    assert eq.equilibrium_error(net, IMAGES, net.equilibrium(IMAGES)) == float("inf")  # g(x) counts there
