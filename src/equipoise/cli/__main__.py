"""python -m equipoise.cli."""

from .app import main

main()
