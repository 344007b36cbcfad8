"""W_{l+1}W_lᵀ = A_{l+1}, W_1W_Lᵀ = 0: feedforward ReLU networks inside OptEq, exactly  [xie2021, Lemmas 1-2].

Both lemmas are corrected. Lemma 1 factors A_k = W̄_kW̄_{k−1}ᵀ with all factors of full rank, which needs
m ≥ n_k + n_{k−1} − rank A_k; m ≥ max n, as printed, is not enough (A = 0, 1 × 1). Lemma 2 is printed with
W_1 = 0, which loses the input: what is needed is W_1W_Lᵀ = 0, so that no layer feeds back to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ...checks import within
from ..checks import count
from ..zoo.baselines import ReLUNetwork
from .deep_opteq import DeepOptEq

_DRAWS = 10  # of a random factor, until it has full rank

Affine = tuple[Tensor, Tensor]  # A (n_out, n_in), b (n_out,)


def from_feedforward(network: nn.Sequential | ReLUNetwork, bound: float = 0.99) -> DeepOptEq:
    """A DeepOptEq with the same outputs as a ReLU network, whatever its weights: Lemma 2, corrected.

    With h_{l+1} = relu(A_{l+1}h_l + b_{l+1}) and A_{l+1} = P_lQ_lᵀ, layer l writes h_l to block l of the
    state through Q_l and reads h_{l−1} from block l − 1 through P_{l−1}. Orthogonal blocks: together
    they have Σ min(n_l, n_{l+1}) coordinates, and one more holds the bias of the output. Two iterations reach
    the equilibrium, from anywhere.

    relu is positively homogeneous, so each A_l is scaled down until ‖W_l‖ ≤ bound, and U and b are scaled up
    as much. The state holds h_H in its own units, and ‖b_out‖/‖A_out‖ for the bias, so that ŷ is as accurate
    as the state, up to 3 rtol·(‖A_out‖‖h_H‖ + ‖b_out‖), whatever the start. The result is a contraction, as
    `certify` proves. If there are fewer than three hidden layers, layers relu(I h) = h are added, since
    W_1W_Lᵀ = 0 and W_2W_1ᵀ = A_2 need three.

    Args:
        network: nn.Linear and nn.ReLU in any order, in an nn.Sequential, or a ReLUNetwork. For one output the
            OptEq gives (N,).
        bound: ‖W_l‖ of the result, in (0, 1).
    """
    within("bound", bound, "(0, 1)")
    hidden, out = _affine_layers(network)
    while len(hidden) < 3:
        n = len(hidden[-1][1])
        hidden.append((torch.eye(n).to(out[0]), torch.zeros(n).to(out[0])))
    W, U, b, V = _embedded(hidden, out, bound / 2**0.5 * (1 - 1e-12))
    (k, d), like = (len(out[1]), U.shape[1]), out[0]
    model = DeepOptEq(d, len(V), [len(w) for w in W], outputs=k, dtype=like.dtype, device=like.device)
    with torch.no_grad():
        for l, layer in enumerate(model.blocks):
            layer.W.copy_(W[l])
            layer.U.zero_()
            layer.b.copy_(b[l])
        model.blocks[0].U.copy_(U)
        model.V.copy_(V[:, 0] if k == 1 else V)
    return model


def _embedded(
    hidden: list[Affine], out: Affine, share: float
) -> tuple[list[Tensor], Tensor, list[Tensor], Tensor]:
    """W_l, U, b_l and V of the layers; `share` bounds what each W_l reads and what it writes."""
    A_out, b_out = out
    H, sizes = len(hidden), [len(b) for _, b in hidden]
    ranks = [min(*A.shape) for A, _ in (*hidden[1:], out)]  # of block 1, …, H
    m = sum(ranks) + 1
    at = [slice(sum(ranks[:l]), sum(ranks[: l + 1])) for l in range(H)]
    W = [A_out.new_zeros(n + (l == H - 1), m) for l, n in enumerate(sizes)]
    scales = [1.0]  # of h_1, …, h_H, up to the last one's
    for l, (A, _) in enumerate(hidden[1:]):
        P, s, Qt = torch.linalg.svd(A, full_matrices=False)  # A_{l+1} = P diag(s) Qᵀ
        t = max(1.0, float(s.max()) / share**2)
        scales.append(scales[-1] * t)
        root = (s / t).sqrt()
        W[l][: sizes[l], at[l]] = Qt.T * root
        W[l + 1][: sizes[l + 1], at[l]] = P * root
    b = [shift * (scales[-1] / scale) for (_, shift), scale in zip(hidden, scales, strict=True)]
    U = hidden[0][0] * scales[-1]
    P, s, Qt = torch.linalg.svd(A_out, full_matrices=False)
    unit = float(s.max()) or 1.0
    W[-1][: sizes[-1], at[-1]] = share * Qt.T
    W[-1][-1, -1] = share  # z_m = share · relu(share · 0 + ‖b_out‖/‖A_out‖)
    b[-1] = torch.cat([b[-1], b_out.norm()[None] / unit])
    if not all(bool(torch.isfinite(part).all()) for part in (U, *b)):
        raise ValueError(
            f"the first layer times {scales[-1]:.1e}, the product of the norms of the others, must be finite "
            f"in {U.dtype}. Got an overflow instead: network.double() reaches further."
        )
    V = A_out.new_zeros(m, len(b_out))
    V[at[-1]] = (P * s / share).T
    V[-1] = nn.functional.normalize(b_out, dim=0, eps=torch.finfo(b_out.dtype).tiny) * (unit / share)
    return W, U, b, V


class UnitLayers(nn.Module):
    """z̄_{k+1} = W̄_kᵀσ(W̄_k z̄_k + b_k), first with U x for W̄_1 z̄_1;  ŷ = V̄ z̄_{H+1} + b: a feedforward network.

    The network of Lemma 1: another form of a ReLU network, made of the layers that OptEq iterates.
    """

    def __init__(self, W: list[Tensor], U: Tensor, b: list[Tensor], V: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.W = nn.ParameterList(W)  # (n_k, m)
        self.U = nn.Parameter(U)  # (n_1, d)
        self.b = nn.ParameterList(b)  # (n_k,)
        self.V = nn.Parameter(V)  # (out, m)
        self.bias = nn.Parameter(bias)  # (out,)

    def forward(self, X: Tensor) -> Tensor:
        """ŷ, (N, out)."""
        z = torch.relu(X @ self.U.T + self.b[0]) @ self.W[0]
        for W, b in zip(list(self.W)[1:], list(self.b)[1:], strict=True):
            z = torch.relu(z @ W.T + b) @ W
        return z @ self.V.T + self.bias


def unit_layers(
    network: nn.Sequential | ReLUNetwork, state: int | None = None, generator: torch.Generator | None = None
) -> UnitLayers:
    """A ReLU network in unit layers z̄ ↦ W̄ᵀσ(W̄ z̄ + …), all W̄ of full rank: Lemma 1, corrected.

    Built backwards from a readout with orthonormal rows: W̄_{k−1}ᵀ = W̄_k⁺A_k + N Y, N the null space of W̄_k
    and Y random. `state` is m, by default the least that the weights allow, max n_k + n_{k−1} − rank A_k.
    """
    hidden, (A_out, b_out) = _affine_layers(network)
    chain = [A for A, _ in hidden[1:]] + [A_out]  # A_2, …, A_{H+1}
    needed = [sum(A.shape) - int(torch.linalg.matrix_rank(A)) for A in chain]
    m = max(needed) if state is None else count("state", state)
    if m < max(needed):
        k = needed.index(max(needed))
        raise ValueError(
            f"state must be ≥ n_k + n_(k−1) − rank A_k for every layer after the first, {max(needed)} for "
            f"layer {k + 2} (of shape {tuple(chain[k].shape)}). Got {m} instead."
        )
    for _ in range(_DRAWS):
        V, *W = _factors(chain, m, generator)
        if all(int(torch.linalg.matrix_rank(factor)) == len(factor) for factor in W):
            return UnitLayers(W[::-1], hidden[0][0], [b for _, b in hidden], V, b_out)
    raise RuntimeError(f"a W̄ came out short of full rank in each of {_DRAWS} draws: give a larger state.")


def _factors(chain: Sequence[Tensor], m: int, generator: torch.Generator | None) -> list[Tensor]:
    """V̄, W̄_H, …, W̄_1. If the same random numbers gave the weights, a W̄ may fall short of full rank."""
    last = chain[-1]
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator).to(last)
    factors = [torch.linalg.qr(draw(m, len(last))).Q.T]  # V̄, (out, m)
    for A in reversed(chain):
        upper = factors[-1]
        null = torch.linalg.svd(upper).Vh[len(upper) :].T  # (m, m − n)
        below = torch.linalg.pinv(upper) @ A + null @ draw(null.shape[1], A.shape[1]) / m**0.5
        factors.append(below.T)
    return factors


def _affine_layers(network: nn.Sequential | ReLUNetwork) -> tuple[list[Affine], Affine]:
    """The hidden layers and the readout of a ReLU network, detached; consecutive linear layers are merged."""
    if isinstance(network, ReLUNetwork):
        hidden = list(network.layers)
        modules = [m for layer in hidden[:-1] for m in (layer, nn.ReLU())] + [hidden[-1]]
    elif isinstance(network, nn.Sequential):
        modules = list(network)
    else:
        raise TypeError(
            f"network must be an nn.Sequential or a ReLUNetwork. Got {type(network).__name__} instead."
        )
    other = [m for m in modules if not isinstance(m, nn.Linear | nn.ReLU)]
    linear = [m for m in modules if isinstance(m, nn.Linear)]
    if other or not linear:
        got = type(other[0]).__name__ if other else "no nn.Linear"
        raise ValueError(f"network must be made of nn.Linear and nn.ReLU. Got {got} instead.")
    for i, layer in enumerate(linear, 1):
        if not all(bool(torch.isfinite(part).all()) for part in layer.parameters()):
            raise ValueError(f"network must have finite weights. Got NaN or infinity in linear layer {i}.")
    for before, after in pairwise(linear):
        if before.out_features != after.in_features:
            raise ValueError(
                f"layers must fit: {before.out_features} outputs meet {after.in_features} inputs."
            )
    unit = lambda n: (torch.eye(n).to(linear[0].weight), torch.zeros(n).to(linear[0].weight))
    hidden_layers: list[Affine] = []
    open_layer = unit(linear[0].in_features)
    for module in modules:
        if isinstance(module, nn.Linear):
            A, b = open_layer
            weight = module.weight.detach()
            shift = weight @ b if module.bias is None else weight @ b + module.bias.detach()
            open_layer = (weight @ A, shift)
        else:
            hidden_layers.append(open_layer)
            open_layer = unit(len(open_layer[1]))
    if not hidden_layers:
        raise ValueError("network must have at least one hidden layer, nn.ReLU. Got a linear map instead.")
    return hidden_layers, open_layer
