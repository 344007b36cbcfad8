"""What equilibrium models are compared with: linear, ReLU and residual networks, and weight-tied repeats.

| name | map |
| --- | --- |
| `LinearModel` | ŷ = x Mᵀ |
| `ReLUNetwork` | h_l = relu(h_{l−1} W_lᵀ + b_l), ŷ = h_{H−1} W_Hᵀ + b_H |
| `LinearResNet` | h_l = h_{l−1} + h_{l−1} W_lᵀ, ŷ = h_H |
| `Repeat` | z_k = cell(z_{k−1}, x), k times from zero |
| `weight_tied` | any feedforward ReLU network as a `Repeat` of one input-injected cell, exactly |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..affine.linear import LinearEquilibrium
from ..checks import counts
from ..repeated import Repeat


class LinearModel(nn.Module):
    """ŷ = x Mᵀ, M (k, d)."""

    def __init__(
        self,
        inputs: int,
        outputs: int = 1,
        *,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        inputs, outputs = counts(inputs=inputs, outputs=outputs)
        self.M = nn.Parameter(torch.randn(outputs, inputs, dtype=dtype, generator=generator) / inputs**0.5)

    @classmethod
    def like(cls, model: LinearEquilibrium) -> LinearModel:
        """The linear model that starts at the same predictions: M = B (I − γS)⁻¹    [kawaguchi2021]."""
        if model.feature_map is not None:
            raise ValueError("a linear model of x has no feature map: give a LinearEquilibrium without one.")
        twin = cls(model.width, model.outputs, dtype=model.B.dtype).to(model.B.device)
        with torch.no_grad():
            twin.M.copy_(model.predictor())
        return twin

    def forward(self, x: Tensor) -> Tensor:
        """ŷ = x Mᵀ, (N, k)."""
        return x @ self.M.T


class ReLUNetwork(nn.Module):
    """h_l = relu(h_{l−1} W_lᵀ + b_l), ŷ = h_{H−1} W_Hᵀ + b_H: H layers, He start, biases zero at first."""

    def __init__(
        self,
        inputs: int,
        width: int,
        outputs: int = 1,
        *,
        depth: int = 2,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        inputs, width, outputs, depth = counts(inputs=inputs, width=width, outputs=outputs, depth=depth)
        sizes = [inputs, *[width] * (depth - 1), outputs]
        layers = [nn.Linear(a, b, bias=bias, dtype=dtype) for a, b in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        with torch.no_grad():
            for layer in layers:
                a = layer.weight.shape[1]
                layer.weight.copy_(
                    torch.randn(layer.weight.shape, dtype=dtype, generator=generator) * (2 / a) ** 0.5
                )
                if layer.bias is not None:
                    layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """ŷ, (N, k)."""
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.relu(layer(x))
        return last(x)


class LinearResNet(nn.Module):
    """h_l = h_{l−1} + h_{l−1} W_lᵀ, ŷ = h_H: each layer the identity at W_l = 0."""

    def __init__(
        self,
        width: int,
        *,
        depth: int,
        scale: float = 0.0,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        width, depth = counts(width=width, depth=depth)
        draw = lambda: scale * torch.randn(width, width, dtype=dtype, generator=generator) / width**0.5
        self.W = nn.ParameterList(nn.Parameter(draw()) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """h_H, (N, width)."""
        for W in self.W:
            x = x + x @ W.T
        return x


class _StackedCell(nn.Module):
    """z = relu(W z + [W_1 x, 0, …, 0] + b), W strictly block sub-diagonal: a network's layers, stacked."""

    def __init__(self, hidden: Sequence[nn.Linear]) -> None:
        super().__init__()
        sizes = [layer.out_features for layer in hidden]
        total, like = sum(sizes), hidden[0].weight
        W, b = like.new_zeros(total, total), like.new_zeros(total)
        U = like.new_zeros(total, hidden[0].in_features)
        with torch.no_grad():
            row = 0
            for i, layer in enumerate(hidden):
                rows = slice(row, row + sizes[i])
                if i == 0:
                    U[rows] = layer.weight
                else:
                    W[rows, row - sizes[i - 1] : row] = layer.weight
                if layer.bias is not None:
                    b[rows] = layer.bias
                row += sizes[i]
        self.W, self.U, self.b = nn.Parameter(W), nn.Parameter(U), nn.Parameter(b)
        self.last = sizes[-1]

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.relu(z @ self.W.T + x @ self.U.T + self.b)


class WeightTied(nn.Module):
    """A feedforward ReLU network as `depth` repeats of one input-injected cell, then its last layer.

    The cell's weight is nilpotent, so its equilibrium is reached exactly, and the network is one of the
    equilibrium kind as well: `eq.Equilibrium(tied.cell, state=(tied.width,))` gives the same answers.
    """

    def __init__(self, hidden: Sequence[nn.Linear], last: nn.Linear) -> None:
        super().__init__()
        self.cell = _StackedCell(hidden)
        self.depth, self.width = len(hidden), len(self.cell.b)
        self.readout = nn.Linear(last.in_features, last.out_features, bias=last.bias is not None).to(
            last.weight
        )
        self.readout.load_state_dict(last.state_dict())

    def state(self, x: Tensor) -> Tensor:
        """The stacked hidden layers of the network, (N, width)."""
        return Repeat(self.cell, self.depth, (self.width,))(x)

    def forward(self, x: Tensor) -> Tensor:
        """ŷ, (N, k)."""
        return self.readout(self.state(x)[:, -self.cell.last :])


def weight_tied(network: ReLUNetwork | nn.Sequential) -> WeightTied:
    """Any feedforward ReLU network as a weight-tied, input-injected one    [hieu2022, Theorem B.0.1]."""
    if isinstance(network, ReLUNetwork):
        layers = list(network.layers)
    elif isinstance(network, nn.Sequential) and len(network) % 2 == 1:
        layers = list(network)[::2]
        if not all(isinstance(between, nn.ReLU) for between in list(network)[1::2]):
            raise ValueError("network must alternate nn.Linear and nn.ReLU, and end with an nn.Linear.")
    else:
        raise TypeError(
            f"network must be a ReLUNetwork or an nn.Sequential. Got {type(network).__name__} instead."
        )
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if len(linear) != len(layers) or len(linear) < 2:
        raise ValueError("network must alternate nn.Linear and nn.ReLU, with at least one hidden layer.")
    return WeightTied(linear[:-1], linear[-1])
