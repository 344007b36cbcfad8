"""What decides the last bits of a run besides its data and options: versions, processor and threads."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from .. import __version__


def environment() -> dict[str, str]:
    """The environment of this process. Two runs that agree in all of it compute the same bits."""
    return {
        **_installed(),
        "processor": f"{torch.backends.cpu.get_cpu_capability()}, {_processor()}",
        "threads": str(torch.get_num_threads()),
    }


@cache
def _installed() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}
    python, system = platform.python_version(), platform.platform()
    return {"equipoise": __version__, **packages, "python": python, "platform": system}


@cache
def _processor() -> str:
    """The model of the processor, if the system tells it: libraries choose their arithmetic by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def changes(then: Mapping[str, str]) -> dict[str, str]:
    """What differs from `then` and may change the last bits of a number: the change in words, by name."""
    now = environment()
    return {n: f"{was}, now {now.get(n)}" for n, was in then.items() if n != "platform" and now.get(n) != was}
