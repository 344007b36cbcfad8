"""One inequality of a theorem, with both sides bounded: what holds, what fails, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ..checks import one_of
from ..linalg import Interval

Relation = Literal["<", "<=", ">", ">="]
RELATIONS = ("<", "<=", ">", ">=")


@dataclass(frozen=True)
class Claim:
    """lhs ⋈ rhs, each side known to lie in an interval.

    `holds` is true only if the relation is certain for every pair of members; `refuted` only if it is
    certainly violated. A strict relation is strict: equality does not prove it.
    """

    name: str  # the label in the paper, such as "(17)"
    statement: str  # in words
    left: Interval
    relation: Relation
    right: Interval
    method: str = ""  # how each side was bounded
    printed: bool = False  # the paper's own form, shown beside the corrected one and not counted
    remedy: str = ""  # what to change when it fails

    def __post_init__(self) -> None:
        one_of("relation", self.relation, RELATIONS)

    @property
    def holds(self) -> bool:
        """Whether the relation is certain."""
        return getattr(self.left, _CERTAINLY[self.relation])(self.right)

    @property
    def refuted(self) -> bool:
        """Whether the relation is certainly false."""
        return getattr(self.left, _CERTAINLY[_OPPOSITE[self.relation]])(self.right)

    @property
    def lhs(self) -> float:
        """The end of the left side that the proof must use."""
        return self.left.lo if self.relation in (">", ">=") else self.left.hi

    @property
    def rhs(self) -> float:
        """The end of the right side that the proof must use."""
        return self.right.hi if self.relation in (">", ">=") else self.right.lo

    @property
    def margin(self) -> float:
        """lhs / rhs: a relation ≥ is proved if this is at least 1, a relation ≤ if it is at most 1."""
        if self.rhs == 0:
            return math.nan if self.lhs == 0 else math.copysign(math.inf, self.lhs)
        return self.lhs / self.rhs

    @property
    def short(self) -> float:
        """The factor ≥ 1 by which a claim fails to hold; ∞ if no factor would be enough."""
        small, large = (self.lhs, self.rhs) if self.relation in (">", ">=") else (self.rhs, self.lhs)
        if not (small > 0 and math.isfinite(large)):
            return math.inf
        return large / small

    @property
    def sides(self) -> tuple[str, str]:
        """Both sides with four digits, or with as many as it takes to tell them apart."""
        for digits in (4, 8, 12, 17):
            left, right = f"{self.lhs:.{digits}g}", f"{self.rhs:.{digits}g}"
            if left != right:
                break
        return left, right

    def to_dict(self) -> dict[str, Any]:
        """The claim as JSON holds it, floats in hexadecimal."""
        return {
            "name": self.name,
            "statement": self.statement,
            "lhs": ends_to_json(self.left),
            "relation": self.relation,
            "rhs": ends_to_json(self.right),
            "holds": self.holds,
            "method": self.method,
            "printed": self.printed,
            "remedy": self.remedy,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Claim:
        """The claim that `to_dict` wrote."""
        claim = cls(
            name=data["name"],
            statement=data["statement"],
            left=ends_from_json(data["lhs"]),
            relation=data["relation"],
            right=ends_from_json(data["rhs"]),
            method=data["method"],
            printed=data["printed"],
            remedy=data["remedy"],
        )
        if claim.holds != data["holds"]:
            raise ValueError(
                f"claim {claim.name}: the file says holds={data['holds']}, its numbers say otherwise."
            )
        return claim

    def __str__(self) -> str:
        mark = "holds" if self.holds else "fails" if self.refuted else "not decided"
        left, right = self.sides
        return f"{self.name} {left} {self.relation} {right}: {mark} ({self.statement})"


_CERTAINLY = {"<": "certainly_lt", "<=": "certainly_le", ">": "certainly_gt", ">=": "certainly_ge"}
_OPPOSITE: dict[str, Relation] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def ends_to_json(x: Interval) -> list[str]:
    """Both ends in hexadecimal: exact, and safe for infinities, which JSON has no numbers for."""
    return [x.lo.hex(), x.hi.hex()]


def ends_from_json(ends: list[str]) -> Interval:
    """The interval whose ends were written."""
    return Interval(float.fromhex(ends[0]), float.fromhex(ends[1]))


@dataclass
class Claims:
    """A list under construction: `claims.need("(17)", left, ">=", right, "…")`."""

    items: list[Claim] = field(default_factory=list)

    def need(
        self, name: str, left: Any, relation: Relation, right: Any, statement: str, **more: Any
    ) -> Claim:
        """Add a claim and return it."""
        claim = Claim(name, statement, Interval(left), relation, Interval(right), **more)
        self.items.append(claim)
        return claim
