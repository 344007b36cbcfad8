"""The networks that [xie2021, Table 1] compares, of about one size, and how all of them are trained.

Every network has the same extractor, the same head, about as many parameters and the same training: Adam, one
cycle of the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...differentiate import Unrolled
from ...models.affine import ConvMonotone
from ...models.images import parameters_of
from ...models.proximal import ConvOptEq
from ...models.zoo import NeuralODE, ResidualConv, cnn_of_size
from ...solve import SAM, Stop
from ..framework.experiments import Progress
from ..framework.images import augmented

ALPHAS = (0.1, 0.8, 1.0)
OPTEQ = {f"OptEq α={a:g}": a for a in ALPHAS}
SAM_SUFFIX = " + SAM"
MONOTONE = "monotone DEQ"
AUGMENTED = {"neural ODE": 0, "augmented neural ODE": 8}  # channels of zeros that are appended
STEPS = 20  # K of SAM
STOP = Stop(rtol=1e-3, max_steps=60)
RESIDUAL_STOP = Stop(rtol=1e-2, max_steps=12)  # forward and adjoint; what does not converge is accepted
ODE = {"method": "rk4", "steps": 2, "adjoint": False}
MARGIN = 1.0  # μ of the monotone DEQ


def build(words: str, inputs: tuple[int, ...], size: dict[str, Any], seed: int) -> nn.Module:
    """The network of that name; all have about the parameters of the OptEq."""
    generator = torch.Generator().manual_seed(seed)
    common = {"extractor": size["extractor"], "generator": generator}
    alpha = OPTEQ.get(words.removesuffix(SAM_SUFFIX))
    sam = {"solver": SAM(), "gradient": Unrolled(STEPS)} if words.endswith(SAM_SUFFIX) else {}
    opteq = lambda **how: ConvOptEq(
        inputs,
        size["state"],
        size["hidden"],
        features=size["features"],
        reach=3,
        stop=STOP,
        on_failure="accept",
        **common,
        **how,
    )
    if alpha is not None:
        return opteq(alpha=alpha, **sam)
    parameters = parameters_of(opteq())
    common["generator"] = generator.manual_seed(seed)
    features = size["features"]
    if words == "CNN":
        layers = len(size["hidden"]) + 1
        return cnn_of_size(parameters, layers, inputs, 10, features=features, **common)
    if words in AUGMENTED:
        how = {**ODE, "augment": AUGMENTED[words], "extractor": size["extractor"]}
        hidden = _nearest(
            parameters, range(4, 129, 2), lambda n: NeuralODE(inputs, features, n, device="meta", **how)
        )
        return NeuralODE(inputs, features, hidden, generator=common["generator"], **how)
    if words == MONOTONE:
        monotone = lambda channels, generator: ConvMonotone(
            inputs,
            channels,
            margin=MARGIN,
            reach=3,
            features=features,
            extractor=size["extractor"],
            stop=STOP,
            on_failure="accept",
            generator=generator,
        )
        channels = _nearest(parameters, range(4, 65), lambda n: monotone(n, torch.Generator()))
        return monotone(channels, common["generator"])
    channels = _nearest(
        parameters,
        range(4, 257, 4),
        lambda n: ResidualConv(inputs, n, groups=4, extractor=size["extractor"], device="meta"),
    )
    model = ResidualConv(inputs, channels, groups=4, stop=RESIDUAL_STOP, on_failure="accept", **common)
    return model.repeated(6) if words == "repeat-6" else model


def _nearest(parameters: int, choices: range, make: Callable[[int], nn.Module]) -> int:
    """The choice that gives a network of about that many parameters."""
    return min(choices, key=lambda n: abs(parameters_of(make(n)) - parameters))


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    rate: float,
    seed: int,
    batch: int = 100,
    share: float = 1.0,
    augment: bool = False,
    progress: Progress = lambda share: None,
) -> list[float]:
    """Adam, one cycle of the learning rate; the layers of an OptEq are projected. Mean losses of the epochs.

    `share` is that of the rate with which W learns, of an OptEq or a monotone DEQ; `augment` mirrors half of
    the images and shifts a batch by up to 3 pixels.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = parameter_groups(model, rate, share)
    optimiser = torch.optim.Adam(groups)
    steps, rates = epochs * (len(x) // batch), [g["lr"] for g in groups]
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rates, total_steps=steps, pct_start=0.2)
    if isinstance(model, ConvOptEq):
        model.keep_projected(optimiser, every=4)
    losses = []
    for epoch in range(epochs):
        order, total = torch.randperm(len(x), generator=generator), 0.0
        for rows in order[: len(x) // batch * batch].split(batch):
            pixels = augmented(x[rows], generator) if augment else x[rows]
            loss = F.cross_entropy(model(pixels), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            cycle.step()
            total += loss.item() * batch / len(x)
        losses.append(total)
        progress((epoch + 1) / epochs)
    if isinstance(model, ConvOptEq):
        model.project_()
    return losses


def parameter_groups(model: nn.Module, rate: float, share: float) -> list[dict[str, Any]]:
    """All parameters at `rate`, but the kernels that make W at `share` of it: of an OptEq they are bounded,
    and those of a monotone DEQ must not outgrow its margin."""
    inner = [layer.W for layer in model.layers] if isinstance(model, ConvOptEq) else []
    inner = [model.A, model.B] if isinstance(model, ConvMonotone) else inner
    free = [p for p in model.parameters() if not any(p is w for w in inner)]
    slow = [p for p in model.parameters() if any(p is w for w in inner)]
    return [{"params": free, "lr": rate}, *([{"params": slow, "lr": share * rate}] if slow else [])]
