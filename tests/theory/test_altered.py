"""Nothing is certified of stored weights that a call of the model does not use."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, remove_spectral_norm, spectral_norm

import equipoise as eq
from equipoise.models.altered import altered, tied
from equipoise.models.proximal import OptEqLayer
from equipoise.models.proximal.conv_opteq import ConvLayer
from equipoise.models.zoo import OptEqSegmenter
from equipoise.theory import certified_radius, lipschitz_bound, pairwise_lipschitz

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
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of the vector that a spectral norm starts from
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


# -- bounds of images ----------------------------------------------------------------------------------------


def louder(module, name):
    """Another method in place of the module's own."""
    method = getattr(module, name)
    setattr(module, name, lambda x: 1000 * method(x))


def plain(module, name):
    value = getattr(module, name).detach().clone()
    delattr(module, name)
    setattr(module, name, value)


CHANGES = {
    "the head": lambda m: louder(m.head, "forward"),
    "its layer": lambda m: louder(m.head.linear, "forward"),
    "the readout": lambda m: louder(m, "readout"),
    "the extractor": lambda m: louder(m.extractor, "forward"),
    "the injection": lambda m: setattr(m, "injection", lambda x: ()),
    "a hook": lambda m: m.extractor[0].register_forward_hook(lambda *_: None),
    "a tensor": lambda m: plain(m.layers[0], "W"),
    "a pruned head": lambda m: prune.l1_unstructured(m.head.linear, "weight", amount=0.3),
    "a spectral norm": lambda m: spectral_norm(m.layers[0], "W"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_no_image_has_a_radius_behind_another_map(what):
    model = made(eq.ConvOptEq, (1, 4, 4), 3, (5,))
    assert lipschitz_bound(model) < math.inf
    assert certified_radius(model, IMAGES).certified.all()
    CHANGES[what](model)
    assert lipschitz_bound(model) == math.inf
    assert pairwise_lipschitz(model)[0, 1] == math.inf
    found = certified_radius(model, IMAGES)
    assert not found.certified.any()
    assert "so that a call may use other weights, or another map" in found.uncertified[2]


@pytest.mark.parametrize("normalise", [False, True])
def test_a_head_without_biases_is_one_whose_biases_are_zero(normalise):
    model = made(eq.ConvOptEq, (1, 4, 4), 3, (5,), normalise=normalise)  # whose biases are drawn as zero
    expected = certified_radius(model, IMAGES)
    model.head.linear.bias = None
    found = certified_radius(model, IMAGES)
    assert torch.equal(found.radius, expected.radius)
    assert torch.equal(found.prediction, model(IMAGES).argmax(1))


def test_the_error_of_a_part_without_a_bound_is_refused_by_name():
    net = made(OptEqSegmenter, (1, 4, 4), 3, (5,), 2).eval()
    with pytest.raises(ValueError, match=r"Got BatchNorm2d as extractor\.1"):
        eq.equilibrium_error(net, IMAGES, net.equilibrium(IMAGES))


# -- layers of one's own, and tensors ------------------------------------------------------------------------


@pytest.mark.parametrize("family", [eq.DeepOptEq, eq.DeepOptEq.multi_block, eq.ConvOptEq])
def test_layers_of_another_class_are_not_certified(family):
    if family is eq.ConvOptEq:
        known = ConvLayer
        model = made(family, (1, 4, 4), 3, (5, 5))
    else:
        known = OptEqLayer
        model = made(eq.DeepOptEq, 4, 6, [5, 7])
        model = model if family is eq.DeepOptEq else model.multi_block()
    assert eq.certify(model, data(model)).proved
    model.layers[1].__class__ = type("Mine", (known,), {"transposed": lambda s: -30 * s.W})
    found = eq.certify(model, data(model))
    assert found.verdict == "hypotheses_fail"
    assert (
        f"layers[1] is of the class Mine, which may compute otherwise than {known.__name__}" in found.obstacle
    )


def test_a_tensor_that_is_merely_kept_is_not_called_computed():
    model = made(eq.OptEq, 4, 6, 9)
    model.mean = torch.zeros(5)
    why = eq.certify(model, X).obstacle
    assert "OptEq has a tensor mean that is no parameter" in why
    assert "del model.mean" in why
    del model.mean
    assert eq.certify(model, X).proved


# -- methods that are not the family's own -----------------------------------------------------------------

METHODS = {
    "gaussian": ("forward", "equilibrium", "readout", "injection", "weight", "solve", "masks", "slope"),
    "scaled": ("forward", "readout", "injection"),
    "linear": ("forward", "predictor", "equilibrium", "umat"),
    "monotone": ("forward", "affine_map", "default_solver"),
    "opteq": ("forward", "readout", "injections", "state_of", "weights"),
    "deep": ("forward", "layer_map", "T"),
    "conv": ("forward", "readout", "injection", "shared"),
    "conv monotone": ("forward", "readout"),
}
CASES = [(name, method) for name, methods in METHODS.items() for method in methods]


def negated(method):
    """Another method, whose answer has the other sign where it has one."""

    def other(self, *args, **options):
        found = method(self, *args, **options)
        return -found if isinstance(found, torch.Tensor) else found

    return other


@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_subclass_that_overrides_a_method_is_not_its_family(name, method):
    model = MODELS[name][0]()
    family = type(model)
    model.__class__ = type("Mine", (family,), {method: negated(getattr(family, method))})
    found = eq.certify(model, data(model))
    assert found.verdict == "hypotheses_fail"
    assert f"Mine changes {method} of {family.__name__}" in found.obstacle
    model.__class__ = type("Same", (family,), {"__init__": lambda self: None, "extra_repr": str, "mine": 1})
    assert not altered(model)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_a_method_put_into_the_class_is_found(name, method, monkeypatch):
    model = MODELS[name][0]()
    family = type(model)
    monkeypatch.setattr(family, method, negated(getattr(family, method)))
    assert f"a class whose {method} was changed" in eq.certify(model, data(model)).obstacle
    monkeypatch.undo()
    assert not altered(model)


def test_what_a_class_holds_besides_methods_counts_too(monkeypatch):
    model = MODELS["gaussian"][0]()
    monkeypatch.setattr(eq.GaussianReLU, "activation", eq.solve.activation.TANH, raising=False)
    assert "a class whose activation was changed" in altered(model)
    monkeypatch.undo()
    model.__class__ = type(
        "Mine", (eq.GaussianReLU,), {"W": property(lambda self: 2 * self._parameters["W"])}
    )
    assert "Mine changes W of GaussianReLU" in altered(model)


@pytest.mark.parametrize("name", MODELS)
def test_hooks_on_all_modules_are_found_and_can_be_taken_off(name):
    model = MODELS[name][0]()
    for register in (
        nn.modules.module.register_module_forward_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        hook = register(lambda *_: None)
        try:
            assert "all modules" in eq.certify(model, data(model)).obstacle
        finally:
            hook.remove()
    assert eq.certify(model, data(model)).proved


class Negative(eq.GaussianReLU):
    def readout(self, Z):
        return -super().readout(Z)


def test_no_radius_no_bound_no_error_no_verified_certificate_of_another_map():
    model, known = (
        made(Negative, 4, 6, outputs=2, sigma_w2=0.05),
        made(eq.GaussianReLU, 4, 6, outputs=2, sigma_w2=0.05),
    )
    certificate = eq.certify(known, X)
    assert certificate.proved
    with torch.no_grad():
        known.a.normal_()
        model.a.copy_(known.a)
    assert eq.lipschitz_bound(known) < math.inf
    assert eq.lipschitz_bound(model) == math.inf
    assert not bool(certified_radius(model, X).certified.any())
    assert eq.equilibrium_error(model, X, model.equilibrium(X)) == math.inf
    with pytest.raises(ValueError):
        certificate.verify(model, X)


def test_the_tangent_kernel_of_an_overridden_family_is_that_of_its_outputs():
    class Squared(eq.GaussianReLU):
        def forward(self, X, **options):
            return super().forward(X, **options) ** 2

    model = made(Squared, 4, 6, sigma_w2=0.05)
    J = torch.autograd.functional.jacobian(
        lambda a: torch.func.functional_call(model, {"a": a}, (X,)), model.a.detach()
    )
    torch.testing.assert_close(eq.tangent_kernel(model, X).blocks["a"], J @ J.T)


def test_nothing_is_trained_by_formulas_that_are_not_the_models():
    model, y = made(Negative, 4, 6, sigma_w2=0.05), torch.ones(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="Negative changes readout of GaussianReLU"):
        eq.gradient_descent(model, X, y, 1, 0.1)
    known = made(eq.GaussianReLU, 4, 6, sigma_w2=0.05)
    certificate = eq.certify(known, X, y, theorem="safeguarded")
    assert certificate.proved
    known.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="a hook around forward"):
        eq.safeguarded_descent(known, X, y, 1, certificate)


def test_a_class_that_takes_the_name_of_a_family_neither_replaces_it_nor_is_saved_as_it(tmp_path):
    path = tmp_path / "model.safetensors"
    made(eq.GaussianReLU, 4, 6, sigma_w2=0.05).save(path)
    taken = type("GaussianReLU", (Negative,), {})
    assert type(eq.models.load(path)) is eq.GaussianReLU
    with pytest.raises(ValueError, match="a name of its own"):
        made(taken, 4, 6, sigma_w2=0.05).save(path)
    made(Negative, 4, 6, sigma_w2=0.05).save(path)
    assert type(eq.models.load(path)) is Negative


# -- parameters that share memory ----------------------------------------------------------------------------


def _registered_twice(model):
    model.register_parameter("a", model.U)


def _of_one_memory(model):
    model.a.data = model.U.data


def _overlapping(model):
    memory = torch.cat([model.U.data.flatten(), model.a.data.flatten()])
    model.U.data, model.a.data = memory[:16].reshape(4, 4), memory[15:31].reshape(4, 4)


def _one_number(model):
    model.a.data = torch.full((1, 1), 0.1, dtype=torch.float64).expand(4, 4)


def _side_by_side(model):
    memory = torch.cat([model.U.data, model.a.data], dim=1)
    model.U.data, model.a.data = memory[:, :4], memory[:, 4:]


TRAINED = {
    "anchored": (torch.arange(3), {}),
    "two_timescale": (X, {"slack": 1.0}),
    "safeguarded": (X, {"slack": 1.0}),
}


@pytest.mark.parametrize("tie", [_registered_twice, _of_one_memory, _overlapping, _one_number])
@pytest.mark.parametrize("theorem", TRAINED)
def test_no_training_is_promised_of_parameters_that_share_memory(theorem, tie):
    """A step of one moves the other: F of the untied start was promised, and exceeded by half."""
    model, (y, options) = made(eq.GaussianReLU, 4, 4, sigma_w2=0.05, outputs=4), TRAINED[theorem]
    assert eq.certify(model, X, y, theorem=theorem, **options).proved
    tie(model)
    assert eq.certify(model, X).proved  # of the network as it stands
    certificate = eq.certify(model, X, y, theorem=theorem, **options)
    assert not certificate.proved
    assert "share memory" in certificate.obstacle


@pytest.mark.parametrize("theorem", TRAINED)
def test_parameters_that_were_tied_since_the_certificate_are_refused(theorem):
    model, (y, options) = made(eq.GaussianReLU, 4, 4, sigma_w2=0.05, outputs=4), TRAINED[theorem]
    model.a.data.copy_(model.U)
    certificate = eq.certify(model, X, y, theorem=theorem, **options)
    assert certificate.proved
    model.a.data = model.U.data
    run = {
        "anchored": lambda: eq.Trainer(model, "cross_entropy", epochs=1, certificate=certificate).fit(X, y),
        "two_timescale": lambda: eq.gradient_descent(model, X, y, 1, certificate),
        "safeguarded": lambda: eq.safeguarded_descent(model, X, y, 1, certificate),
    }[theorem]
    with pytest.raises(ValueError, match="share memory"):
        run()


def test_parameters_side_by_side_in_one_memory_are_not_tied():
    model = made(eq.GaussianReLU, 4, 4, sigma_w2=0.05, outputs=4)
    before = eq.certify(model, X, torch.arange(3), theorem="anchored")
    _side_by_side(model)
    assert tied(model) == ""
    after = eq.certify(model, X, torch.arange(3), theorem="anchored")
    assert after.constants == before.constants
