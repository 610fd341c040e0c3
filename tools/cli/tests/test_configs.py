"""`odradek config properties`, and docs/configuration.md."""

from pathlib import Path

import odradek
from odradek.server.config import reference
from odradek.tools.cli.main import main

DOCS = Path(odradek.__file__).resolve().parent.parent / "docs"


def test_every_property_is_shown(capsys):
    assert main(["config", "properties"]) == 0
    out = capsys.readouterr().out
    assert "num.partitions " in out and "cleanup.policy " in out and "internal.segment.bytes" not in out


def test_one_property_is_shown_in_full(capsys):
    assert main(["config", "properties", "compression.type"]) == 0
    out = capsys.readouterr().out
    assert "scope: broker" in out and "scope: topic" in out and "one of: uncompressed, zstd" in out


def test_an_unknown_property(capsys):
    assert main(["config", "properties", "retention.mss"]) == 2
    assert capsys.readouterr().err == ("odradek: Unknown configuration retention.mss, did you mean retention.ms?\n")


def test_the_configuration_page_agrees_with_the_declarations(capsys):
    assert main(["config", "properties", "--markdown"]) == 0
    page = (DOCS / "configuration.md").read_text("utf-8")
    assert page == capsys.readouterr().out == reference.format_markdown(), "run: odradek config properties --markdown"
