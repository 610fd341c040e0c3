"""The docstring of each package lists its modules."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ["coordinator", "log", "protocol", "replication", "server", "simulation", "spark_it", "tools"]


def listing_packages():
    found = []
    for name in PACKAGES:
        for init in sorted((ROOT / name).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
            listed = re.findall(r"^- `(\w+)`", docstring, re.MULTILINE)
            if listed:
                found.append(pytest.param(init.parent, listed, id=str(init.parent.relative_to(ROOT))))
    return found


@pytest.mark.parametrize(("folder", "listed"), listing_packages())
def test_a_package_lists_its_modules(folder, listed):
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")} - {"tests"}
    assert sorted(listed) == sorted(modules | packages)
