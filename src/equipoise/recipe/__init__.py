"""Recipe: what is to be trained and how. An option that is None is chosen from the data.

The options of `equipoise fit`, the parameters of the estimators and the [recipe] of a config.toml are made
from the fields of this one class. The command line imports it, so nothing heavy is imported
here before it is needed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..checks import integer, one_of
from .families import DEFAULT, FAMILIES, OWN, Family, Inputs, build

if TYPE_CHECKING:
    import torch

    from ..models.base import EquilibriumModel

__all__ = ["FAMILIES", "Family", "Inputs", "Kind", "Recipe", "of_panel"]

Kind = Literal["classification", "regression"]

NORMS = "l2", "linf"
ROBUST = "monotone", "gaussian-relu"  # families whose margins are known to robust training
THEOREMS = "anchored", "safeguarded"  # those that certified training can keep
NETWORK, PROMISE, BATCHES = "Network", "What is promised", "Training in batches (anchored, or --uncertified)"
WHOLE = "Training with every row at each step (--theorem safeguarded)"

WIDTH = 512, 1024  # from, to: N/2 between them. A solver step costs 2·N·m² operations
ETA = 0.15  # share of the Gauss-Newton step: the hidden layer learns only until the residual is gone
GRADIENT_STEPS = 200
LEFT = 0.05  # share of the residual at the end: a few steps more would change no decision
SMALLEST = 64
USUAL: dict[str, Any] = {"optimiser": "adam", "rate": 5e-3, "schedule": "cosine", "weight_decay": 0.0}
RIDGE = 30.0, 0.1  # λ of the readout: about this much, but no more than a share of the rows
DECAY = 10.0, 0.03  # κ of the hidden weights, likewise
ENOUGH = 0.005  # a checkpoint that lowers the objective by a smaller share is the last, by default
BOXED = 40  # the most units of a network whose margins are trained for boxes (norm linf)
ANCHORED = "ridge", "decay", "enough"  # options that only anchored training has


def _option(panel: str, words: str, default: Any = None) -> Any:
    """A field with the words that explain it in the help and in the documentation of the estimators."""
    return dataclasses.field(default=default, metadata={"panel": panel, "words": words})


@dataclass(frozen=True)
class Recipe:
    """The options of a training, as the [recipe] of a run's config.toml holds them.

    An option that does not belong to the chosen way of training or family is an error. `equipoise fit --help`
    shows the words beside each field.
    """

    model: str = _option(NETWORK, f"Family: {', '.join(FAMILIES)} or auto.", "auto")
    width: int | None = _option(
        NETWORK, "Units of the hidden layer (linear: one for each input); channels, for images."
    )
    gamma: float | None = _option(NETWORK, "Constant γ of a linear or scaled-relu network, in (0, 1).")
    margin: float | None = _option(NETWORK, "Margin μ > 0 of a monotone or conv-monotone network.")
    layers: int | None = _option(NETWORK, "Number of layers of a deep-opteq or conv-opteq network.")
    sigma_w2: float | None = _option(
        NETWORK, "Variance σ_w² of the weights of a gaussian-relu network, in (0, 1/8)."
    )
    certified: bool = _option(PROMISE, "Whether to train under a proved certificate or freely.", True)
    theorem: str | None = _option(PROMISE, "anchored (default, in batches) or safeguarded (promises a rate).")
    ridge: float | None = _option(
        PROMISE,
        "Penalty λ > 0 of the readout; by default about 30, or a tenth of the rows, as leave-one-out says.",
    )
    decay: float | None = _option(
        PROMISE, "Penalty κ ≥ 0 of the hidden weights; by default 10, or 3 % of the rows."
    )
    coverage: float | None = _option(
        PROMISE,
        "Share of new rows whose set or interval holds the truth, such as 0.9; takes a quarter of the rows.",
    )
    enough: float | None = _option(
        PROMISE,
        "Stop at a checkpoint that lowered the objective by less than this share; 0 trains all epochs.",
    )
    robust: float | None = _option(
        PROMISE,
        "Train so that a change by up to this ε keeps the class: a share of the brightest pixel of images, "
        "standard deviations in tables.",
    )
    norm: str | None = _option(PROMISE, "Norm of the ε of robust training: l2 (the default) or linf.")
    readout: str | None = _option(WHOLE, "Step of the readout: gauss-newton (the default) or gradient.")
    eta: float | None = _option(WHOLE, "Readout step as a share of the largest allowed one, in (0, 1].")
    slack: float | None = _option(WHOLE, "Ridge penalty λ ≥ 0; by default chosen by leave-one-out errors.")
    steps: int | None = _option(WHOLE, "How many steps to take.")
    loss: str | None = _option(BATCHES, "Loss: square, half_square, logistic, hinge or cross_entropy.")
    optimiser: str | None = _option(BATCHES, "Optimiser: sgd, adam, adamw, rmsprop or adagrad.")
    rate: float | None = _option(BATCHES, "Learning rate.")
    momentum: float | None = _option(BATCHES, "Momentum of sgd, in [0, 1).")
    schedule: str | None = _option(BATCHES, "Schedule of the rate: constant, cosine, step or poly.")
    epochs: int | None = _option(BATCHES, "Passes over the data.")
    batch_size: int | None = _option(BATCHES, "Rows in each step.")
    weight_decay: float | None = _option(BATCHES, "Weight decay of the optimiser, ≥ 0.")
    clip: float | None = _option(
        BATCHES, "Largest norm of a gradient; longer gradients are scaled down to it."
    )
    patience: int | None = _option(BATCHES, "Stop after this many epochs without progress on held-out rows.")
    augment: str | None = _option(
        BATCHES, "Random changes of training images: shifts, flips, or both as shifts,flips."
    )
    class_weight: str | None = _option(NETWORK, "balanced gives every class the same weight.")
    dtype: str | None = _option(
        NETWORK, "float32 (the default in batches) or float64 (the default otherwise)."
    )
    seed: int = _option(NETWORK, "Seed of the weights, the batches and the split; 0 by default.", 0)

    DTYPES: ClassVar = ("float64", "float32")

    def __post_init__(self) -> None:
        from ..losses import LOSSES
        from ..train.augment import named
        from ..train.optimisers import OPTIMISERS
        from ..train.schedules import SCHEDULES

        one_of("model", self.model, ("auto", *FAMILIES))
        if not isinstance(self.certified, bool):
            raise ValueError(f"certified must be one of True, False. Got {self.certified!r} instead.")
        integer("seed", self.seed, 0)
        for name in ("width", "layers", "steps", "epochs", "batch_size", "patience"):
            if getattr(self, name) is not None:
                integer(name, getattr(self, name), 0 if name == "steps" else 1)
        for name, low, high in (
            ("gamma", 0.0, 1.0),
            ("margin", 0.0, math.inf),
            ("sigma_w2", 0.0, 1 / 8),
            ("rate", 0.0, math.inf),
            ("ridge", 0.0, math.inf),
            ("clip", 0.0, math.inf),
        ):
            _number(name, getattr(self, name), lambda v, a=low, b=high: a < v < b, f"in ({low:g}, {high:g})")
        _number("robust", self.robust, lambda v: v > 0, "> 0")
        _number("coverage", self.coverage, lambda v: 0 < v < 1, "in (0, 1), such as 0.9")
        _number("enough", self.enough, lambda v: 0 <= v < 1, "in [0, 1)")
        _number("eta", self.eta, lambda v: 0 < v <= 1, "in (0, 1]")
        _number("momentum", self.momentum, lambda v: 0 <= v < 1, "in [0, 1)")
        for name in ("slack", "weight_decay", "decay"):
            _number(name, getattr(self, name), lambda v: v >= 0, "≥ 0")
        for name, known in (
            ("readout", ("gauss-newton", "gradient")),
            ("loss", (*LOSSES, "hinge", "cross_entropy")),
            ("optimiser", tuple(OPTIMISERS)),
            ("schedule", tuple(SCHEDULES)),
            ("class_weight", ("balanced",)),
            ("dtype", self.DTYPES),
            ("theorem", THEOREMS),
            ("norm", NORMS),
        ):
            if getattr(self, name) is not None:
                one_of(name, getattr(self, name), known)
        named(self.augment)
        self._check_path()
        self._check_family()

    def _check_path(self) -> None:
        if self.robust is not None:
            object.__setattr__(self, "certified", False)  # the trained network is proved afterwards
        elif self.norm is not None:
            raise ValueError("norm is used only with robust: give robust too, such as 0.1.")
        if not self.certified and self.theorem is not None:
            raise ValueError("theorem must not be given for training without a certificate.")
        if self.certified:
            object.__setattr__(self, "theorem", self.path)  # so that a file names it if the default changes
        others = {"anchored": of_panel(WHOLE), "safeguarded": [*of_panel(BATCHES), *ANCHORED]}
        others["free"] = [*of_panel(WHOLE), *ANCHORED]
        if wrong := [name for name in others[self.path] if getattr(self, name) is not None]:
            raise ValueError(
                f"{', '.join(wrong)} must not be given for {self.path} training: "
                f"{'they are options' if len(wrong) > 1 else 'it is an option'} of another way of training, "
                f"which certified and theorem choose."
            )

    def _check_family(self) -> None:
        family = self.built
        if not family.sized and self.width is not None:
            raise ValueError(f"a {self.family} network is as wide as its inputs: leave out width.")
        for name in OWN:
            if name not in family.options and getattr(self, name) is not None:
                own = " and ".join(family.options) or "no option of its own"
                raise ValueError(f"the family {self.family} takes {own}. Got {name} instead.")
        if self.robust is not None and (
            self.family not in ROBUST or self.loss not in (None, "cross_entropy")
        ):
            raise ValueError(
                f"robust training needs a {' or '.join(ROBUST)} network and cross_entropy. Got {self.family}"
                f"{f' and {self.loss}' if self.loss else ''} instead."
            )
        if self.augment is not None and not family.images:
            raise ValueError(f"augment needs a family of images. Got {self.family}: leave augment out.")
        if self.path == "safeguarded" and not family.affine:
            raise ValueError(
                f"safeguarded training knows {', '.join(n for n, f in FAMILIES.items() if f.affine)}. "
                f"Got {self.family} instead: train it with theorem anchored."
            )

    @property
    def family(self) -> str:
        """The family of networks: what "auto" stands for, or the one that was named."""
        usual = DEFAULT if self.robust is None else ROBUST[0]
        return usual if self.model == "auto" else self.model

    @property
    def built(self) -> Family:
        """What is known of that family."""
        return FAMILIES[self.family]

    @property
    def path(self) -> Literal["anchored", "safeguarded", "free"]:
        """The way of training. Giving an option that only safeguarded training has chooses that way."""
        if not self.certified:
            return "free"
        asked = any(getattr(self, name) is not None for name in of_panel(WHOLE))
        return "safeguarded" if self.theorem == "safeguarded" or (asked and not self.theorem) else "anchored"

    @property
    def unit(self) -> Literal["step", "epoch"]:
        """What training is counted in."""
        return "step" if self.path == "safeguarded" else "epoch"

    @property
    def total(self) -> int:
        """Steps or epochs of a resolved recipe."""
        found = self.steps if self.unit == "step" else self.epochs
        assert found is not None
        return found

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype of the weights."""
        import torch

        assert self.dtype is not None  # resolved
        return getattr(torch, self.dtype)

    # -- to and from a file ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The options that were given, for TOML and JSON; those that are None are left out."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Recipe:
        """The recipe that `to_dict` wrote; a name it does not know is an error."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise ValueError(f"a recipe has {', '.join(known)}. Got {name!r} as well.")
        earlier = "theorem" not in given and given.get("certified", True)  # written when there was no other
        return cls(**({**given, "theorem": "safeguarded"} if earlier else given))

    # -- the choices ----------------------------------------------------------------------------------------

    def resolved(self, rows: int, kind: Kind = "regression", classes: int = 2) -> Recipe:
        """The recipe with the options that the size of the data decides; the slack is chosen later.

        Training in batches is by Adam, with a cosine schedule and the loss of maximum likelihood. With the
        number of rows the width grows from 64 to 400, as their cube root, and the batches from 32 to 256;
        epochs fall from 60 to 12, of images to 6, so that the time still grows. Training with all N rows at
        each step has N/2 units, from 512 to 1024, or 4N if that is less, and ends when a twentieth of the
        residual is left.
        """
        family = self.built
        chosen: dict[str, Any] = {"model": self.family}
        chosen |= {name: getattr(self, name) or default for name, default in family.options.items()}
        if self.path == "safeguarded":
            readout = self.readout or "gauss-newton"
            newton = readout == "gauss-newton"
            eta = self.eta or (ETA if newton else 1.0)
            steps = _steps_until(LEFT, eta) if newton else GRADIENT_STEPS
            usual: dict[str, Any] = {"readout": readout, "eta": eta, "steps": steps, "dtype": "float64"}
            usual["width"] = _wide_enough(rows)
        else:
            likelihood = "logistic" if classes == 2 else "cross_entropy"
            usual = {"loss": "half_square" if kind == "regression" else likelihood, **USUAL}
            usual["width"] = max(SMALLEST, 8 * round(min(400, 64 * (rows / 150) ** (1 / 3)) / 8))
            usual["batch_size"] = int(min(256, max(32, 2 ** round(math.log2(max(rows, 2) / 10)))))
            usual["epochs"] = round(min(60, max(12, 20 * (5000 / rows) ** 0.3)))
            usual["dtype"] = "float32"
            if family.images:  # an epoch of many images takes long
                usual["epochs"] = min(usual["epochs"], max(6, round(20 * (5000 / rows) ** 0.5)))
            usual |= family.usual
            if self.robust is not None:
                usual |= {"loss": "cross_entropy", "clip": 10.0}
                if self.norm == "linf":  # on digits 136 units ended with no box proved, 40 with most
                    usual["width"] = min(BOXED, usual["width"])
        if self.path == "anchored":
            usual |= {"ridge": min(RIDGE[0], RIDGE[1] * rows), "decay": min(DECAY[0], DECAY[1] * rows)}
            usual["enough"] = ENOUGH if self.epochs is None else 0.0
        if not family.sized:
            del usual["width"]
        chosen |= {name: value for name, value in usual.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **chosen)

    def build(self, inputs: Inputs, outputs: int) -> EquilibriumModel:
        """The network of a resolved recipe at its start, with a readout of 0 for safeguarded training."""
        return build(self, inputs, outputs)


def _number(name: str, value: Any, allowed: Any, words: str) -> None:
    """Raise a ValueError unless the value is None or a finite number for which `allowed` is true."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (plain and math.isfinite(value) and allowed(value)):
        raise ValueError(f"{name} must be a finite number {words}. Got {value!r} instead.")


def of_panel(panel: str) -> list[str]:
    """The names of the options in one panel of the help."""
    return [f.name for f in dataclasses.fields(Recipe) if f.metadata["panel"] == panel]


def _wide_enough(rows: int) -> int:
    narrow, wide = WIDTH
    return max(SMALLEST, 4 * rows) if 4 * rows < narrow else min(max(rows // 2, narrow), wide)


def _steps_until(left: float, eta: float) -> int:
    """The k with (1 − η)^k ≤ `left`."""
    return 1 if eta >= 1 - left else math.ceil(math.log(left) / math.log1p(-eta))
