"""Checkpoints of monotone networks in the layouts that others use."""

import pytest
import safetensors.torch
import scipy.io
import torch
import torch.nn.functional as F

import equipoise as eq

MEAN, STD = 0.1307, 0.3081


def dense(n=6, d=5, k=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    shapes = {"A": (n, n), "B": (n, n), "U": (n, d), "bias": (n,), "C": (k, n), "c": (k,)}
    return {name: torch.randn(*shape, dtype=torch.float64, generator=g) for name, shape in shapes.items()}


def write(path, t, margin="2"):
    safetensors.torch.save_file(t, path, {"margin": margin} if margin else None)
    return path


def outputs(t, X, margin=2.0):
    """ŷ by the equation itself, on normalised inputs."""
    plain = eq.Monotone(t["U"].shape[1], len(t["A"]), margin, len(t["C"]), bias=True, dtype=torch.float64)
    state = {"A": t["A"], "B": t["B"], "U": t["U"], "u": t["C"].T, "bias": t["bias"]}
    plain.load_state_dict(state)
    return plain((X - MEAN) / STD, stop=eq.Stop(rtol=1e-13)) + t["c"]


def pixels(d=5, N=7):
    return torch.rand(N, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_model_takes_pixels_and_gives_what_the_checkpoint_gives_of_normalised_ones(tmp_path):
    t, X = dense(), pixels()
    model = eq.load_mondeq(write(tmp_path / "m.safetensors", t), mean=MEAN, std=STD)
    assert torch.allclose(model(X, stop=eq.Stop(rtol=1e-13)), outputs(t, X), rtol=1e-10)
    each = eq.load_mondeq(tmp_path / "m.safetensors", mean=[MEAN] * 5, std=[STD] * 5)
    assert torch.equal(each.U, model.U)
    assert torch.equal(each.bias, model.bias)


def test_a_mat_file_and_a_state_dict_give_the_same_network(tmp_path):
    t, X = dense(), pixels()
    want = eq.load_mondeq(write(tmp_path / "m.safetensors", t))(X)
    scipy.io.savemat(
        tmp_path / "m.mat", {**{n: t[n].numpy() for n in "ABUCc"}, "u": t["bias"].numpy(), "m": 2.0}
    )
    assert torch.equal(eq.load_mondeq(tmp_path / "m.mat")(X), want)
    module = {f"mon.linear_module.{n}.weight": t[n] for n in "ABU"}
    module |= {"mon.linear_module.U.bias": t["bias"], "Wout.weight": t["C"], "Wout.bias": t["c"]}
    torch.save({"state_dict": module}, tmp_path / "m.pt")
    assert torch.equal(eq.load_mondeq(tmp_path / "m.pt", margin=2.0)(X), want)


def test_a_convolutional_checkpoint_is_written_out(tmp_path):
    g = torch.Generator().manual_seed(2)
    shapes = {"A": (2, 2, 3, 3), "B": (2, 2, 3, 3), "U": (2, 1, 4, 4), "bias": (2,), "C": (3, 8), "c": (3,)}
    t = {name: torch.randn(*s, dtype=torch.float64, generator=g) for name, s in shapes.items()}
    t |= {"g": torch.tensor([0.7], dtype=torch.float64), "h": torch.tensor([1.3], dtype=torch.float64)}
    model = eq.load_mondeq(write(tmp_path / "c.safetensors", t), mean=MEAN, std=STD, side=10)
    X = pixels(100, 3)
    assert (model.inputs, model.width) == (100, 2 * 3 * 3)  # stride 2 on a grid of 5, without its border
    Z = model.equilibrium(X, stop=eq.Stop(rtol=1e-13)).reshape(3, 2, 3, 3)
    z = F.pad(Z, (1, 1, 1, 1))  # on the grid, the border at 0

    def around(image, kernel, stride=1):
        return F.conv2d(F.pad(image, (1,) * 4, mode="circular"), kernel, stride=stride)

    A, B = t["A"] / t["A"].norm(), t["B"] / t["B"].norm()
    image = ((X - MEAN) / STD).reshape(3, 1, 10, 10)
    flipped = [K.transpose(0, 1).flip(2, 3) for K in (A, B)]
    p = (1 - 2.0) * z - 0.7 * around(around(z, A), flipped[0]) + 1.3 * (around(z, B) - around(z, flipped[1]))
    p = p + around(image, t["U"], 2) + t["bias"][:, None, None]
    assert torch.allclose(torch.relu(p)[..., 1:-1, 1:-1], Z, atol=1e-9)
    want = F.avg_pool2d(z, 2).flatten(1) @ t["C"].T + t["c"]
    assert torch.allclose(model(X, stop=eq.Stop(rtol=1e-13)), want, atol=1e-9)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda t: t.pop("C"), "C not found among"),
        (lambda t: t.update(U=torch.zeros(4, 5)), "U in .* must be"),
        (lambda t: t.update(c=torch.zeros(2)), "c in .* must be"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, spoil, words):
    t = dense()
    spoil(t)
    with pytest.raises(ValueError, match=words):
        eq.load_mondeq(write(tmp_path / "m.safetensors", t))


def test_a_margin_must_come_from_somewhere(tmp_path):
    path = write(tmp_path / "m.safetensors", dense(), margin=None)
    with pytest.raises(ValueError, match="margin=20"):
        eq.load_mondeq(path)
    assert eq.load_mondeq(path, margin=3.0).margin == 3.0
    with pytest.raises(ValueError, match="std must be > 0"):
        eq.load_mondeq(path, margin=3.0, std=0.0)
    with pytest.raises(ValueError, match="one for each of 5"):
        eq.load_mondeq(path, margin=3.0, mean=[0.0, 1.0])
    (tmp_path / "no.pt").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="must be safetensors"):
        eq.load_mondeq(tmp_path / "no.pt")
    with pytest.raises(FileNotFoundError):
        eq.load_mondeq(tmp_path / "none.mat")


