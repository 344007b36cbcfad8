"""The picture of a report: `python docs/images/make.py` (needs chromium and the extra `dev`)."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"


def main() -> None:
    """Fit the digits, and take what a reader sees first of the report, in few colours."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        run = Path(folder) / "digits"
        subprocess.run(
            [sys.executable, "-m", "equipoise.cli", "fit", "digits", "--out", str(run)], check=True
        )
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1100, "height": 900}, device_scale_factor=1.5)
        page.goto((run / "report.html").as_uri())
        end = page.locator("h2").nth(1).bounding_box()["y"] - 30  # before what is guaranteed
        taken = page.screenshot(clip={"x": 0, "y": 0, "width": 1100, "height": end}, full_page=True)
        browser.close()
    picture = Image.open(io.BytesIO(taken)).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    picture.save(Path(__file__).parent / "report.png", optimize=True)


if __name__ == "__main__":
    main()
