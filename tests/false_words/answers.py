"""What is said of predictions: verified sets of inputs, and sets and intervals that cover the truth."""

from __future__ import annotations

import math

import numpy as np
import torch

import equipoise as eq
from equipoise.tasks.conformal import Conformal, jackknife_plus
from references import equilibria, parts, readout, wide

from .draw import Draw, Word
from .families import family


def verified(draw: Draw) -> Word:
    """verify_predictions: no input of a proved set is answered otherwise, and a counterexample is one."""
    dtype = draw.choice((torch.float64, torch.float32))
    model = family(draw, dtype, draw.choice((1, 2, 3)))
    size = draw.choice((1.0, 1.0, 1e-6, 1e6))
    X = (size * draw.normal(2, model.inputs)).to(dtype)
    epsilon, norm = size * 10.0 ** draw.uniform(-3, 0.5), draw.choice(("linf", "l2"))
    now = _shown(model, wide(X))
    wrong = draw.chance(0.2)
    y = torch.from_numpy(
        -now if model.outputs == 1 and wrong else (now + wrong) % model.outputs if model.outputs > 1 else now
    )
    try:
        found = eq.verify_predictions(model, X, y, epsilon=epsilon, norm=norm, nodes=20, attack=(3, 1))
    except ValueError:
        return Word(False)
    what = f"{type(model).__name__} {dtype}, ε {epsilon} in {norm}"
    proved = found.proved.numpy()
    if proved[now != y.numpy()].any():
        return Word(True, f"{what}: proved of rows that are answered otherwise")
    for i in range(4):
        way = draw.normal(*X.shape)
        way = way.sign() if i % 2 else way
        length = way.norm(dim=1, keepdim=True) if norm == "l2" else way.abs().amax(dim=1, keepdim=True)
        at = _shown(model, wide(X.double() + (1 - 1e-12) * epsilon * way / length))
        if (at != y.numpy())[proved].any():
            return Word(True, f"{what}: proved {y.tolist()}, but {at.tolist()} is answered")
    rows = found.refuted.numpy()
    if rows.any():
        C = found.counterexample[found.refuted]
        away = (C - X.double()[found.refuted]).norm(dim=1, p=2 if norm == "l2" else math.inf)
        if bool((away > epsilon * (1 + 1e-12)).any()):
            return Word(True, f"{what}: a counterexample is {away.tolist()} away")
        margin = _margin(model, wide(C), y.numpy()[rows])
        if (margin > 0).any():
            return Word(True, f"{what}: a counterexample is answered as it should be, by {margin}")
    return Word(bool(proved.any() or rows.any()))


def _scores(model, X: np.ndarray) -> np.ndarray:
    return readout(
        model, equilibria(*parts(model, torch.from_numpy(X.astype(np.float64))), model.activation.name)
    )


def _shown(model, X: np.ndarray) -> np.ndarray:
    scores = _scores(model, X)
    return scores.argmax(axis=1) if model.outputs > 1 else np.where(scores[:, 0] < 0, -1, 1)


def _margin(model, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far the answer that is wanted is ahead, in long double."""
    scores = _scores(model, X)
    if model.outputs == 1:
        return y * scores[:, 0]
    others = np.where(np.arange(model.outputs) == y[:, None], -np.inf, scores).max(axis=1)
    return scores[np.arange(len(y)), y] - others


def conformal(draw: Draw) -> Word:
    """Of n + 1 rows, each left out in turn, as many are covered as was promised: a count, and no chance."""
    n, coverage = draw.random.randint(2, 12), draw.choice((0.5, 0.8, 0.9, draw.uniform(0.05, 0.98)))
    size = 2.0 ** draw.uniform(-900, 900) if draw.chance(0.3) else 1.0
    what, covered = draw.choice(("classes", "numbers", "jackknife+")), 0
    ties = draw.chance(0.4)
    if what == "classes":
        classes = draw.random.randint(2, 4)
        P = torch.softmax(draw.choice((1.0, 30.0)) * draw.normal(n, classes), dim=1).numpy()
        P = np.round(P, 1) if ties else P
        y = np.array([draw.random.randrange(classes) for _ in range(n)])
    else:
        y = size * draw.normal(n).numpy()
        P = size * (np.round(draw.normal(n).numpy()) if ties else draw.normal(n).numpy())
        y = size * np.round(y / size) if ties else y
        Z = draw.choice((1.0, 1e-3, 1e3)) * draw.normal(n, draw.random.randint(1, 4)).numpy()
        ridge = 10.0 ** draw.uniform(-3, 2)
    for i in range(n):
        rest = np.arange(n) != i
        try:
            if what == "classes":
                covered += bool(Conformal.of_classes(P[rest], y[rest]).sets(P[[i]], coverage)[0, y[i]])
                continue
            if what == "numbers":
                low, high = Conformal.of_numbers(P[rest], y[rest]).intervals(P[[i]], coverage)[0]
            else:
                low, high = jackknife_plus(Z[rest], y[rest], Z[[i]], ridge=ridge, coverage=coverage)[0]
        except ValueError:
            return Word(False)
        covered += bool(low <= y[i] <= high)
    promised = coverage if what != "jackknife+" else 2 * coverage - 1
    if covered < promised * n - 1e-9:
        return Word(True, f"{what}: {covered} of {n} are covered, {promised} was promised")
    return Word(True)
