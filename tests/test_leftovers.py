"""What a test leaves running is ended at its end, and told of there."""

import gc
import subprocess
import sys
import warnings

import pytest
from leftovers import end_processes

WAITS = [sys.executable, "-c", "input()"]


@pytest.fixture(scope="module")
def shared():
    """A process that several tests use, such as a browser."""
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
        yield process
        process.communicate(b"\n")


@pytest.mark.parametrize("once_more", [False, True])
def test_a_process_of_several_tests_is_left_alone(shared, once_more):
    assert end_processes() == []
    assert shared.poll() is None


def test_a_process_that_was_left_is_ended_and_named():
    pipe = subprocess.PIPE
    left = subprocess.Popen(WAITS, stdin=pipe, stdout=pipe)
    with subprocess.Popen(WAITS, stdin=pipe) as waited_for:
        waited_for.communicate(b"\n")
    assert end_processes() == [str(WAITS)]
    assert left.returncode != 0
    assert left.stdin.closed
    assert left.stdout.closed
    assert end_processes() == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del left
        gc.collect()  # nothing is left to warn of
