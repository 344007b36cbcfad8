"""equipoise claims [PAPER]: what the papers assert, and whether it holds."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from .failures import Code, Ended, Failure, command, option
from .output import Output, number, table


@command("""claims
claims gao2022 --check""")
def claims(
    output: Output,
    paper: Annotated[
        str | None,
        typer.Argument(
            help="kawaguchi2021, gao2022, ling2023, hieu2022 or xie2021; all by default.",
            metavar="PAPER",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, option("Run every check now (it takes a minute) and compare with the verdict.", "--check")
    ] = False,
) -> None:
    """List the papers' claims with their verdicts: holds, holds corrected, or fails as printed.

    With --check each claim is measured again, and the exit code is 1 if a verdict is not confirmed.
    """
    from ..papers import claims as registered

    try:
        entries = registered(paper)
    except ValueError as error:
        raise Failure("No such paper", str(error), code=Code.USAGE) from error
    found: list[dict[str, Any]] = []
    columns = ("measured", "bound", "") if check else ("statement",)
    shown = table("claim", "verdict", *columns, fold=("statement",))
    for entry in entries:
        told: dict[str, Any] = {"key": entry.key, "label": entry.label, "verdict": entry.verdict}
        row = [entry.key, entry.verdict]
        if check:
            outcome = entry.run()
            told |= {"measured": outcome.measured, "bound": outcome.bound, "agrees": entry.agrees(outcome)}
            row += [number(outcome.measured, 4), number(outcome.bound, 4), "ok" if told["agrees"] else "NO"]
        else:
            row.append(entry.statement.splitlines()[0])
        shown.add_row(*map(_plain, row), style="yellow" if entry.verdict != "holds" else None)
        found.append(told | {"statement": entry.statement, "counterexample": entry.counterexample})
    output.say(shown)
    counts = Counter(entry.verdict for entry in entries)
    output.say(f"{len(entries)} claims: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}.")
    output.result(found)
    if wrong := [told["key"] for told in found if check and not told["agrees"]]:
        output.say(f"Not confirmed: {', '.join(wrong)}")
        raise Ended(Code.FAILED)


def _plain(cell: str) -> Any:
    from rich.text import Text

    return Text(cell)  # [ and ] are mathematics here
