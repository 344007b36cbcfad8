"""Every experiment of the papers, entered: `experiments()`, `experiment(key)`, `reproduce(keys, …)`."""

from importlib import import_module

from .framework.experiments import (
    SCALES,
    Experiment,
    Result,
    Settings,
    Watcher,
    experiment,
    experiments,
    select,
)
from .framework.runner import reproduce
from .framework.verdicts import Judgement

_ENTERED = (  # each module enters its experiments
    "gao2022.figures",
    "gao2022.table",
    "hieu2022.paths",
    "hieu2022.landscape",
    "hieu2022.monotone",
    "hieu2022.multiscale",
    "kawaguchi2021.figures",
    "kawaguchi2021.dynamics",
    "kawaguchi2021.theory",
    "ling2023.figures",
    "ling2023.gram",
    "xie2021.optimisation",
    "xie2021.digits",
    "xie2021.images",
    "xie2021.segmentation",
)
for _name in _ENTERED:
    import_module(f".{_name}", __package__)

__all__ = [
    "SCALES",
    "Experiment",
    "Judgement",
    "Result",
    "Settings",
    "Watcher",
    "experiment",
    "experiments",
    "reproduce",
    "select",
]
