"""Settings of every test."""

import torch
from hypothesis import HealthCheck, settings

# Contract suites run one test under many classes, which hypothesis would otherwise call an accident.
settings.register_profile(
    "equipoise", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)
settings.load_profile("equipoise")
torch.set_printoptions(precision=8)
