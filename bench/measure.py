"""Timing in turns, with every answer verified by the same test."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

PEERS = ("torchdeq", "jax", "jaxopt", "optimistix", "neural-tangents")


@dataclass(frozen=True)
class Row:
    """One work, ours beside one peer. Times are medians in milliseconds; None where the peer cannot run."""

    work: str
    ours_ms: float
    peer: str
    peer_ms: float | None
    error: float  # ours, by the test of the benchmark
    peer_error: float | None = None
    ratio: float | None = None  # median over the repetitions of peer time / our time
    ours: str = "equipoise"
    target: float | None = None
    note: str = ""
    reason: str = ""  # why the target is missed, where it is

    @property
    def missed(self) -> bool:
        """Whether there is a target that the ratio does not reach, as both are written."""
        return (
            self.target is not None
            and self.ratio is not None
            and round(self.ratio, 2) < round(self.target, 2)
        )

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Row:
        return cls(**row)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Contender:
    """A way to do the work: a function that does it, and how its answer becomes one we can verify."""

    name: str
    solve: Callable[[], Any]
    answer: Callable[[Any], torch.Tensor] = lambda z: z


@dataclass(frozen=True)
class Absent:
    """A peer that cannot run here, and why."""

    name: str
    reason: str


def calibrate(
    name: str,
    make: Callable[[float], Contender],
    verify: Callable[[torch.Tensor], float],
    limit: float,
    tolerances: list[float],
) -> Contender | Absent:
    """The contender with the first of the tolerances, from loose to tight, whose answer passes our test."""
    for tolerance in tolerances:
        contender = make(tolerance)
        if verify(contender.answer(contender.solve())) <= limit:
            return contender
    return Absent(name, f"does not reach {limit:g}")


def fastest(contenders: list[Contender | Absent]) -> Contender | Absent:
    """The one that took least time in a second run; an absent one if no other is there."""
    times = {}
    for contender in contenders:
        if isinstance(contender, Contender):
            begin = time.process_time()
            contender.solve()
            times[contender] = time.process_time() - begin
    return min(times, key=times.__getitem__) if times else contenders[0]


def side_by_side(
    work: str,
    ours: Contender,
    peers: list[Contender | Absent],
    verify: Callable[[torch.Tensor], float],
    repeats: int,
    targets: dict[str, float] | None = None,
) -> list[Row]:
    """Every contender in turn, `repeats` times. CPU time of this process: other work disturbs it least."""
    present = [peer for peer in peers if isinstance(peer, Contender)]
    errors: dict[str, float] = {}
    for contender in (ours, *present):  # also warms up caches and compilers
        errors[contender.name] = verify(contender.answer(contender.solve()))
    times: dict[str, list[float]] = {name: [] for name in errors}
    for _ in range(repeats):
        for contender in (ours, *present):
            begin = time.process_time()
            contender.solve()
            times[contender.name].append(1e3 * (time.process_time() - begin))
    ours_ms = statistics.median(times[ours.name])
    rows = []
    for peer in peers:
        target = next((t for start, t in (targets or {}).items() if peer.name.startswith(start)), None)
        if isinstance(peer, Absent):
            rows.append(
                Row(work, ours_ms, peer.name, None, errors[ours.name], ours=ours.name, note=peer.reason)
            )
            continue
        ratios = [b / a for a, b in zip(times[ours.name], times[peer.name], strict=True)]
        rows.append(
            Row(
                work,
                ours_ms,
                peer.name,
                statistics.median(times[peer.name]),
                errors[ours.name],
                errors[peer.name],
                statistics.median(ratios),
                ours.name,
                target,
            )
        )
    return rows


def environment(threads: int, quick: bool) -> dict[str, Any]:
    """What the numbers were measured on and with."""
    return {
        "threads": threads,
        "quick": quick,
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load": [os.getloadavg()[0]],
        "cpu": _cpu(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("equipoise", "torch", *PEERS)},
    }


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
