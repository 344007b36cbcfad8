"""A run → report.html: one file that needs no network, no script and nothing beside it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..files import write_atomically
from ..plain import plain
from ..plots import DARK, LIGHT, variables
from ..tasks import Run
from . import guarantee, opening, results
from .figures import gather
from .network import NETWORK
from .reading import RunRecord, part, read
from .training import FURTHER, TRAINING, ends
from .words import leaf, moment, number, rows, typeset

LIVE = '<meta http-equiv="refresh"'  # how the page of a run under way is recognised
REFRESH = 5  # seconds after which the page of a run under way loads itself again
_COLUMNS = 50  # the most columns of a table that are described


def write(run: Run | str | Path) -> Path:
    """Write `report.html`, whole or not at all, into the run's directory from nothing but the run's files."""
    path = run.path if isinstance(run, Run) else Path(run)
    return publish(path / "report.html", render(read(path)))


def publish(target: Path, page: str) -> Path:
    """Write a page, whole or not at all."""
    write_atomically(target, page.encode(errors="xmlcharrefreplace"))
    return target


def render(record: RunRecord) -> str:
    """The page of a record. Its strings are escaped, hidden characters too; the drawings are made here."""
    training, network = gather(record, TRAINING), gather(record, NETWORK)
    further = gather(record, FURTHER)
    told = guarantee.certificates(record)
    return filled(
        "page.html",
        title=opening.title(record),
        refresh=REFRESH if record.running else 0,
        running=record.running,
        lead=opening.lead(record),
        equation=opening.family(record)[2],
        notices=opening.notices(record),
        headlines=opening.headlines(record),
        scores=results.scores(record),
        doubt=results.doubt(record),
        coverage=results.coverage(record),
        robust=results.robust(record),
        results=gather(record, results.RESULTS),
        promise=gather(record, guarantee.PROMISE, scale=1.0),
        in_words=guarantee.in_words(record),
        certificates=told,
        training=training,
        further=further,
        ends=ends(record),
        network=network,
        unseen=_unseen(record, {shown.identifier for shown in (*training, *further, *network)}),
        known=_known(record),
        data=_data(record),
        columns=_columns(record),
        warnings=_warnings(record),
        config={name: list(rows(table)) for name, table in _tables(record).items()},
        about=list(rows(_about_run(record))),
        versions=list(rows(part(record.status, "versions"))),
        missing=record.missing,
        damaged=record.damaged,
    )


def filled(template: str, images: bool = False, **content: Any) -> str:
    """The page of a template, with its style sheet and a policy that allows this sheet and nothing else."""
    environment = Environment(
        loader=PackageLoader("equipoise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = _style_sheet(environment)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = "img-src data:; " if images else ""
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; {allowed}base-uri 'none'; form-action 'none'"
    return plain(environment.get_template(template).render(style=Markup(style), csp=policy, **content))


def _style_sheet(environment: Environment) -> str:
    """The style sheet with the colours of both themes."""

    def declared(theme: Any) -> str:
        return " ".join(f"{name}: {colour};" for name, colour in variables(theme).items())

    sheet = environment.get_template("style.css").render(light=declared(LIGHT), dark=declared(DARK))
    return "\n" + sheet.strip() + "\n"


def _unseen(record: RunRecord, shown: set[str]) -> list[str]:
    """Why some figures are not there."""
    missing = part(record.findings, "missing")
    says = [
        f"{name}: {typeset(str(why).splitlines()[0]).rstrip(':')}" for name, why in missing.items() if why
    ]
    if not record.findings and not record.running:
        why = "cannot be trusted" if "findings.json" in record.damaged else "is not there"
        says.append(f"findings.json {why}: scores, spectra and equilibria are not known")
    if "fig-loss" not in shown:
        says.append("no loss was measured")
    return says


def _known(record: RunRecord) -> str:
    """The data in a sentence."""
    known = {k: record.data.get(k) for k in ("rows", "test_rows", "columns")}
    if not all(isinstance(v, int) for v in known.values()):
        return ""
    held = f", {number(known['test_rows'])} to test on" if known["test_rows"] else ", none to test on"
    return f"{number(known['rows'])} rows to train on{held}, {number(known['columns'])} columns."


def _data(record: RunRecord) -> list[tuple[str, str]]:
    """What is known of the data, with names for readers."""
    hidden = ("warnings", "described")
    known = {k: v for k, v in record.data.items() if k not in hidden and v not in (None, [], "")}
    return [(name.replace("_", " ").replace("sha256", "SHA-256"), value) for name, value in rows(known)]


def _columns(record: RunRecord) -> list[tuple[str, str]]:
    """What each column holds, and what was done with it."""
    told = record.data.get("described")
    return [
        (leaf(c.get("name")), "; ".join(leaf(c[k]) for k in ("type", "values", "treatment") if c.get(k)))
        for c in (told if isinstance(told, list) else ())
        if isinstance(c, dict)
    ][:_COLUMNS]


def _warnings(record: RunRecord) -> list[str]:
    found = record.data.get("warnings")
    return [leaf(w) for w in found] if isinstance(found, list) else [leaf(found)] if found else []


def _tables(record: RunRecord) -> dict[str, Any]:
    """The tables of the configuration, the recipe with all choices made."""
    recipe = {"recipe": record.recipe} if record.recipe else {}
    return {name: table for name, table in record.config.items() if table} | recipe


def _about_run(record: RunRecord) -> dict[str, Any]:
    """What run.json says, except for what stands elsewhere on the page."""
    said = record.status
    times = {name: moment(str(stamp)) for name, stamp in part(said, "times").items()}
    facts = {"name": record.name, "state": said.get("state"), "exit code": said.get("exit_code")}
    changed = {f"changed when resumed: {name}": words for name, words in part(said, "changed").items()}
    return facts | {"times resumed": said.get("resumed")} | changed | times