def test_an_output_bias_is_trained_saved_and_certified_around_but_not_about_training(tmp_path):
    t, X = dense(), pixels()
    model = eq.load_mondeq(write(tmp_path / "m.safetensors", t))
    model.save(tmp_path / "ours.safetensors")
    again = eq.load(tmp_path / "ours.safetensors")
    assert torch.equal(again.c, model.c)
    assert eq.certify(model, X).proved
    y = model(X).detach()
    with pytest.raises(ValueError, match="without an output bias"):
        eq.certify(model, X, y, "two_timescale")
    radii = eq.certified_radius(model, X)
    shifted = eq.load_mondeq(tmp_path / "m.safetensors")
    with torch.no_grad():
        shifted.c += 1e6  # moves every class alike; only its rounding may cost
    again = eq.certified_radius(shifted, X)
    assert torch.equal(again.prediction, radii.prediction)
    assert bool((again.margin <= radii.margin).all())
    assert torch.allclose(again.margin, radii.margin, atol=1e-8)


@pytest.mark.parametrize("outputs", [1, 3])
def test_descent_follows_the_gradient_of_the_output_bias(outputs):
    g = torch.Generator().manual_seed(3)
    model = eq.Monotone(4, 6, outputs=outputs, output_bias=True, dtype=torch.float64, generator=g)
    X = torch.randn(5, 4, dtype=torch.float64, generator=g)
    y = torch.randn(model.output_shape(5), dtype=torch.float64, generator=g)
    (0.5 * (model(X) - y).square().sum()).backward()
    want = {n: p.detach() - 0.01 * p.grad for n, p in model.named_parameters()}
    eq.gradient_descent(model, X, y, steps=1, step_size=0.01)
    for name, value in model.named_parameters():
        assert torch.allclose(value, want[name], atol=1e-7), name
