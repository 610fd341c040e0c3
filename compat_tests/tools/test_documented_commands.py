"""The commands of Odradek in README.md and docs/ are accepted by the command line: names, options and values."""

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.exceptions import TyperException

import odradek
from odradek.server import cli as broker_cli
from odradek.server.config import BrokerConfig
from odradek.spark_it import cli as pipeline_cli
from odradek.tools.cli.main import make_application

ROOT = Path(odradek.__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^(?:.*[\s;|&(])?(?:\S*/)?odradek ((?:[a-z]+(?:-[a-z]+)*)\b.*)$")
CODE_BLOCK = re.compile(r"^```\w*\n(.*?)^```|((?:^    \S.*\n)+)", re.MULTILINE | re.DOTALL)
SHELL_ENDS = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", ")"}
LOG_LINES = ("started", "stopped")


def find_commands(page):
    text = page.read_text("utf-8").replace("\\\n", " ")
    for block in CODE_BLOCK.finditer(text):
        for line in (block[1] or block[2]).splitlines():
            found = COMMAND.match(line)
            if found is not None and "`" not in line and not found[1].startswith(LOG_LINES):
                yield found[1]


def split(command):
    """Return the arguments of the command, without what belongs to the shell and without optional parts."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    arguments = []
    for word in lexer:
        if word in SHELL_ENDS:
            break
        arguments.append(word)
    return [word.strip("[]") for word in arguments if not word.startswith("...")]


@cache
def root():
    return typer.main.get_command(make_application())


def parse(arguments):
    """Parse a command as the command line does, without running it."""
    if arguments[0] == "start":
        options = broker_cli.make_parser().parse_args(arguments)
        assert {one.partition("=")[0] for one in options.override} <= {*BrokerConfig.declared(), "name"}
        return
    if arguments[0] == "pipeline":
        pipeline_cli.make_parser().parse_args(arguments[1:])
        return
    command, context = root(), None
    while True:
        context = command.make_context("odradek", list(arguments), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        _, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])


COMMANDS = [(page.name, command) for page in PAGES for command in find_commands(page)]


def test_the_pages_have_commands():
    assert len(COMMANDS) > 130
    assert len({page for page, _ in COMMANDS}) > 15


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_documented_command_is_accepted(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits.toml").touch()
    try:
        parse(split(command))
    except (TyperException, SystemExit) as error:
        pytest.fail(f"{page}: odradek {command}: {error}")


@pytest.mark.parametrize("command", ["topic creat x", "topic create", "topic list --verbos", "start --overide a=b"])
def test_a_command_that_does_not_exist_fails(command):
    with pytest.raises((TyperException, SystemExit)):
        parse(split(command))
