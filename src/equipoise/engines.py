"""Where work is done: in this process, in several processes of this machine, or as tasks of a Ray cluster.

    for number, result in each(work, shared, tasks, Workers(4)): ...

`work(shared, task)` is a function of a module; `shared` is sent to every worker once. Processes are those of
`concurrent.futures`; scheduling tasks, and repeating those whose node was lost, is left to Ray.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from .checks import integer, one_of

Engine = Literal["local", "ray"]
Work = Callable[[Any, Any], Any]  # called with what is shared and with a task

AHEAD = 2  # tasks handed out at a time for each worker: tasks that wait take memory
RETRIES = 16  # how often a Ray task is repeated whose node or process was lost


class WorkerLost(RuntimeError):
    """A process that worked for this one was killed."""


@dataclass(frozen=True)
class Workers:
    """How many workers there are, and what runs them. A single local worker is this process itself."""

    count: int = 1
    engine: str = "local"
    threads: int = 1  # of each worker

    def __post_init__(self) -> None:
        integer("workers", self.count)
        one_of("engine", self.engine, ("local", "ray"))
        if self.engine == "ray":
            require_ray()


def require_ray() -> Any:
    """The package ray, or an ImportError that says how it is installed."""
    try:
        import ray
    except ImportError:
        raise ImportError(
            "The engine ray needs the package ray, which is not installed. The engine local needs none."
            "\n\nInstall it with: pip install 'equipoise[ray]'"
        ) from None
    return ray


def each(work: Work, shared: Any, tasks: Iterable[Any], workers: Workers) -> Generator[tuple[int, Any]]:
    """Yield the number of each task with its result when it is done; several workers may finish in any order.

    An error in a task is raised here, and the other tasks are ended.
    """
    numbered = enumerate(tasks)
    if workers.engine == "ray":
        return _by_ray(work, shared, numbered, workers)
    if workers.count == 1:
        return ((number, work(shared, task)) for number, task in numbered)
    return _by_processes(work, shared, numbered, workers)


def in_order(found: Iterable[tuple[int, Any]]) -> Iterator[Any]:
    """The results of `each` in the order of the tasks; those that come early wait."""
    early: dict[int, Any] = {}
    following = 0
    for number, result in found:
        early[number] = result
        while following in early:
            yield early.pop(following)
            following += 1


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- processes -----------------------------------------------------------------------------------------------


def processes(*modules: str) -> Any:
    """The context in which workers are started, and in which what they share must be made.

    They are forks of a process that has imported torch and these modules and has done nothing else: a fork of
    this one, which may have threads, could hang, and to import torch in each takes seconds and memory. Where
    the system has no forks, each worker imports them by itself.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", *modules])
    return context


def _by_processes(
    work: Work, shared: Any, numbered: Iterator[tuple[int, Any]], workers: Workers
) -> Generator[tuple[int, Any]]:
    begin = (work, shared, workers.threads, dict(os.environ))
    context = processes(work.__module__)
    with ProcessPoolExecutor(workers.count, mp_context=context, initializer=_start, initargs=begin) as pool:
        pending: dict[Any, int] = {}
        try:
            while True:
                with _no_interrupt():  # workers inherit this, which protects them until `_start` has run
                    for number, task in islice(numbered, AHEAD * workers.count - len(pending)):
                        pending[pool.submit(_call, task)] = number
                if not pending:
                    return
                for future in wait_for(pending, return_when=FIRST_COMPLETED).done:
                    yield pending.pop(future), future.result()
        except BrokenProcessPool:
            raise WorkerLost(
                "a process of the run was killed, perhaps because memory ran out. What was computed is kept, "
                "and the same command with fewer workers continues from there."
            ) from None
        except BaseException:  # such as Ctrl-C: nothing goes on in the background
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C waits until the end of the block; processes that are started in it never receive it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_mine: tuple[Work, Any] | None = None  # in a worker: its function, and what all tasks share


def _start(work: Work, shared: Any, threads: int, environment: dict[str, str]) -> None:
    global _mine
    import torch

    os.environ.update(environment)  # as it is in the parent now, not when its first worker was started
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _mine = work, shared


def _end_with_parent() -> None:
    """A parent that was killed could not end its workers. What they keep is written whole or not at all."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _call(task: Any) -> Any:
    assert _mine is not None
    work, shared = _mine
    return work(shared, task)


# -- Ray -----------------------------------------------------------------------------------------------------


def connect() -> Any:
    """The package ray, connected to the cluster at RAY_ADDRESS or of `ray start`, or to one of its own."""
    ray = require_ray()
    if not ray.is_initialized():
        # A worker finds the library where this process has it.
        path = os.pathsep.join(p for p in (_home(), os.environ.get("PYTHONPATH", "")) if p)
        ray.init(log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": {"PYTHONPATH": path}})
    return ray


def _home() -> str:
    from pathlib import Path

    return str(Path(__file__).parents[1])


def _by_ray(
    work: Work, shared: Any, numbered: Iterator[tuple[int, Any]], workers: Workers
) -> Generator[tuple[int, Any]]:
    ray = connect()
    task_of = ray.remote(_ray_task).options(num_cpus=1, max_retries=RETRIES)
    held = ray.put((work, shared, workers.threads))
    pending: dict[Any, int] = {}
    try:
        while True:
            for number, task in islice(numbered, AHEAD * workers.count - len(pending)):
                pending[task_of.remote([held], task)] = number
            if not pending:
                return
            for done in ray.wait(list(pending), num_returns=1)[0]:
                yield pending.pop(done), ray.get(done)
    except BaseException:
        for reference in pending:
            ray.cancel(reference, force=True)
        raise


_known: dict[str, Any] = {}  # in a worker of Ray: what was shared last, which many tasks have in common


def _ray_task(held: list[Any], task: Any) -> Any:
    """`held` is a list so that Ray passes the reference itself, and its object is unpacked only once."""
    import ray
    import torch

    name = held[0].hex()
    if name not in _known:
        _known.clear()
        _known[name] = ray.get(held[0])
    work, shared, threads = _known[name]
    torch.set_num_threads(threads)
    return work(shared, task)
