"""A gallery as a page of this directory: `python docs/gallery/export.py GALLERY small "Title"`.

Writes small.md, the claims with their numbers, and small/KEY/*.png, the figures in 256 colours.
"""

import shutil
import sys
from pathlib import Path

from PIL import Image, ImageColor

from equipoise.papers.framework.gallery import counts, duration, processor_time, read_results, summary
from equipoise.plots import LIGHT

WIDEST, LARGEST = 1400, 200_000  # pixels; bytes of a picture


def export(gallery: Path, name: str, title: str) -> None:
    here = Path(__file__).parent
    results = read_results(gallery)
    failed = [r.key for r in results if r.error or r.later]
    if failed or not results:
        sys.exit(f"{gallery} must hold results without an error. Got errors in {failed or 'none at all'}.")
    shutil.rmtree(here / name, ignore_errors=True)
    for r in results:
        for figure in r.figures:
            to = here / name / r.key / f"{figure['name']}.png"
            to.parent.mkdir(parents=True, exist_ok=True)
            _shrink(gallery / r.key / to.name, to)
    text = summary(results).split("\n", 2)[2].replace("](", f"]({name}/")
    total = duration(processor_time(results, gallery))
    claims = [j for r in results for j in r.judgements]
    found = f"Of {len(claims)} claims: {counts(claims)}."
    time = f"Processor time of all: {total}, one thread each."
    head = f"# {title}\n\n{found} {time} [What this is](README.md).\n\n"
    (here / f"{name}.md").write_text(head + text.rstrip() + "\n", encoding="utf-8")
    print(f"{len(results)} experiments, {total}. {found} {here / name}.md")


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
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    export(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
