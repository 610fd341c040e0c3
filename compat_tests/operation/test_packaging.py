"""The files in packaging/: the unit and the container file start a broker with their configurations."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from odradek.server.cli import make_parser
from odradek.server.config import load_config

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"


def read_unit():
    """Return the settings of the unit by section and name; a name can have several values."""
    settings = {}
    for line in (PACKAGING / "odradek.service").read_text("ascii").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals and name.isalpha(), line
            settings.setdefault((section, name), []).append(value)
    return settings


def test_the_unit_starts_a_broker_that_can_write_its_data():
    unit = read_unit()
    [command] = unit["Service", "ExecStart"]
    program, *arguments = shlex.split(command)
    assert program == "/usr/local/bin/odradek"
    options = make_parser().parse_args(arguments)
    assert options.file == f"/etc/{unit['Service', 'ConfigurationDirectory'][0]}/server.properties"
    config, _ = load_config(str(PACKAGING / "server.properties"), [], kafka_opts="")
    [state] = unit["Service", "StateDirectory"]
    assert all(directory.startswith(f"/var/lib/{state}/") for directory in config.data_dirs)
    assert int(unit["Service", "LimitNOFILE"][0]) >= 100_000
    # Exit code 2 is that of an invalid configuration.
    assert (unit["Service", "Restart"], unit["Service", "RestartPreventExitStatus"]) == (["on-failure"], ["2"])
    assert unit["Service", "User"] == unit["Service", "Group"] == ["odradek"]
    assert "\nu odradek " in (PACKAGING / "odradek.sysusers").read_text("ascii")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path):
    text = (PACKAGING / "odradek.service").read_text("ascii")
    unit = tmp_path / "odradek.service"
    # The command must exist.
    unit.write_text(text.replace("/usr/local/bin/odradek", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["server.properties", "container.properties"])
def test_configurations_are_valid(name):
    _, warnings = load_config(str(PACKAGING / name), [], kafka_opts="")
    assert warnings == []


def test_the_container_file_uses_what_the_image_contains():
    text = (PACKAGING / "Containerfile").read_text("ascii")
    for source, target in re.findall(r"^COPY (?:--from=\S+ )?(\S+) (\S+)$", text, re.MULTILINE):
        if source.startswith("packaging/"):
            assert (ROOT / source).is_file()
            assert target in text.partition("ENTRYPOINT")[2]
    config, _ = load_config(str(PACKAGING / "container.properties"), [], kafka_opts="")
    [volume] = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    assert list(config.data_dirs) == [volume]
    metrics_port = config.metrics_listener.rpartition(":")[2]
    [exposed] = re.findall(r"^EXPOSE (.+)$", text, re.MULTILINE)
    assert {str(endpoint.port) for endpoint in config.endpoints} | {metrics_port} == set(exposed.split())
    assert f":{metrics_port}/readyz" in text
    assert re.search(r"^USER [1-9]\d*$", text, re.MULTILINE)
