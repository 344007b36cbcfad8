"""Certificates about predictions: whether answers hold on whole sets of inputs, by duality and branching.

- `network`: the form in which a family is verified. `sets`: of inputs. `outputs`: what is to hold of them.
- `bounds`: (V1), which turns any multiplier into a bound; `tighten`, `ascend`: good multipliers.
- `branch`: splitting on the signs of units. `attack`: counterexamples. `predictions`: all of it together.
- `radius`: how far each row may move, by bisection.
- `smoothing`: radii of the smoothed classifier of any model, true with a chosen probability.
"""

from .predictions import verified_radius, verify_predictions
from .radius import VerifiedRadii, bisected, distances
from .result import VerifiedPredictions
from .smoothing import Smoothed, smoothed_predictions

__all__ = [
    "Smoothed",
    "VerifiedPredictions",
    "VerifiedRadii",
    "bisected",
    "distances",
    "smoothed_predictions",
    "verified_radius",
    "verify_predictions",
]
