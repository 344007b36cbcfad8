"""The theorems in short, as theorems.toml states them: what each says, means, leaves open and needs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Statement:
    """A theorem in plain words."""

    title: str
    says: str  # what it promises
    means: str  # to whoever uses the network
    leaves: str  # open: what it does not promise
    needs: str


STATEMENTS: dict[str, Statement] = {
    name: Statement(**words)
    for name, words in tomllib.loads(
        files(__package__).joinpath("theorems.toml").read_text(encoding="utf-8")
    ).items()
}
WELLPOSED = STATEMENTS["wellposed"]


def used(theorem: str | None) -> list[Statement]:
    """The statements that a run rests on: well-posedness always, and the theorem of its certificate."""
    named = STATEMENTS.get(theorem or "wellposed", WELLPOSED)
    return [WELLPOSED] if named is WELLPOSED else [named, WELLPOSED]
