"""equipoise data: the named data sets, and which of them are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .failures import command, option
from .output import Output, table

_WORDS = {
    "embedded": ("green", "always here"),
    "official": ("green", "here, with the official hash"),
    "subset": ("yellow", "part of it is here"),
    "damaged": ("red", "damaged"),
    "incomplete": ("yellow", "incomplete"),
    "missing": ("dim", "is fetched when asked for"),
}


@command("""data
data --json""")
def data(
    output: Output,
    data_dir: Annotated[Path | None, option("Folder to look in; by default $EQUIPOISE_DATA.")] = None,
) -> None:
    """List the data sets that equipoise knows by name, and whether each is on this machine.

    Your own tables (.csv, .tsv, .parquet, .npz) and folders of images need no name: give their path to fit.
    """
    from rich.text import Text

    from ..data import available, data_directory

    found = available(data_dir)
    shown = table("name", "state", "where", fold=("where",))
    shown.columns[0].no_wrap = True  # a name is there to be copied
    for entry in found:
        colour, words = _WORDS[entry.found]
        where = entry.where
        if entry.found == "official":
            where = str(Path(where.split(", ")[0]).parent)
        elif entry.found == "missing":
            where = ""
        shown.add_row(Text(entry.name), Text(words, colour), Text(where))
    output.say(shown, f"Looked in {data_directory(data_dir)}")
    output.result([entry._asdict() for entry in found])
