"""Runs as they are on disk, made quickly: certified, free, diverged, and with names that mean harm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import equipoise as eq
from equipoise import report
from equipoise.runs import Run

HOSTILE = "<script>alert(1)</script>"


@dataclass
class Prepared:
    """Standardised inputs; one column a class, or the number itself."""

    mean: np.ndarray
    scale: np.ndarray
    classes: list[Any] | None

    def apply(self, X: np.ndarray) -> torch.Tensor:
        return torch.from_numpy((X - self.mean) / self.scale)

    def targets(self, y: np.ndarray) -> torch.Tensor:
        if self.classes is None:
            return torch.from_numpy(np.asarray(y, dtype=float))
        return torch.from_numpy((np.asarray(y)[:, None] == np.array(self.classes)).astype(float))


@dataclass
class Network:
    model: Any
    preparation: Prepared

    def predict(self, X: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            out = self.model(self.preparation.apply(X)).numpy()
        classes = self.preparation.classes
        return out if classes is None else np.array(classes)[out.argmax(axis=1)]


def prepared(X: np.ndarray, classes: list[Any] | None) -> Prepared:
    scale = X.std(axis=0)
    return Prepared(X.mean(axis=0), np.where(scale > 0, scale, 1.0) * np.sqrt(X.shape[1]), classes)


def classification(path: Path, names: list[str] | None = None, name: str = "digits") -> Path:
    """Safeguarded training on some digits, certified with slack."""
    X, y = load_digits(return_X_y=True)
    labels = np.array(names if names is not None else [str(i) for i in range(10)])[y]
    train, test = slice(0, 300), slice(300, 420)
    preparation = prepared(X[train], sorted(set(labels.tolist())))
    generator = torch.Generator().manual_seed(0)
    model = eq.GaussianReLU(inputs=64, width=80, outputs=10, dtype=torch.float64, generator=generator)
    A, B = preparation.apply(X[train]), preparation.targets(labels[train])
    certificate = eq.certify(model, A, B, theorem="safeguarded", slack=0.05)
    history = eq.safeguarded_descent(
        model,
        A,
        B,
        steps=60,
        certificate=certificate,
        X_test=preparation.apply(X[test]),
        y_test=preparation.targets(labels[test]),
        measure=5,
    )
    run = _create(path, name, 300, 120, {"model": "gaussian-relu", "width": 80, "certified": True, "seed": 0})
    certificate.save(run.path / "certificate.json")
    _dump(run.path / "history.json", history.to_dict())
    for k, loss in enumerate(history.loss.tolist()):
        run.metrics.append({"step": k, "loss": loss, "promised": float(history.promised[k])})
    fitted = Network(model, preparation)
    found = report.findings(fitted, (X[train], labels[train]), (X[test], labels[test]))
    _dump(run.path / "findings.json", found)
    run.finish("finished", results={"test_accuracy": found["scores"]["test"]["accuracy"]})
    return run.path


def regression(path: Path) -> Path:
    """Free training of a scaled network by gradient descent; only its well-posedness is certified."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 5))
    y = 20 + 5 * np.sin(X[:, 0]) + 3 * X[:, 1] * X[:, 2] + rng.normal(size=160)
    train, test = slice(0, 120), slice(120, 160)
    preparation = prepared(X[train], None)
    generator = torch.Generator().manual_seed(1)
    model = eq.ScaledReLU(inputs=5, width=60, gamma=0.6, dtype=torch.float64, generator=generator)
    A, B = preparation.apply(X[train]), preparation.targets(y[train])
    history = eq.gradient_descent(
        model,
        A,
        B,
        steps=120,
        step_size=2e-3,
        X_test=preparation.apply(X[test]),
        y_test=preparation.targets(y[test]),
        measure=10,
    )
    run = _create(path, "yields.csv", 120, 40, {"model": "scaled-relu", "width": 60, "certified": False})
    eq.certify(model, A, theorem="wellposed").save(run.path / "certificate.json")
    _dump(run.path / "history.json", history.to_dict())
    rates = 2e-3 * np.cos(np.linspace(0, 1.4, 121))
    for k, loss in enumerate(history.loss.tolist()):
        run.metrics.append({"step": k, "loss": loss, "learning_rate": float(rates[k])})
    _dump(
        run.path / "findings.json",
        report.findings(Network(model, preparation), (X[train], y[train]), (X[test], y[test])),
    )
    run.finish("finished")
    return run.path


def diverged(path: Path) -> Path:
    """A run whose loss blew up: metrics, a reason and advice, and nothing that comes after training."""
    run = _create(path, "blow-up.csv", 50, 0, {"model": "gaussian-relu", "certified": False, "rate": 3.0})
    for k in range(9):
        loss = 10.0 * 40.0**k if k < 8 else float("inf")
        run.metrics.append({"epoch": k, "loss": loss, "learning_rate": 3.0, "forward_steps": 5 + 3 * k})
    run.finish(
        "stopped",
        "epoch 8: the loss is not finite.",
        "a rate of 0.3 or less, clip=1, or certified training",
        exit_code=3,
    )
    return run.path


def hostile(path: Path) -> Path:
    """Names of data, columns and classes that would run a script if they could."""
    names = [f"{HOSTILE}{i}" if i < 5 else f'"><img src=x onerror=alert({i})>' for i in range(10)]
    return classification(path, names, name=HOSTILE)


def _create(path: Path, name: str, train: int, test: int, recipe: dict[str, Any]) -> Run:
    harm = (
        [HOSTILE, "</style><script>alert(2)</script>", "$x^2$ {{ 7*7 }}"] if name == HOSTILE else ["a", "b"]
    )
    data = {
        "name": name,
        "source": f"read from {name}",
        "sha256": "3b" * 32,
        "rows": train + test,
        "columns": harm,
        "kind": "classes",
        "split": {"train": train, "test": test, "how": "first rows for training, the rest for testing"},
        "warnings": [f"column {column} is constant" for column in harm[:2]],
    }
    return Run.create(path, {"data": {"name": name, "target": harm[0]}, "recipe": recipe}, data)


def _dump(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


KINDS = {"classification": classification, "regression": regression, "diverged": diverged, "hostile": hostile}
