"""What the head of a network of images reads of each: means of its state, with bounds of their errors."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..linalg import Interval, frobenius, gamma
from ..models.altered import altered
from ..models.images.parts import ClassHead
from ..models.proximal import ConvOptEq
from ..solve import Solution, Stop
from .claim import Claim
from .conv_robustness import AT_ONCE, ConvHead, ConvNetwork, extracted, tightest
from .read_features import FeatureBlock, LinearReadout, ReadFeatures, normalised


class PooledReads(ReadFeatures):
    """φ(x) = the means of z that a ClassHead reads, normalised if it normalises them."""

    _last: tuple[Tensor, tuple[Tensor, Interval]] | None = None  # images, and what `extracted` says of them

    def __init__(self, model: Any, exact: Any) -> None:
        super().__init__(model)
        self.obstacle = self.obstacle or altered(model, outside=())  # the head and the extractor count too
        self.exact = exact
        if not isinstance(exact.head, ClassHead):
            raise TypeError(
                f"a linear readout of means is required. Got the head {type(exact.head).__name__} instead, "
                f"whose features are those of pixels: task='classification' has one."
            )
        self.head = ConvHead(exact)
        self.behind = _behind_extractor(exact)

    @abstractmethod
    def extracted(self, X: Tensor) -> tuple[Tensor, Interval]:
        """g(X) as computed, and ≥ its distance to the exact one."""

    def solve(self, X: Tensor, stop: Stop, start: Tensor | None) -> Solution:
        """The equilibria, in float32 first, where convolutions are much faster, then in float64."""
        return self.behind.solve(self.given(X)[0], stop=stop, start=start, precision="mixed")

    def given(self, X: Tensor) -> tuple[Tensor, Interval]:
        """`extracted`, computed once for a solve and for its error: it takes as long as the solve."""
        if self._last is None or self._last[0] is not X:
            self._last = X, self.extracted(X)
        return self._last[1]

    def block(self, X: Tensor, rtol: float, start: Tensor | None = None) -> FeatureBlock:
        """The features, part by part, since those of many images at once do not fit into caches."""
        cuts = [slice(i, i + AT_ONCE) for i in range(0, len(X), AT_ONCE)]
        parts = [
            ReadFeatures.block(self, X[cut], rtol, None if start is None else start[cut]) for cut in cuts
        ]
        error = sum((Interval(part.error) ** 2 for part in parts), Interval(0.0)).sqrt().hi
        Phi, Z = torch.cat([part.Phi for part in parts]), torch.cat([part.state for part in parts])
        return FeatureBlock(Phi, error, Z, sum(part.work for part in parts))

    def read(self, Z: Tensor, error: float) -> tuple[Tensor, float]:
        """The means with their rounding, then normalised rows."""
        M = (self.head.rows @ Z @ self.head.columns.T).flatten(1)
        off = self.head.means * (error + gamma(sum(Z.shape[2:]) + 8) * frobenius(Z)) + 2.0**-1000
        return normalised(M, off) if self.head.normalised else (M, off.hi)

    def readout_of(self, model: Any) -> LinearReadout:
        """The linear layer of the head, with its bias."""
        return LinearReadout(model.head.linear.weight.T, model.head.linear.bias)


class ConvOptEqReads(PooledReads):
    """What the head of a ConvOptEq reads."""

    def __init__(self, network: ConvNetwork, model: ConvOptEq, claim: Claim) -> None:
        super().__init__(model, network.model)
        self.network, self.claims = network, (claim,)
        self.obstacle = self.obstacle or network.obstacle
        if not self.obstacle:
            self.resolvent = (1 / (1 - network.q)).hi

    def extracted(self, X: Tensor) -> tuple[Tensor, Interval]:
        """g(X) and its error, by the norms of the network."""
        return extracted(self.exact, self.network.extractor_norms, X)

    def state_error(self, X: Tensor, Z: Tensor) -> float:
        """≥ ‖Z − Z*‖_F, by ‖Z − T(Z)‖_F/(1 − q)."""
        return self.network.error(X, Z, self.given(X))

    def stop(self, rtol: float) -> Stop:
        """The tolerance of a solve. With a property T itself is solved, whose steps go part of the way."""
        return Stop(rtol=max(rtol, tightest(self.network.model).rtol or 0.0), max_steps=2000)


def _behind_extractor(model: Any) -> Any:
    """The same network, without a copy of its weights, as a function of g(x)."""
    found = copy(model)
    found._modules = {**model._modules, "extractor": nn.Sequential()}
    found.inputs = (model.extractor.channels, *model.extractor.size)
    return found
