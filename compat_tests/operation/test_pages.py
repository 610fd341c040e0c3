"""Pages of docs/: links of all of them, quoted messages, and the commands of first steps, tasks, backups, upgrades and
troubleshooting."""

import json
import re
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import odradek
from compat_tests import limits
from compat_tests.clients.common import wait_until
from compat_tests.pages import PageShell, read_blocks, read_examples, read_page, set_default_cluster
from compat_tests.processes import lasting_ports
from odradek.tools.cli.main import main

ROOT = Path(odradek.__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md"))]
PAGES.append(ROOT / "CONTRIBUTING.md")
_CODE = re.compile(r"^ *```.*?^ *```|(?<=\n\n)(?:    .*\n|\n)+|(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_VARIABLE_PART = re.compile(r"\.\.\.|[:;] | \(")
_JOINED_STRINGS = re.compile(r'"\s*\n\s*f?"')


@cache
def read_anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs form them."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {make_anchor(heading) for heading in _HEADING.findall(text)}


def make_anchor(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = unicodedata.normalize("NFKD", text).lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")


def find_broken_links(path: Path) -> Iterator[str]:
    for link in _LINK.findall(_CODE.sub("", path.read_text("utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.is_file():
            yield f"{link}: no such file"
        elif anchor and anchor not in read_anchors(target):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_of_a_page_lead_to_files_and_headings(path):
    assert list(find_broken_links(path)) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# A title: `name`\n")
    page = tmp_path / "page.md"
    page.write_text("# Own\n[a](other.md#a-title-name) [b](#own) [c](other.md#b) [d](none.md) `[e](none.md)`\n")
    assert list(find_broken_links(page)) == ["other.md#b: no such heading", "none.md: no such file"]


def test_the_site_has_every_page():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    names = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(names) == sorted(path.name for path in PAGES if path.name != "README.md")


def test_messages_in_troubleshooting_are_in_the_source():
    folders = ("coordinator", "log", "protocol", "replication", "server", "tools")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts]
    modules += (ROOT / "odradek").glob("*.py")
    source = "\n".join(_JOINED_STRINGS.sub("", path.read_text("utf-8")) for path in sorted(modules))
    rows = re.findall(r"^\| (`.+?`)(?: with (`.+?`))?(?:, (`.+?`))? \|", read_page("troubleshooting.md"), re.MULTILINE)
    parts = [part.strip(" ();=`") for row in rows for message in row for part in _VARIABLE_PART.split(message)]
    checked = [part for part in parts if len(part) > 9 and not part.isupper()]
    assert len(checked) > 40
    missing = [part for part in checked if part not in source]
    assert missing == []


@pytest.fixture
def shell(tmp_path: Path, monkeypatch) -> Iterator[PageShell]:
    """A shell whose commands use free ports instead of 9092, also without --bootstrap-server, and 9192."""
    port, second_port = lasting_ports(2)
    set_default_cluster(tmp_path, monkeypatch, f"127.0.0.1:{port}")
    shell = PageShell(tmp_path, {":9092": f":{port}", ":9192": f":{second_port}"}, log_pattern="*.log")
    yield shell
    shell.kill("broker.pid")
    shell.kill("second.pid")


@pytest.mark.process
@pytest.mark.timeout(300)
def test_first_steps_then_tasks_then_a_backup_then_an_upgrade(shell, capsys):
    """One broker for the pages: each continues where the one before has ended."""
    steps = read_blocks("first-steps.md")
    output = [shell.run(block) for block in steps]
    by_block = dict(zip(steps, output, strict=True))

    def find(word: str) -> str:
        [found] = [out for block, out in by_block.items() if word in block]
        return found

    assert "odradek started" in find("odradek start ")
    assert "orders" in find("odradek topic create")
    assert len(find("python consume.py").splitlines()) == 10
    assert len(find("python read_all.py").splitlines()) == 13
    assert {"3 apples", "1 pear", "2 plums"} < set(find("odradek record produce").splitlines())
    assert re.search(r"^billing +Empty +0 +orders +\d +3$", find("odradek group lag"), re.MULTILINE)
    assert "reset" in find("odradek group reset")

    shell.start_broker("odradek start server.properties")
    commands = [line for block in read_blocks("tasks.md") for line in block.splitlines()]
    assert len(commands) > 10
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "odradek"
        assert main(arguments) == 0, (command, capsys.readouterr().err)

    backup, verify, restore, one_topic = read_blocks("backup.md")
    shell.run(backup)
    wait_until(lambda: "odradek started" in (shell.directory / "broker.log").read_text())
    assert "0 errors, 0 warnings" in shell.run(verify)
    shell.run("odradek topic delete orders --yes")
    shell.run(restore)
    groups = json.loads(shell.run("odradek group lag billing --json"))
    assert [group["lag"] for group in groups] == [13]
    shell.run(one_topic)
    records = [json.loads(line) for line in shell.run("odradek record consume orders-restored --json").splitlines()]
    assert sorted(record["value"] for record in records)[:3] == ["1 pear", "2 plums", "3 apples"]
    assert len(records) == 13

    shell.run("mv backup first-backup")
    _, upgrade, features = (block for block in read_examples("upgrade.md") if "odradek" in block)
    shell.run(upgrade.replace("/opt/odradek-new/bin/", ""))
    wait_until(lambda: "odradek started" in (shell.directory / "broker.log").read_text())
    assert "0 errors, 0 warnings" in shell.run(verify)
    assert "transaction.version" in shell.run(features)
    # The doctor and grep have other exit codes if there is a problem, such as a small disk, or no line.
    checks = shell.run(f"set +e\n{read_examples('troubleshooting.md')[0]}\ntrue")
    assert "advertised" in checks
    assert re.search(r"^billing +Empty ", checks, re.MULTILINE)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_the_tests_of_the_page_on_tests(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", read_page("testing.md"), re.DOTALL)
    for number, block in enumerate(blocks):
        (tmp_path / f"test_page_{number}.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=limits.COMMANDS_S, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
