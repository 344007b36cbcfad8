"""‖z(x) − z(x')‖ ≤ Lip(g) s/(1 − q) ‖x − x'‖: how the equilibria of a ConvOptEq follow their images.

‖W_l‖ and ‖U_l‖ are those of convolutions, on images of the state's size. With g_l = 1 − α + α‖W_l‖², T
contracts by q = ∏ g_l in z; when g(x) moves by one it moves by at most s = Σ_l α‖W_l‖‖U_l‖ ∏_{j>l} g_j.
Lip(g) is at most the product of the norms of its convolutions. Outputs follow the state as their head does:

| head | ŷ moves by at most |
| --- | --- |
| means, then linear | ‖A‖ times as far as z, A = V·means |
| means, normalised, then linear | ‖V‖‖means‖/√ε times as far as z |
| of pixels | ‖V‖‖resize‖ times as far as z |

With h_l = σ(W_l⋆z_{l−1} + U_l⋆g(x) + b_l) the layers give z = Σ_l share_l W_lᵀ⋆h_l, share_l proportional to
(1 − α)^{L−l} with the sum one: A z moves by at most Σ_l share_l ‖A W_lᵀ‖ times as far as h_l.
Normalised means are c/s, c the centred ones and s = √(‖c‖²/n + ε). ŷ_p > ŷ_q where s(ŷ_p − ŷ_q) > 0, and
sŷ = Vc + sv follows z as Vc does, linearly, and as s does, by ‖means‖/√n: classes are decided without 1/√ε.
Distances between images are Euclidean, over all channels and pixels.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..differentiate import Method
from ..linalg import Interval, conv_norm_upper, frobenius, gamma, norm_upper, row_norms_upper
from ..models.altered import altered, double
from ..models.images.parts import ClassHead, Extractor, PixelHead
from ..models.proximal import ConvOptEq
from ..models.proximal.conv_opteq import ConvLayer
from ..models.proximal.pieces import pace
from ..models.proximal.properties import Proximal
from ..solve import Stop
from .common import not_finite
from .conv_wellposed import images_wellposed
from .lipschitz import Part, RowScores
from .register import has_own_facts, is_about

EPSILON = 1e-5  # ε of F.layer_norm
_UP = 1 + 2.0**-30  # more than the roundings of a sum
_ULPS = 16  # of an activation or a property, as computed
AT_ONCE = 256  # images that are solved for together
_KNOWN: dict[tuple[str, bool], tuple[type[nn.Module], ...]] = {  # (part, whether inside it): known classes
    ("extractor", False): (Extractor, nn.Sequential),
    ("extractor", True): (nn.Conv2d, nn.ReLU),
    ("layers", False): (nn.ModuleList,),
    ("layers", True): (ConvLayer,),
    ("head", False): (ClassHead, PixelHead),
    ("head", True): (nn.Linear, nn.Conv2d),
}


class ConvNetwork:
    """The kernels of a ConvOptEq in float64, as the bounds of `robustness` need them."""

    def __init__(self, model: ConvOptEq) -> None:
        refuse_unknown(model)
        self.model = solved_double(model)
        self.obstacle = _obstacle(model, self.model)
        if not self.obstacle:
            proved = images_wellposed(self.model)
            self.norms, self.q = [Interval(n) for n in proved.norms], Interval(proved.contraction)
            if not self.q.certainly_lt(1):
                self.obstacle = f"uniqueness of the equilibrium is not proved: {proved.explain()}"
        self.head = ConvHead(self.model)
        self.a: Tensor = self.head.V.T  # (·, k)

    # -- how far equilibria move -------------------------------------------------------------------------

    @cached_property
    def state(self) -> Interval:
        """≥ the Lipschitz constant of x ↦ z(x)."""
        moved, alpha = Interval(0.0), Interval(self.model.alpha)
        for size, injection in zip(self.norms, self.injection_norms, strict=True):
            moved = (1 - alpha + alpha * size**2) * moved + alpha * size * injection
        return moved / (1 - self.q) * self.features_bound

    def outputs(self) -> list[Part]:
        """The linear maps whose sum is ŷ without its biases."""
        if self.head.linear:
            return self.undivided()
        return [(self.head.V, Interval(0.0), self.state * self.head.factor)]

    def undivided(self) -> list[Part]:
        """The linear maps whose sum is A z, the linear part of ŷ or of sŷ: Σ_l share_l A W_lᵀ⋆h_l."""
        model, head, alpha = self.model, self.head, Interval(self.model.alpha)
        if model.regulariser is not None:
            return [(head.A, head.error, self.state)]
        images, moved, parts = head.A.unflatten(1, model.state), self.state, []
        behind, whole = len(self.norms), 1 - (1 - alpha) ** len(self.norms)
        for layer, size, injection in zip(model.layers, self.norms, self.injection_norms, strict=True):
            inner = size * moved + injection * self.features_bound  # ≥ the Lipschitz constant of x ↦ h_l
            moved, behind = (1 - alpha) * moved + alpha * size * inner, behind - 1
            share = alpha * (1 - alpha) ** behind / whole
            if share.hi > 0:
                rows = F.conv2d(images, layer.W, stride=layer.stride, padding=layer.padding)
                error = size * head.error + conv_rounding(layer.W, images)
                parts.append((rows.flatten(1), error, share * inner))
        return parts

    @cached_property
    def injection_norms(self) -> list[Interval]:
        """‖U_l‖."""
        return [
            Interval(conv_norm_upper(layer.U, layer.size, layer.stride, layer.reach // 2))
            for layer in self.model.layers
        ]

    @cached_property
    def features_bound(self) -> Interval:
        """≥ Lip(g)."""
        bound = Interval(1.0)
        for norm in self.extractor_norms:
            bound = bound * norm
        return bound

    @cached_property
    def extractor_norms(self) -> list[Interval]:
        """≥ the norms of the convolutions of g."""
        return extractor_norms(self.model)

    # -- what is computed, with its error ----------------------------------------------------------------

    def checked(self, X: Tensor) -> Tensor:
        """X in float64: images of the size that the model was built for."""
        if isinstance(X, Tensor) and not X.is_complex():
            X = X.detach().to(self.a)
        X = self.model._check_images(X)
        if not len(X):
            raise ValueError("X must have at least one image: a bound is about data. Got none.")
        return X

    @torch.no_grad()
    def scores(self, X: Tensor) -> RowScores:
        """sŷ (N, k) for a checked X, where s normalises the means that a row is read from, or is 1."""
        found = []
        for images in X.split(AT_ONCE):
            Z = self.model.solve(images, stop=tightest(self.model)).value
            assert isinstance(Z, Tensor)
            Z = torch.where(torch.isfinite(Z), Z, 0.0)
            found.append(self.head.scores(Z, Interval(self.error(images, Z))))
        values, errors, scales, excess = zip(*found, strict=True)
        return RowScores(torch.cat(values), max(errors), torch.cat(scales), max(excess))

    @torch.no_grad()
    def error(self, X: Tensor, Z: Tensor, given: tuple[Tensor, Interval] | None = None) -> float:
        """≥ ‖Z − Z*‖_F: ‖Z − T(Z)‖_F/(1 − q), with the rounding of g and of each layer of T added.

        `given` is what `extracted` says of X, if that is known.
        """
        model, alpha = self.model, Interval(self.model.alpha)
        g, g_off = extracted(self.model, self.extractor_norms, X) if given is None else given
        z, off = Z, Interval(0.0)  # T so far as computed, and ≥ its distance to the exact one
        for layer, size, injection in zip(model.layers, self.norms, self.injection_norms, strict=True):
            placed: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding}
            c = F.conv2d(g, layer.U, stride=layer.stride, padding=layer.reach // 2) + layer.b[:, None, None]
            pre = F.conv2d(z, layer.W, **placed) + c
            h = model.activation(pre)
            target = F.conv_transpose2d(h, layer.W, output_padding=layer.lost, **placed)
            new = target if model.alpha == 1 else z + model.alpha * (target - z)
            at_pre = (
                injection * g_off
                + conv_rounding(layer.U, g)
                + conv_rounding(layer.W, z)
                + gamma(4) * (frobenius(c) + frobenius(pre))
            )
            at_h = at_pre + gamma(_ULPS) * frobenius(h)
            at_new = alpha * (size * at_h + conv_rounding(layer.W, h))
            if model.alpha < 1:
                at_new += gamma(8) * (alpha * (frobenius(target) + frobenius(z)) + frobenius(new))
            off, z = (1 - alpha + alpha * size**2) * off + at_new, new
        if model.regulariser is not None:
            before, z = z, model.regulariser(z.flatten(1)).reshape(z.shape)
            terms = Z[0].numel() * (1 if isinstance(model.regulariser, Proximal) else 4)
            sizes = frobenius(before) + frobenius(z) + frobenius(Z)  # a step before − γ∇R may cancel
            off = off + gamma(_ULPS) * sizes * (1 + terms)
        residual = frobenius(Z - z) * (1 + gamma(2)) + off
        return (residual / (1 - self.q)).hi


def extractor_norms(model: Any) -> list[Interval]:
    """≥ the norms of the convolutions of g, each on images of the size that reaches it."""
    x, norms = next(model.parameters()).new_zeros(1, *model.inputs), []
    for layer in model.extractor:
        if isinstance(layer, nn.Conv2d):
            given = layer.padding if isinstance(layer.padding, tuple) else None
            geometry = (layer.stride, given, layer.dilation, layer.groups)
            norms.append(Interval(conv_norm_upper(layer.weight, tuple(x.shape[2:]), *geometry)))  # type: ignore[arg-type]
        x = layer(x)
    return norms


def extracted(model: Any, norms: list[Interval], X: Tensor) -> tuple[Tensor, Interval]:
    """g(X) as computed, and ≥ its distance to the exact one."""
    g, off, sizes = X, Interval(0.0), iter(norms)
    for layer in model.extractor:
        if isinstance(layer, nn.Conv2d):
            off = next(sizes) * off + conv_rounding(layer.weight, g)
            g = layer._conv_forward(g, layer.weight, None)
            if layer.bias is not None:
                g = g + layer.bias[:, None, None]
            off += gamma(2) * frobenius(g)
        else:
            g = torch.relu(g)
    return g, off


class ConvHead:
    """ŷ = V r(z) + v with r(z) = means of z, normalised or not; or V⋆z + v, resized."""

    def __init__(self, model: Any) -> None:
        head, (h, w) = model.head, model.state[1:]
        self.factor = Interval(1.0)  # ≥ the Lipschitz constant of r, or of resizing
        self.linear, self.normalised = False, False
        if isinstance(head, PixelHead):
            self.V = head.conv.weight.flatten(1)  # (k, channels)
            for before, after in zip((h, w), head.image, strict=True):
                self.factor = self.factor * _resize_norm(before, after)
            return
        self.normalised, self.linear = head.normalise, not head.normalise
        self.V, v = head.linear.weight, head.linear.bias  # (k, n), (k,)
        self.v = self.V.new_zeros(len(self.V)) if v is None else v
        self.rows, self.columns = (_means(s, g).to(self.V) for s, g in zip((h, w), head.grid, strict=True))
        self.means = _means_norm(self.rows) * _means_norm(self.columns)
        n = self.V.shape[1]
        if self.normalised:
            self.factor = self.means / Interval(EPSILON).sqrt()
            self.slope = self.means / Interval(n).sqrt()  # ≥ the Lipschitz constant of z ↦ s
        centred = self.V - self.V.mean(dim=1, keepdim=True) if self.normalised else self.V
        places = centred.unflatten(1, (-1, *head.grid))  # (k, channels, pool, pool)
        self.A = (self.rows.T @ places @ self.columns).flatten(1)  # (k, m)
        # 2⁻¹⁰⁰⁰ is beyond all that products lose where they are subnormal.
        self.error = (gamma(n + sum(head.grid) + 8) * frobenius(self.V)) * self.means + 2.0**-1000

    def scores(self, Z: Tensor, error: Interval) -> RowScores:
        """As `ConvNetwork.scores`, from a Z that is within `error` of the equilibria."""
        s, s_off = self.divisor(Z, error) if self.normalised else (Z.new_ones(len(Z)), Interval(0.0))
        y = Z.flatten(1) @ self.A.T + s[:, None] * self.v
        size, weight = _largest(Z.flatten(1)), _largest(self.A) + self.error
        one = weight * error + self.error * size + gamma(self.A.shape[1] + 4) * size * weight
        one += Interval(float(self.v.abs().amax())) * (s_off + gamma(4) * Interval(float(s.amax())))
        one += gamma(4) * Interval(float(y.abs().amax()))
        total = (2 * one + 2.0**-1000).hi
        if not self.normalised:
            return RowScores(y, total, s)
        scale, least = (s + s_off.hi) * _UP, float((s - s_off.hi).amin())
        excess = float((scale / (s - s_off.hi)).amax()) * _UP - 1 if least > 0 else math.inf
        return RowScores(y, total, scale, excess)

    def divisor(self, Z: Tensor, error: Interval) -> tuple[Tensor, Interval]:
        """s = √(‖c‖²/n + ε) of every row, (N,), and ≥ its error."""
        M = (self.rows @ Z @ self.columns.T).flatten(1)  # (N, n)
        c, n = M - M.mean(dim=1, keepdim=True), M.shape[1]
        s = (c.square().mean(dim=1) + EPSILON).sqrt()
        off = self.means * gamma(sum(Z.shape[2:]) + 8) * _largest(Z.flatten(1))
        off += gamma(n + 8) * (_largest(M) + _largest(c))
        return s, self.slope * error + off / Interval(n).sqrt() + gamma(n + 8) * Interval(float(s.amax()))


# -- rounding, and linear maps of one side of an image -------------------------------------------------------


def conv_rounding(K: Tensor, x: Tensor) -> Interval:
    """≥ ‖fl(K⋆x) − K⋆x‖_F, underflow included; of the transposed convolution too.

    A pixel meets at most kh·kw taps, so that all patches of x together have a norm ≤ √(kh·kw)‖x‖_F.
    """
    outputs, inputs, taps = K.shape[0], K.shape[1], K.shape[2] * K.shape[3]
    terms = max(outputs, inputs) * taps
    entries = len(x) * max(outputs, inputs) * (x.shape[2] + K.shape[2]) * (x.shape[3] + K.shape[3]) * taps
    size = frobenius(K) * frobenius(x) * Interval(taps).sqrt()
    return gamma(terms + 2) * size + Interval(0.0, entries * (terms + 2) * 2.0**-1074)


def _largest(rows: Tensor) -> Interval:
    """≥ the largest norm of a row."""
    return Interval(row_norms_upper(rows).amax().item())


def _means(size: int, grid: int) -> Tensor:
    """(grid, size): the means of `adaptive_avg_pool`, each entry rounded once."""
    return F.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float64)[None], grid)[0].T


def _means_norm(P: Tensor) -> Interval:
    return Interval(norm_upper(P)) + gamma(2) * frobenius(P)


def _resize_norm(before: int, after: int) -> Interval:
    """≥ the norm of linear interpolation from `before` to `after` pixels."""
    if before == after:
        return Interval(1.0)
    R = F.interpolate(torch.eye(before, dtype=torch.float64)[None], after, mode="linear", align_corners=False)
    return Interval(norm_upper(R[0])) + gamma(16 * (before + after)) * Interval(4 * after).sqrt()


# -- what is known -------------------------------------------------------------------------------------------


def solved_double(model: Any) -> Any:
    """The model in float64, exactly as stored; it returns equilibria, whatever the model itself returns."""
    device = next(model.parameters()).device
    home = torch.device("cpu") if device.type == "mps" else device
    exact = double(model, home)
    exact.method = Method()
    return exact


def tightest(model: ConvOptEq) -> Stop:
    """The tightest stop in float64. With a property T itself is solved, whose steps go part of the way."""
    part = 1.0 if model.regulariser is None else pace(model.alpha, len(model.layers))
    return Stop(rtol=max(1e-12, 2 * Stop.reach(torch.float64) / part), max_steps=2000)


def _obstacle(model: ConvOptEq, exact: ConvOptEq) -> str:
    """Why nothing can be said at all; empty if something can."""
    if not (has_own_facts(model) and is_about(model, "ConvOptEq")):
        return f"{type(model).__name__} may compute otherwise than the family that is known."
    if why := altered(model, outside=()):
        return why
    if exact.regulariser is not None and not exact.regulariser.nonexpansive:
        return f"{exact.regulariser} is not known to be nonexpansive: R is not convex, or the step too long."
    return not_finite(exact, exact.layers[0].W.new_zeros(1))


def refuse_unknown(model: nn.Module) -> None:
    """Raise a ValueError that names a part of which no bound is known: a norm, a padding but zeros."""
    for name, part in model.named_modules():
        place, _, inside = name.partition(".")
        what = ""
        if name and type(part) not in _KNOWN.get((place, bool(inside)), ()):
            what = type(part).__name__
        elif isinstance(part, nn.Conv2d) and part.padding_mode != "zeros":
            what = f"padding_mode={part.padding_mode!r}"
        elif name == "head.conv" and part.kernel_size != (1, 1):
            what = f"a kernel of size {part.kernel_size}"
        if what:
            raise ValueError(
                f"bounds of images know an extractor of convolutions padded with zeros and relu, bounded "
                f"layers, and means or pixels read linearly. Got {what} as {name or 'part of the model'} "
                f"instead: nothing is known of it."
            )
