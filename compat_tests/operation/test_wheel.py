"""The wheel and the single-file executable, which run without the source.

They contain what the broker, its commands, the console and the fixtures use.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import odradek
from compat_tests import limits
from compat_tests.clients.common import wait_until
from compat_tests.processes import lasting_port, start

ROOT = Path(odradek.__file__).parent.parent
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
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=limits.COMMANDS_S, check=False)
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


def list_dependencies(name: str, extra: str = "") -> Iterator[str]:
    """Yield the distributions that a distribution and one of its extras need, with theirs; some more than once."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement.name
            for inner in requirement.extras or {""}:
                yield from list_dependencies(requirement.name, inner)


def copy_distribution(name: str, site: Path) -> None:
    """Copy the installed files of a distribution, except its scripts."""
    for file in metadata.files(name) or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)


@pytest.fixture
def executable(wheel: Path, tmp_path: Path) -> Path:
    """The executable that the command of `make dist` makes of the wheel and of the installed dependencies."""
    site = tmp_path / "site"
    for name in sorted({*list_dependencies("odradek", "console")}):
        copy_distribution(name, site)
    recipe = re.sub(r"\\\n\s*", " ", run("make", "--dry-run", "--always-make", "dist", cwd=ROOT))
    [options] = re.findall(r"-m shiv (.*) --output-file", recipe)
    built = tmp_path / "odradek"
    command = f"{sys.executable} -m shiv {options.replace('.venv/bin/python', sys.executable)}"
    run("bash", "-c", f"{command} --output-file {built} --site-packages {site} --no-deps {wheel}", cwd=ROOT)
    return built


def test_the_executable_runs_broker_and_commands(executable, tmp_path):
    address = f"127.0.0.1:{lasting_port()}"
    environment = {"PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}", "SHIV_ROOT": str(tmp_path / "shiv")}

    def command(*arguments: str, **options: Any) -> str:
        done = subprocess.run(
            [executable, *arguments, "-b", address], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=limits.COMMANDS_S, check=False, **options,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    properties = ("--override", f"listeners=PLAINTEXT://{address}", "--override", f"log.dirs={tmp_path / 'data'}")
    output = tmp_path / "output"
    with open(output, "wb") as file:
        broker = start([executable, "start", *properties], cwd=tmp_path, env=environment, stdout=file, stderr=file)
    try:
        wait_until(lambda: broker.poll() is not None or "odradek started" in output.read_text(), limits.COMMANDS_S)
        command("topic", "create", "t")
        command("record", "produce", "t", input="one\ntwo\n")
        assert command("record", "consume", "t") == "one\ntwo\n"
    finally:
        broker.terminate()
        assert broker.wait(limits.COMMANDS_S) == 0, output.read_text()
