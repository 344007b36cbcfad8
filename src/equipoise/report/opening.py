"""The top of a page: what was trained on what, how well, and what a reader must know first."""

from __future__ import annotations

from typing import Any

from ..recipe import FAMILIES
from .reading import RunRecord, part
from .words import RIVALS, count, duration, no_better, number, percent, rivals, simpler, typeset

VERDICTS = {
    "proved": ("Proved", "good"),
    "hypotheses_fail": ("Not proved", "bad"),
    "inconclusive": ("Not decided", "bad"),
}
STATES = {
    "running": ("Still running", "What follows is what the run has measured so far."),
    "stopped": ("Stopped early", "The weights are those of the last good step."),
    "interrupted": ("Interrupted", "What follows is what was measured until then; the run can be resumed."),
    "failed": ("Failed", "What follows is what was measured until then."),
}
LOSSES = {
    "cross_entropy": "cross-entropy",
    "logistic": "logistic loss",
    "square": "squared error",
    "half_square": "half squared error",
    "smoothed_hinge": "smoothed hinge loss",
}
_IN_SHORT = {  # what a proved certificate says, by its kind
    "static": "every input has exactly one answer",
    "anchored": "training only improved on its start",
}
_FOLLOWS = (
    "This page shows what was measured when it was written, and loads itself again every few seconds while "
    "it is open. If nothing changes any more, the process may have been killed: then write the report again."
)


def family(record: RunRecord) -> tuple[str, str, str]:
    """The name of the network in a recipe, in words, and its equation."""
    own, asked = part(record.findings, "model").get("family"), record.recipe.get("model")
    known = [(name, f) for name, f in FAMILIES.items() if f.kind == own]
    known += [(name, f) for name, f in FAMILIES.items() if name == asked]
    for name, found in known:
        return name, f"{found.words} equilibrium network", found.equation
    return "", "equilibrium network", ""


def data_name(record: RunRecord) -> str:
    """What the data are called, as short as the files tell it."""
    told = (record.data.get("name"), part(record.config, "data").get("name"), record.data.get("source"))
    return next((str(name) for name in told if name), "data of unknown name")


def title(record: RunRecord) -> str:
    """The network and its data."""
    name = family(record)[1]
    return f"{name[0].upper()}{name[1:]} on {data_name(record)}"


def lead(record: RunRecord) -> str:
    """What was trained on what, how well, and how well simpler models do."""
    model = part(record.findings, "model")
    width = f" of {count(model['width'], 'hidden unit')}" if isinstance(model.get("width"), int) else ""
    trained = part(part(record.findings, "scores"), "training").get("rows")
    rows_of = f"{count(trained, 'row')} of " if isinstance(trained, int) else ""
    certificate = record.certificate
    promised = certificate is not None and certificate.proved and certificate.kind != "static"
    unknown = record.running or "certificate.json" in record.damaged
    how = " with a guarantee" if promised else "" if unknown else " without a guarantee"
    verb = "is being trained" if record.running else "was trained"
    network = family(record)[1]
    article = "An" if network[0] in "aeiou" else "A"
    says = f"{article} {network}{width} {verb}{how} on {rows_of}{data_name(record)}."
    shown = best_score(record)
    if shown is not None:
        name, value, rows, where = shown
        judged = f"{count(rows, f'{where} row')}"
        if name == "accuracy":
            says += f" It classifies {percent(value)} of {judged} right."
        elif value > 0:
            says += f" It explains {percent(value)} of the variation of {judged}."
        else:
            says += f" It predicts {judged} no better than their mean would."
        says += f" {simpler(name, part(record.findings, 'baselines'))}"
    return says.rstrip()


def best_score(record: RunRecord) -> tuple[str, float, int, str] | None:
    """("accuracy" or "r2", its value, on how many rows, of which part), on test rows if there are any."""
    scores = part(record.findings, "scores")
    for name in ("test", "training"):
        found = part(scores, name)
        for key in ("accuracy", "r2"):
            if isinstance(found.get(key), float):
                return key, found[key], int(found.get("rows", 0)), name
    return None


def shown_score(name: str, value: Any) -> str:
    """97.8 % of an accuracy, 0.524 of an R²."""
    if not isinstance(value, int | float):
        return "—"
    return percent(value) if name == "accuracy" else f"{value:.3f}".replace("-", "−")


# -- the figures of the top ----------------------------------------------------------------------------------


