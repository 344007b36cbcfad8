"""Figures and tables of the papers as programs: run, judged by numbers, drawn, and shown beside the claim.

    experiments("gao2022")                       what there is

An experiment is three functions. `run(context)` measures and returns plain JSON; `judge(measured)` compares
the numbers with the paper's claims, each with a stated tolerance; `draw(measured, page)` makes figures and
tables. Its work is done in units (a curve, say): each is stored whole under the hash of its settings, with
digests of the code that computed it, and is not computed again, whichever experiment asks for it, until that
code changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from ... import __version__
from ...checks import integer, one_of
from ...data import Dataset, MissingData, load
from ...data.load import check_name
from ...data.registry import DIGITS_SHA256
from ...tasks.lock import locked
from . import units
from .claims import PAPERS, entries, look_up
from .page import Page
from .sources import code_of
from .units import plain
from .verdicts import Judgement, overall

Scale = Literal["tiny", "small", "medium", "paper"]
SCALES: tuple[str, ...] = get_args(Scale)
Measured = dict[str, Any]
Progress = Callable[[float], None]  # the share done of a unit

NO_DATA = "the experiment takes none, or always its own"


@dataclass(frozen=True)
class Settings:
    """How large an experiment is, on which data it runs, and how often.

    `data` are names that `load` knows; without them an experiment takes those of its paper, as far as they
    are found. `data_dir` is a directory that exists.
    """

    scale: str = "small"
    data: tuple[str, ...] = ()
    seeds: int | None = None
    data_dir: str | None = None

    def __post_init__(self) -> None:
        one_of("scale", self.scale, SCALES)
        integer("seeds", 1 if self.seeds is None else self.seeds)
        for name in self.data:
            check_name(name)
        if self.data_dir is not None and not Path(self.data_dir).expanduser().is_dir():
            raise ValueError(f"the data directory must be one that exists. Got {self.data_dir} instead.")

    def pick(self, **by_scale: Any) -> Any:
        """The value of this scale; one that is not given is that of the next smaller."""
        for scale in reversed(SCALES[: SCALES.index(self.scale) + 1]):
            if scale in by_scale:
                return by_scale[scale]
        return next(iter(by_scale.values()))


@dataclass(frozen=True)
class Experiment:
    """A figure, a table or a numerical claim of a paper."""

    key: str
    title: str
    claim: str  # of the paper, in our words
    run: Run
    judge: Callable[[Measured], list[Judgement]]
    draw: Callable[[Measured, Page], None]
    minutes: float = 0.0  # of processor time at the scale "small", about

    @property
    def paper(self) -> str:
        """The paper of the experiment, with which its key begins."""
        return self.key.split(".")[0]


Run = Callable[["Context"], Measured]
_REGISTRY: dict[str, Experiment] = {}


def register(
    key: str,
    title: str,
    judge: Callable[[Measured], list[Judgement]],
    draw: Callable[[Measured, Page], None],
    *,
    minutes: float = 0.0,
    least: str = "small",
) -> Callable[[Run], Run]:
    """Enter an experiment by its `run`, whose docstring is the claim of the paper, in our words.

    Below the scale `least` its runs are too short or small to tell.
    """

    def enter(run: Run) -> Run:
        claim = " ".join((run.__doc__ or "").split())
        if key in _REGISTRY or key.split(".")[0] not in PAPERS or not (title and claim):
            raise ValueError(f"{key}: an experiment needs a paper, a title, a claim and a key of its own.")
        sized = lambda context: run(context) | {"scale": context.settings.scale}
        told = lambda measured: [_told(j, measured.get("scale", least), least) for j in judge(measured)]
        _REGISTRY[key] = Experiment(key, title, claim, sized if least != "tiny" else run, told, draw, minutes)
        return run

    return enter


def _told(found: Judgement, scale: str, least: str) -> Judgement:
    """Undecided below the scale `least`; a difference for which none is known says so."""
    if SCALES.index(scale) < SCALES.index(least) and found.verdict in ("agree", "differs"):
        reason = f"undecided: runs of the scale {scale} are too short or small to tell"
        return replace(found, verdict="undecided", reason=reason)
    unexplained = found.verdict == "differs" and not found.reason
    return replace(found, reason="measured, and not explained") if unexplained else found


def experiments(paper: str | None = None) -> list[Experiment]:
    """Every experiment, or those of one paper, in the order of the papers."""
    return entries(_REGISTRY, paper)


def experiment(key: str) -> Experiment:
    """The experiment of that key."""
    return look_up(_REGISTRY, key, "experiment", "`equipoise reproduce list` shows the keys.")


def select(names: Iterable[str]) -> list[Experiment]:
    """The experiments with these names: keys, papers, or "all"."""
    found: dict[str, Experiment] = {}
    for name in names:
        some = experiments() if name == "all" else experiments(name) if name in PAPERS else [experiment(name)]
        found |= {entry.key: entry for entry in some}
    return list(found.values())


# -- running ---------------------------------------------------------------------------------------------


class Watcher(Protocol):
    """An object that is told how a run goes."""

    def experiment(self, key: str, at: int, total: int) -> None:
        """Experiment number `at` of `total` begins."""
        return

    def unit(self, name: str, share: float) -> None:
        """This share of a unit is done."""
        return

    def finished(self, result: Result) -> None:
        """An experiment has come to its result."""
        return


class Silent(Watcher):
    """A watcher that tells nobody."""


@dataclass
class Context:
    """What an experiment runs in: its settings, its data, and the store of units."""

    settings: Settings
    out: Path
    watcher: Watcher = field(default_factory=Silent)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of processor time of the units used, whenever they were computed
    units: list[str] = field(default_factory=list)
    recomputed: list[str] = field(default_factory=list)  # units that were computed again, and why
    provenance: dict[str, Any] = field(default_factory=dict)  # of the data used
    sizes: dict[str, list[Any]] = field(default_factory=dict)  # the numbers among the inputs of the units
    used: set[str] = field(default_factory=set)  # of the settings: names of data, and "seeds"
    _loaded: dict[str, Dataset] = field(default_factory=dict, init=False, repr=False)
    _parts: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False)  # taken, by data

    def pick(self, **by_scale: Any) -> Any:
        """The value of the run's scale; one that is not given is that of the next smaller."""
        return self.settings.pick(**by_scale)

    def seeds(self, **by_scale: int) -> list[int]:
        """0, 1, …: as many as asked for, or as the scale has."""
        self.used.add("seeds")
        return list(range(self.settings.seeds or self.settings.pick(**by_scale)))

    def _find(self, name: str) -> Dataset:
        if name not in self._loaded:
            asked = name in self.settings.data
            self._loaded[name] = load(name, self.settings.data_dir, download=asked)
        return self._loaded[name]

    def load(self, name: str, part: str = "") -> Dataset:
        """A data set to be used; where it came from goes on record, and the `part` taken and prepared."""
        self.used.add(name)
        self._record(name, asdict(self._find(name).provenance), part)
        return self._find(name)

    def drawn(self, name: str, what: str) -> None:
        """Put on record a set that the experiment draws by itself."""
        origin = {"source": "drawn from a formula", "files": [], "licence": "generated", "split": "none"}
        self._record(name, origin | {"subset": None}, what)

    def _record(self, name: str, origin: dict[str, Any], part: str) -> None:
        """`origin`, with every part of it in words as its subset."""
        entry = self.provenance.setdefault(name, origin)
        parts = self._parts.setdefault(name, [entry["subset"]] if entry["subset"] else [])
        if part and part not in parts:
            parts.append(part)
            entry["subset"] = "; ".join(parts)

    def datasets(self, *own: str) -> list[str]:
        """The data sets that were asked for, else those of the paper that are at hand, else the digits."""
        if self.settings.data:
            return list(self.settings.data)
        found = []
        for name in own:
            try:
                self._find(name)
                found.append(name)
            except MissingData:
                self.notes.append(f"{name} is not in the data directory and was left out.")
        if not found:
            self.notes.append("the digits of scikit-learn stand in for the images of the paper.")
        return found or ["digits"]

    def source(self, name: str, part: str = "") -> dict[str, Any]:
        """What identifies the bytes of a data set, for the hash of a unit; for the digits it is their name.

        The `part` that is taken goes on record only, for the other inputs of the unit say it in numbers.
        """
        origin = self.load(name, part).provenance
        files = [f.sha256 for f in origin.files if f.sha256 != DIGITS_SHA256]
        return {"name": name, "files": files, "subset": origin.subset}

    def ignored(self) -> list[str]:
        """What was asked for and has not been used."""
        settings, found = self.settings, []
        left = [name for name in settings.data if name not in self.used]
        if left:
            taken = len(settings.data) - len(left)
            why = f"at the scale {settings.scale} it takes {taken} of those named" if taken else NO_DATA
            found.append(f"not used: the data {', '.join(left)}; {why}.")
        if settings.seeds is not None and "seeds" not in self.used:
            found.append(f"not used: the number of seeds, {settings.seeds}; the experiment takes none.")
        return found

    def unit(
        self, group: str, name: str, inputs: Mapping[str, Any], compute: Callable[[Progress], Measured]
    ) -> Measured:
        """The result of `compute`, taken from the store if today's code has computed it already.

        Group and inputs say everything that it depends on besides the code.
        """
        digest = units.digest(group, inputs)
        self._note_sizes(inputs)
        path = self.out / "units" / group / f"{name}-{digest[:12]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.out / "units" / ".locks" / digest[:12]  # stays: to remove it would be a race
        lock.parent.mkdir(exist_ok=True)
        lock.touch()
        with locked(lock, patience=math.inf):  # another process may be at it
            self.watcher.unit(f"{group} {name}", 0.0)
            code = code_of(compute)
            stored, why = units.read(path, digest, code)
            if stored is None:
                about = {"group": group, "name": name, "hash": digest, "version": __version__, "code": code}
                stored = self._compute(about | {"inputs": plain(inputs)}, compute)
                units.write(path, stored)
                self.recomputed += [f"{group} {name}: {why}"] if why else []
        self.watcher.unit(f"{group} {name}", 1.0)
        if str(path.relative_to(self.out)) not in self.units:
            self.units.append(str(path.relative_to(self.out)))
            self.seconds += stored["processor_seconds"]
        return stored["result"]

    def _note_sizes(self, inputs: Mapping[str, Any]) -> None:
        data = inputs.get("data")
        data = data if isinstance(data, Mapping) else {}
        self.used.add(data.get("name", ""))
        for key, value in plain({**data, **inputs}).items():
            parts = value if isinstance(value, list) else [value]
            numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in parts)
            if parts and numbers and key != "revision" and value not in self.sizes.setdefault(key, []):
                self.sizes[key].append(value)

    def _compute(self, about: Measured, compute: Callable[[Progress], Measured]) -> Measured:
        """A unit with what it is of, how long it took, and its result."""
        began, busy = time.perf_counter(), time.process_time()
        result = plain(compute(lambda share: self.watcher.unit(f"{about['group']} {about['name']}", share)))
        seconds, busy = time.perf_counter() - began, time.process_time() - busy
        return {**about, "seconds": seconds, "processor_seconds": busy, "result": result}


@dataclass(frozen=True)
class Result:
    """What an experiment came to: all that its page shows.

    `error` says why it failed, `data_error` that its data were the reason. `later` says why a run after this
    one failed, of which nothing is shown.
    """

    key: str
    title: str
    claim: str
    settings: Mapping[str, Any]
    judgements: tuple[Judgement, ...]
    figures: Sequence[Mapping[str, str]]
    tables: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    data: Mapping[str, Any]
    units: Sequence[str]
    seconds: float
    error: str = ""
    data_error: bool = False
    warnings: Sequence[str] = ()
    sizes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    later: str = ""
    recomputed: Sequence[str] = ()  # units that were stored and computed again, each with the reason

    @property
    def verdict(self) -> str:
        """failed, or that of all its judgements together."""
        return "failed" if self.error else overall(self.judgements)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """A stored result, with its judgements."""
        judgements = tuple(Judgement.from_dict(j) for j in data["judgements"])
        return cls(**{**data, "judgements": judgements})
