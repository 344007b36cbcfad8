"""Theorems that run: certificates of what is guaranteed, here and now, and of what is not."""

from .certificate import Certificate, fingerprint
from .claim import Claim

__all__ = ["Certificate", "Claim", "fingerprint"]
