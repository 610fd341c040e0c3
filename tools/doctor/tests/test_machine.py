"""Checks of a machine, in a made-up /proc: the process, its limits, disks, file systems, memory, clock."""

import os
from types import SimpleNamespace

import pytest

from odradek.tools.doctor.clock_sync import ClockSync
from odradek.tools.doctor.findings import State
from odradek.tools.doctor.machine import Machine, check_machine
from odradek.tools.doctor.mounts import Mount, check_mount, find_mount, parse_mounts
from odradek.tools.doctor.processes import find_process, is_local_host
from odradek.tools.kafka.connection.wire_client import Address

ADDRESS = Address("here", 9092)
LISTENING = "   0: 0100007F:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0\n"
CONNECTED = LISTENING.replace(" 0A ", " 01 ").replace("4711", "4712")
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 8:17 / /var/lib/my\\040data rw,noatime - xfs /dev/sdb1 rw,attr2
"""


@pytest.fixture
def proc(tmp_path):
    """A /proc with a broker, process 7, and a client of it, process 8."""
    root = tmp_path / "proc"
    for pid, name, targets in (
        (7, "python", ["socket:[4711]", "/data/.lock", "/dev/null"]),
        (8, "client", ["socket:[4712]"]),
    ):
        (root / str(pid) / "fd").mkdir(parents=True)
        (root / str(pid) / "comm").write_text(f"{name}\n")
        for number, target in enumerate(targets):
            os.symlink(target, root / str(pid) / "fd" / str(number))
    (root / "net").mkdir()
    (root / "net" / "tcp").write_text(f"  sl  local_address\n{LISTENING}{CONNECTED}")
    (root / "sys" / "vm").mkdir(parents=True)
    (root / "sys" / "vm" / "max_map_count").write_text("65530\n")
    (root / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 500 kB\nHugePages_Total: 0\n")
    broker = root / "7"
    (broker / "limits").write_text("Limit  Soft Limit  Hard Limit  Units\nMax open files  20000  20000  files\n")
    (broker / "maps").write_text("line\n" * 300)
    (broker / "mountinfo").write_text(MOUNTS)
    (broker / "status").write_text("Name:\tpython\nVmSwap:\t       0 kB\n")
    return root


def find(proc, log_dirs=("/data",), is_local=lambda host: True):
    return find_process(ADDRESS, log_dirs, is_local, proc)


def test_a_process_is_found_by_its_log_directory(proc):
    process = find(proc).process
    assert (process.pid, process.name, len(process.files)) == (7, "python", 3)


@pytest.mark.parametrize(
    ("log_dirs", "reason"),
    [
        (["/other", "/dat"], "python (pid 7) listens on port 9092, but has no file of the log directories open"),
        ([], "the broker reports no log directories, by which its process would be recognised"),
    ],
)
def test_a_process_that_only_listens_is_no_broker(proc, log_dirs, reason):
    assert find(proc, log_dirs) == (None, reason)


def test_no_process(proc):
    assert find(proc, is_local=lambda host: False).reason == "here is not an address of this machine"
    (proc / "net" / "tcp").write_text("heading\n")
    assert find(proc, ["/other"]).reason == "no process of this machine listens on port 9092"


def test_a_process_of_another_user(proc, monkeypatch):
    def refuse(path):
        if str(path).endswith("7/fd"):
            raise PermissionError
        return listdir(path)

    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", refuse)
    assert find(proc).reason.endswith("port 9092 is one of 1 that this user must not read: use sudo")


def test_addresses_of_this_machine():
    assert is_local_host("127.0.0.1")
    assert not is_local_host("192.0.2.1")  # reserved for documentation


def check(proc, *, free=500, inodes=500, files=1000, clock=lambda: ClockSync(True, 250), log_dirs=("/data",)):
    def stat(path):
        assert path == f"{proc}/7/root/data"
        return SimpleNamespace(f_bavail=free, f_blocks=1000, f_frsize=4096, f_favail=inodes, f_files=files)

    process = find(proc).process
    return list(check_machine(Machine(proc, stat, clock), "machine", process, log_dirs))


def find_remarks(proc, **options):
    return {one.check: one.state.value for one in check(proc, **options) if one.state is not State.OK}


def test_a_healthy_machine(proc):
    found = {one.check: one.fact for one in check(proc)}
    assert find_remarks(proc) == {}
    assert found == {
        "open files": "3 of 20000, python with pid 7",
        "memory maps": "300 of 65530",
        "disk": "/data: 2 MiB of 4 MiB free",
        "inodes": "/data: 500 of 1,000 free",
        "file system": "/data: ext4 on /",
        "memory": "500 KiB of 1000 KiB available",
        "swap": "none of the broker's memory is swapped out",
        "clock": "synchronised, estimated error 0.25 ms",
    }


@pytest.mark.parametrize(
    ("options", "remarks"),
    [
        ({"free": 40}, {"disk": "problem"}),
        ({"free": 140}, {"disk": "warning"}),
        ({"inodes": 40}, {"inodes": "problem"}),
        ({"inodes": 0, "files": 0}, {}),
        ({"clock": lambda: ClockSync(False, 16_000_000)}, {"clock": "warning"}),
        ({"clock": lambda: None}, {"clock": "unchecked"}),
    ],
)
def test_disks_and_clock(proc, options, remarks):
    assert find_remarks(proc, **options) == remarks


@pytest.mark.parametrize(
    ("file", "text", "remarks"),
    [
        ("7/limits", "Max open files  4096  4096  files\n", {"open files": "warning"}),
        ("7/limits", "Max open files  4  4  files\n", {"open files": "warning"}),
        ("7/limits", "Max open files  3  3  files\n", {"open files": "problem"}),
        ("7/limits", "Max open files  unlimited  unlimited  files\n", {}),
        ("7/status", "VmSwap:\t  12 kB\n", {"swap": "warning"}),
        ("7/status", "Name: x\n", {"swap": "unchecked"}),
        ("meminfo", "MemTotal: 1000 kB\nMemAvailable: 40 kB\n", {"memory": "problem"}),
        ("sys/vm/max_map_count", "320\n", {"memory maps": "problem"}),
        ("7/mountinfo", "", {"file system": "unchecked"}),
    ],
)
def test_limits_and_memory(proc, file, text, remarks):
    (proc / file).write_text(text)
    assert find_remarks(proc) == remarks


def test_the_mount_of_a_directory():
    mounts = list(parse_mounts(MOUNTS.splitlines()))
    assert find_mount(mounts, "/var/lib/my data/logs").kind == "xfs"
    assert find_mount(mounts, "/var/lib/my data").options >= {"noatime", "attr2"}
    assert find_mount(mounts, "/var/lib/my database").path == "/"


@pytest.mark.parametrize(
    ("kind", "options", "state"),
    [
        ("xfs", {"rw", "noatime"}, State.OK),
        ("tmpfs", {"rw"}, State.PROBLEM),
        ("nfs4", {"rw"}, State.WARNING),
        ("overlay", {"rw"}, State.WARNING),
        ("ext4", {"ro"}, State.PROBLEM),
        ("ext4", {"rw", "barrier=0"}, State.PROBLEM),
        ("ext4", {"rw", "sync"}, State.WARNING),
    ],
)
def test_file_systems(kind, options, state):
    [finding] = check_mount("machine", "/data", Mount("/data", kind, frozenset(options)))
    assert (finding.state, bool(finding.fix)) == (state, state is not State.OK)
