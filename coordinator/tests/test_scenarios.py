"""Every row of the classic group protocol's tables, as scripted scenarios that a person can read."""

import os
from pathlib import Path

import pytest

from odradek.coordinator.tests.scenario import Player, parse, render

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_scenario(file):
    played = Player().play(file)
    if os.environ.get("ODRADEK_REWRITE_SCENARIOS"):
        file.write_text(render(played))
    for expected, actual in zip(parse(file.read_text()), played, strict=True):
        assert actual.expected == expected.expected, f"after {expected.commands}"
