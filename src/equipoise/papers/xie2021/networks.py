"""The networks that [xie2021, Table 1] compares, of about one size, and how all of them are trained.

Every network has the same extractor, the same head, about as many parameters and the same training: Adam, one
cycle of the learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from ..framework.small import seeded, take_step

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
BATCH = 100


def build(words: str, inputs: tuple[int, ...], size: dict[str, Any], seed: int) -> nn.Module:
    """The network of that name; all have about the parameters of the OptEq."""
    generator = seeded(seed)
    features, extractor = size["features"], {"extractor": size["extractor"]}
    solved = {"stop": STOP, "on_failure": "accept", "reach": 3, "features": features, **extractor}
    opteq = lambda **how: ConvOptEq(
        inputs, size["state"], size["hidden"], generator=generator, **solved, **how
    )
    if words.removesuffix(SAM_SUFFIX) in OPTEQ:
        sam = {"solver": SAM(), "gradient": Unrolled(STEPS)} if words.endswith(SAM_SUFFIX) else {}
        return opteq(alpha=OPTEQ[words.removesuffix(SAM_SUFFIX)], **sam)
    parameters = parameters_of(opteq())
    generator.manual_seed(seed)
    if words == "CNN":
        common = {"features": features, "generator": generator, **extractor}
        return cnn_of_size(parameters, len(size["hidden"]) + 1, inputs, 10, **common)
    if words in AUGMENTED:
        how = {**ODE, "augment": AUGMENTED[words], **extractor}
        ode = lambda n: NeuralODE(inputs, features, n, device="meta", **how)
        hidden = _nearest(parameters, range(4, 129, 2), ode)
        return NeuralODE(inputs, features, hidden, generator=generator, **how)
    if words == MONOTONE:
        monotone = lambda n, own: ConvMonotone(inputs, n, margin=MARGIN, generator=own, **solved)
        channels = _nearest(parameters, range(4, 65), lambda n: monotone(n, torch.Generator()))
        return monotone(channels, generator)
    residual = lambda n: ResidualConv(inputs, n, groups=4, device="meta", **extractor)
    channels = _nearest(parameters, range(4, 257, 4), residual)
    accepted = {"stop": RESIDUAL_STOP, "on_failure": "accept", "generator": generator, **extractor}
    model = ResidualConv(inputs, channels, groups=4, **accepted)
    return model.repeated(6) if words == "repeat-6" else model


def _nearest(parameters: int, choices: range, make: Callable[[int], nn.Module]) -> int:
    """The choice that gives a network of about that many parameters."""
    return min(choices, key=lambda n: abs(parameters_of(make(n)) - parameters))


@dataclass(frozen=True)
class Training:
    """How a network is trained: Adam, one cycle of the learning rate, mini-batches of 100.

    The W of an OptEq or a monotone DEQ learns with `share` of the rate; `augment` mirrors half of the images
    and shifts a batch by up to 3 pixels.
    """

    epochs: int
    rate: float
    share: float = 1.0
    augment: bool = False


def fit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    how: Training,
    seed: int,
    progress: Progress = lambda share: None,
) -> list[float]:
    """Mean losses of the epochs; the layers of an OptEq are projected."""
    generator = seeded(seed)
    groups = parameter_groups(model, how.rate, how.share)
    optimiser = torch.optim.Adam(groups)
    steps, rates = how.epochs * (len(x) // BATCH), [g["lr"] for g in groups]
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, rates, total_steps=steps, pct_start=0.2)
    if isinstance(model, ConvOptEq):
        model.keep_projected(optimiser, every=4)
    losses = []
    for epoch in range(how.epochs):
        order, total = torch.randperm(len(x), generator=generator), 0.0
        for rows in order[: len(x) // BATCH * BATCH].split(BATCH):
            pixels = augmented(x[rows], generator) if how.augment else x[rows]
            loss = take_step(optimiser, cycle, F.cross_entropy(model(pixels), y[rows]))
            total += loss * BATCH / len(x)
        losses.append(total)
        progress((epoch + 1) / how.epochs)
    if isinstance(model, ConvOptEq):
        model.project_()
    return losses


def parameter_groups(model: nn.Module, rate: float, share: float) -> list[dict[str, Any]]:
    """All parameters learn at `rate`, but the kernels that make W at `share` of it: those of an OptEq are
    bounded, and those of a monotone DEQ must not outgrow its margin."""
    inner = [layer.W for layer in model.layers] if isinstance(model, ConvOptEq) else []
    inner = [model.A, model.B] if isinstance(model, ConvMonotone) else inner
    own = {id(p) for p in inner}
    free, slow = ([p for p in model.parameters() if (id(p) in own) is it] for it in (False, True))
    return [{"params": free, "lr": rate}, *([{"params": slow, "lr": share * rate}] if slow else [])]
