"""equipoise suggest RUN: what would make a theorem hold."""

from __future__ import annotations

from typing import Annotated, Any

from .certify import named_theorem
from .failures import Code, DataDir, Ended, Failure, RunPath, command, option
from .output import Output


@command("suggest runs/digits-auto-1 --theorem ling2023")
def suggest(
    output: Output,
    run: RunPath,
    theorem: Annotated[str, option("Theorem to aim for; certify --help lists them.")] = "two_timescale",
    data_dir: DataDir = None,
) -> None:
    """Say what would make a theorem hold for the trained network, and what it would then promise.

    Every suggested change was tried on a copy of the network and proved there. The exit code is 1 if none was
    found.
    """
    from ..tasks import Stored
    from ..theory import suggest as find

    named_theorem(theorem)
    stored = Stored.load(run, data_dir)
    model: Any = stored.fitted.model
    if not model.structured:
        raise Failure(
            "Nothing is known to suggest",
            f"suggestions are known for the affine families only. The network is a {type(model).__name__}.",
            code=Code.USAGE,
        )
    found = find(model, *stored.tensors, theorem=theorem)
    output.heading(theorem)
    output.say(str(found))
    output.result(
        {
            "theorem": found.theorem,
            "holds": found.holds,
            "changes": {name: _plain(value) for name, value in found.changes.items()},
            "words": list(found.lines),
            "step_size": _plain(found.step_size),
            "efold": found.efold,
        }
    )
    if not found.holds:
        raise Ended(Code.FAILED)


def _plain(value: object) -> object:
    if isinstance(value, str | int | float | type(None)):
        return value
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else str(value)
