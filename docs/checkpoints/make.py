"""Train the certified checkpoints of this folder, and write their certificates and cards.

    python docs/checkpoints/make.py [FOLDER]

Each network is saved by `model.save` and read by `eq.load`; nothing is pickled. Data come with scikit-learn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.model_selection import train_test_split
from torch import Tensor

import equipoise as eq

HERE = Path(__file__).parent
LOOKED_AT = 100  # test rows of which robustness is asked


@dataclass(frozen=True)
class Recipe:
    """A network of this folder: data, family, and how it is trained."""

    name: str
    data: str  # digits, wine or cancer
    build: Callable[[torch.Generator], Any]
    epsilon: float  # each entry of an input may move so far
    epochs: int = 30

    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """X and y to train on, X and y to test on; digits within [0, 1], other columns standardised."""
        X, y = {"digits": load_digits, "wine": load_wine, "cancer": load_breast_cancer}[self.data](
            return_X_y=True
        )
        parts = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
        train, test = (torch.tensor(part, dtype=torch.float32) for part in parts[:2])
        low, scale = (0.0, 16.0) if self.data == "digits" else (train.mean(0), train.std(0))
        return (train - low) / scale, torch.tensor(parts[2]), (test - low) / scale, torch.tensor(parts[3])

    def train(self) -> Any:
        """The network, trained under the anchored certificate."""
        X, y, _, _ = self.rows()
        model = self.build(torch.Generator().manual_seed(0))
        how = {"loss": "cross_entropy", "ridge": 1.0, "decay": 1.0}
        certificate = eq.certify(model, X, y, theorem="anchored", **how)
        trainer = eq.Trainer(
            model,
            "cross_entropy",
            certificate=certificate,
            optimiser="adam",
            rate=5e-3,
            schedule="cosine",
            epochs=self.epochs,
            batch_size=64,
            rtol=1e-3,
        )
        trainer.fit(X, y)
        return model


RECIPES = (
    Recipe("digits-gaussian", "digits", lambda g: eq.GaussianReLU(64, 64, outputs=10, generator=g), 0.02),
    Recipe(
        "digits-monotone", "digits", lambda g: eq.Monotone(64, 40, outputs=10, margin=0.5, generator=g), 0.02
    ),
    Recipe("wine-scaled", "wine", lambda g: eq.ScaledReLU(13, 48, outputs=3, generator=g), 0.1, 60),
    Recipe("cancer-opteq", "cancer", lambda g: eq.OptEq(30, 24, 24, outputs=2, generator=g), 0.1),
)


def measured(recipe: Recipe, model: Any) -> dict[str, float]:
    """Accuracy on the test rows, and the share of some of them that is right whatever moves by up to ε."""
    _, _, X, y = recipe.rows()
    right = (model(X).argmax(1) == y).float().mean().item()
    found = eq.verify_predictions(model, X[:LOOKED_AT], y[:LOOKED_AT], epsilon=recipe.epsilon, nodes=200)
    return {"accuracy": right, "certified": float(found.proved.float().mean())}


CARDS = """\
# Certified checkpoints

Four small networks, trained by one command and read by `eq.load`. The certificate beside each says that
every input has exactly one equilibrium; it was proved of the weights in the file. *Certified* is the share of
the first {rows} test rows (wine has 45) for which the class is right and is proved to stay so while every
entry of the input moves by up to ε.

| network | data | kB | accuracy | ε | certified |
| --- | --- | --- | --- | --- | --- |
{table}

The data come with scikit-learn. Three quarters of the rows are trained on, as
`train_test_split(test_size=0.25, random_state=0, stratify=y)` divides them. Entries of digits are divided by
16; columns of the tables are standardised by mean and deviation of the training rows. `eq.Trainer` trains
under the theorem `anchored`: the objective is proved never to be above that of the best readout of the
untrained network. To make them again: `python docs/checkpoints/make.py`.

```python
import torch
import equipoise as eq
from sklearn.datasets import load_digits

model = eq.load("docs/checkpoints/digits-gaussian.safetensors")
X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16, dtype=torch.float32)
print((model(X).argmax(1) == torch.tensor(y)).float().mean().item() > 0.9)  # True
print(eq.certify(model, X[:32]).verdict)  # proved
```
"""


def main(folder: Path = HERE) -> None:
    """Train all, and write them with their certificates and cards."""
    lines = []
    for recipe in RECIPES:
        file = folder / f"{recipe.name}.safetensors"
        recipe.train().save(file)
        model = eq.load(file)
        eq.certify(model, recipe.rows()[0][:32]).save(folder / f"{recipe.name}.certificate.json")
        found = measured(recipe, model)
        lines.append(
            f"| [{recipe.name}]({file.name}), `{type(model).__name__}` "
            f"([certificate]({recipe.name}.certificate.json)) | {recipe.data} | "
            f"{file.stat().st_size / 1000:.0f} | {100 * found['accuracy']:.1f} % | {recipe.epsilon:g} | "
            f"{100 * found['certified']:.0f} % |"
        )
        print(lines[-1], flush=True)
    (folder / "README.md").write_text(CARDS.format(rows=LOOKED_AT, table="\n".join(lines)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
