"""python -m equipoise, which `torchrun -m equipoise` runs in several processes."""

from .cli.app import main

main()
