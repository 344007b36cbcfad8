"""Monotone networks that others trained, read from their checkpoints as a `Monotone`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .monotone import Monotone

# What a tensor is called in each layout: by itself, in the state dicts of monotone_op_net, in .mat files.
_NAMES = {
    "A": ("A", "A.weight"),
    "B": ("B", "B.weight"),
    "U": ("U", "U.weight"),
    "bias": ("bias", "U.bias", "u", "b"),
    "C": ("C", "Wout.weight"),
    "c": ("c", "Wout.bias"),
    "g": ("g",),
    "h": ("h",),
}
_NEEDED = ("A", "B", "U", "bias", "C", "c")
_POOL = 2  # of convolutional checkpoints


def load_mondeq(
    path: str | Path,
    *,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    margin: float | None = None,
    side: int = 28,
    dtype: torch.dtype = torch.float64,
) -> Monotone:
    """The network of a checkpoint as a `Monotone` that takes inputs before their normalisation.

    Args:
        path: safetensors or a .mat file with A, B, U, bias, C and c, or a state dict of monotone_op_net, of
            which only tensors are unpickled.
        mean, std: the inputs of the network were normalised as (x − mean)/std, with one number for all inputs
            or one for each. This becomes a part of U and the bias, so that the model takes pixels in [0, 1].
        margin: m of W = (1 − m)I − AᵀA + B − Bᵀ, if the file does not hold it.
        side: the side of the square images that a convolutional network takes.

    A convolutional checkpoint (kernels A, B, U and scales g and h) becomes a dense network on flat images:
    its convolutions are written out as circular matrices without the border units, and g ÃᵀÃ as RᵀR by a QR
    factorisation. All this rounds; certificates are about the model that is returned.
    """
    tensors, about = _read(Path(path))
    named = {name: _find(tensors, known) for name, known in _NAMES.items()}
    missing = [name for name in _NEEDED if named[name] is None]
    if missing:
        raise ValueError(
            f"{path} must hold A, B, U, bias, C and c, as monotone networks are stored. "
            f"{', '.join(missing)} not found among {', '.join(sorted(tensors)) or 'no tensors'}."
        )
    parts = {name: t.detach().double() for name, t in named.items() if t is not None}
    m = _margin(path, margin, about, tensors)
    if parts["A"].ndim == 4:
        parts = _written_out(path, parts, side)
    return _built(path, parts, m, mean, std, dtype)


def _built(
    path: str | Path,
    parts: dict[str, Tensor],
    margin: float,
    mean: float | Sequence[float],
    std: float | Sequence[float],
    dtype: torch.dtype,
) -> Monotone:
    A, U, C = parts["A"], parts["U"], parts["C"]
    n = len(A)
    if U.shape[0] != n and U.shape[-1] == n:  # stored for rows of samples
        U = U.T
    if C.shape[-1] != n and C.shape[0] == n:
        C = C.T
    wanted = {"A": (n, n), "B": (n, n), "U": (n, U.shape[-1]), "bias": (n,), "C": (len(C), n), "c": (len(C),)}
    parts = parts | {"U": U, "C": C, "bias": parts["bias"].flatten(), "c": parts["c"].flatten()}
    for name, shape in wanted.items():
        if tuple(parts[name].shape) != shape:
            raise ValueError(
                f"{name} in {path} must be {shape} beside A. Got shape {tuple(parts[name].shape)} instead."
            )
    d = U.shape[1]
    centre, scale = (_of_inputs(name, value, d) for name, value in (("mean", mean), ("std", std)))
    if not bool((scale > 0).all()):
        raise ValueError(f"std must be > 0. Got {float(scale.min()):g} instead.")
    model = Monotone(d, n, margin, len(C), bias=True, output_bias=True, dtype=dtype)
    values = {
        "A": A,
        "B": parts["B"],
        "U": U / scale,
        "u": C.T if len(C) > 1 else C[0],
        "bias": parts["bias"] - U @ (centre / scale),
        "c": parts["c"],
    }
    model.load_state_dict({name: value.to(dtype) for name, value in values.items()})
    return model


# -- reading -------------------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The tensors of a file by name, and what else it says."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if path.suffix == ".mat":
        return _read_mat(path), {}
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in list(file.keys())}, file.metadata() or {}
    except SafetensorError:
        pass
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the zip reader or the unpickler stumbles over
        raise ValueError(
            f"{path} must be safetensors, a .mat file or a state dict that torch.save wrote. {error}"
        ) from None
    for inside in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(inside), dict):
            found = found[inside]
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a state dict. Got {type(found).__name__} instead.")
    return {str(name): t for name, t in found.items() if isinstance(t, Tensor)}, {}


def _read_mat(path: Path) -> dict[str, Tensor]:
    from scipy.io import loadmat

    try:
        found = loadmat(path)
    except (NotImplementedError, ValueError, TypeError) as error:
        raise ValueError(
            f"{path} must be a .mat file up to version 7.2: save it with '-v7'. {error}"
        ) from None
    return {
        name: torch.from_numpy(value.astype("float64"))
        for name, value in found.items()
        if not name.startswith("__")
        and getattr(value, "dtype", None) is not None
        and value.dtype.kind in "fiu"
    }


def _find(tensors: Mapping[str, Tensor], known: Sequence[str]) -> Tensor | None:
    """The tensor under the first known name, or under the only longer name that ends in `.name`."""
    for name in known:
        if name in tensors:
            return tensors[name]
        longer = [t for full, t in tensors.items() if full.endswith(f".{name}")]
        if len(longer) == 1:
            return longer[0]
    return None


def _margin(
    path: str | Path, given: float | None, about: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> float:
    if given is not None:
        return float(given)
    for name in ("margin", "m"):
        if name in about:
            return float(about[name])
        if name in tensors and tensors[name].numel() == 1:
            return float(tensors[name])
    raise ValueError(f"{path} does not say the margin m of the network: give it, as margin=20.0.")


def _of_inputs(name: str, value: float | Sequence[float], d: int) -> Tensor:
    """One number for each of d inputs, from one for all of them, for each channel, or for each input."""
    v = torch.as_tensor(value, dtype=torch.float64).flatten()
    if not bool(torch.isfinite(v).all()):
        raise ValueError(f"{name} must be finite. Got {v.tolist()} instead.")
    if len(v) == 0 or d % len(v):
        raise ValueError(f"{name} must be one number, or one for each of {d} inputs. Got {len(v)} instead.")
    return v.repeat_interleave(d // len(v))


# -- convolutions as matrices --------------------------------------------------------------------------------


def _written_out(path: str | Path, parts: dict[str, Tensor], side: int) -> dict[str, Tensor]:
    """The dense A, B, U, bias and C of a convolutional network whose border units are 0."""
    kernels = {name: parts[name] for name in ("A", "B", "U")}
    into, channels, pad = kernels["U"].shape[1], len(kernels["U"]), kernels["A"].shape[-1] // 2
    pooled = parts["C"].shape[1] / channels
    reach = side + 2 * pad - kernels["U"].shape[-1]
    grids = {stride: reach // stride + 1 for stride in range(1, max(reach, 1) + 1)}
    fitting = [stride for stride, grid in grids.items() if (grid // _POOL) ** 2 == pooled]
    if not fitting or any(t.ndim != 4 for t in kernels.values()):
        raise ValueError(
            f"the convolutional network in {path} must take square images of side {side} and read its state "
            f"after average pooling by {_POOL}. Got kernels {[tuple(t.shape) for t in kernels.values()]} "
            f"and C {tuple(parts['C'].shape)} instead: give side=, or convert the network by hand."
        )
    stride = fitting[-1]
    grid = grids[stride]
    g, h = (float(parts.get(name, torch.ones(1))) for name in ("g", "h"))
    if g < 0:
        raise ValueError(f"g in {path} must be ≥ 0, as sym(I − W) = mI + g ÃᵀÃ needs. Got {g:g} instead.")
    inside = torch.zeros(channels, grid, grid, dtype=torch.bool)
    inside[:, pad : grid - pad, pad : grid - pad] = True
    units = inside.flatten()

    def circular(image: Tensor, kernel: Tensor, step: int = 1) -> Tensor:
        return F.conv2d(F.pad(image, (pad,) * 4, mode="circular"), kernel, stride=step)

    basis = torch.eye(units.numel(), dtype=torch.float64)[units].reshape(-1, channels, grid, grid)
    pixels = torch.eye(into * side * side, dtype=torch.float64).reshape(-1, into, side, side)
    A, B = (circular(basis, kernels[name] / kernels[name].norm()).flatten(1).T for name in ("A", "B"))
    return {
        "A": g**0.5 * torch.linalg.qr(A, mode="r").R,
        "B": h * B[units],
        "U": circular(pixels, kernels["U"], stride).flatten(1).T[units],
        "bias": parts["bias"].repeat_interleave(grid * grid)[units],
        "C": parts["C"] @ F.avg_pool2d(basis, _POOL).flatten(1).T,
        "c": parts["c"],
    }
