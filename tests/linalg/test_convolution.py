"""The norm of a convolution: above the dense matrix's, where the reshaped kernel's is far below."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.linalg import UNIT, conv_norm_upper, gamma, norm_lower, norm_upper
from equipoise.linalg.convolution import _exponentials, _symbol_error, _symbols


def dense(kernel, size, stride=1, padding=0, dilation=1, groups=1):
    channels = kernel.shape[1] * groups
    images = torch.eye(channels * size[0] * size[1], dtype=torch.float64).view(-1, channels, *size)
    return F.conv2d(images, kernel, None, stride, padding, dilation, groups).flatten(1)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_reshaped_kernel_is_no_bound_for_a_box():
    box = torch.full((1, 1, 3, 3), 1 / 3, dtype=torch.float64)
    assert norm_upper(box.view(1, 9)) < 1 + 1e-12  # what a reshaped kernel reads
    assert norm_lower(dense(box, (16, 16), padding=1)) > 2.9  # the truth
    assert 3 <= conv_norm_upper(box, 16, padding=1) < 3 + 1e-12


small = st.integers(1, 3)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(small, small, small),
    st.tuples(small, st.integers(1, 4)),
    st.tuples(st.integers(4, 6), st.integers(4, 7)),
    st.tuples(small, small),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.tuples(small, small),
    st.integers(0, 10**6),
)
def test_no_less_than_the_dense_norm(channels, window, size, stride, padding, dilation, seed):
    groups, out, inputs = channels
    kernel = draw(groups * out, inputs, *window, seed=seed)
    pads = tuple(
        max(p, d * (k - 1)) for p, d, k in zip(padding, dilation, window, strict=True)
    )  # never empty
    truth = norm_lower(dense(kernel, size, stride, pads, dilation, groups))
    assert truth <= conv_norm_upper(kernel, size, stride, pads, dilation, groups)
    assert truth <= conv_norm_upper(kernel, size, 1, None, dilation, groups)
    assert truth <= conv_norm_upper(kernel, size, stride, None, dilation, groups)


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_small_padding_on_a_smaller_torus_is_still_a_bound(stride, padding):
    for seed in range(30):
        kernel = draw(2, 2, 3, 3, seed=seed)
        truth = norm_lower(dense(kernel, (5, 6), stride, padding))
        assert truth <= conv_norm_upper(kernel, (5, 6), stride, padding) <= 2 * truth


def test_it_is_close_for_large_images():
    kernel = draw(3, 2, 3, 3)
    truth = norm_lower(dense(kernel, (20, 20), padding=1))
    assert truth <= conv_norm_upper(kernel, 20, padding=1) < 1.02 * truth


def test_a_patch_embedding_is_exactly_its_reshaped_kernel():
    kernel = draw(5, 2, 4, 4)
    bound = conv_norm_upper(kernel, 16, stride=4, padding=0)
    assert bound == pytest.approx(norm_upper(kernel.flatten(1)), rel=1e-11)
    assert bound >= norm_lower(kernel.flatten(1))


def test_a_single_tap_is_its_channel_matrix():
    kernel = draw(4, 6, 1, 1)
    truth = norm_upper(kernel[:, :, 0, 0])
    assert norm_lower(kernel[:, :, 0, 0]) <= conv_norm_upper(kernel, 7) < truth * (1 + 1e-11)
    # depthwise: the worst channel
    depthwise = torch.tensor([1.0, -5.0, 2.0]).view(3, 1, 1, 1)
    assert 5 <= conv_norm_upper(depthwise, 4, groups=3) < 5 + 1e-12


@pytest.mark.parametrize("scale", [2.0**-1000, 2.0**-100, 2.0**100, 2.0**900])
def test_scales_carry_over(scale):
    kernel = draw(2, 3, 3, 3)
    assert conv_norm_upper(kernel * scale, 5) == pytest.approx(conv_norm_upper(kernel, 5) * scale, rel=1e-12)


@pytest.mark.parametrize("n", [5, 8, 17])
def test_the_symbol_is_as_accurate_as_its_error_claims(n):
    flint = pytest.importorskip("flint")
    K = draw(1, 2, 3, 3, 4, seed=n)  # (g, out, in, kh, kw)
    rows, columns = (_exponentials(n, taps, 1, K.device) for taps in (3, 4))
    worst = 0.0
    for w in range(n):
        Z = _symbols(K, rows[w : w + 1], columns, 1)[:, 0]  # (n, 4, 6)
        for v in range(n):
            difference = torch.empty(2, 3, dtype=torch.float64)
            for o, i in ((o, i) for o in range(2) for i in range(3)):
                with flint.ctx.workprec(200):
                    exact = flint.acb(0)
                    for a, b in ((a, b) for a in range(3) for b in range(4)):
                        turn = flint.acb(flint.arb(2 * (w * a + v * b)) / n).exp_pi_i()
                        exact += flint.arb(K[0, o, i, a, b].item()) * turn
                    re, im = (flint.arb(Z[v, o + 2 * part, i].item()) for part in (0, 1))
                    difference[o, i] = float(abs(exact - flint.acb(re, im)))
            worst = max(worst, torch.linalg.matrix_norm(difference).item())
    assert 0 < worst < _symbol_error(K).hi < 1e-12


def test_edges():
    assert conv_norm_upper(torch.zeros(2, 2, 3, 3), 4) == 0.0
    assert conv_norm_upper(torch.empty(0, 2, 3, 3), 4) == 0.0
    bad = draw(1, 1, 3, 3)
    bad[0, 0, 1, 1] = math.nan
    assert conv_norm_upper(bad, 4) == math.inf
    with pytest.raises(ValueError, match="4-dimensional"):
        conv_norm_upper(torch.ones(3, 3), 4)
    with pytest.raises(ValueError, match="groups"):
        conv_norm_upper(torch.ones(4, 1, 3, 3), 4, groups=3)
    for name, value in (("stride", 0), ("padding", -1), ("size", (4, 4, 4)), ("dilation", 1.5)):
        arguments = {"size": 4, name: value}
        with pytest.raises(ValueError, match=name):
            conv_norm_upper(torch.ones(1, 1, 3, 3), **arguments)
    kernel = draw(3, 3, 3, 3).float()
    assert conv_norm_upper(kernel, 6) == conv_norm_upper(kernel.double(), 6)


def test_the_error_of_a_symbol_counts_every_tap_of_every_channel():
    K = torch.ones(1, 2, 3, 2, 5, dtype=torch.float64)  # Σ_d|K_d| is (2, 3) of tens, of norm 10√6
    K[:, :, :, 1] *= -1  # signs must not cancel
    truth = (80 * UNIT + 2 * gamma(2 * 5 + 2)) * 10 * math.sqrt(6)
    assert truth * (1 - 1e-15) <= _symbol_error(K).hi <= truth * (1 + 1e-12)


def test_the_error_of_a_symbol_is_that_of_its_largest_channels():
    K = torch.zeros(1, 2, 3, 1, 1, dtype=torch.float64)
    K[0, 1, 2] = 3.0  # all other channels are silent
    assert _symbol_error(K).hi >= (80 * UNIT + 2 * gamma(3)) * 3 * (1 - 1e-15)


@pytest.mark.parametrize("odd", [{"groups": 0}, {"groups": -1}, {"size": 0}, {"stride": 0}, {"dilation": 0}])
def test_shapes_that_no_convolution_has_are_refused(odd):
    with pytest.raises(ValueError, match=next(iter(odd))):
        conv_norm_upper(draw(2, 2, 3, 3), **{"size": 4, **odd})


def test_images_without_end_are_refused_at_once():
    """Such as the size in a damaged file."""
    with pytest.raises(ValueError, match=r"at most 16777216 pixels .* Got 1000002 × 1000002 instead"):
        conv_norm_upper(torch.ones(2, 2, 3, 3, dtype=torch.float64), 10**6)
