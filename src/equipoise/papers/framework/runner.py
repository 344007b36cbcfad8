"""Running experiments: one after the other, or as many at a time as there are cores.

    reproduce(["gao2022"], Settings(), "gallery", jobs=2)

Each job is a process with its share of the threads. Units that two experiments have in common are computed
by the first that asks; the other waits for it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any

from ...checks import integer
from ...data import DataError
from ...engines import Workers, cores, each, processes
from ...files import write_atomically
from .experiments import SCALES, Context, Experiment, Result, Settings, Silent, Watcher, experiment, select
from .gallery import check_place, read_result, write_gallery, write_page
from .page import Page
from .units import plain
from .verdicts import Judgement

MOST = 8  # jobs, unless more are asked for: each takes about half a gigabyte


def reproduce(
    names: Sequence[str],
    settings: Settings,
    out: str | Path,
    watcher: Watcher | None = None,
    *,
    jobs: int | None = 1,
    engine: str = "local",
) -> list[Result]:
    """Run experiments and write, for each, a directory `out`/<key>; then the gallery, `out`/index.html.

    `jobs` of them at a time, each in a process of its own; None is the number of cores, up to 8. One that
    raises is reported as failed, and the others go on. SIGTERM is a KeyboardInterrupt, which ends them all.
    With the engine "ray" they are tasks of a cluster whose nodes all see `out`, with the same results.
    """
    chosen, out, watcher = select(names), Path(out), watcher or Silent()
    integer("jobs", 1 if jobs is None else jobs, other=", or None")
    check_place(out)
    jobs = min(jobs or min(cores(), MOST), len(chosen))
    workers = Workers(jobs, engine, max(1, cores() // jobs))
    results: dict[str, Result] = {}
    work = (chosen, settings, out, watcher)
    found = _side_by_side(*work, workers) if jobs > 1 or engine == "ray" else _in_turn(*work)
    with _interruptible(), closing(found):
        for result in found:
            write_page(read_result(out / result.key), out)
            watcher.finished(result)
            results[result.key] = result
        write_gallery(out)
    return [results[entry.key] for entry in chosen]


def _in_turn(
    chosen: Sequence[Experiment], settings: Settings, out: Path, watcher: Watcher
) -> Generator[Result]:
    for at, entry in enumerate(chosen):
        watcher.experiment(entry.key, at, len(chosen))
        yield run_one(entry, settings, out, watcher)


def run_one(entry: Experiment, settings: Settings, out: Path, watcher: Watcher | None = None) -> Result:
    """Measure, judge and draw one experiment; `measured.json` and `result.json` are written.

    If it fails and there is a former result without an error, that one is kept and says so. The traceback is
    in `error.txt`.
    """
    directory = out / entry.key
    directory.mkdir(parents=True, exist_ok=True)
    former, new = _former(directory), directory / f".new-{os.getpid()}"
    try:
        result = stored = _run(entry, Context(settings, out, watcher or Silent()), Page(new), former)
        if result.error and former is not None:
            stored = replace(former, later=result.error)
        else:
            for part in sorted(new.glob("*")):
                part.replace(directory / part.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    if not result.error:
        (directory / "error.txt").unlink(missing_ok=True)
    content = {**asdict(stored), "verdict": stored.verdict}
    text = json.dumps(plain(content), ensure_ascii=False, indent=1)
    write_atomically(directory / "result.json", text.encode())
    return result


def _former(directory: Path) -> Result | None:
    """The result in `directory`, if it can be read and has no error."""
    try:
        found = read_result(directory)
    except DataError:
        return None
    return None if found.error else found


def _replaced(former: Result | None, scale: str) -> list[str]:
    """A warning if a smaller run takes the place of a larger one."""
    before = scale if former is None else former.settings["scale"]
    if SCALES.index(before) <= SCALES.index(scale):
        return []
    kept = "whose units are kept: run again at that scale, it is drawn from them."
    return [f"this page of the scale {scale} replaces one of the scale {before}, {kept}"]


def _run(entry: Experiment, context: Context, page: Page, former: Result | None) -> Result:
    judgements: list[Judgement] = []
    error, of_data = "", False
    try:
        measured = plain(entry.run(context))
        text = json.dumps(measured, ensure_ascii=False)
        page.directory.mkdir(exist_ok=True)
        write_atomically(page.directory / "measured.json", text.encode())
        judgements = entry.judge(measured)
        entry.draw(measured, page)
    except DataError as raised:
        error, of_data = str(raised), True
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        write_atomically(context.out / entry.key / "error.txt", traceback.format_exc().encode())
    return Result(
        key=entry.key,
        title=entry.title,
        claim=entry.claim,
        settings=asdict(context.settings),
        judgements=tuple(judgements),
        figures=page.figures,
        tables=page.tables,
        notes=[*context.notes, *page.notes],
        data=context.provenance,
        units=context.units,
        seconds=context.seconds,
        error=error,
        data_error=of_data,
        warnings=[] if error else [*context.ignored(), *_replaced(former, context.settings.scale)],
        sizes=context.sizes,
        recomputed=context.recomputed,
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """In this block SIGTERM acts like Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # others may not handle signals
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- processes and Ray ---------------------------------------------------------------------------------------


def _side_by_side(
    chosen: Sequence[Experiment], settings: Settings, out: Path, watcher: Watcher, workers: Workers
) -> Generator[Result]:
    """Results as they come. The longest start first, so that none is left running alone at the end."""
    order = sorted(chosen, key=lambda entry: -entry.minutes)
    keys = [entry.key for entry in order]
    if workers.engine == "ray":  # whose tasks can be far away: they tell nothing before they are done
        for _, result in each(_work, (settings, out.resolve(), None), keys, workers):
            yield result
        return
    messages = processes(_work.__module__).SimpleQueue()
    with _told(messages, watcher, len(chosen)):
        for _, result in each(_work, (settings, out, messages), keys, workers):
            yield result


@contextmanager
def _told(messages: Any, watcher: Watcher, total: int) -> Iterator[None]:
    """The watcher hears what the processes say.

    A process that was ended may have left the queue locked: after an error nothing is put into it.
    """

    def listen() -> None:
        begun = 0
        while (message := messages.get()) is not None:
            kind, name, share = message
            if kind == "unit":
                watcher.unit(name, share)
            else:
                watcher.experiment(name, begun, total)
                begun += 1

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    yield
    messages.put(None)
    thread.join(timeout=5)


class _Messenger(Silent):
    """A watcher that passes on what it is told."""

    def __init__(self, messages: Any) -> None:
        self.messages = messages

    def experiment(self, key: str, at: int, total: int) -> None:
        self.messages.put(("experiment", key, 0.0))

    def unit(self, name: str, share: float) -> None:
        self.messages.put(("unit", name, share))


def _work(shared: tuple[Settings, Path, Any], key: str) -> Result:
    from .. import catalogue  # noqa: F401  enters the experiments

    settings, out, messages = shared
    watcher = Silent() if messages is None else _Messenger(messages)
    watcher.experiment(key, 0, 0)
    return run_one(experiment(key), settings, out, watcher)
