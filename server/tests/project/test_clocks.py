"""Two clocks: `now_ms` is compared with timestamps of records only, and no module reads Python's clocks itself."""

import re
import time
from pathlib import Path
from types import SimpleNamespace

from odradek.server.environment import Environment

ROOT = Path(__file__).resolve().parents[3]
BROKER = ("coordinator", "log", "replication", "server")

COMPARED_WITH_TIMESTAMPS = {
    "coordinator/groups/offset_commands.py": "expiry that a commit asks for",
    "coordinator/groups/offsets.py": "retention of offsets",
    "coordinator/transactions/admin.py": "age of transactions in ListTransactions",
    "coordinator/transactions/expiry.py": "retention of transactional ids",
    "log/compaction/cleanable.py": "compaction lag",
    "log/compaction/rules.py": "retention of tombstones",
    "log/append.py": "records too far ahead; age of a segment by its records",
    "log/producers/in_flight_batches.py": "age of batches",
    "log/producers/state.py": "retention of producer ids",
    "log/validation/record.py": "records too far ahead or behind",
    "log/retention.py": "retention of records",
    "log/roll.py": "age of a segment by its records",
    "log/validation/batch.py": "records too far ahead or behind",
    "replication/controller/configs/nodes.py": "retention of notices in the metadata store",
    "replication/controller/token_changes.py": "lifetimes of delegation tokens in the metadata store",
    "server/fetching/readers.py": "the time of a fetch, for people",
    "server/metrics/view.py": "time since the last record of an open transaction",
    "server/security/sasl/oauthbearer/token_login.py": "lifetimes of access tokens",
    "server/security/sasl/oauthbearer/unsecured_tokens.py": "lifetimes of access tokens",
}
OWN_CLOCKS = {
    "log/compaction/process.py": "the child process",
    "server/broker.py": "time that the start took",
    "server/cli.py": "time that the start took",
    "server/cluster_tools/local_cluster.py": "waits of a tool for a process",
    "server/cluster_tools/zookeeper_server.py": "waits of a tool for a process",
    "server/environment.py": "the clocks themselves",
}


def files_with(pattern):
    found = set()
    for package in BROKER:
        for path in (ROOT / package).rglob("*.py"):
            if "tests" not in path.relative_to(ROOT).parts and re.search(pattern, path.read_text()):
                found.add(str(path.relative_to(ROOT)))
    return found


def test_no_deadline_is_computed_from_the_wall_clock():
    found = files_with(r"(?<!\w)(self\.)?_?now_ms(\(\))? ?[-+]|[-+] ?(self\._)?now_ms\b")
    assert found == set(COMPARED_WITH_TIMESTAMPS)


def test_clocks_are_passed_in():
    assert files_with(r"\btime\.(time|monotonic|perf_counter)\(") == set(OWN_CLOCKS)


def test_the_monotonic_clock_does_not_follow_the_wall_clock(monkeypatch):
    environment = Environment(SimpleNamespace())
    before_ms, monotonic_ms = environment.now_ms(), environment.monotonic_ms()
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 3600)
    assert environment.now_ms() < before_ms - 3_000_000
    assert monotonic_ms <= environment.monotonic_ms() < monotonic_ms + 3_000_000
