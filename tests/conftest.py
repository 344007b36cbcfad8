"""Settings of every test."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from leftovers import end_processes, forget_processes, watch_processes

# Contract suites run one test under many classes, which hypothesis would otherwise call an accident.
settings.register_profile(
    "equipoise", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)
settings.load_profile("equipoise")
torch.set_printoptions(precision=8)
watch_processes()


@pytest.fixture(autouse=True)
def _no_process_is_left():
    forget_processes()
    yield
    if left := end_processes():
        pytest.fail(f"a test must wait for the processes it starts. Left: {'; '.join(left)}")
