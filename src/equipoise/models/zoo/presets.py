"""The two convolutional models of [xie2021, §5], as far as the paper tells them. The rest is a guess.

The paper gives five 3×3 kernels with channels 16-32-64-128-128 (199k parameters) or 16-32-64-64-128 (162k)
and, for the second, a single convolution as extractor. One reading that gives these numbers of parameters: a
state of 54 channels, U_l of size 1×1 on 16 features, one bias for each channel, means over a 4×4 grid and a
linear layer; three 3×3 convolutions as extractor (198,842) or one (162,010).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...checks import one_of
from ..proximal.conv_opteq import ConvOptEq

CHANNELS = {"199k": (16, 32, 64, 128, 128), "162k": (16, 32, 64, 64, 128)}
EXTRACTORS = {"199k": (1, 1, 1), "162k": (1,)}


def xie2021_guess(
    which: str = "199k", inputs: Sequence[int] = (3, 32, 32), outputs: int = 10, **options: Any
) -> ConvOptEq:
    """A guess at the paper's model with 199k or 162k parameters; `options` are those of `ConvOptEq`.

    `extractor=(2, 1, 1)` keeps the number of parameters and makes the state half as high and wide.
    """
    one_of("which", which, CHANNELS)
    settings = {"features": 16, "extractor": EXTRACTORS[which], "normalise": False, **options}
    return ConvOptEq(inputs, 54, CHANNELS[which], outputs, **settings)
