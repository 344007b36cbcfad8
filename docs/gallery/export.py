"""A gallery as a page of this directory: `python docs/gallery/export.py GALLERY small "Title"`.

Writes small.md, the claims with their numbers, and small/KEY/*.png, the figures in 256 colours. What the page
holds of experiments that are not in GALLERY stays as it is.
"""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
from markdown.extensions.toc import slugify
from PIL import Image, ImageColor

from equipoise.papers.framework.gallery import read_results, summary
from equipoise.plots import LIGHT

TABLE = ("| experiment | what | verdict | claims | scale | time |", "| --- | --- | --- | --- | --- | --- |")
ROW = re.compile(r"\| \[?(\w+\.[\w.]+)(?:\]\(\S*\))?(?= \|)")  # its key, which leads to its section
WIDEST, LARGEST = 1400, 200_000  # pixels; bytes of a picture


def export(gallery: Path, name: str, title: str) -> None:
    here = Path(__file__).parent
    page = here / f"{name}.md"
    results = read_results(gallery)
    failed = [r.key for r in results if r.error or r.later]
    if failed or not results:
        sys.exit(f"{gallery} must hold results without an error. Got errors in {failed or 'none at all'}.")
    for r in results:
        shutil.rmtree(here / name / r.key, ignore_errors=True)
        for figure in r.figures:
            to = here / name / r.key / f"{figure['name']}.png"
            to.parent.mkdir(parents=True, exist_ok=True)
            _shrink(gallery / r.key / to.name, to)
    about, rows, sections = _parts(page.read_text(encoding="utf-8") if page.exists() else "")
    _, new_rows, new_sections = _parts(summary(results).replace("](", f"]({name}/"))
    rows, sections = rows | new_rows, sections | new_sections
    found = f"Of {_claims(rows)}."
    head = [f"# {title}", f"{found} [What this is](README.md).", *about, "\n".join([*TABLE, *rows.values()])]
    text = "\n\n".join([*head, *(_opened(section) for section in sections.values())])
    page.write_text(text + "\n", encoding="utf-8")
    print(f"{len(results)} experiments of {len(rows)}. {found} {page}")


def _parts(page: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Of a page: what is said before the table, the rows of the table and the sections, by their keys."""
    head, *sections = page.split("\n## ")
    said = [part for part in head.split("\n\n")[2:] if part.strip() and not part.lstrip().startswith("|")]
    titles = {part.split(":")[0]: part.splitlines()[0] for part in sections}
    rows = {}
    for line in head.splitlines():
        if found := ROW.match(line):
            key = found.group(1)
            rows[key] = f"| [{key}](#{slugify(titles[key], '-')}){line[found.end() :]}"
    return said, rows, {part.split(":")[0]: f"## {part.strip()}" for part in sections}


def _claims(rows: dict[str, str]) -> str:
    """How many claims there are in all, by verdict: 166 claims: 78 agree, 21 differ, …"""
    found: dict[str, int] = {}
    for row in rows.values():
        for count, verdict in re.findall(r"(\d+) ([a-z ]+)", row.split(" | ")[3]):
            found[verdict.strip()] = found.get(verdict.strip(), 0) + int(count)
    words = [f"{found[v]} {v}" for v in ("agree", "differ", "undecided", "cannot be tried") if v in found]
    return f"{sum(found.values())} claims: {', '.join(words)}"


def _opened(section: str) -> str:
    """Each picture a link to itself, at its full size, with its caption to be read below it."""
    key = section[3:].split(":")[0]
    return re.sub(
        r"^!\[(.*)\]\((.*/(.*)\.png)\)$",
        rf"[![{key}, \3](\2)](\2)\n\n<small>\1</small>",
        section,
        flags=re.MULTILINE,
    )


def _shrink(source: Path, to: Path) -> None:
    picture = Image.open(source).convert("RGB")
    picture.thumbnail((WIDEST, WIDEST), Image.Resampling.LANCZOS)
    in_256_colours(picture).save(to, optimize=True)
    if to.stat().st_size > LARGEST:
        sys.exit(f"{to} must have at most {LARGEST} bytes. Got {to.stat().st_size} instead.")


def in_256_colours(picture: Image.Image) -> Image.Image:
    """The theme's own colours, exact, and the picture's others as near as the rest of a palette allows."""
    own = [ImageColor.getrgb(colour) for colour in (LIGHT.paper, LIGHT.ink, LIGHT.soft, *LIGHT.series)]
    others = picture.quantize(256 - len(own), method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in own for part in colour] + others[: 3 * (256 - len(own))])
    found = picture.quantize(palette=palette, dither=Image.Dither.NONE)
    pixels, places = np.array(picture), np.array(found)  # Pillow may take a neighbour of a colour that it has
    for i, colour in enumerate(own):
        places[(pixels == colour).all(axis=2)] = i
    exact = Image.fromarray(places)
    exact.putpalette(found.getpalette() or [])
    return exact


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    export(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
