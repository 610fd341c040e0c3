"""`odradek doctor` beside Odradek and Apache Kafka; their processes run on this machine."""

import pytest

from compat_tests.apache_kafka import tools

pytestmark = [pytest.mark.side_by_side, pytest.mark.usefixtures("kafka_jars")]


def test_facts_of_a_running_broker(odradek, tool, broker, unique):
    tool(tools.TOPICS, "--create", "--topic", unique, "--config", "min.insync.replicas=2")
    try:
        found = odradek("doctor", "--json", code=None).json
        shown = odradek("doctor", "--all", code=None).out
    finally:
        tool(tools.TOPICS, "--delete", "--topic", unique)
    [disk] = odradek("broker", "disks", "--json").json
    by_check = {one["check"]: one for one in found["findings"]}
    assert (by_check["min.insync.replicas"]["state"], unique in by_check["min.insync.replicas"]["fact"]) == (
        "warning",
        True,
    )
    assert by_check["controller"]["fact"] == f"broker {disk['broker']}"
    assert by_check["controller's clock"]["state"] == "ok"
    assert by_check["advertised address"]["fact"].startswith(broker.bootstrap_servers)
    # Facts of the machine are there only if the process was found.
    assert by_check["open files"]["state"] in ("ok", "warning")
    assert by_check["file system"]["fact"].startswith(f"{disk['log_dir']}: ")
    assert not [one for one in found["findings"] if one["state"] == "unchecked" and one["check"] != "clock"]
    assert found["problem_count"] == sum(one["state"] == "problem" for one in found["findings"])
    assert all(f"{one['subject']}  " in shown and f"  {one['check']}  " in shown for one in found["findings"])
