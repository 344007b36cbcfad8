"""The units that networks of images share: those of the extractor before the core, and the head behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...linalg import Interval, frobenius, gamma
from ...models.altered import altered
from ...models.images.parts import ClassHead
from ...solve import RELU
from ..common import not_finite
from ..conv_robustness import ConvHead, refuse_unknown, solved_double
from ..register import has_own_facts
from .images import Chain, Conv, ImageNetwork, Places, Shape


@dataclass
class Blocks:
    """Blocks of units so far, and how they feed each other."""

    places: Places = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    offsets: list[Tensor] = field(default_factory=list)
    feed: int = 0

    def network(self, exact: Any, resolvent: float, reads: tuple[Chain, ...]) -> ImageNetwork:
        """The network of these blocks, with the head of a model, which reads the core as `reads` says."""
        head, empty = ConvHead(exact), torch.zeros(0, 0, dtype=torch.float64)
        A, rows, error = head.A.unflatten(1, exact.state), [], Interval(0.0)
        for read in reads:
            turned = read.transposed()
            rows.append(turned(A).flatten(1))
            lost = gamma(turned.terms) * frobenius(turned.absolute()(A.abs()))
            error = error + read.norm() * head.error + lost + 2.0**-1000
        before = rows[0].new_zeros(len(A), sum(map(len, self.offsets[: self.feed])))
        return ImageNetwork(
            weight=empty,
            weight_error=0.0,
            inputs=empty,
            offset=torch.cat(self.offsets),
            readout=torch.cat([before, *rows], dim=1),
            readout_error=error.hi,
            shift=head.v,
            resolvent=resolvent,
            places=self.places,
            shapes=tuple(self.shapes),
            image=tuple(exact.inputs),
            feed=self.feed,
            head=head,
            reads=reads,
        ).written_out()


def image_units(model: Any) -> tuple[Any, Blocks, int]:
    """The model in float64, the blocks of its extractor, and the number of the first one of the core."""
    refuse_unknown(model)
    exact = solved_double(model)
    why = altered(model, outside=()) or not_finite(exact, next(exact.parameters()).new_zeros(1))
    if not why and not has_own_facts(model):
        why = f"{type(model).__name__} may compute otherwise than the family that is known."
    if not why and not isinstance(exact.head, ClassHead):
        why = f"a class of the whole image is verified; {type(exact.head).__name__} gives one for each pixel."
    if getattr(exact, "activation", RELU) != RELU or getattr(exact, "regulariser", None) is not None:
        why = why or "predictions are verified with relu alone, and without a regulariser."
    if why:
        raise ValueError(f"nothing can be verified of this model: {why}")
    blocks, size = Blocks(), exact.inputs[1:]
    for layer in exact.extractor:
        if not isinstance(layer, nn.Conv2d):
            continue
        if layer.dilation != (1, 1) or layer.groups != 1 or len({*layer.stride}) + len({*layer.padding}) > 2:
            raise ValueError(f"predictions are verified with plain square convolutions. Got {layer} instead.")
        stride, padding = layer.stride[0], int(layer.padding[0])
        conv = Conv(layer.weight, size, stride, padding)
        blocks.places[blocks.feed, blocks.feed - 1] = (Chain((conv,)),)
        size = conv(layer.weight.new_zeros(1, layer.in_channels, *size)).shape[2:]
        blocks.shapes.append((layer.out_channels, *size))
        b = layer.weight.new_zeros(layer.out_channels) if layer.bias is None else layer.bias
        blocks.offsets.append(b.repeat_interleave(size[0] * size[1]))
        blocks.feed += 1
    return exact, blocks, blocks.feed
