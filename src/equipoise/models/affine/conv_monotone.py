"""z = relu(W⋆z + U⋆g(x) + b),  W = (1−μ)I − Aᵀ⋆A⋆ + B⋆ − Bᵀ⋆: the monotone network of [hieu2022] for images.

`A⋆` is a convolution with zeros around the image and `Aᵀ⋆` its transpose, so that, as for matrices,
sym(I − W) = μI + Aᵀ⋆A⋆ ⪰ μI: every image has one equilibrium, whatever the kernels are. Nothing is projected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...differentiate.method import Solvers
from ...solve import Anderson, Broyden, Stop
from ...solve.autocast import compute_dtype
from ..checks import all_counts, counts, odd, positive_finite
from ..images.model import ImageModel
from ..images.parts import Extractor, Image, Maker, added, convolved, head_for, transposed_kernel
from ..kept import Kept
from ..proximal.pieces import tightened

_POWER_STEPS = 10
_COARSEST = 1e-2  # the largest tolerance that is chosen by default


def _forward_backward(alpha: float, padding: int, z: Tensor, c: Tensor, A: Tensor, kernel: Tensor) -> Tensor:
    """relu(z − α(Mz − c)),  M = I − W = μI + Aᵀ⋆A⋆ − K⋆, with the kernel of (h, z) ↦ z − α(μz + Aᵀ⋆h − K⋆z).

    A single convolution of A⋆z stacked on z replaces two: in float32 the backward pass then takes half to
    nine tenths of the time.
    """
    both = torch.cat((convolved(z, A, padding=padding), z), dim=1)
    return torch.relu_(added(convolved(both, kernel, padding=padding), alpha * c))


class ConvMonotone(ImageModel):
    """z = relu(W⋆z + U⋆g(x) + b),  W = (1−μ)I − Aᵀ⋆A⋆ + B⋆ − Bᵀ⋆,  ŷ = head(z).    [hieu2022]

    ‖W‖ may exceed 1, and then plain iteration cycles. Forward-backward splitting is iterated instead,

        z ← relu(z − α((I − W)z − c)),  c = U⋆g(x) + b,  α = 1/(μ + ‖A‖² + ‖B − Bᵀ‖),

    which has the same equilibria. The number of steps grows with ‖B − Bᵀ‖/μ. If that is large, only solvers
    that need no contraction find the equilibria; unrolled and repeated steps may diverge. Equilibria do not
    depend on α, so estimates of the norms are good enough for it, and it is not differentiated.

    Args:
        inputs: (channels, height, width) of an image.
        channels, hidden: of z, and of A⋆z (`channels` by default).
        margin: μ > 0.
        kernel, reach: sizes of the kernels of A and B, and of U; odd.
        features, extractor: the channels and the strides of the 3×3 convolutions of g, as for `ConvOptEq`.
        norm: about ‖A‖ and ‖B − Bᵀ‖ at the start.
        task, pool, normalise: as for `ConvOptEq`.
        solver, gradient, stop, on_failure: as for `Equilibrium`. By default Anderson with a memory of 5, then
            Broyden on the images on which it failed. The default tolerance is larger if α is so small that
            the dtype cannot resolve more, in float32 from ‖A‖ of about 10 on.
    """

    settings = (
        *("inputs", "channels", "hidden", "outputs", "margin", "kernel", "reach", "features", "norm"),
        *(
            "pool",
            "normalise",
            "task",
        ),
    )
    described = (
        "z = relu(W⋆z + U⋆g(x) + b), W = (1−μ)I − Aᵀ⋆A⋆ + B⋆ − Bᵀ⋆; z {0.state}, margin={0.margin:g}, "
        "k={0.outputs}"
    )
    state: Image
    plainly_iterated = channels_last = True
    probe: Tensor  # (1, m, h, w), where the estimates of norms start

    def __init__(
        self,
        inputs: Sequence[int],
        channels: int = 16,
        hidden: int | None = None,
        outputs: int = 10,
        *,
        margin: float = 0.5,
        kernel: int = 3,
        reach: int = 1,
        features: int = 16,
        extractor: Sequence[int] = (1,),
        norm: float = 0.7,
        pool: int = 4,
        normalise: bool = True,
        task: str = "classification",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **how: Any,
    ) -> None:
        super().__init__(inputs, outputs, **how)
        hidden = channels if hidden is None else hidden
        channels, hidden, features, pool = counts(
            channels=channels, hidden=hidden, features=features, pool=pool
        )
        kernel, reach = odd(kernel=kernel, reach=reach)
        positive_finite(norm=norm)
        make = Maker(dtype, device, generator)
        self._kept = Kept()
        self.margin, self.norm, self.pool = margin, float(norm), pool
        self.normalise, self.task = normalise, task
        self.channels, self.hidden, self.kernel, self.reach = channels, hidden, kernel, reach
        self.extractor = Extractor(self.inputs, features, all_counts("extractor", extractor), make)
        self.state = (channels, *self.extractor.size)
        self.features = into = self.extractor.channels
        self.A = nn.Parameter(make.normal(hidden, channels, kernel, kernel, std=1.0))
        self.B = nn.Parameter(make.normal(channels, channels, kernel, kernel, std=1.0))
        self.U = nn.Parameter(make.normal(channels, into, reach, reach, std=(2 / (into * reach**2)) ** 0.5))
        self.b = nn.Parameter(make.zeros(channels))
        seeded = Maker(self.A.dtype, self.A.device, torch.Generator(self.A.device).manual_seed(0))
        self.register_buffer("probe", seeded.normal(1, *self.state, std=1.0), persistent=False)
        with torch.no_grad():
            a, k = self.norms()
            self.A.mul_(norm / a)
            self.B.mul_(norm / k if k else 1.0)  # B − Bᵀ = 0 for one channel of one pixel
        self.head = head_for(task, channels, self.extractor.size, self.inputs, outputs, pool, make, normalise)

    # -- the equation ------------------------------------------------------------------------------------

    @property
    def margin(self) -> float:
        """μ."""
        return self._margin

    @margin.setter
    def margin(self, margin: float) -> None:
        positive_finite(margin=margin)
        self._margin = float(margin)

    @property
    def cell(self) -> Callable[..., Tensor]:  # type: ignore[override]
        """relu(z − α((I − W)z − c)), a function of z, c and what `shared` gives."""
        return partial(_forward_backward, self.step_size(), self.A.shape[-1] // 2)

    def default_solver_chain(self) -> Solvers:
        """Anderson, then Broyden on the images on which it failed."""
        return (Anderson(memory=5), Broyden())

    def injection(self, x: Tensor) -> tuple[Tensor, ...]:
        """c = U⋆g(x) + b."""
        return (convolved(self.extractor(x), self.U, self.b, padding=self.U.shape[-1] // 2),)

    def shared(self) -> tuple[Tensor, ...]:
        """The kernel of A⋆, and that of (h, z) ↦ z − α(μz + Aᵀ⋆h − (B⋆ − Bᵀ⋆)z)."""
        alpha, middle = self.step_size(), self.kernel // 2
        stay = torch.zeros_like(self.B)
        stay[:, :, middle, middle].fill_diagonal_(1 - alpha * self.margin)
        moved = torch.cat((-transposed_kernel(self.A), self.skew()), dim=1)
        return (self.A, torch.cat((torch.zeros_like(self.A.transpose(0, 1)), stay), dim=1) + alpha * moved)

    def skew(self) -> Tensor:
        """The kernel of B⋆ − Bᵀ⋆, (m, m, k, k)."""
        return self.B - transposed_kernel(self.B)

    def weight(self, z: Tensor) -> Tensor:
        """W⋆z."""
        pad = self.A.shape[-1] // 2
        AAz = F.conv2d(F.conv2d(z, self.A, padding=pad), transposed_kernel(self.A), padding=pad)
        return (1 - self.margin) * z - AAz + F.conv2d(z, self.skew(), padding=pad)

    # -- its solution ------------------------------------------------------------------------------------

    @torch.no_grad()
    def norms(self) -> tuple[float, float]:
        """About ‖A‖ and ‖B − Bᵀ‖, from below, as maps of images of the state's size."""
        return self._kept.of((self.A, self.B, self.probe), self._norms)

    def _norms(self) -> tuple[float, float]:
        K = self.skew()
        return (
            _estimated_norm(self.A, transposed_kernel(self.A), self.probe),
            _estimated_norm(K, -K, self.probe),
        )

    def step_size(self) -> float:
        """α = 1/(μ + ‖A‖² + ‖B − Bᵀ‖): ‖α(I − W)‖ is about 1 at most."""
        a, k = self.norms()
        return 1 / (self.margin + a**2 + k)

    def cell_stop(self, stop: Stop) -> Stop:
        """`stop` times α, since a step of the splitting goes only that part of one of relu(W⋆z + c)."""
        alpha = min(1.0, self.step_size())
        if stop.rtol is None:
            reach = 1.01 * Stop.reach(compute_dtype(self.A)) / alpha
            usual = stop.resolve(compute_dtype(self.A)).rtol
            stop = replace(stop, rtol=reach) if usual is not None and usual < reach <= _COARSEST else stop
        return tightened(stop, alpha, alpha, self.A)

    def stepped_stop(self, stop: Stop) -> Stop:
        """The same, since unrolled steps are those of the splitting too."""
        return self.cell_stop(stop)


def _estimated_norm(kernel: Tensor, transposed: Tensor, v: Tensor) -> float:
    """‖K⋆‖ from below, by powers of Kᵀ⋆K⋆ on one image v."""
    pad, size = kernel.shape[-1] // 2, kernel.new_zeros(())
    for _ in range(_POWER_STEPS):
        v = v / v.norm().clamp_min(torch.finfo(v.dtype).tiny)
        Kv = F.conv2d(v, kernel, padding=pad)
        size, v = Kv.norm(), F.conv2d(Kv, transposed, padding=pad)
    return float(size)
