"""Runs as they are on disk, made quickly: certified, free, diverged, lost, killed, and with harmful names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from once import made_once
from sklearn.datasets import load_digits

import equipoise as eq
from equipoise import report
from equipoise.recipe import Recipe
from equipoise.tasks import Run, keeping
from equipoise.tasks.fitted import Fitted
from equipoise.tasks.fitting import fit
from equipoise.tasks.preparation import Preparation

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A directory of each kind, with its report: copies of those that are made once a session."""
    made = made_once(tmp_path_factory, "reported", build)
    own = Path(shutil.copytree(made, tmp_path_factory.mktemp("runs") / "reported"))
    return {path.name: path for path in own.iterdir()}


def build(root: Path) -> None:
    made = {
        "classification": classification(root / "classification"),
        "anchored": anchored(root / "anchored"),
        "regression": free(root / "regression"),
        "diverged": free(root / "diverged", optimiser="sgd", rate=1.0),
        "lost": lost(root / "lost"),
        "killed": killed(root / "killed"),
    }
    made["hostile"] = hostile(made["classification"], root / "hostile")
    for path in made.values():
        report.write(path)


def digits(rows: slice) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[rows], y[rows].astype(str)


def classification(path: Path) -> Path:
    """Certified training on some digits."""
    train, test = digits(slice(0, 200)), digits(slice(200, 300))
    recipe = Recipe(width=64, steps=25)
    run = create(path, "digits", 200, 100, recipe.to_dict())
    fitted = fit(*train, "classification", recipe, test=test, record=run.metrics.append)
    keep(run, fitted, train, test)
    run.finish("finished")
    return run.path


def anchored(path: Path) -> Path:
    """Training in batches under the default certificate, on images."""
    train, test = digits(slice(0, 200)), digits(slice(200, 300))
    recipe = Recipe(width=32, epochs=4)
    run = create(path, "digits", 200, 100, recipe.to_dict(), image_shape=[8, 8])
    fitted = fit(*train, "classification", recipe, test=test, record=run.metrics.append)
    keep(run, fitted, train, test, (8, 8))
    run.finish("finished", results=report.headline(fitted, {}))
    return run.path


def yields() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(160, 5))
    y = 20 + 5 * np.sin(X[:, 0]) + 3 * X[:, 1] * X[:, 2] + rng.normal(size=160)
    return (X[:120], y[:120]), (X[120:], y[120:])


def free(path: Path, **options: Any) -> Path:
    """Training without a guarantee; with a rate that is too large, it diverges."""
    train, test = yields()
    recipe = Recipe(certified=False, width=48, epochs=15, **options)
    run = create(path, "yields.csv", 120, 40, recipe.to_dict())
    fitted = fit(*train, "regression", recipe, test=test, record=run.metrics.append)
    keep(run, fitted, train, test)
    run.finish("stopped" if fitted.stopped else "finished", fitted.stopped, fitted.advice)
    return run.path


def lost(path: Path) -> Path:
    """A network that ended without equilibria: nothing can be computed of it but its weights."""
    train, test = yields()
    recipe = Recipe(model="scaled-relu", width=60, gamma=0.4, certified=False, rate=0.3, dtype="float64")
    preparation = Preparation.of(*train, "regression", np.ones(120))
    model = recipe.build(preparation.inputs, 1)
    A, B = preparation.apply(train[0]), preparation.targets(train[1])
    history = eq.gradient_descent(model, A, B, steps=60, step_size=0.3)
    with torch.no_grad():
        model.A.mul_(30)  # descent leaves the last good weights: these are such as another tool may leave
    fitted = Fitted(model, preparation, None, eq.certify(model, A), history, recipe)
    run = create(path, "yields.csv", 120, 40, recipe.to_dict())
    keep(run, fitted, train, test)
    run.finish("failed", history.stopped, "certified training", exit_code=3)
    return run.path


def killed(path: Path) -> Path:
    """A run that never said how it ended: metrics, and nothing that comes after training."""
    run = create(path, "blow-up.csv", 50, 0, Recipe(certified=False, rate=3.0).to_dict())
    for k in range(9):
        loss = 10.0 * 40.0**k if k < 8 else float("inf")
        run.metrics.append({"epoch": k, "loss": loss, "learning_rate": 3.0, "forward_steps": 5 + 3 * k})
    return run.path


def hostile(source: Path, path: Path) -> Path:
    """The certified run, with names of data, columns and classes that would run a script if they could."""
    run = create(path, HOSTILE, 200, 100, Recipe(width=64, steps=25).to_dict())
    for name in ("certificate.json", "wellposed.json", "history.json", "fitted.json", "metrics.jsonl"):
        shutil.copy(source / name, path / name)
    found = json.loads((source / "findings.json").read_text(encoding="utf-8"))
    names = [f"{HOSTILE}{i}" if i < 5 else f'"><img src=x onerror=alert({i})>' for i in range(10)]
    found["confusion"]["names"] = found["plane"]["names"] = names
    (path / "findings.json").write_text(json.dumps(found), encoding="utf-8")
    run.finish("stopped", f"row 3, column {HOSTILE}", "<b onclick=alert(3)>try</b> '{{ 7*7 }}'")
    return run.path


def create(
    path: Path, name: str, rows: int, test_rows: int, recipe: dict[str, Any], image_shape: Any = None
) -> Run:
    harm = [HOSTILE, "</style><script>alert(2)</script>", "$x^2$ {{ 7*7 }}", "a" * 200]
    columns = harm if name == HOSTILE else ["a", "b", "c", "d", "e"]
    data = {
        "name": name,
        "source": f"read from {name}",
        "files": [{"name": name, "sha256": "3b" * 32}],
        "split": "25 % of the rows held out at random (seed 0)",
        "rows": rows,
        "test_rows": test_rows,
        "sha256": "3b" * 32,
        "features": columns if image_shape is None else None,
        "columns": len(columns),
        "image_shape": image_shape,
        "warnings": [f"column {column} is constant" for column in columns[:2]],
    }
    return Run.create(path, {"data": {"source": name, "target": columns[0]}, "recipe": recipe}, data)


def keep(run: Run, fitted: Fitted, train: Any, test: Any, image_shape: Any = None) -> None:
    keeping.save(fitted, run.path)
    found = report.findings(fitted, train, test, image_shape)
    (run.path / "findings.json").write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
