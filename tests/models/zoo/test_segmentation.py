"""Scores of a segmentation against a count by hand; the baselines; the learning rate."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, jaccard_score, recall_score

from contracts.image_model import C, H, ImageContract, K, W
from equipoise.models.images import parameters_of
from equipoise.models.images.parts import Maker, head_for
from equipoise.models.proximal import ConvOptEq
from equipoise.models.zoo import (
    FCN,
    OptEqSegmenter,
    PlainCNN,
    Scores,
    cnn_of_size,
    fcn_like,
    opteq_segmenter,
    poly,
)
from equipoise.solve import Stop
from equipoise.theory.conv_wellposed import images_wellposed


class TestOptEqSegmenter(ImageContract):
    """In evaluation, where norms are affine and every image is alone."""

    family = OptEqSegmenter
    pixels = True

    def build(self, seed=0, dtype=torch.float64, **options):
        how = {"inputs": (C, H, W), "outputs": K, "features": 3, "extractor": (2,), "limit": 0.9, "norm": 0.9}
        generator = torch.Generator().manual_seed(seed)
        return OptEqSegmenter(
            state=4, hidden=(3, 5), dtype=dtype, generator=generator, **how | options
        ).eval()


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth, called = rng.integers(4, size=(2, 3, 9, 8))
    scores = Scores.of(torch.from_numpy(called), torch.from_numpy(truth), 4)
    t, p = truth.flatten(), called.flatten()
    assert np.array_equal(scores.confusion.numpy(), confusion_matrix(t, p))
    assert scores.miou == pytest.approx(jaccard_score(t, p, average="macro"), rel=1e-14)
    assert scores.macc == pytest.approx(recall_score(t, p, average="macro"), rel=1e-14)
    assert scores.aacc == pytest.approx((t == p).mean(), rel=1e-14)
    halves = [Scores.of(torch.from_numpy(called[i]), torch.from_numpy(truth[i]), 4) for i in range(3)]
    total = halves[0] + halves[1] + halves[2]
    assert torch.equal(total.confusion, scores.confusion)


def test_pixels_to_ignore_and_classes_that_do_not_occur():
    truth = torch.tensor([[[0, 1, 255], [1, 1, 255]]])
    called = torch.tensor([[[0, 1, 2], [0, 1, 0]]])
    scores = Scores.of(called, truth, 3)
    assert scores.confusion.tolist() == [[1, 0, 0], [1, 2, 0], [0, 0, 0]]
    assert scores.iou[:2].tolist() == [1 / 2, 2 / 3]
    assert math.isnan(scores.iou[2])
    assert scores.miou == pytest.approx(7 / 12)
    assert scores.macc == pytest.approx((1 + 2 / 3) / 2)
    assert scores.aacc == pytest.approx(3 / 4)
    with pytest.raises(ValueError, match="truth must hold classes 0 … 2"):
        Scores.of(called, truth, 3, ignore=None)
    with pytest.raises(ValueError, match="predicted must be"):
        Scores.of(called[:, :1], truth, 3)


def test_scores_of_other_classes_and_of_what_is_no_class_are_refused():
    truth = torch.tensor([[[0, 1]]])
    one, four = (Scores.of(torch.zeros_like(truth), torch.zeros_like(truth), k) for k in (1, 4))
    for a, b, words in ((four, one, "4 and 1 classes"), (one, four, "1 and 4 classes")):
        with pytest.raises(ValueError, match=words):
            a + b
    with pytest.raises(TypeError, match=r"predicted must hold classes.*float32.*argmax"):
        Scores.of(torch.tensor([[[0.9, 1.7]]]), truth, 2)
    with pytest.raises(TypeError, match=r"truth must hold classes.*float64"):
        Scores.of(truth, truth.double(), 2)
    with pytest.raises(ValueError, match="classes must be an integer ≥ 1"):
        Scores.of(truth, truth, 0)
    small = Scores.of(truth.to(torch.uint8), truth.bool(), 2)  # integers of any size, and yes or no
    assert small.confusion.tolist() == [[1, 0], [0, 1]]


def test_the_poly_learning_rate():
    p = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([p], lr=0.01)
    schedule, rates = poly(optimiser, 10), []
    for _ in range(10):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert rates == pytest.approx([0.01 * (1 - i / 10) ** 0.9 for i in range(10)])
    assert optimiser.param_groups[0]["lr"] == 0
    with pytest.raises(ValueError, match="total must be"):
        poly(optimiser, 0)
    for power in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="power must be > 0 and finite"):
            poly(optimiser, 5, power)


def test_the_fcn_has_about_the_parameters_of_the_opteq():
    for hidden in ((8, 8), (16, 24, 24)):
        model = opteq_segmenter((1, 20, 24), 12, hidden, 5, features=8, extractor=(2,))
        fcn = fcn_like(model, torch.Generator().manual_seed(0))
        assert abs(parameters_of(fcn) / parameters_of(model) - 1) < 0.02
        x = torch.randn(2, 1, 20, 24, generator=torch.Generator().manual_seed(0))
        assert model(x).shape == fcn(x).shape == (2, 5, 20, 24)


def segmenter(**options):
    make = torch.Generator().manual_seed(0)
    return opteq_segmenter(
        (1, 10, 8), 6, (8, 7), 3, features=5, extractor=(2, 1), generator=make, dtype=torch.float64, **options
    )


def pictures():
    return torch.randn(4, 1, 10, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_norms_stand_behind_every_convolution_but_not_in_the_loop():
    model, x = segmenter(), pictures()
    for c in model.injection(5 * x + 2):  # in training: mean 0 and variance 1 of every channel
        torch.testing.assert_close(c.mean(dim=(0, 2, 3)), torch.zeros_like(c[0, :, 0, 0]), rtol=0, atol=1e-12)
        torch.testing.assert_close(
            c.var(dim=(0, 2, 3), correction=0), torch.ones_like(c[0, :, 0, 0]), rtol=1e-3, atol=0
        )
    seen = []
    model.head.register_forward_pre_hook(lambda _, z: seen.append(z[0]))
    model(x)
    assert seen[0].mean(dim=(0, 2, 3)).abs().max() < 1e-12
    fcn = fcn_like(model)
    for stack, convolutions in ((model.extractor, 2), (fcn.extractor, 2), (fcn.body, 3)):
        assert [type(m).__name__ for m in stack] == ["Conv2d", "BatchNorm2d", "ReLU"] * convolutions
    assert images_wellposed(model).verdict == "proved"
    model.eval()  # the norms are affine then, and every image is alone
    torch.testing.assert_close(model(x)[2:3], model(x[2:3]), rtol=0, atol=1e-6)
    z = model.equilibrium(x, stop=Stop(rtol=1e-13, atol=1e-14, max_steps=500))
    torch.testing.assert_close(model.cell(z, *model.injection(x), *model.shared()), z, rtol=0, atol=1e-12)


def test_files_hold_the_norms_and_the_task_is_of_pixels(tmp_path):
    model, x = segmenter(), pictures()
    for i, net in enumerate((model, fcn_like(model, torch.Generator().manual_seed(1)))):
        net(x)
        net.save(tmp_path / f"{i}.safetensors")
        found = type(net).load(tmp_path / f"{i}.safetensors")
        assert torch.equal(found.eval()(x), net.eval()(x))
        with pytest.raises(ValueError, match=r"task must be 'segmentation' here\. Got 'classification'"):
            type(net)(**net.config() | {"task": "classification"})


def test_the_fcn_keeps_the_pooling_and_the_device_of_the_opteq():
    model = ConvOptEq((1, 8, 8), 6, (8, 8), 3, pool=2)
    fcn = fcn_like(model)
    assert fcn.pool == 2
    assert len(fcn.hidden) == 3
    assert {p.device.type for p in fcn_like(model.to("meta")).parameters()} == {"meta"}
    assert next(cnn_of_size(5000, 2, (1, 8, 8), 3, device="cpu").parameters()).device.type == "cpu"


def test_the_plain_network():
    build = lambda seed: PlainCNN(
        (1, 8, 8), (6, 4), 3, extractor=(2,), generator=torch.Generator().manual_seed(seed)
    )
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(build(0)(x), build(0)(x))
    assert build(0)(x).shape == (5, 3)
    h = build(0).body(build(0).extractor(x))
    assert h.shape == (5, 4, 4, 4)
    assert h.min() == 0
    assert parameters_of(cnn_of_size(5000, 2, (1, 8, 8), 3)) == pytest.approx(5000, rel=0.01)


@pytest.mark.parametrize("normalise", [True, False])
def test_the_head_for_classes_is_its_equation(normalise):
    make = Maker(torch.float64, generator=torch.Generator().manual_seed(0))
    head = head_for("classification", 2, (4, 6), (1, 4, 6), 3, 2, make, normalise)
    z = torch.randn(5, 2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 3
    means = z.reshape(5, 2, 2, 2, 2, 3).mean(dim=(3, 5)).flatten(1)  # a grid of 2×2 places, of 2×3 pixels
    if normalise:
        off = means - means.mean(dim=1, keepdim=True)
        means = off / (off.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(head(z), means @ head.linear.weight.T + head.linear.bias)


def test_a_file_holds_the_plain_network(tmp_path):
    model = PlainCNN((1, 8, 8), (6, 4), 3, task="segmentation", dtype=torch.float64)
    model.save(tmp_path / "cnn.safetensors")
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    assert torch.equal(PlainCNN.load(tmp_path / "cnn.safetensors")(x), model(x))


def test_plain_networks_take_images_of_their_size_only():
    for model in (PlainCNN((1, 8, 8), (6,), 3), FCN((1, 8, 8), (6,), 3), FCN((1, 8, 8), (), 3)):
        assert len(model(torch.zeros(2, 1, 8, 8))) == 2
        with pytest.raises(ValueError, match=r"x must be \(N, 1, 8, 8\)\. Got shape \(2, 1, 9, 8\)"):
            model(torch.zeros(2, 1, 9, 8))
        with pytest.raises(ValueError, match=r"A single image is x\[None\]"):
            model(torch.zeros(1, 8, 8))
        with pytest.raises(TypeError, match="x must be a tensor of images"):
            model(np.zeros((2, 1, 8, 8), np.float32))
        with pytest.raises(ValueError, match=r"x must be torch\.float32 .* Got torch\.float64"):
            model(torch.zeros(2, 1, 8, 8, dtype=torch.float64))
        with pytest.raises(ValueError, match="NaN or infinity in row 1"):
            model(torch.zeros(2, 1, 8, 8).index_fill(0, torch.tensor([1]), float("nan")))


PLAIN = [PlainCNN, FCN]


@pytest.mark.parametrize("family", PLAIN)
def test_plain_networks_are_exported_and_compiled_whole(family):
    model, x = family((1, 8, 8), (6,), 3).eval(), torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))


@pytest.mark.parametrize("family", PLAIN)
def test_plain_networks_have_shapes_without_numbers(family):
    y = family((1, 8, 8), (6,), 3, device="meta")(torch.empty(2, 1, 8, 8, device="meta"))
    assert y.is_meta
    assert y.shape == family((1, 8, 8), (6,), 3)(torch.zeros(2, 1, 8, 8)).shape
    with pytest.raises(ValueError, match=r"x must be torch\.float32 on meta .* Got torch\.float64"):
        family((1, 8, 8), (6,), 3, device="meta")(torch.empty(2, 1, 8, 8, device="meta").double())


@pytest.mark.parametrize("family", PLAIN)
def test_autocast_takes_images_of_the_dtypes_that_it_casts(family):
    model, x = family((1, 8, 8), (6,), 3).eval(), torch.rand(2, 1, 8, 8).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(x), model(x.float()))
        for other in (torch.float64, torch.int64):
            with pytest.raises(ValueError, match=r"x must be torch\.float32"):
                model(x.to(other))
        with pytest.raises(ValueError, match="NaN or infinity in row 0, row 1"):
            model(x * math.inf)
    with pytest.raises(ValueError, match=r"x must be torch\.float32 .* Got torch\.bfloat16"):
        model(x)


def test_sizes_that_no_plain_network_has_are_refused(monkeypatch):
    size = lambda *hidden: parameters_of(PlainCNN((1, 8, 8), hidden, 3, device="meta"))
    with pytest.raises(ValueError, match=rf"must be ≤ {size(2048, 4096)} for layers=2, .* take more layers"):
        cnn_of_size(10**9, 2, (1, 8, 8), 3)
    for parameters, layers, words in (
        (1000, 0, "layers must be an integer ≥ 1"),
        (10**6, 0, "layers must be an integer ≥ 1"),
        (0, 2, "parameters must be an integer ≥ 1"),
    ):
        with pytest.raises(ValueError, match=words):
            cnn_of_size(parameters, layers, (1, 8, 8), 3)
    monkeypatch.setattr("equipoise.models.zoo.cnn.WIDEST", 8)
    for hidden in ((16,), (8, 16), (8, 8, 16), (1,)):  # the most there are, and the least
        assert cnn_of_size(size(*hidden), len(hidden), (1, 8, 8), 3).hidden == hidden
    with pytest.raises(ValueError, match="parameters must be ≤"):
        cnn_of_size(size(16) + 1, 1, (1, 8, 8), 3)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_no_other_widths_come_nearer_to_the_size_that_is_asked_for(layers):
    size = lambda *hidden: parameters_of(PlainCNN((1, 4, 4), hidden, 2, features=2, pool=1, device="meta"))
    sizes = [
        size(*(width,) * (layers - 1), last)
        for width in range(1, 8)
        for last in range((width + 1) // 2, 2 * width + 1)
    ]
    for parameters in (60, 123, 300):
        found = parameters_of(cnn_of_size(parameters, layers, (1, 4, 4), 2, features=2, pool=1))
        assert abs(found - parameters) == min(abs(n - parameters) for n in sizes)
