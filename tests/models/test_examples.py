"""Cells as users write them: a convolutional one, a transformer with padding, a layer inside a network."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import equipoise as eq

# -- a convolutional cell on images, NCHW ---------------------------------------------------------------


class ConvCell(nn.Module):
    """z = tanh(x + 0.2 · norm(conv(relu(conv(z)))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(2 * channels, channels, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(2, channels, affine=False)

    def forward(self, z, x):  # (N, C, H, W)
        return torch.tanh(x + 0.2 * self.norm(self.second(torch.relu(self.first(z)))))


def test_a_convolutional_network_learns_to_find_the_brighter_half():
    torch.manual_seed(0)
    images = torch.randn(24, 1, 8, 8)
    side = (images[..., :4].sum(dim=(1, 2, 3)) > images[..., 4:].sum(dim=(1, 2, 3))).long()
    layer = eq.Equilibrium(ConvCell(4))
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), layer, nn.Flatten(), nn.Linear(4 * 64, 2))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        loss = F.cross_entropy(model(images), side)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    assert layer.last.forward.value.shape == (24, 4, 8, 8)
    assert layer.last.forward.converged.all()

    together = model.eval()(images)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(alone, together, rtol=0, atol=2e-3)


# -- a transformer cell on sequences with padding, (N, T, D) --------------------------------------------


class TransformerCell(nn.Module):
    """z = x + attention and feed-forward of z, at the positions that are no padding."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.dropout = eq.SharedDropout(dropout)

    def forward(self, z, x, padding):  # (N, T, D), (N, T, D), (N, T) of bool
        mixed = self.attention(z, z, z, key_padding_mask=padding, need_weights=False)[0]
        h = self.norms[0](x + 0.5 * self.dropout(mixed))
        out = self.norms[1](x + h + 0.2 * self.feed(h))
        return out.masked_fill(padding[..., None], 0.0)


def sequences():
    """Three sequences of lengths 6, 4 and 1 in a batch of length 6, and where the padding is."""
    x = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(2))
    return x, torch.arange(6)[None] >= torch.tensor([6, 4, 1])[:, None]


def test_padding_does_not_reach_the_positions_that_count():
    torch.manual_seed(0)
    layer = eq.Equilibrium(TransformerCell(8, 2), stop=eq.Stop(rtol=1e-6))
    x, padding = sequences()
    x.requires_grad_()
    z = layer(x, padding)
    assert bool((z[padding] == 0).all())
    z.square().sum().backward()
    assert bool((x.grad[padding] == 0).all())
    assert bool((x.grad[~padding] != 0).any(dim=1).all())

    garbage = torch.where(padding[..., None], 1e3 * torch.ones(()), x.detach())
    assert torch.equal(layer(garbage, padding), z)
    short = layer(x[1:2, :4], padding[1:2, :4])  # the second sequence alone, without its padding
    torch.testing.assert_close(short[0], z[1, :4], rtol=1e-4, atol=1e-5)


def test_second_derivatives_of_a_transformer_need_the_plain_attention_kernel():
    torch.manual_seed(0)
    stop = eq.Stop(rtol=1e-13)
    layer = eq.Equilibrium(TransformerCell(8, 2).double(), stop=stop, gradient=eq.Implicit(stop=stop))
    x, padding = sequences()
    x = x.double().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):  # the fast kernels of torch have a first derivative only
        assert torch.autograd.gradgradcheck(lambda x: layer(x, padding), x, fast_mode=True, atol=1e-5)


def test_a_transformer_with_shared_dropout_learns_to_copy_the_first_token():
    torch.manual_seed(0)
    x, padding = sequences()
    layer = eq.Equilibrium(TransformerCell(8, 2, dropout=0.1))
    head = nn.Linear(8, 8)
    optimiser = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(40):
        out = head(layer(x, padding))
        loss = (out - x[:, :1]).square()[~padding].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])


# -- a layer inside a larger network --------------------------------------------------------------------


class Cell(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width))

    def forward(self, z, x):
        return torch.relu(0.8 * self.w(z) + x)


def test_a_network_with_an_equilibrium_inside_learns_digits():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16  # (1797, 64)
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 32), eq.Equilibrium(Cell(32)), nn.Linear(32, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(60):
        rows = torch.arange(100) + 100 * (step % 15)
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])
    model.eval()
    with torch.no_grad():
        accuracy = (model(x[1500:]).argmax(dim=1) == y[1500:]).float().mean()
    assert accuracy > 0.7
    assert model[1].last.forward.converged.all()
