"""Every row of the coordinators' tables, as scripted scenarios that a person can read."""

import os
from pathlib import Path
from typing import Any

import pytest

from odradek.coordinator.tests.scenario import GroupPlayer, Player, parse, render
from odradek.coordinator.tests.transaction_scenario import TransactionPlayer

GROUPS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
TRANSACTIONS = sorted((Path(__file__).parent / "scenarios" / "transactions").glob("*.txt"))


def check(player: Player[Any], file: Path) -> None:
    played = player.play(file)
    if os.environ.get("ODRADEK_REWRITE_SCENARIOS"):
        file.write_text(render(played))
    for expected, actual in zip(parse(file.read_text()), played, strict=True):
        assert actual.expected == expected.expected, f"after {expected.commands}"


@pytest.mark.parametrize("file", GROUPS, ids=[file.stem for file in GROUPS])
def test_group_scenario(file: Path):
    check(GroupPlayer(), file)


@pytest.mark.parametrize("file", TRANSACTIONS, ids=[file.stem for file in TRANSACTIONS])
def test_transaction_scenario(file: Path):
    check(TransactionPlayer(), file)
