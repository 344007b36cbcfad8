"""equipoise certify RUN: what is proved of a trained network."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

from .failures import Code, DataDir, Ended, Failure, RunPath, command, option
from .output import Output

if TYPE_CHECKING:
    from ..tasks import Stored
    from ..theory import Certificate


@command("""certify runs/digits-auto-1
certify runs/digits-auto-1 --theorem ling2023 --printed""")
def certify(
    output: Output,
    run: RunPath,
    theorem: Annotated[
        str | None,
        option(
            "Theorem to prove: wellposed, anchored, safeguarded, two_timescale, gao2022.descent, "
            "gao2022.flow, ling2023, hieu2022.descent, hieu2022.flow, kawaguchi2021."
        ),
    ] = None,
    printed: Annotated[
        bool, option("Also show the conditions as the paper prints them, if they differ.", "--printed")
    ] = False,
    tier: Annotated[
        str | None,
        option("Arithmetic of the proof: float64 (the default), or rigorous, which is slow."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Prove again what is guaranteed, from nothing but the files and the data of the run.

    Without --theorem the certificate of the training is proved again for the weights that it began with, and
    the final weights are proved to give every input exactly one equilibrium. With --theorem that theorem is
    tried on the final weights. The exit code is 1 if anything is not proved.
    """
    from ..tasks import Stored

    for name, given in (("--printed", printed), ("--tier", tier)):
        if theorem is None and given:
            raise Failure("Which theorem?", f"{name} needs --theorem: give both.", code=Code.USAGE)
    stored = Stored.load(run, data_dir)
    how: dict[str, Any] = {"tier": tier} if tier else {}
    found: dict[str, Certificate] = {}
    if theorem is not None:
        found["end"] = _of_the_end(stored, theorem, how | ({"printed": True} if printed else {}))
    else:
        if stored.fitted.certificate is not None:
            found["start"] = _of_the_start(stored, output)
        found["end"] = _of_the_end(stored, "wellposed", how)
    for where, certificate in found.items():
        output.heading(f"{certificate.theorem}: {certificate.verdict}", f"at the {where} of training")
        output.say(certificate.explain(), "")
    output.result({where: certificate.to_dict() for where, certificate in found.items()})
    if not all(certificate.proved for certificate in found.values()):
        raise Ended(Code.FAILED)


def _of_the_start(stored: Stored, output: Output) -> Certificate:
    """The certificate of the run, proved again for the network that the recipe builds.

    It is refused if it differs from the one on file. An earlier version of equipoise may have bounded
    something differently: then the difference is reported, and the new certificate counts.
    """
    from ..theory.verification import certified_again, differences

    certificate = stored.fitted.certificate
    assert certificate is not None
    start = stored.fitted.start()
    if not stored.run.earlier:
        return certificate.verify(start, *stored.tensors)
    found = certified_again(certificate, start, *stored.tensors)
    for what, old, new in differences(certificate, found):
        output.say(f"  note: the earlier version that trained this run found {what} = {old}; it is {new}.")
    return found


def _of_the_end(stored: Stored, theorem: str, how: dict[str, Any]) -> Certificate:
    from ..theory import certify as prove

    named_theorem(theorem, **{name: value for name, value in how.items() if name != "tier"})
    return prove(stored.fitted.model, *stored.tensors, theorem=theorem, **how)


def named_theorem(name: str, **constants: Any) -> None:
    """Raise a Failure unless a theorem of this name exists and takes these constants."""
    from ..theory.certify import make_theorem

    try:
        make_theorem(name, **constants)
    except (ValueError, TypeError) as error:
        said = re.sub(r"^theorem must", "--theorem must", str(error))
        raise Failure("No such theorem", said, code=Code.USAGE) from error
