"""How well simpler models predict the same rows: one answer for all, a linear model, and the network with its
hidden layer untrained."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from ..recipe import Kind, Recipe
from ..theory.anchored import Anchor
from ..theory.certify import certify
from ..theory.register import facts
from ..theory.streams import parts
from .arrays import evenly, rows_at
from .fitted import Fitted, inputs, tensors
from .preparation import Preparation
from .raw import Rows
from .scores import score

_ROWS = 10_000  # the most rows, evenly spaced, that the linear model is fitted to


def baselines(preparation: Preparation, train: tuple[Any, Any], judged: tuple[Any, Any]) -> dict[str, float]:
    """{"constant", "linear"}: accuracy, or R², on the rows `judged` of what was fitted to the rows `train`.

    The constant answer is the most frequent class, or the mean; the linear model is logistic or ridge
    regression on the inputs as the network sees them.
    """
    X, y = train
    labels = preparation.classes is not None
    if labels:
        names, counts = np.unique(y, return_counts=True)
        constant = np.full(len(judged[1]), names[counts.argmax()])
    else:
        y = np.asarray(y, dtype=float)
        constant = np.broadcast_to(y.mean(axis=0), np.shape(judged[1]))
    at = evenly(len(y), _ROWS)
    linear: Any = LogisticRegression(max_iter=200) if labels else Ridge()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # near its optimum it scores as well
        linear.fit(preparation.apply(rows_at(X, at)).flatten(1).numpy(), np.asarray(y)[at])
    pieces = parts(inputs(preparation, judged[0]))
    linear_said = [linear.predict(piece.flatten(1).numpy()) for piece in pieces]
    said = {"constant": constant, "linear": np.concatenate(linear_said)}
    found = {name: score(answers, judged[1], labels) for name, answers in said.items()}
    values = {name: each["accuracy" if labels else "r2"] for name, each in found.items()}
    return {name: value for name, value in values.items() if value is not None}


def frozen(
    fitted: Fitted, train: tuple[Any, Any], judged: tuple[Any, Any], weights: Any = None
) -> dict[str, float]:
    """{"frozen"}: the score of the network at its start with the best readout of its features.

    Anchored training began by solving for that readout. After another training it is solved for here, by the
    same theorem, by the loss that suits the targets, on all rows with their weights. Empty if none is found.
    """
    start, certificate, labels = fitted.start(), fitted.certificate, fitted.preparation.classes is not None
    found = None if certificate is None else certificate._witness
    if not isinstance(found, Anchor):
        kind: Kind = "classification" if labels else "regression"
        rows = Rows.of(*train, kind, weights, fitted.preparation.encoding)
        rows = rows.balanced() if fitted.recipe.class_weight else rows
        A, B = tensors(start, fitted.preparation, rows)
        F: dict[str, Any] = {
            "ridge": Recipe().resolved(len(A)).ridge,
            "sample_weight": torch.from_numpy(rows.weights),
        }
        found = certify(start, A, B, theorem="anchored", **F)._witness
    if found is None:
        return {}
    facts(start).reads().readout_of(start).store(found.a)
    said = score(replace(fitted, model=start).predict(judged[0]), judged[1], labels)
    value = said["accuracy" if labels else "r2"]
    return {} if value is None else {"frozen": value}
