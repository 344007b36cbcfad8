"""What MkDocs calls while it builds the site."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

_TEX = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', flags=re.DOTALL)


def on_config(config: Any) -> Any:
    """Offer the other versions of the site, where mike publishes several beside each other."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Give every notebook a page to read, beside the file itself."""
    for file in [f for f in files if f.src_uri.endswith(".ipynb")]:
        page = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content=_readable(Path(file.abs_src_path))))
    return files


def on_page_markdown(text: str, page: Any, **_: object) -> str:
    """Lead from other pages to the page of a notebook, not to its file."""
    return text if page.file.generated_by else re.sub(r"(\]\([^)\s]*)\.ipynb\)", r"\1.md)", text)


def _readable(notebook: Path) -> str:
    """The words and the code of a notebook as a page, which leads to the notebook."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    code = [cell["cell_type"] == "code" for cell in cells]
    shown = [
        f"```python\n{text}\n```" if is_code else text for text, is_code in zip(texts, code, strict=True)
    ]
    leads = f"[Download this notebook]({notebook.name}) to run it and to see its numbers and pictures."
    return "\n\n".join([shown[0], leads, *shown[1:]]) + "\n"


def on_page_content(text: str, **_: object) -> str:
    """Turn the TeX of a page into MathML, so that no script is needed to read it."""
    return _TEX.sub(
        lambda found: convert(
            html.unescape(found.group(3)), display="inline" if found.group(2) == "(" else "block"
        ),
        text,
    )
