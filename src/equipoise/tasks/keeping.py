"""A fitted network as files: safetensors and JSON, each with its SHA-256. Nothing is ever unpickled.

model.safetensors         the weights at the end
preparation.safetensors   how raw rows become inputs, and outputs answers
certificate.json          of the training; of well-posedness alone where training was free
wellposed.json            of the weights at the end
history.json              what was measured
conformal.safetensors     the scores of the rows that calibrate, where a coverage was asked for
timing.json               how long it took, which is not sealed: the same fit need not take the same time
origin.safetensors        the network that training began from, where its recipe does not build that
fitted.json               recipe, validation, why it stopped, and the digests of the others
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy

from ..files import (
    Damaged,
    digest,
    in_fixed_order,
    make_directory,
    read_json,
    sha256,
    strict,
    write_atomically,
)
from ..history import History
from ..models.base import EquilibriumModel
from ..models.saving import load as load_model
from ..recipe import Recipe
from ..theory import Certificate
from .conformal import Conformal
from .fitted import Fitted
from .origin import FILES as ORIGIN
from .preparation import Preparation

FILES = ("model.safetensors", "preparation.safetensors", "certificate.json", "wellposed.json", "history.json")
CONFORMAL = "conformal.safetensors"
_FORMAT = "equipoise.fitted.1"


def save(fitted: Fitted, directory: str | Path) -> None:
    """Write every file whole or not at all; `fitted.json`, written last, makes them count."""
    at = Path(directory)
    make_directory(at)
    fitted.model.save(at / "model.safetensors")
    fitted.preparation.save(at / "preparation.safetensors")
    (fitted.certificate or fitted.wellposed).save(at / "certificate.json")
    fitted.wellposed.save(at / "wellposed.json")
    history = strict(fitted.history.to_dict())
    timing = {"seconds": history.pop("seconds")}
    for name, content in (("history.json", history), ("timing.json", timing)):
        write_atomically(at / name, json.dumps(content, indent=1, allow_nan=False).encode())
    files = list(FILES)
    if fitted.origin is not None:
        files.append(ORIGIN[0])
        if not (at / ORIGIN[0]).exists():  # unless a run has put it there already
            fitted.origin.save(at / ORIGIN[0])
    if fitted.conformal is not None:
        files.append(CONFORMAL)
        scores = safetensors.numpy.save({"scores": np.ascontiguousarray(fitted.conformal.scores)})
        write_atomically(at / CONFORMAL, in_fixed_order(scores))
    known = {
        "format": _FORMAT,
        "recipe": fitted.recipe.to_dict(),
        "certified": fitted.certificate is not None,
        "validation": strict(fitted.validation),
        "stopped": fitted.stopped,
        "advice": fitted.advice,
        "files": {name: sha256(at / name) for name in files},
    }
    sealed = {**known, "sha256": digest(known)}
    write_atomically(at / "fitted.json", json.dumps(sealed, indent=1, allow_nan=False).encode())


def load(directory: str | Path) -> Fitted:
    """What `save` wrote. A file that is missing, damaged or of another fit is named in a ValueError."""
    at = Path(directory)
    known = _read(at / "fitted.json")
    recipe = Recipe.from_dict(known["recipe"])
    kept = [CONFORMAL] if recipe.coverage is not None else []
    began = [ORIGIN[0]] if ORIGIN[0] in known["files"] else []
    for name in (*FILES, *kept, *began):
        if not (at / name).exists():
            raise FileNotFoundError(f"{at / name} is missing: {at} does not hold a whole fitted network.")
        if sha256(at / name) != known["files"].get(name):
            raise Damaged(f"{at / name} is damaged or of another fit: its SHA-256 is not in fitted.json.")
    model = cast(EquilibriumModel, load_model(at / "model.safetensors"))  # no other is fitted
    return Fitted(
        model=model,
        preparation=Preparation.load(at / "preparation.safetensors"),
        certificate=Certificate.load(at / "certificate.json") if known["certified"] else None,
        wellposed=Certificate.load(at / "wellposed.json"),
        history=_history(read_json(at / "history.json") | _timing(at / "timing.json")),
        recipe=recipe,
        validation=known["validation"],
        stopped=known["stopped"],
        advice=known["advice"],
        conformal=_conformal(at / CONFORMAL) if kept else None,
        origin=cast(EquilibriumModel, load_model(at / ORIGIN[0])) if began else None,
    )


def _conformal(path: Path) -> Conformal:
    """The scores that calibrate."""
    try:
        return Conformal(safetensors.numpy.load(path.read_bytes())["scores"])
    except (safetensors.SafetensorError, KeyError) as error:
        raise Damaged(f"{path} is damaged: it holds no scores ({error})") from None


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: {path.parent} does not hold a fitted network.")
    known = read_json(path)
    seal = known.pop("sha256", None)
    if known.get("format") != _FORMAT:
        raise ValueError(f"{path} must be of format {_FORMAT!r}. Got {known.get('format')!r} instead.")
    if seal != digest(known):
        raise Damaged(f"{path} is damaged: it does not hold what its SHA-256 says.")
    return known


def _timing(path: Path) -> dict[str, float]:
    """How long it took, where that is known."""
    with suppress(Damaged):
        seconds = read_json(path).get("seconds")
        return {"seconds": float(seconds)} if isinstance(seconds, int | float) else {}
    return {}


def _history(found: dict[str, Any]) -> History:
    """The History whose `to_dict` this is: lists are arrays, series by step have integers for keys."""
    for name, value in found.items():
        if isinstance(value, list):
            found[name] = _array(name, value)
        elif name in ("norms", "accepted"):
            found[name] = {key: _array(key, values) for key, values in value.items()}
        elif name == "travelled":
            found[name] = {key: _by_step(values) for key, values in value.items()}
        elif name in _BY_STEP:
            found[name] = _by_step(value)
    return History(**found)


_BY_STEP = ("test_loss", "test_accuracy", "test_r2", "contraction", "sigma_min", "movement")


def _array(name: str, values: list[Any]) -> np.ndarray:
    counts = name in ("forward_steps", "adjoint_steps", "tries")
    kind = bool if name == "verified" else int if counts else float
    return np.array([math.nan if v is None else v for v in values], dtype=kind)


def _by_step(found: dict[str, Any]) -> dict[int, float]:
    return {int(step): math.nan if v is None else v for step, v in found.items()}
