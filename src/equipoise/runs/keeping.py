"""A fitted network as files: safetensors and JSON, each with its SHA-256. Nothing is ever unpickled.

model.safetensors         the weights at the end
preparation.safetensors   how raw rows become inputs, and outputs answers
certificate.json          of the training; of well-posedness alone where training was free
wellposed.json            of the weights at the end
history.json              what was measured
fitted.json               recipe, validation, why it stopped, and the digests of the others
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_atomically
from ..history import History
from ..models.affine import AffineFamily
from ..models.saving import load as load_model
from ..theory import Certificate
from .fitting import Fitted
from .preparation import Preparation
from .recipe import Recipe

FILES = ("model.safetensors", "preparation.safetensors", "certificate.json", "wellposed.json", "history.json")
_FORMAT = "equipoise.fitted.1"


def save(fitted: Fitted, directory: str | Path) -> None:
    """Write every file whole or not at all; `fitted.json`, written last, makes them count."""
    at = Path(directory)
    at.mkdir(parents=True, exist_ok=True)
    fitted.model.save(at / "model.safetensors")
    fitted.preparation.save(at / "preparation.safetensors")
    (fitted.certificate or fitted.wellposed).save(at / "certificate.json")
    fitted.wellposed.save(at / "wellposed.json")
    history = json.dumps(_plain(fitted.history.to_dict()), indent=1, allow_nan=False)
    write_atomically(at / "history.json", history.encode())
    known = {
        "format": _FORMAT,
        "recipe": fitted.recipe.to_dict(),
        "certified": fitted.certificate is not None,
        "validation": _plain(fitted.validation),
        "stopped": fitted.stopped,
        "advice": fitted.advice,
        "files": {name: _digest((at / name).read_bytes()) for name in FILES},
    }
    sealed = {**known, "sha256": _digest(_canonical(known))}
    write_atomically(at / "fitted.json", json.dumps(sealed, indent=1, allow_nan=False).encode())


def load(directory: str | Path) -> Fitted:
    """What `save` wrote. A file that is missing, damaged or of another fit is named in a ValueError."""
    at = Path(directory)
    known = _read(at / "fitted.json")
    for name in FILES:
        if not (at / name).exists():
            raise FileNotFoundError(f"{at / name} is missing: {at} does not hold a whole fitted network.")
        if _digest((at / name).read_bytes()) != known["files"].get(name):
            raise ValueError(f"{at / name} is damaged or of another fit: its SHA-256 is not in fitted.json.")
    model = load_model(at / "model.safetensors")
    assert isinstance(model, AffineFamily)
    return Fitted(
        model=model,
        preparation=Preparation.load(at / "preparation.safetensors"),
        certificate=Certificate.load(at / "certificate.json") if known["certified"] else None,
        wellposed=Certificate.load(at / "wellposed.json"),
        history=_history(json.loads((at / "history.json").read_text(encoding="utf-8"))),
        recipe=Recipe.from_dict(known["recipe"]),
        validation=known["validation"],
        stopped=known["stopped"],
        advice=known["advice"],
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: {path.parent} does not hold a fitted network.")
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        digest = known.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from None
    if known.get("format") != _FORMAT:
        raise ValueError(f"{path} must be of format {_FORMAT!r}. Got {known.get('format')!r} instead.")
    if digest != _digest(_canonical(known)):
        raise ValueError(f"{path} is damaged: it does not hold what its SHA-256 says.")
    return dict(known)


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


def _plain(value: Any) -> Any:
    """As strict JSON holds it: null for what is not finite."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
