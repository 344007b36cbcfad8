"""fit(X, y): from raw rows to a trained network, and to what is proved of it.

By default training is anchored: by Adam in batches of float32, whose weights are kept only at checkpoints
where the objective is proved to have fallen. Safeguarded training gathers equal rows, chooses its slack λ by
leave-one-out at the features of the start (with λ > 0 the theorem holds for every N and m), and moves the
readout by 15 % of a Gauss-Newton step at a time, and the hidden layer as far as is proved safe. A smaller
step of the readout leaves the hidden layer more time to learn: 100, 20 and 10 % gave accuracies of .558, .573
and .584 on three classes of nine clusters, and 15 % takes two thirds of the time of 10 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from ..data.encoding import Encoding
from ..data.errors import DataError
from ..history import History
from ..models.base import EquilibriumModel
from ..recipe import BATCHES, Kind, Recipe, of_panel
from ..solve import Stop
from ..solve.driver import Precision
from ..theory import Certificate
from ..theory.anchored import TIGHT
from ..theory.certify import certify
from ..theory.register import facts
from ..theory.shards import ranks
from ..train.callbacks import Callback
from ..train.checkpoint import Checkpoints
from ..train.projection import Projection
from ..train.safeguarded import safeguarded_descent
from ..train.trainer import Trainer
from .choose import choose_ridge, choose_sharpness, choose_slack
from .covered import scores_of
from .fitted import GATHERED, Fitted, tensors, training_tensors
from .forecast import Forecast, check_memory, memory_needed
from .origin import Origin
from .preparation import Preparation
from .raw import HELD_OUT, Rows, calibrating, held_out
from .robust import Perturbation
from .scores import score
from .spread import TrainingRows, naming, take_part

Record = Callable[[dict[str, Any]], None]
Progress = Callable[[int, float], None]

EVERY = 5  # steps or epochs from one checkpoint on disk to the next
# Checkpoints that hold anchored training to its promise, the end included. One of images takes 1 or 2 epochs.
CHECKPOINTS, OF_IMAGES = 3, 2
_BESIDE = 2  # further sweeps over all rows: for the anchor at the start, and for tight bounds at the end
GENTLE = 0.01  # at a rate up to this weights stay nearly well-posed for a few steps without being bounded
WELLPOSED = 64  # rows that are given to a certificate of the weights, which is about all inputs


class NotProved(ValueError):
    """Certified training was asked for, but its certificate could not be proved; `certificate` says why."""

    def __init__(self, message: str, certificate: Certificate) -> None:
        super().__init__(message)
        self.certificate = certificate


class Watched(TypedDict, total=False):
    """How a training is watched: what is handed to its loop.

    checkpoints: where to save, every so many steps or epochs, and to go on from. record, progress: called
    with what was measured at each step or epoch, and with the number and the loss of each step. begin: called
    with a Forecast before the first step. callbacks: told of training in batches by its Trainer.
    """

    checkpoints: Checkpoints | None
    every: int
    record: Record | None
    progress: Progress | None
    begin: Callable[[Forecast], None] | None
    callbacks: Sequence[Callback]


def fit(
    X: Any,
    y: Any,
    kind: Kind,
    recipe: Recipe | None = None,
    *,
    sample_weight: Any = None,
    encoding: Encoding | None = None,
    test: tuple[Any, Any] | None = None,
    origin: Origin | None = None,
    **watched: Unpack[Watched],
) -> Fitted:
    """A network trained on raw rows X (N, d) and labels or numbers y, with its certificate.

    Args:
        kind: "classification" or "regression".
        recipe: what to train and how; by default all of it is chosen from the data.
        sample_weight: (N,), ≥ 0. A row of weight 2 is the same as two rows.
        encoding: what X holds besides numbers, and what is made of it; it becomes part of the preparation.
        test: raw rows and targets on which the network is measured during training; they decide nothing.
        origin: a trained network to begin from, of the recipe that `Origin.continued` gives. Rows are
            prepared as its own were, and the certificate is anchored at its best readout of these rows.
        watched: see `Watched`. A run that is resumed makes the same choices again, since they depend on the
            data and the recipe only.

    Raises NotProved, before any step, if the certificate of certified training is not proved.
    """
    recipe = recipe or Recipe()
    data = Rows.of(X, y, kind, sample_weight, encoding if origin is None else origin.preparation.encoding)
    if origin is not None:
        origin.check(data.X.shape[1], kind, data.image)
    kept = None
    if recipe.coverage is not None and origin is not None:
        raise ValueError(
            "coverage needs rows that the network never saw, and the network to train further may have seen "
            "these: leave coverage out, or train a new network."
        )
    if recipe.coverage is not None:
        data, kept = calibrating(data, recipe.coverage, recipe.seed)
    data = data.balanced() if recipe.class_weight else data
    whole = recipe.path == "safeguarded"
    _check_processes(recipe, origin)
    if whole and watched.get("callbacks"):
        raise ValueError("callbacks follow training in batches, not safeguarded training: leave them out.")
    if whole or (recipe.certified and data.X.size <= GATHERED):
        data = data.gathered()
    given, recipe = recipe, recipe.resolved(len(data.X), kind, len(np.unique(data.y)))
    check_memory(recipe, *data.X.shape)
    tested = None if test is None else Rows.of(*test, kind, encoding=data.encoding)
    watched = {"every": EVERY, **watched}
    if whole:
        fitted = _fit_whole(data, recipe, tested, watched)
    else:
        fitted = _fit_batches(data, recipe, tested, watched, origin, chosen=given.ridge is None)
    return fitted if kept is None else replace(fitted, conformal=scores_of(fitted, kept), kept=kept)


def _check_processes(recipe: Recipe, origin: Origin | None) -> None:
    """Raise a ValueError if there are several processes for what only one can do."""
    if origin is not None and ranks() > 1:
        raise ValueError(f"a trained network is trained further in one process. Got {ranks()} processes.")
    if recipe.robust is not None and ranks() > 1:
        raise ValueError(f"robust training runs in one process. Got {ranks()} processes.")
    if recipe.path == "safeguarded" and ranks() > 1:
        raise ValueError(
            f"safeguarded training runs in one process, which has every row at each step. Got {ranks()} "
            f"processes: choose the theorem anchored, or train without a certificate."
        )


# -- with every row at each step -----------------------------------------------------------------------------


def _fit_whole(data: Rows, recipe: Recipe, test: Rows | None, watched: Watched) -> Fitted:
    """Certified by `safeguarded`, and trained by `safeguarded_descent`."""
    preparation = Preparation.of(
        data.X, data.y, data.kind, data.weights, recipe.torch_dtype, encoding=data.encoding
    )
    model: Any = recipe.build(preparation.inputs, preparation.outputs)
    A, B = training_tensors(model, preparation, data)
    weights = torch.from_numpy(data.weights)
    choice = choose_slack(_features(model, A), B, weights, recipe.slack)
    recipe = replace(recipe, slack=choice.slack)
    if preparation.classes is not None:
        own = torch.from_numpy(np.searchsorted(preparation.classes, data.y))
        preparation = replace(preparation, sharpness=choose_sharpness(choice.left_out, own, weights))
    certificate = certify(
        model,
        A,
        B,
        theorem="safeguarded",
        readout=recipe.readout,
        eta=recipe.eta,
        slack=recipe.slack,
    )
    if not certificate.proved:
        raise NotProved(_not_proved(certificate, recipe), certificate)
    assert recipe.steps is not None
    A_test, B_test = (None, None) if test is None else tensors(model, preparation, test)
    history = safeguarded_descent(
        model,
        A,
        B,
        recipe.steps,
        certificate,
        X_test=A_test,
        y_test=B_test,
        classes=data.kind == "classification",
        measure=max(1, recipe.steps // 20),
        **_of_loop(watched),
    )
    return Fitted(
        model=model,
        preparation=preparation,
        certificate=certificate,
        wellposed=certify(model, A, theorem="wellposed"),
        history=history,
        recipe=recipe,
        validation=choice.to_dict() | _left_out_score(preparation, choice.left_out, data),
        stopped=history.stopped,
    )


def _features(model: EquilibriumModel, A: Tensor) -> Tensor:
    precision: Precision = "mixed" if A.dtype == torch.float64 else "native"
    Z = model.solve(A, stop=Stop(rtol=1e-5), precision=precision).raise_if_failed().value
    assert isinstance(Z, Tensor)
    return Z


def _left_out_score(preparation: Preparation, left_out: Tensor, data: Rows) -> dict[str, float | None]:
    """Accuracy or R² of the leave-one-out predictions."""
    found = score(preparation.answers(left_out), data.y, preparation.classes is not None, data.weights)
    return {name: value for name, value in found.items() if name in ("accuracy", "r2")}


def _not_proved(certificate: Certificate, recipe: Recipe) -> str:
    remedies = "a wider network, fewer duplicate rows"
    if recipe.slack == 0:
        remedies = (
            "leave slack out, so that one is chosen for which the proof always succeeds; or " + remedies
        )
    return (
        f"certified training needs a proved certificate. Got {certificate.verdict}:\n"
        f"{certificate.explain()}\nTo try: {remedies}; or train without a guarantee (certified=False, or "
        f"--uncertified on the command line)."
    )


# -- in batches ----------------------------------------------------------------------------------------------


def _fit_batches(
    data: Rows,
    recipe: Recipe,
    test: Rows | None,
    watched: Watched,
    origin: Origin | None = None,
    chosen: bool = False,
) -> Fitted:
    """`Trainer` on batches, under the certificate `anchored` or freely.

    With patience a fifth of the rows is held out to say when to stop. If `chosen`, anchored training of an
    affine network from its start chooses the penalty of its readout.
    """
    data, held = (data, None) if recipe.patience is None else held_out(data, recipe.seed)
    preparation = _prepared(data, recipe) if origin is None else origin.preparation
    if origin is None:
        model = recipe.build(preparation.inputs, preparation.outputs)
    else:
        model = deepcopy(origin.model)
    A, B = tensors(model, preparation, data)
    weights = None if bool((data.weights == 1).all()) else torch.from_numpy(data.weights)
    choice = choose_ridge(model, A, B, weights, recipe) if chosen and origin is None else None
    recipe = recipe if choice is None else replace(recipe, ridge=choice.ridge)
    measured = held or test
    validation = None if measured is None else tensors(model, preparation, measured)
    if (begin := watched.get("begin")) and ranks() == 1:
        begin(estimated(model, recipe, A, B))
    rows = TrainingRows((A, B), weights, validation).spread(
        recipe, (preparation.inputs, preparation.outputs), watched.get("checkpoints")
    )
    perturbation = None if recipe.robust is None else Perturbation.of(recipe, data)
    loss = None if perturbation is None else perturbation.loss(model, preparation)
    trainer, history = _train(model, recipe, rows, watched, loss)
    certificate = trainer.certificate
    if certificate is not None and weights is not None and ranks() > 1:  # it is about the rows of all ranks
        certificate = replace(
            certificate, options={**certificate.options, "sample_weight": tuple(weights.tolist())}
        )
    if preparation.classes is not None and recipe.loss not in ("logistic", "cross_entropy"):
        judged = held or data
        outputs = trainer.predict(tensors(model, preparation, judged)[0]).double()
        own = torch.from_numpy(np.searchsorted(preparation.classes, judged.y))
        sharpness = choose_sharpness(outputs.reshape(len(outputs), -1), own, torch.from_numpy(judged.weights))
        preparation = replace(preparation, sharpness=sharpness)
    return Fitted(
        model=model,
        preparation=preparation,
        certificate=certificate,
        wellposed=certify(model, A[:WELLPOSED], theorem="wellposed"),
        history=history,
        recipe=recipe,
        validation=(choice.to_dict() if choice is not None else {})
        | ({} if held is None else {"method": HELD_OUT, "rows": len(held.y)}),
        stopped=history.stopped,
        advice=history.advice,
        origin=None if origin is None else origin.model,
        perturbation=perturbation,
    )


def _prepared(data: Rows, recipe: Recipe) -> Preparation:
    """How rows become inputs: images are scaled as a whole, and stay images if the network takes images."""
    assert recipe.loss is not None
    found = Preparation.of(
        data.X, data.y, data.kind, data.weights, recipe.torch_dtype, recipe.loss, data.encoding
    )
    if recipe.built.images:
        return found.of_images(_checked_image(data, recipe))
    return found.in_one_unit() if data.image else found


@naming()
def take_part_in_fit() -> None:
    """What every process but the first does of a `fit` that several share: train on its part of the rows."""
    recipe, sizes, checkpoints, rows = take_part()
    _train(recipe.build(*sizes), recipe, rows, {"checkpoints": checkpoints, "every": EVERY})


@naming()
def _train(
    model: EquilibriumModel, recipe: Recipe, rows: TrainingRows, watched: Watched, loss: Any = None
) -> tuple[Trainer, History]:
    """Certify if the recipe asks for it, and train."""
    (A, B), certificate = rows.train, None
    if recipe.path == "anchored":
        F: dict[str, Any] = {
            "loss": "smoothed_hinge" if recipe.loss == "hinge" else recipe.loss,
            "ridge": recipe.ridge,
            "decay": recipe.decay,
            "sample_weight": rows.weights,
        }
        certificate = certify(model, A, B, theorem="anchored", **F)
        if not certificate.proved:
            raise NotProved(_not_proved(certificate, recipe), certificate)
    trainer = _trainer(model, recipe, certificate, loss)
    loop = {**_of_loop(watched), "callbacks": watched.get("callbacks", ())}
    return trainer, trainer.fit(A, B, rows.validation, sample_weight=rows.weights, **loop)


def _trainer(
    model: EquilibriumModel, recipe: Recipe, certificate: Certificate | None, loss: Any = None
) -> Trainer:
    """The loop of a recipe: solves are loose while it trains, and tight where something is proved."""
    assert recipe.epochs is not None
    assert recipe.rate is not None
    gentle = certificate is not None and recipe.rate <= GENTLE and recipe.built.affine
    return Trainer(
        model,
        loss or recipe.loss,
        **{name: getattr(recipe, name) for name in of_panel(BATCHES) if name != "loss"},
        seed=recipe.seed,
        rtol=1e-2 if recipe.dtype == "float32" else 1e-5,
        projection=Projection(0.95, every=4, proved=False) if gentle else Projection(0.95),
        certificate=certificate,
        start_at_best=False,
        loose=True,
        enough=recipe.enough or 0.0,
        check_every=None if certificate is None else -(-recipe.epochs // _checkpoints(recipe)),
    )


def _checkpoints(recipe: Recipe) -> int:
    """How often anchored training is held to its promise."""
    return OF_IMAGES if recipe.built.images else CHECKPOINTS


def estimated(model: EquilibriumModel, recipe: Recipe, A: Tensor, B: Tensor) -> Forecast:
    """What the training of a model will take, from a few steps of a copy of it on its first rows.

    The time that certificates add is estimated from one block of features, enclosed as checkpoints do it.
    """
    assert recipe.batch_size is not None
    assert recipe.epochs is not None
    size, copied = recipe.batch_size, deepcopy(model)
    few = replace(recipe, epochs=1, patience=None)
    _trainer(copied, few, None).fit(A[:size], B[:size])  # the first steps load what later ones use
    began = time.perf_counter()
    _trainer(copied, few, None).fit(A[: 4 * size], B[: 4 * size])
    step = (time.perf_counter() - began) / max(1, -(-min(len(A), 4 * size) // size))
    seconds = step * -(-len(A) // size) * recipe.epochs
    if recipe.certified and (reads := facts(model).reads()).unique:
        began = time.perf_counter()
        reads.block(A[:size], TIGHT)
        sweep = (time.perf_counter() - began) * len(A) / min(len(A), size)
        seconds += sweep * (_checkpoints(recipe) + _BESIDE)
    return Forecast(seconds, memory_needed(recipe, len(A), A[0].numel()))


def _checked_image(data: Rows, recipe: Recipe) -> tuple[int, ...]:
    """The shape of the rows, which must be images."""
    if not data.image:
        raise DataError(
            f"{recipe.family} takes images, (N, height, width) or (N, channels, height, width). Got rows of "
            f"{data.X.shape[1]} numbers instead: X.reshape(…) gives them their shape."
        )
    return data.image


def _of_loop(watched: Watched) -> dict[str, Any]:
    """What every training loop takes."""
    return {name: watched.get(name) for name in ("checkpoints", "every", "record", "progress")}
