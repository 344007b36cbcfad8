"""equipoise fit | predict | certify | suggest | diagnose | claims | report | runs | data …"""

from .app import main

__all__ = ["main"]
