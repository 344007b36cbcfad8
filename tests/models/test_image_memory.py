"""How images lie in memory: channels last in float32, a few at a time in float64, and the same numbers."""

import platform
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

import equipoise as eq
from equipoise.models.affine import ConvMonotone
from equipoise.models.images import parts
from equipoise.models.proximal import ConvOptEq
from equipoise.solve.problem import Layout

TIGHT, SINGLE = eq.Stop(rtol=1e-10), eq.Stop(rtol=1e-5)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=5, channels=2, seed=1):
    return torch.randn(n, channels, 6, 5, dtype=torch.float64, generator=generator(seed))


def models():
    how = {"features": 3, "dtype": torch.float64}
    return [
        ConvOptEq((2, 6, 5), 4, (3, 5), generator=generator(), **how),
        ConvOptEq((2, 6, 5), 4, (3,), alpha=0.4, strides=(2,), generator=generator(), **how),
        ConvMonotone((2, 6, 5), channels=4, generator=generator(), **how),
    ]


def gradients(model, x, stop, start=None):
    model.zero_grad()
    z = model.equilibrium(x, stop=stop, start=start)
    (z * torch.linspace(-1, 1, z[0].numel(), dtype=z.dtype).reshape(z.shape[1:])).sum().backward()
    return z.detach().double(), [p.grad.double().clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("model", models(), ids=["optimised", "strided", "monotone"])
def test_single_precision_finds_the_equilibria_and_gradients_of_double(model):
    x = images()
    exact, wanted = gradients(model, x, TIGHT)
    model.float()
    for start in (None, torch.rand(5, 4, 6, 5, generator=generator(2)), exact.float()):
        z, found = gradients(model, x.float(), SINGLE, start)
        torch.testing.assert_close(z, exact, rtol=0, atol=2e-4)
        assert model.last.forward.value.is_contiguous(memory_format=torch.channels_last)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=2e-3 * float(b.abs().max()))


@pytest.mark.parametrize("model", models(), ids=["optimised", "strided", "monotone"])
def test_gradients_of_each_sample_are_those_of_a_loop_in_single_precision(model):
    model, x = model.float(), images().float()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    model.stop = SINGLE

    def loss(p, image):
        return functional_call(model, p, (image[None],)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for i, image in enumerate(x):
        model.zero_grad()
        model(image[None]).square().sum().backward()
        for name, p in model.named_parameters():
            scale = 1e-3 * float(p.grad.abs().max()) + 1e-6
            torch.testing.assert_close(each[name][i], p.grad, rtol=0, atol=scale)


def test_rows_with_their_channels_last_are_views():
    z = torch.rand(3, 4, 6, 5, generator=generator()).to(memory_format=torch.channels_last)
    layout = Layout.of(z)
    flat = layout.flat(z)
    assert flat.data_ptr() == z.data_ptr()
    assert layout.unflat(flat).data_ptr() == z.data_ptr()
    assert torch.equal(layout.unflat(flat), z)
    assert torch.equal(layout.unflat(layout.flat(z.contiguous())), z)
    assert not Layout.of(z.contiguous()).channels_last


@pytest.mark.parametrize("solver", [eq.Anderson(), eq.Picard(), eq.Broyden(), eq.Newton()])
def test_a_start_with_its_channels_last_gives_the_same_solution(solver):
    c = images(4, 3)
    f = lambda z, c: 0.5 * torch.tanh(z.roll(1, dims=1) + 0.3 * z.roll(1, dims=2)) + c
    z0 = torch.zeros_like(c)
    plain = eq.fixed_point(f, z0, (c,), solver=solver, stop=TIGHT)
    other = eq.fixed_point(f, z0.to(memory_format=torch.channels_last), (c,), solver=solver, stop=TIGHT)
    assert other.value.shape == z0.shape
    torch.testing.assert_close(other.value, plain.value, rtol=0, atol=1e-8)
    torch.testing.assert_close(f(other.value, c), other.value, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (3, 0)])
def test_convolutions_by_parts_are_the_same_to_every_order(monkeypatch, stride, padding):
    monkeypatch.setattr(parts, "_PATCHES", 2 * 2 * 30 * 9 // stride**2 + 2)  # two images at a time
    x, kernel = images(), torch.randn(3, 2, 3, 3, dtype=torch.float64, generator=generator(3))
    bias = torch.randn(3, dtype=torch.float64, generator=generator(4))
    torch.testing.assert_close(
        parts.convolved(x, kernel, bias, stride, padding),
        F.conv2d(x, kernel, bias, stride, padding),
        rtol=0,
        atol=1e-14,
    )
    assert parts.convolved(x[:0], kernel, bias, stride, padding).shape[0] == 0
    few, less = x[:3, :, :4, :3].clone().requires_grad_(), kernel[:1].clone().requires_grad_()
    monkeypatch.setattr(parts, "_PATCHES", 1)
    convolved = lambda x, k: parts.convolved(x, k, None, stride, padding)
    torch.autograd.gradcheck(convolved, (few, less))
    torch.autograd.gradgradcheck(convolved, (few, less))


def test_features_by_parts_are_the_same_for_hooks_too(monkeypatch):
    extractor = parts.Extractor((2, 6, 5), 3, (1, 2), parts.Maker(torch.float64, None, generator()))
    whole, seen = extractor(images()), []
    monkeypatch.setattr(parts, "_PATCHES", 2 * extractor.patches)
    extractor[0].register_forward_hook(lambda _, args, out: seen.append(len(args[0])))
    torch.testing.assert_close(extractor(images()), whole, rtol=0, atol=1e-14)
    assert seen == [2, 2, 1]


def test_sums_take_the_memory_of_the_first_only_where_it_can_hold_them():
    p, c = torch.rand(3, 2, generator=generator()), torch.rand(3, 2, generator=generator(1))
    expected = p + c
    assert parts.added(p, c) is p
    assert torch.equal(p, expected)
    half = torch.ones(3, 2, dtype=torch.bfloat16)
    assert torch.equal(parts.added(half, c), half + c)
    assert torch.equal(vmap(lambda one: parts.added(torch.zeros(2), one))(c), c)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep freed memory as they do")
def test_freed_memory_is_kept():
    code = (
        "import resource, torch, equipoise.solve\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(3): torch.ones(1 << 21)\n"
        "before = faults()\n"
        "for _ in range(20): torch.ones(1 << 21)\n"
        "print(faults() - before)\n"
    )
    taken = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(taken.stdout) < 20 * 2048 / 4  # 2,048 pages each time if they went back to the system
