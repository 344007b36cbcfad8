"""What can be seen in a fitted network: scores, errors, spectra, equilibria in a plane; bounded in size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import strict
from ..kernels import tangent_kernel
from ..plots.plane import principal_plane
from ..tasks.arrays import as_labels, evenly, rows_at
from ..tasks.baselines import baselines, frozen
from ..tasks.calibration import calibration
from ..tasks.covered import covered
from ..tasks.fitted import Fitted
from ..tasks.importance import importance
from ..tasks.scores import score

Data = tuple[Any, Any]

KERNEL_ROWS, KERNEL_SIZE = 300, 1200  # rows, and rows × outputs, of the tangent kernel
PLANE_ROWS = 500
TYPICAL = 0.95  # share of those rows, the nearest to their median, that the plane is laid through
RESIDUAL_ROWS = 500
VALUES = 300  # the most values of a spectrum that are kept
MOST_CLASSES = 50  # the most classes of a confusion matrix


def findings(
    fitted: Fitted,
    train: Data,
    test: Data | None = None,
    image_shape: Sequence[int] | None = None,
    weights: Any = None,
) -> dict[str, Any]:
    """Scores on both parts, which inputs matter, and what the training rows show of the network.

    What cannot be computed (a network without equilibria, weights that are not finite) is left out, and
    `missing` says why.
    """
    classes = fitted.preparation.classes
    found: dict[str, Any] = {
        "kind": "regression" if classes is None else "classification",
        "model": _about(fitted),
        "missing": {},
    }

    def attempt(name: str, compute: Callable[[], Any]) -> Any:
        try:
            found[name] = compute()
        except (ValueError, ArithmeticError, RuntimeError) as error:
            found["missing"][name] = str(error)
        return found.get(name)

    parts = {"training": train} | ({"test": test} if test is not None else {})
    if classes is not None:
        parts = {name: (X, as_labels(y)) for name, (X, y) in parts.items()}
    said: dict[str, Tensor] = {}
    if attempt("scores", lambda: _scores(fitted, parts, said)) is not None:
        last = list(parts)[-1]
        compared = parts["training"], parts[last]
        attempt(
            "baselines",
            lambda: baselines(fitted.preparation, *compared) | frozen(fitted, *compared, weights),
        )
        if classes is None:
            attempt("residuals", lambda: {n: _residuals(fitted, said[n], y) for n, (_, y) in parts.items()})
        else:
            attempt(
                "calibration",
                lambda: {"part": last, **_calibration(fitted, said[last], parts[last][1], classes)},
            )
            if len(classes) <= MOST_CLASSES:
                attempt(
                    "confusion",
                    lambda: {"part": last, **_confusion(fitted, said[last], parts[last][1], classes)},
                )
        if fitted.conformal is not None and test is not None:
            attempt("coverage", lambda: covered(fitted, said["test"], parts["test"][1]))
        if (moved := fitted.perturbation) is not None and test is not None:
            attempt("robust", lambda: moved.proved(fitted, *parts["test"]))
        attempt("importance", lambda: {"part": last, **importance(fitted, *parts[last], image_shape)})
    attempt("plane", lambda: _plane(fitted, *parts["training"], classes))
    attempt("kernel", lambda: _kernel(fitted, train[0]))
    attempt("weights", lambda: _weights(fitted.model))
    attempt("contraction", lambda: _contraction(fitted.model))
    return strict(found)


def headline(fitted: Fitted, found: dict[str, Any]) -> dict[str, Any]:
    """The numbers that a list of runs shows."""
    scores = found.get("scores", {})
    last = scores.get("test") or scores.get("training") or {}
    certificate = fitted.certificate
    return {
        "model": fitted.recipe.model,
        "width": _width(fitted),
        "scores": scores,
        "baselines": found.get("baselines", {}),
        "coverage": found.get("coverage"),
        "robust": found.get("robust"),
        "score": last.get("accuracy", last.get("r2")),
        "score_name": "accuracy" if "accuracy" in last else "r2",
        "theorem": certificate.theorem if certificate else None,
        "verdict": certificate.verdict if certificate else None,
        "wellposed": fitted.wellposed.verdict,
        "steps": fitted.history.steps,
        "loss": float(_of_predictions(fitted)[-1]),
        "seconds": fitted.history.seconds,
    }


def _of_predictions(fitted: Fitted) -> np.ndarray:
    """The losses of the predictions, without the penalty that slack adds in a safeguarded run."""
    plain = fitted.history.plain_loss
    return fitted.history.loss if plain is None else plain


def _about(fitted: Fitted) -> dict[str, Any]:
    model, preparation = fitted.model, fitted.preparation
    return {
        "family": type(model).__name__,
        "inputs": preparation.inputs,
        "width": _width(fitted),
        "outputs": preparation.outputs,
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(preparation.dtype).removeprefix("torch."),
    }


def _width(fitted: Fitted) -> Any:
    """Units or channels; the number of inputs for a family that takes no width."""
    return fitted.recipe.width or fitted.preparation.inputs


# -- scores and errors ---------------------------------------------------------------------------------------


def _scores(fitted: Fitted, parts: dict[str, Data], said: dict[str, Tensor]) -> dict[str, Any]:
    """The scores of each part; `said` keeps the network's outputs, so that it answers every row once."""
    said |= {name: fitted.decide(X) for name, (X, _) in parts.items()}
    answers, labels = fitted.preparation.answers, fitted.preparation.classes is not None
    return {n: {"rows": len(y), **score(answers(said[n]), y, labels)} for n, (_, y) in parts.items()}


