"""torch.func and forward mode: what is promised, against plain iteration; what is not, refused in words."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import equipoise as eq
from contracts.gradient import DTYPE, STOP, make_case, relative

# torch's own forward mode loads a module that warns of its deprecation.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

MODES = [eq.Implicit(stop=STOP), eq.Implicit(eq.Anderson(), STOP), eq.Phantom(50), eq.Unrolled(60)]
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda m: type(m).__name__)
mapped = pytest.mark.parametrize("mode", [MODES[0], MODES[2]], ids=lambda m: type(m).__name__)
CASES = ["tanh", "tuple", "shared"]


def functions(mode, name):
    """The layer and a long unroll of its cell as functions of (x, *parameters, *shared), and those."""
    case = make_case(name)
    return case.function(case.layer(mode)), case.unrolled(70), [t.detach() for t in case.tensors]


def scalar(f):
    return lambda *tensors: f(*tensors).pow(3).sum() + f(*tensors)[:, 0].sum()


def assert_same(got, want, tolerance=1e-9):
    if isinstance(want, torch.Tensor):
        got, want = (got,), (want,)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert relative(a, b) < tolerance


@each_mode
@pytest.mark.parametrize("name", CASES)
def test_first_derivatives(mode, name):
    f, reference, tensors = functions(mode, name)
    every = tuple(range(len(tensors)))
    assert_same(grad(scalar(f), every)(*tensors), grad(scalar(reference), every)(*tensors))
    tangents = tuple(torch.linspace(-1, 1, t.numel(), dtype=DTYPE).view_as(t) for t in tensors)
    assert_same(jvp(f, tuple(tensors), tangents), jvp(reference, tuple(tensors), tangents))
    value, pull = vjp(f, *tensors)
    assert_same(pull(value), vjp(reference, *tensors)[1](value))


@mapped
@pytest.mark.parametrize("outer", [jacrev, jacfwd], ids=["reverse", "forward"])
@pytest.mark.parametrize("inner", [jacrev, jacfwd], ids=["reverse", "forward"])
def test_second_derivatives(mode, inner, outer):
    f, reference, tensors = functions(mode, "tanh")
    for argument in (0, 1):
        got, want = (outer(inner(scalar(g), argument), argument)(*tensors) for g in (f, reference))
        assert want.norm() > 1e-2
        assert_same(got, want)


@mapped
def test_hessian_and_products_with_it(mode):
    f, reference, tensors = functions(mode, "shared")
    x, *rest = tensors
    direction = torch.ones_like(x)

    def product(f):
        return jvp(grad(lambda x: scalar(f)(x, *rest)), (x,), (direction,))[1]

    assert_same(product(f), product(reference))
    assert_same(hessian(scalar(f))(*tensors), hessian(scalar(reference))(*tensors))


def test_third_derivatives_in_mixed_modes():
    f, reference, (x, *rest) = functions(eq.Implicit(stop=STOP), "tanh")
    direction = torch.ones_like(x)

    def third(f):
        along = lambda x: jvp(lambda x: scalar(f)(x, *rest), (x,), (direction,))[1]
        return jvp(grad(along), (x,), (direction,))[1]

    def forward_only(f):
        def along(f, times):
            return (lambda x: jvp(along(f, times - 1), (x,), (direction,))[1]) if times else f

        return along(lambda x: scalar(f)(x, *rest), 3)(x)

    assert_same(third(f), third(reference))
    assert_same(forward_only(f), forward_only(reference))


# -- eager forward mode ---------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("name", CASES)
def test_dual_numbers(mode, name):
    f, reference, tensors = functions(mode, name)
    tangents = [torch.linspace(-1, 1, t.numel(), dtype=DTYPE).view_as(t) for t in tensors]

    def tangent(f):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, v) for t, v in zip(tensors, tangents, strict=True)]
            return forward_ad.unpack_dual(f(*duals)).tangent

    assert_same(tangent(f), tangent(reference))


def test_forward_mode_over_eager_reverse_mode():
    case = make_case("tanh")
    f = case.function(case.layer(eq.Implicit(stop=STOP)))
    assert torch.autograd.gradcheck(f, case.tensors, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, case.tensors, check_fwd_over_rev=True, fast_mode=True)


# -- vmap -----------------------------------------------------------------------------------------------


@mapped
def test_vmap_folds_into_the_batch(mode):
    case = make_case("wider state")
    layer = case.layer(mode)
    x = torch.stack([case.x, 2 * case.x, -case.x, 0.5 * case.x])  # (4, 3, 2)
    want = torch.stack([layer(part) for part in x])
    torch.testing.assert_close(vmap(layer)(x), want, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(vmap(layer, in_dims=1)(x.movedim(0, 1)), want, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(vmap(layer, in_dims=2, out_dims=1)(x.movedim(0, 2)), want.movedim(0, 1))
    nested = vmap(vmap(lambda row: layer(row[None])[0]))(x)
    torch.testing.assert_close(nested, want, rtol=1e-11, atol=1e-12)


@mapped
@pytest.mark.parametrize("name", ["tanh", "tuple", "conv"])
def test_gradients_of_each_sample(mode, name):
    case = make_case(name)
    layer = case.layer(mode)
    named = dict(layer.named_parameters())

    def loss(named, row):
        out = functional_call(layer, named, (row[None],))
        return sum(part.square().sum() for part in (out if isinstance(out, tuple) else (out,)))

    each = vmap(grad(loss), in_dims=(None, 0))(named, case.x)
    for row in range(len(case.x)):
        alone = torch.autograd.grad(loss(named, case.x[row]), list(named.values()))
        for name, want in zip(named, alone, strict=True):
            assert relative(each[name][row], want) < 1e-10


def test_vmap_over_the_backward_pass_of_an_eager_layer():
    case = make_case("tanh")
    x = case.x.clone().requires_grad_()
    z = case.layer(eq.Implicit(stop=STOP))(x)
    vectors = torch.eye(z.numel(), dtype=DTYPE).reshape(-1, *z.shape)
    rows = vmap(lambda g: torch.autograd.grad(z, x, g, retain_graph=True)[0])(vectors)
    for g, row in zip(vectors, rows, strict=True):
        assert_same(row, torch.autograd.grad(z, x, g, retain_graph=True)[0])


def test_vmap_with_a_mapped_and_an_unmapped_input():
    case = make_case("shared")
    layer = case.layer()
    keep = torch.stack([case.more[0], ~case.more[0]])
    got = vmap(lambda k: layer(case.x, k, 2, shared=case.shared))(keep)
    want = torch.stack([layer(case.x, k, 2, shared=case.shared) for k in keep])
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_vmap_over_parameters_is_refused_by_name():
    case = make_case("tanh")
    layer = case.layer()
    stacked = {name: torch.stack([p, p]) for name, p in layer.named_parameters()}
    with pytest.raises(RuntimeError, match=r"Got a mapped parameter `w\.weight` instead.*loop"):
        vmap(lambda named: functional_call(layer, named, (case.x,)))(stacked)
    case = make_case("shared")
    with pytest.raises(RuntimeError, match=r"Got a mapped shared tensor 0 instead"):
        vmap(lambda mix: case.layer()(case.x, *case.more, shared=(mix,)))(torch.stack([case.shared[0]] * 2))


def test_vmap_over_unrolled_steps_is_refused():
    case = make_case("tanh")
    with pytest.raises(RuntimeError, match=r"Unrolled cannot judge .* under vmap: use Implicit\(\)"):
        vmap(case.layer(eq.Unrolled(30)))(torch.stack([case.x, case.x]))


def test_failures_under_a_transform_follow_the_policy():
    def f(z, x):
        return 0.5 * z + x + torch.where(x > 1, z.square() + 1, 0.0)  # no equilibrium where x > 1

    x = torch.tensor([[0.5], [2.0]], dtype=DTYPE)
    total = lambda layer: grad(lambda x: layer(x).sum())(x)
    with pytest.raises(eq.EquilibriumError, match="row 1"):
        total(eq.Equilibrium(f))
    with pytest.raises(eq.EquilibriumError, match=r"not of a torch\.func transform"):
        total(eq.Equilibrium(f, on_failure=eq.OnFailure("mask", share=0.9)))


def test_records_of_a_transform_are_plain_tensors():
    case = make_case("tanh")
    layer = case.layer()
    grad(lambda x: layer(x).sum())(case.x)
    assert layer.last.forward.value.shape == (2, 3)
    assert not torch._C._functorch.is_functorch_wrapped_tensor(layer.last.forward.value)
    assert layer.last.forward.converged.all()
