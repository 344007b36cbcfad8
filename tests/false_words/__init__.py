"""Random small cases, each from its seed: what the library says of one, and whether that is true.

A false word is a row called converged whose equation does not hold, or whose state is far from its
equilibrium; a gradient that is further off than its tolerance allows; a bound that is exceeded; a certificate
of what is not so, or of a model that is no longer its family. Numbers are of every size that a dtype holds.
What is true comes from `references`: long double, pivoting and dense solves.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable

import torch

from .answers import conformal, verified
from .composed import composed
from .draw import Draw, Word
from .families import altered, bounds, gradients, runs
from .images import images
from .layers import layer
from .proximal import proximal
from .settings import settings
from .solves import affine_maps, cells

# Kinds of cases, and how many of a hundred they are: the cheap ones more often.
KINDS = {affine_maps: 27, cells: 20, gradients: 16, settings: 12, altered: 7, bounds: 4, layer: 4}
KINDS |= {proximal: 2, conformal: 2, images: 1, verified: 1, runs: 1, composed: 3}
_WHEEL = [kind for kind, often in KINDS.items() for _ in range(often)]


def word_of(kind: Callable[[Draw], Word], seed: int) -> Word:
    """What came of the case of that kind; the warnings of the library are no claims."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)  # torch starts spectral norms from its own generator
        return kind(Draw(seed))


def case(seed: int) -> tuple[str, Word]:
    """The kind of the case, and what came of it."""
    kind = _WHEEL[seed % len(_WHEEL)]
    return kind.__name__, word_of(kind, seed)


def false_words(seeds: Iterable[int]) -> tuple[Counter[str], Counter[str], dict[int, str]]:
    """How many cases there were and how many said anything, by kind, and by seed those that were false."""
    cases: Counter[str] = Counter()
    said: Counter[str] = Counter()
    false = {}
    for seed in seeds:
        kind, word = case(seed)
        cases[kind] += 1
        said[kind] += word.said
        if word.false:
            false[seed] = f"{kind}: {word.false}"
    return cases, said, false
