"""Theorems that run: certificates of what is guaranteed, here and now, and of what is not."""

from . import families, gao2022, hieu2022, kawaguchi2021, ling2023, pl, trust_region, xie2021
from .certificate import Certificate, fingerprint
from .certify import THEOREMS, Theorem, certify, make_theorem
from .claim import Claim
from .export import UnrolledNetwork, unroll
from .facts import AffineFacts, Facts, facts, facts_of
from .robustness import Radii, certified_radius, lipschitz_bound, output_ranges, pairwise_lipschitz
from .safeguarded import Safeguarded
from .suggest import Suggestion, suggest
from .trajectory import Flight, Recorder
from .two_timescale import TwoTimescale
from .verify import VerifiedPredictions, verify_predictions
from .wellposed import WellPosed, equilibrium_error

__all__ = [
    "THEOREMS",
    "AffineFacts",
    "Certificate",
    "Claim",
    "Facts",
    "Flight",
    "Radii",
    "Recorder",
    "Safeguarded",
    "Suggestion",
    "Theorem",
    "TwoTimescale",
    "UnrolledNetwork",
    "VerifiedPredictions",
    "WellPosed",
    "certified_radius",
    "certify",
    "equilibrium_error",
    "facts",
    "facts_of",
    "families",
    "fingerprint",
    "gao2022",
    "hieu2022",
    "kawaguchi2021",
    "ling2023",
    "lipschitz_bound",
    "make_theorem",
    "output_ranges",
    "pairwise_lipschitz",
    "pl",
    "suggest",
    "trust_region",
    "unroll",
    "verify_predictions",
    "xie2021",
]
