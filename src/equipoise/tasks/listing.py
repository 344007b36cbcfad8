"""The runs of a directory, damaged ones included: none of them hides the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import OtherFormat
from .directory import NotBegun, Run


@dataclass(frozen=True)
class Listed:
    """A run in a list: `problem` says why one cannot be read, or which of its files have changed.

    `note` says what cannot be told of it, which is no damage.
    """

    path: Path
    state: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    note: str = ""

    @property
    def damaged(self) -> bool:
        """Whether it has a problem, other than being of another version or having never begun."""
        return bool(self.problem) and self.state not in (OTHER, NEVER)


OTHER, NEVER = "other version", "not begun"


def list_runs(root: str | Path) -> list[Listed]:
    """The runs directly in `root`, the oldest first; damaged ones are among them and say what is wrong."""
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a directory of runs.")
    inside = (p for p in root.iterdir() if p.is_dir())
    found = [_listed(p) for p in sorted(inside) if (p / "run.json").exists() or (p / "config.toml").exists()]
    return sorted(found, key=lambda run: run.status.get("times", {}).get("created", ""))


def _listed(path: Path) -> Listed:
    try:
        run = Run.open(path)
        status, problems = run.status, run.damaged()
        unsealed = ", ".join(run.unsealed())
        note = f"unsealed, so that no change in them would show: {unsealed}" if unsealed else ""
        return Listed(path, status["state"], run.config, run.data, status, "; ".join(problems), note)
    except OtherFormat as error:
        return Listed(path, OTHER, problem=str(error))
    except NotBegun as error:
        return Listed(path, NEVER, problem=str(error))
    except (OSError, ValueError) as error:
        return Listed(path, "damaged", problem=str(error))
    except KeyError as error:
        return Listed(path, "damaged", problem=f"run.json has no {error}")