def _calibration(fitted: Fitted, outputs: Tensor, y: Any, classes: Any) -> dict[str, Any]:
    return calibration(fitted.preparation.probabilities(outputs), _index(y, classes))


def _confusion(fitted: Fitted, outputs: Tensor, y: Any, classes: Any) -> dict[str, Any]:
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (_index(y, classes), _index(fitted.preparation.answers(outputs), classes)), 1)
    return {"names": [str(name) for name in classes.tolist()], "counts": counts.tolist()}


def _index(labels: Any, classes: Any) -> np.ndarray:
    """The places of labels among the classes, all of which must be known."""
    at = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    if len(unknown := np.flatnonzero(classes[at] != labels)):
        raise ValueError(f"row {unknown[0]} has the label {labels[unknown[0]]!r}, which was not trained on.")
    return at


def _residuals(fitted: Fitted, outputs: Tensor, y: Any) -> dict[str, Any]:
    """Values and predictions of the first target, at evenly spaced rows."""
    at = evenly(len(y), RESIDUAL_ROWS)
    said = fitted.preparation.answers(outputs[torch.from_numpy(at)]).reshape(len(at), -1)[:, 0]
    was = np.asarray(rows_at(y, at), dtype=float).reshape(len(at), -1)[:, 0]
    return {"target": was.tolist(), "predicted": said.tolist()}


# -- the network ---------------------------------------------------------------------------------------------


def _plane(fitted: Fitted, X: Any, y: Any, classes: Any) -> dict[str, Any]:
    at = evenly(len(y), PLANE_ROWS)
    with torch.no_grad():
        Z = fitted.model.equilibrium(fitted.preparation.apply(rows_at(X, at)))
    points, shares, frame = _view(Z.flatten(1).double().cpu().numpy())
    found: dict[str, Any] = {
        "points": np.round(points, 6).tolist(),
        "shares": shares.tolist(),
        "frame": frame,
    }
    was = np.asarray(rows_at(y, at))
    if classes is None:
        return found | {"targets": was.astype(float).reshape(len(at), -1)[:, 0].tolist()}
    names = [str(name) for name in classes.tolist()]
    return found | {"labels": _index(was, classes).tolist(), "names": names}


def _view(Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[list[float]]]:
    """The principal plane of the typical rows, all points in it, and a frame around the typical ones.

    Otherwise a few rows far from all others would choose the directions, and squeeze the rest into a corner.
    """
    distance = np.linalg.norm(Z - np.median(Z, axis=0), axis=1)
    typical = distance <= np.quantile(distance, TYPICAL)
    points, shares = principal_plane(Z, typical)
    low, high = points[typical].min(axis=0), points[typical].max(axis=0)
    room = 0.05 * np.maximum(high - low, 1e-12 * (1 + np.abs(high)))
    return points, shares, np.stack([low - room, high + room], axis=1).tolist()


def _kernel(fitted: Fitted, X: Any) -> dict[str, Any]:
    model, outputs = fitted.model, fitted.preparation.outputs
    if not (model.structured or getattr(model, "kernel_formula", False)):
        raise ValueError(f"the tangent kernel of {type(model).__name__} has no formula that is known here.")
    at = evenly(len(X), min(KERNEL_ROWS, max(2, KERNEL_SIZE // outputs)))
    kernel = tangent_kernel(model, fitted.preparation.apply(rows_at(X, at)))
    total = kernel.eigenvalues().flip(0).double().cpu()
    size = max(float(total.sum()), 1e-300)
    # The shares of the trace by block say how much of what a step can do comes from which weights.
    traces = {name: float(_matrix(block).diagonal().sum()) / size for name, block in kernel.blocks.items()}
    return {"rows": len(at), "outputs": outputs, "spectrum": _spectrum(total), "shares": traces}


def _matrix(block: Tensor) -> Tensor:
    return block if block.ndim == 2 else block.reshape(block.shape[0] * block.shape[1], -1)


def _weights(model: Any) -> dict[str, Any]:
    """Singular values of the effective weight, where there is one, and of every other matrix."""
    known: dict[str, Tensor] = {"effective": model.weight()} if model.structured else {}
    matrices = dict(known)
    for name, p in model.named_parameters():
        if p.ndim == 2 and not any(torch.equal(p, W) for W in known.values()):
            matrices[name] = p
    return {name: _spectrum(torch.linalg.svdvals(M.detach().double().cpu())) for name, M in matrices.items()}


def _contraction(model: Any) -> float | None:
    q = model.contraction() if hasattr(model, "contraction") else None
    return None if q is None else float(q)


def _spectrum(values: Tensor) -> dict[str, Any]:
    """Largest first, with its rank (from 1) and how many there are; thinned to VALUES of them."""
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the spectrum is not finite.")
    at = evenly(len(values), VALUES)
    return {"size": len(values), "ranks": (at + 1).tolist(), "values": values[torch.from_numpy(at)].tolist()}
