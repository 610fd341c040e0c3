"""The wheel, installed where the source is not: it contains what the broker, commands, console and fixtures use."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import odradek

ROOT = Path(odradek.__file__).parent.parent
TIMEOUT_S = 240
FOLDERS = ("odradek", "protocol", "log", "replication", "coordinator", "server", "tools", "spark_it")
FILES = ("pyproject.toml", "README.md", "LICENSE")
USER_TEST = """
import re
import subprocess
from urllib.request import urlopen

import odradek


def run(*arguments, **options):
    done = subprocess.run([{odradek!r}, *arguments], capture_output=True, text=True, check=False, timeout=60, **options)
    assert done.returncode == 0, done
    return done.stdout


def test_the_broker_of_the_wheel(odradek_broker):
    assert odradek.__file__.startswith({site!r})
    selection = ("--bootstrap-server", odradek_broker.bootstrap_servers)
    run("topic", "create", "t", *selection)
    run("record", "produce", "t", *selection, input="one\\ntwo\\n")
    assert run("record", "consume", "t", *selection) == "one\\ntwo\\n"
    assert "t" in run("topic", "list", *selection)


def test_the_console_of_the_wheel(odradek_broker):
    selection = ("--bootstrap-server", odradek_broker.bootstrap_servers)
    command = [{odradek!r}, "console", *selection, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as console:
        try:
            [address] = re.findall(r"http://[\\w.:]+", console.stdout.readline())
            page = urlopen(address, timeout=30).read().decode()
            [script] = re.findall(r'<script src="([^"]+)"', page)
            assert urlopen(address + script, timeout=30).read()
        finally:
            console.terminate()
    assert "<title>" in page
"""

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built from a copy, because a build writes into the source."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, source)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, source, cwd=directory)
    [built] = directory.glob("*.whl")
    return built


def test_it_contains_all_files_of_the_packages_but_no_tests(wheel):
    expected = set()
    for path in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file()):
        name = path.relative_to(ROOT)
        if not {"tests", "__pycache__"} & set(name.parts):
            expected.add(str(name if name.parts[0] == "odradek" else "odradek" / name))
    contained = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert len(expected) > 300
    assert contained == expected


def test_it_runs_without_the_source(wheel, tmp_path):
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    [site] = environment.glob("lib/python*/site-packages")
    # Its dependencies are those of these tests; .pth files there, such as that of an editable package, have no effect.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    text = USER_TEST.format(odradek=str(environment / "bin" / "odradek"), site=str(site))
    (tmp_path / "test_wheel.py").write_text(text)
    assert "2 passed" in run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_wheel.py", cwd=tmp_path)
