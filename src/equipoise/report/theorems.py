"""The theorems in short: what each says, what it needs, and what its promise is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    title: str
    says: str
    needs: str
    means: str


WELLPOSED = Statement(
    "Well-posedness",
    "The equation of the hidden layer has exactly one solution for every input, and iterating it comes "
    "nearer to that solution by a known factor each time.",
    "A contraction (‖W‖ < 1), or a monotone map (the symmetric part of I − W at least μ > 0), for the "
    "weights as they are stored.",
    "Whoever asks the network gets the one answer it has, whatever solver, starting point or machine is "
    "used. It says nothing about whether that answer is right.",
)
_LAZY = (
    "Conditions of this kind ask for a hidden layer that is wide, or a start that is close, so that the "
    "hidden weights hardly have to move."
)

STATEMENTS: dict[str, Statement] = {
    "wellposed": WELLPOSED,
    "anchored": Statement(
        "Anchored training",
        "The objective F, which is the training loss plus a penalty on the readout, never ends above its "
        "value at the best readout of the untrained network, and falls at every checkpoint that is kept.",
        "One equilibrium for every input, and a readout of the start that is proved to be the best one up to "
        "a small gap (A1). At each checkpoint F is enclosed between two bounds: what training reached is "
        "kept only where the upper one is not above the lower one of before, and is undone otherwise.",
        "Training by any optimiser cannot make the network worse, on the rows it was trained on, than ridge "
        "or logistic regression on its untrained features, and no input loses its answer. It says "
        "nothing about new data.",
    ),
    "safeguarded": Statement(
        "Safeguarded descent",
        "The loss after k steps is at most (1 − (1−θ)ν)²ᵏ of the first, where ν is what one step of the "
        "readout takes off the residual and θ the share of it that a hidden update may give back.",
        "A well-posed start whose features Z are independent: σ_min(Z) > 0, which slack λ > 0 always "
        "provides. After that every hidden update is checked before it is accepted: (S1) the residual has "
        "shrunk as promised, (S2) σ_min(Z) stays above its floor, (S3) ‖Z‖ stays below its ceiling, (S4) the "
        "new weights are well-posed. An update that cannot be proved safe is shrunk, in the end to nothing.",
        "Training cannot blow up or stall: the bound holds at every step, at any width, while the hidden "
        "layer learns. The promise is about the training loss; what the network makes of new data is "
        "measured, not proved.",
    ),
    "two_timescale": Statement(
        "Two time scales",
        "With one step size for the readout and a smaller one for the hidden layer, both fixed beforehand, "
        "the loss after k steps is at most (1 − (1−θ)ν)²ᵏ of the first.",
        "A well-posed start with independent features, and the inequalities (T1) to (T4), which bound the "
        "hidden step so that all weights stay where the features keep their conditioning.",
        "The whole run is decided before its first step, and the hidden step it allows is small: what is "
        "fitted is above all the readout.",
    ),
    "gao2022.flow": Statement(
        "Gradient flow of a scaled ReLU network",
        "Followed continuously, the loss falls at least as exp(−α₀²t/2), with α₀ the smallest singular value "
        "of the first features.",
        "Independent features with α₀ large beside the first residual, the norms of the weights and those of "
        f"the data: inequalities (14) and (15). {_LAZY}",
        "It is about the ideal flow; a computed run follows it as closely as its solver does.",
    ),
    "gao2022.descent": Statement(
        "Gradient descent of a scaled ReLU network",
        "With a step size η below the bound of (20), the loss after k steps is at most (1 − ηα₀²/4)ᵏ of the "
        "first.",
        f"As for the flow, with larger constants: inequalities (17), (18) and (19). {_LAZY}",
        "Where it applies, plain gradient descent reaches any loss; the rate is often far below what is "
        "measured.",
    ),
    "ling2023": Statement(
        "Gradient descent of a Gaussian ReLU network",
        "With a step size η below the bound of (10), the loss after k steps is at most (1 − ηλ₀/2)ᵏ of the "
        "first, with λ₀ the smallest eigenvalue of ZZᵀ at the start.",
        f"Condition 1: inequalities (7), (8) and (9), the last with its constant corrected. {_LAZY}",
        "Where it applies, plain gradient descent reaches any loss; the rate is often far below what is "
        "measured.",
    ),
    "hieu2022.flow": Statement(
        "Gradient flow of a monotone network",
        "Followed continuously, the loss falls at least as exp(−λ₀²t/2), with λ₀ the smallest singular value "
        "of the first features.",
        f"Inequalities (3.8) and (3.9), in which the margin μ of the network enters by its powers. {_LAZY}",
        "It is about the ideal flow; a computed run follows it as closely as its solver does.",
    ),
    "hieu2022.descent": Statement(
        "Gradient descent of a monotone network",
        "With a step size η within its bounds, the loss falls by a fixed factor each step.",
        "Inequalities (3.16), (3.17) and (3.18), with the powers of the margin μ that the proof needs and "
        f"the printed form leaves out. {_LAZY}",
        "Where it applies, plain gradient descent reaches any loss.",
    ),
    "kawaguchi2021": Statement(
        "Gradient flow of the linear network",
        "From any start, the gap between the loss and its least value falls at least as exp(−2κλt), although "
        "the loss is not convex in the weights.",
        "Features of full rank: κ is their smallest singular value squared, times a constant of the loss; "
        "λ ≥ 1/(m(1+γ)²).",
        "No width and no special start are needed, because the network is linear in its input's features.",
    ),
}


def used(theorem: str | None) -> list[Statement]:
    """The statements that a run rests on: well-posedness always, and the theorem of its certificate."""
    named = STATEMENTS.get(theorem or "wellposed", WELLPOSED)
    return [WELLPOSED] if named is WELLPOSED else [named, WELLPOSED]
