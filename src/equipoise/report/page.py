"""A run → report.html: one file that needs no network, no script and nothing beside it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..files import write_atomically
from ..plain import plain
from ..plots import DARK, LIGHT, variables
from ..tasks import Run
from ..theory import Certificate
from .figures import gather, relative
from .network import NETWORK
from .reading import RunRecord, part, read
from .theorems import used
from .training import TRAINING, least_loss
from .words import beside, count, duration, kept, leaf, moment, number, percent, rows, typeset

FAMILIES = {  # class, name in a recipe, in words, equation
    "LinearEquilibrium": ("linear", "linear equilibrium network", "Z = γ Z Sᵀ + φ(X),  ŷ = Z Bᵀ"),
    "ScaledReLU": ("scaled-relu", "scaled ReLU equilibrium network", "Z = relu(γ Z A + relu(X W)),  ŷ = Z b"),
    "GaussianReLU": ("gaussian-relu", "Gaussian ReLU equilibrium network", "Z = relu(Z Wᵀ + X Uᵀ),  ŷ = Z a"),
    "Monotone": (
        "monotone",
        "monotone equilibrium network",
        "Z = relu(Z Wᵀ + X Uᵀ),  W = (1−μ)I − AᵀA + B − Bᵀ,  ŷ = Z u",
    ),
}
STATES = {
    "running": ("Still running", "What follows is what the run has measured so far."),
    "stopped": ("Stopped early", "The weights are those of the last good step."),
    "interrupted": ("Interrupted", "What follows is what was measured until then; the run can be resumed."),
    "failed": ("Failed", "What follows is what was measured until then."),
}
_OF_TRAINING = (
    "About the training: certified at its first step, for these weights and data, and kept until its last."
)
_AS_IT_ENDED = (
    "About the network as it ended, whatever its training was like: whether every input has one equilibrium."
)
_COLUMNS = 50  # of a table, that are described
_RESTS = "It rests on: "  # the line of an explanation that the page sets as a list
VERDICTS = {
    "proved": ("Proved", "good"),
    "hypotheses_fail": ("Not proved", "bad"),
    "inconclusive": ("Not decided", "bad"),
}


def write(run: Run | str | Path) -> Path:
    """Write `report.html` into the run's directory, from the run's files alone, whole or not at all."""
    path = run.path if isinstance(run, Run) else Path(run)
    page = render(read(path))
    target = path / "report.html"
    write_atomically(target, page.encode(errors="xmlcharrefreplace"))
    return target


def render(record: RunRecord) -> str:
    """The page of a record. Its strings are escaped, hidden characters too; the drawings are made here."""
    environment = Environment(
        loader=PackageLoader("equipoise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = style_sheet(environment)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    training, network = gather(record, TRAINING), gather(record, NETWORK)
    page = environment.get_template("page.html").render(
        style=Markup(style),
        csp=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        title=_title(record),
        lead=_lead(record),
        equation=_family(record)[2],
        notices=[n for n in (_altered(record), _unsealed(record), _notice(record)) if n],
        headlines=_headlines(record),
        certificates=_certificates(record),
        training=training,
        network=network,
        unseen=_unseen(record, {shown.identifier for shown in (*training, *network)}),
        scores=_scores(record),
        data=_data(record),
        warnings=_warnings(record),
        config={name: list(rows(table)) for name, table in _tables(record).items()},
        about=list(rows(_about_run(record))),
        versions=list(rows(part(record.status, "versions"))),
        statements=used(record.certificate.theorem if record.certificate else None),
        missing=record.missing,
        damaged=record.damaged,
    )
    return plain(page)


def style_sheet(environment: Environment) -> str:
    """The style sheet with the colours of both themes."""

    def declared(theme: Any) -> str:
        return " ".join(f"{name}: {colour};" for name, colour in variables(theme).items())

    sheet = environment.get_template("style.css").render(light=declared(LIGHT), dark=declared(DARK))
    return "\n" + sheet.strip() + "\n"


# -- at the top ----------------------------------------------------------------------------------------------


def _family(record: RunRecord) -> tuple[str, str, str]:
    family = part(record.findings, "model").get("family")
    if family in FAMILIES:
        return FAMILIES[family]
    recipe = record.recipe.get("model")
    return next((f for f in FAMILIES.values() if f[0] == recipe), ("", "equilibrium network", ""))


def data_name(record: RunRecord) -> str:
    """What the data are called, as short as the files tell it."""
    told = (record.data.get("name"), part(record.config, "data").get("name"), record.data.get("source"))
    return next((str(name) for name in told if name), "data of unknown name")


def _title(record: RunRecord) -> str:
    name = _family(record)[1]
    return f"{name[0].upper()}{name[1:]} on {data_name(record)}"


def _lead(record: RunRecord) -> str:
    """What was trained on what, and how well."""
    model = part(record.findings, "model")
    width = f" of {count(model['width'], 'hidden unit')}" if isinstance(model.get("width"), int) else ""
    scores = part(record.findings, "scores")
    trained = part(scores, "training").get("rows")
    rows_of = f"{count(trained, 'row')} of " if isinstance(trained, int) else ""
    certificate = record.certificate
    promised = certificate is not None and certificate.proved and certificate.kind != "static"
    unknown = "certificate.json" in record.damaged
    how = " with a guarantee" if promised else "" if unknown else " without a guarantee"
    says = f"A {_family(record)[1]}{width} was trained{how} on {rows_of}{data_name(record)}."
    shown = _best_score(record)
    if shown is not None:
        name, value, where = shown
        if name == "accuracy":
            says += f" It classifies {percent(value)} of {where} right."
        elif value > 0:
            says += f" It explains {percent(value)} of the variation of {where}."
        else:
            says += f" It predicts {where} no better than their mean would."
        says += f" {beside(name, value, part(record.findings, 'baselines'))}"
    return says.rstrip()


def _best_score(record: RunRecord) -> tuple[str, float, str] | None:
    """("accuracy" or "r2", its value, on what), on test rows if there are any."""
    scores = part(record.findings, "scores")
    for name in ("test", "training"):
        found = part(scores, name)
        for key in ("accuracy", "r2"):
            if isinstance(found.get(key), float):
                return key, found[key], count(int(found.get("rows", 0)), f"{name} row")
    return None


def _headlines(record: RunRecord) -> list[tuple[str, str, str]]:
    """(what, figure, note) for the top of the page."""
    shown = []
    score = _best_score(record)
    if score is not None:
        name, value, where = score
        label = "Accuracy" if name == "accuracy" else "R²"
        figure = percent(value) if name == "accuracy" else f"{value:.3f}".replace("-", "−")
        shown.append((label, figure, f"on {where}"))
    certificate = record.certificate or record.wellposed
    if certificate is not None:
        word, _ = VERDICTS[certificate.verdict]
        about = "every input has one answer" if certificate.kind == "static" else "bound on the training loss"
        shown.append(("Guarantee", word, about))
    else:
        shown.append(("Guarantee", "None", "no certificate in this run"))
    found = record.series("loss")
    if found is not None:
        shrunk = relative(found, least_loss(record))
        if shrunk is not None:
            where = f"of the first, after {count(int(found[0][-1]), record.clock)}"
            if not np.isfinite(shrunk[1][-1]):
                where = f"after {count(int(found[0][-1]), record.clock)}"
            shown.append(("Training loss", number(float(shrunk[1][-1])), where))
    seconds = part(record.status, "results").get("seconds") or record.last("seconds")
    if isinstance(seconds, int | float) and seconds > 0:
        shown.append(("Time", duration(seconds), "of training"))
    return shown


def _altered(record: RunRecord) -> dict[str, str] | None:
    """Which files are not what they were when they were sealed."""
    altered = {name: why for name, why in record.damaged.items() if name != "run.json"}
    if not altered:
        return None
    means = "They are not shown. What follows comes from the files that have not changed."
    if "model.safetensors" in altered:
        means += (
            " What they say of the network is about the one that was trained, not the one in the file now."
        )
    return {
        "title": "Files of this run have been changed or damaged",
        "reason": "\n".join(altered.values()),
        "advice": "restore them from a copy and write the report again, or train again.",
        "means": means,
        "mark": "grave",
    }


def _unsealed(record: RunRecord) -> dict[str, str] | None:
    """Which files an earlier version left without a seal."""
    if not record.unsealed:
        return None
    return {
        "title": "Files of this run are unsealed",
        "reason": f"An earlier version left them so, as the run did not end: {', '.join(record.unsealed)}.",
        "advice": "",
        "means": "They are shown as they are; whether they have changed since cannot be told.",
        "mark": "calm",
    }


def _notice(record: RunRecord) -> dict[str, str] | None:
    """What a reader must know first, if the run did not simply finish."""
    state = record.status.get("state", "")
    if not record.status:
        why = record.damaged.get("run.json", "there is no run.json")
        means = "The seals of the other files are in run.json: whether those have changed cannot be told."
        return {"title": "State unknown", "reason": f"{why}.", "advice": "", "means": means, "mark": "grave"}
    reason = str(record.status.get("reason") or record.history.get("stopped") or "")
    advice = str(record.status.get("advice") or "")
    if state == "finished" and not reason:
        return None
    title, means = STATES.get(state, ("A note on this run", ""))
    reason = typeset(reason) or "No reason was recorded."
    mark = "calm" if state in ("finished", "running") else "grave"
    return {"title": title, "reason": reason, "advice": typeset(advice), "means": means, "mark": mark}


# -- the certificate -----------------------------------------------------------------------------------------


def _certificates(record: RunRecord) -> list[dict[str, Any]]:
    """That of the training, and that of the network as it ended."""
    found = []
    if record.certificate is not None:
        found.append(_certificate(record.certificate, record.last("movement")))
        if words := kept(part(record.history, "anchored")):
            found[-1]["explained"].append(words)
    if record.wellposed is not None and (not record.certificate or record.certificate.kind != "static"):
        found.append(_certificate(record.wellposed, None))
    return found


def _certificate(certificate: Certificate, moved: float | None) -> dict[str, Any]:
    word, mark = VERDICTS[certificate.verdict]
    lines = certificate.explain(moved).splitlines()
    scope = _AS_IT_ENDED if certificate.kind == "static" else _OF_TRAINING
    return {
        "word": word,
        "mark": mark,
        "theorem": certificate.theorem,
        "scope": scope,
        "explained": [typeset(line) for line in lines if not line.startswith(_RESTS)],
        "hypotheses": [typeset(words) for words in certificate.hypotheses],
        "claims": [_claim(c) for c in certificate.claims],
        "facts": list(rows(_certificate_facts(certificate))),
    }


def _claim(claim: Any) -> dict[str, Any]:
    left, right = claim.sides
    result = "holds" if claim.holds else "fails" if claim.refuted else "open"
    return {
        "name": claim.name + (" as printed" if claim.printed else ""),
        "statement": claim.statement,
        "left": left.replace("-", "−"),
        "relation": {"<=": "≤", ">=": "≥"}.get(claim.relation, claim.relation),
        "right": right.replace("-", "−"),
        "margin": number(claim.margin),
        "result": result,
        "mark": "good" if claim.holds else "bad",
        "method": claim.method or "interval arithmetic, rounded outward",
        "remedy": claim.remedy if not claim.holds else "",
    }


def _certificate_facts(certificate: Certificate) -> dict[str, Any]:
    facts: dict[str, Any] = {"tier of proof": certificate.tier, "loss": certificate.loss}
    named = {
        "factor per step": certificate.factor,
        "exponent": certificate.exponent,
        "largest step size (exclusive)": certificate.max_step_size,
        "floor of rounding": certificate.floor or None,
    }
    facts |= {name: value for name, value in named.items() if value is not None}
    facts |= {f"step size of {name}": value for name, value in certificate.step_sizes.items()}
    facts |= {f"constant {name}": plain_constant(value) for name, value in certificate.constants.items()}
    return facts | {f"SHA-256 of {name}": value for name, value in certificate.fingerprint.items()}


def plain_constant(value: Any) -> Any:
    """Intervals by their ends; everything else as it is."""
    return f"[{value.lo:.6g}, {value.hi:.6g}]" if hasattr(value, "lo") else value


# -- the rest ------------------------------------------------------------------------------------------------


def _scores(record: RunRecord) -> list[dict[str, str]]:
    names = {
        "rows": "rows",
        "accuracy": "accuracy",
        "r2": "R²",
        "rmse": "RMS error",
        "mae": "mean |error|",
    }
    table: list[dict[str, str]] = []
    for name, found in part(record.findings, "scores").items():
        if isinstance(found, dict):
            row = {
                str(names.get(k, k)): percent(v) if k == "accuracy" else number(v) for k, v in found.items()
            }
            table.append({"part": str(name), **row})
    return table


def _unseen(record: RunRecord, shown: set[str]) -> list[str]:
    """Why some figures are not there."""
    missing = part(record.findings, "missing")
    says = [
        f"{name}: {typeset(str(why).splitlines()[0]).rstrip(':')}" for name, why in missing.items() if why
    ]
    if not record.findings:
        why = "cannot be trusted" if "findings.json" in record.damaged else "is not there"
        says.append(f"findings.json {why}: scores, spectra and equilibria are not known")
    if "fig-loss" not in shown:
        says.append("no loss was measured")
    if "fig-contraction" not in shown:
        q = record.findings.get("contraction")
        says.append(
            f"the contraction factor was measured only at the end: {number(q, 4)}"
            if isinstance(q, float)
            else "the contraction factor was not measured, or there is none below 1"
        )
    return says


def _data(record: RunRecord) -> list[tuple[str, str]]:
    """What is known of the data, with names for readers."""
    known = {k: v for k, v in record.data.items() if k != "warnings" and v not in (None, [], "")}
    columns = known.pop("described", None)
    told = [
        (
            f"column {leaf(c.get('name'))}",
            "; ".join(leaf(c[k]) for k in ("type", "values", "treatment") if c.get(k)),
        )
        for c in (columns if isinstance(columns, list) else ())
        if isinstance(c, dict)
    ]
    pairs = [(name.replace("_", " ").replace("sha256", "SHA-256"), value) for name, value in rows(known)]
    return pairs + told[:_COLUMNS]


def _warnings(record: RunRecord) -> list[str]:
    found = record.data.get("warnings")
    return [leaf(w) for w in found] if isinstance(found, list) else [leaf(found)] if found else []


def _tables(record: RunRecord) -> dict[str, Any]:
    """The tables of the configuration, the recipe with all choices made."""
    recipe = {"recipe": record.recipe} if record.recipe else {}
    return {name: table for name, table in record.config.items() if table} | recipe


def _about_run(record: RunRecord) -> dict[str, Any]:
    """What run.json says, in words, but for what stands elsewhere in the page."""
    said = record.status
    times = {name: moment(str(stamp)) for name, stamp in part(said, "times").items()}
    facts = {"name": record.name, "state": said.get("state"), "exit code": said.get("exit_code")}
    changed = {f"changed when resumed: {name}": words for name, words in part(said, "changed").items()}
    return facts | {"times resumed": said.get("resumed")} | changed | times
