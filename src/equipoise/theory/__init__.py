"""Theorems that run: certificates of what is guaranteed, here and now, and of what is not."""

from . import gao2022, hieu2022, kawaguchi2021, ling2023
from .certificate import Certificate, fingerprint
from .certify import THEOREMS, Theorem, certify, make_theorem
from .claim import Claim
from .safeguarded import Safeguarded
from .two_timescale import TwoTimescale
from .wellposed import WellPosed, equilibrium_error

__all__ = [
    "THEOREMS",
    "Certificate",
    "Claim",
    "Safeguarded",
    "Theorem",
    "TwoTimescale",
    "WellPosed",
    "certify",
    "equilibrium_error",
    "fingerprint",
    "gao2022",
    "hieu2022",
    "kawaguchi2021",
    "ling2023",
    "make_theorem",
]
