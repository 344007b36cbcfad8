"""What keeps a certificate from speaking of a network of layers, and what it believes of a user's parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..models.methods import returned
from ..models.opteq.activations import KNOWN


def declared(model: Any) -> list[str]:
    """What is believed of parts that are the user's own, and that a model returns no equilibrium."""
    activation, regulariser, found = model.activation, model.regulariser, []
    if activation not in KNOWN.values():
        found.append(f"{activation.name} is monotone with slopes ≤ {activation.lipschitz:g}, as declared")
    if regulariser is not None and regulariser.nonexpansive and regulariser.declared:
        found.append(regulariser.declared)
    if instead := returned(model.method):
        found.append(f"what is said is of equilibria: the model itself returns {instead}")
    return found


def unknown_layer(layers: Iterable[nn.Module], *known: type[nn.Module]) -> str:
    """The layer that may compute otherwise than those that are known; empty if none may."""
    for i, layer in enumerate(layers):
        if type(layer) not in known:
            return (
                f"layers[{i}] is of the class {type(layer).__name__}, which may compute otherwise than "
                f"{known[-1].__name__}, which is known: certify a model of such layers with its parameters "
                f"(load_state_dict)."
            )
    return ""


def not_finite(model: nn.Module, X: Tensor) -> str:
    """The data or the weight that is NaN or infinite; empty if none is."""
    for name, value in (("X", X), *model.state_dict().items()):
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            rows = torch.nonzero(~torch.isfinite(value).reshape(len(value), -1).all(dim=1)).flatten()
            where = f" in row {int(rows[0])}" if name == "X" else ""
            return f"{name} holds NaN or infinity{where}: nothing can be said of it."
    return ""