def headlines(record: RunRecord) -> list[tuple[str, str, str]]:
    """(what, figure, note): the score, that of a linear model, the loss of the predictions, the guarantee."""
    shown = []
    best = best_score(record)
    if best is not None:
        name, value, rows, where = best
        label = "Accuracy" if name == "accuracy" else "R²"
        shown.append((label, shown_score(name, value), f"on {count(rows, f'{where} row')}"))
        linear = part(record.findings, "baselines").get("linear")
        if isinstance(linear, int | float):
            shown.append(("Linear model", shown_score(name, linear), "on the same rows"))
    elif record.running:
        shown += _so_far(record)
    shown.append(_guarantee(record))
    if (told := predictions(record)) is not None:
        shown.append(("Training loss", *told))
    seconds = part(record.status, "results").get("seconds") or record.last("seconds")
    if isinstance(seconds, int | float) and seconds > 0:
        shown.append(("Time", duration(seconds), "of training"))
    return shown


def _so_far(record: RunRecord) -> list[tuple[str, str, str]]:
    """The last score that a run under way has measured."""
    for name, label in (("test_accuracy", "Accuracy so far"), ("test_r2", "R² so far")):
        if (found := record.series(name)) is not None:
            value = shown_score(name.removeprefix("test_"), float(found[1][-1]))
            return [(label, value, f"after {count(int(found[0][-1]), record.clock)}")]
    return []


def _guarantee(record: RunRecord) -> tuple[str, str, str]:
    certificate = record.certificate or record.wellposed
    if certificate is None and record.running:
        return "Guarantee", "Not yet", "it is shown when the run ends"
    if certificate is None:
        return "Guarantee", "None", "no certificate in this run"
    short = _IN_SHORT.get(certificate.kind, "the training loss falls as promised")
    asked = "one answer for every input" if certificate.kind == "static" else "of the training"
    return "Guarantee", VERDICTS[certificate.verdict][0], short if certificate.proved else asked


def predictions(record: RunRecord) -> tuple[str, str] | None:
    """The loss of the predictions on the training rows, and what is promised about this loss."""
    anchored = part(record.history, "anchored")
    ends, total, start = anchored.get("data_end"), anchored.get("total"), anchored.get("F_start")
    name = LOSSES.get(str(anchored.get("loss")), "loss")
    if isinstance(ends, list) and ends and isinstance(start, int | float):
        if isinstance(total, int | float) and total > 0:
            note = f"{name} per row; at most {number(start / total)} was promised"
            return number(float(ends[-1]) / total), note
        return number(float(ends[-1])), f"{name} of all rows; at most {number(start)} was promised"
    plain, found = record.series("plain_loss"), record.series("loss")
    if plain is not None and found is not None and plain[1][0] > 0:
        ended = number(float(plain[1][-1] / plain[1][0]))
        return ended, "of the first; the promise is about the loss with slack"
    if found is None:
        return None
    after = f"after {count(int(found[0][-1]), record.clock)}"
    promised = record.last("promised")
    if promised is not None and found[1][0] > 0:
        share = float(found[1][-1] / found[1][0])
        return number(share), f"of the first, {after}; at most {number(promised)} was promised"
    return number(float(found[1][-1])), f"{after}; nothing is promised about it"


# -- notices -------------------------------------------------------------------------------------------------


def notices(record: RunRecord) -> list[dict[str, str]]:
    """What a reader must know before the rest."""
    return [n for n in (_altered(record), _unsealed(record), _state(record), _no_better(record)) if n]


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


def _state(record: RunRecord) -> dict[str, str] | None:
    """How the run ended, if it did not simply finish."""
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
    reason = typeset(reason) or (_FOLLOWS if record.running else "No reason was recorded.")
    mark = "calm" if state in ("finished", "running") else "grave"
    return {"title": title, "reason": reason, "advice": typeset(advice), "means": means, "mark": mark}


def _no_better(record: RunRecord) -> dict[str, str] | None:
    """A warning where the network is no better than a simpler model."""
    best, known = best_score(record), part(record.findings, "baselines")
    if best is None or not (rival := no_better(best[1], known)):
        return None
    name, value, rows, where = best
    (theirs,) = {v for n, v in rivals(known).items() if RIVALS[n] == rival}
    word = "classifies" if name == "accuracy" else "has an R² of"
    right = " right" if name == "accuracy" else ""
    return {
        "title": f"No better than {rival}",
        "reason": f"On {count(rows, f'{where} row')} the network {word} {shown_score(name, value)}{right}, "
        f"{rival} {shown_score(name, theirs)}.",
        "advice": "take the simpler model for these data, or give the network more rows or other inputs.",
        "means": "What is proved below holds all the same: it is about the training and about the network's "
        "equilibria, and says nothing about how good its answers are.",
        "mark": "grave",
    }
