"""Print the oldest dependencies that pyproject.toml allows, one a line, for `make oldest`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for required in project["dependencies"]:
    name, least = re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", required).groups()
    minor = least if "." in least else f"{least}.0"
    print(f"{name}=={minor}" if minor.count(".") > 1 else f"{name}=={minor}.*")
