"""Every experiment of the papers, entered: `experiments()`, `experiment(key)`, `reproduce(keys, …)`."""

from . import (  # noqa: F401  each module enters its experiments
    gao2022,
    gao2022_table,
    hieu2022,
    hieu2022_landscape,
    hieu2022_monotone,
    hieu2022_multiscale,
    kawaguchi2021,
    kawaguchi2021_dynamics,
    kawaguchi2021_theory,
    ling2023,
    ling2023_gram,
    xie2021,
    xie2021_digits,
    xie2021_images,
    xie2021_segmentation,
)
from .experiments import SCALES, Experiment, Result, Settings, Watcher, experiment, experiments, select
from .runner import reproduce
from .verdicts import Judgement

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
