"""Pages of the console over HTTP, compared with what other clients report."""

import pytest

from compat_tests.tools.eventually import eventually

pytestmark = [pytest.mark.side_by_side]


def test_cluster_brokers_and_topics(console, admin, odradek, unique):
    admin.create_topic(unique, 3)
    odradek("topic", "alter", unique, "--config", "max.message.bytes=77777")
    overview = console.get("/")
    [broker] = odradek("broker", "list", "--json").json
    assert overview.find_row(str(broker["broker"]))[1] == f"{broker['host']}:{broker['port']}"
    [disk] = odradek("broker", "disks", "--json").json
    assert disk["log_dir"] in overview.text
    configs = console.get(f"/brokers/{broker['broker']}")
    assert configs.find_row("offsets.topic.num.partitions changed")[1] == "5"
    assert "there is no broker 777" in console.get("/brokers/777", 404).text

    def check():
        assert console.get(f"/topics?search={unique}").find_row(unique)[1:3] == ["3", "1"]
        topic = console.get(f"/topics/{unique}")
        assert topic.find_row("max.message.bytes changed")[1:] == ["77777", "1048588", "topic"]
        assert [row[:4] for row in topic.rows[1:4]] == [
            [str(index), *[str(broker["broker"])] * 3] for index in range(3)
        ]

    eventually(check)
    missing = console.get(f"/topics/{unique}x", 404)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in missing.text and f"did you mean {unique}" in missing.text
    assert console.get("/topics/%3Cscript%3E", 404).text.count("<script") == 1
