import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

import odradek
from odradek.spark_it import cli
from odradek.spark_it.definition import reference
from odradek.spark_it.definition.reader import load
from odradek.spark_it.definition.sink_keys import SINKS
from odradek.spark_it.definition.source_keys import SOURCES
from odradek.spark_it.exactly_once.transactions import Clients
from odradek.spark_it.state.lock import make_lock, write_lock
from odradek.spark_it.state.pid_lock import hold_lock
from odradek.spark_it.validation import report as validation
from spark_it.tests.data import Topics
from spark_it.tests.records import values
from spark_it.tests.unit.support import CONSOLE, SOURCE, TOPIC, transform

PAGE = Path(odradek.__file__).parent.parent / "docs" / "pipelines.md"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "orders.toml"
    path.write_text(SOURCE + TOPIC, "utf-8")
    return path


def create(servers, *topics):
    for topic in topics:
        Topics(servers).create(topic)


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_a_wrong_command_line(capsys):
    assert "invalid choice: 'walk'" in refused(capsys, "walk")
    assert "'reference'); did you mean status? (see odradek pipeline --help)" in refused(capsys, "stats")
    assert "--jsn; did you mean --json? (see" in refused(capsys, "status", "x", "--jsn")
    assert "arguments are required: COMMAND" in refused(capsys)
    assert "cannot read /no/file: No such file or directory" in refused(capsys, "validate", "/no/file")
    assert "tomorrow is not earliest, committed, or an instant" in refused(capsys, "reset", "x", "--to", "tomorrow")


def test_validate(capsys, file):
    assert cli.main(["validate", "--without-spark", str(file)]) == 0
    assert capsys.readouterr().out == (
        f"orders: {file} is valid\n"
        "  source orders (topic)\n"
        "  sink topic of orders\n"
        "topic out: exactly once, rows and source offsets in one transaction per source partition "
        "(offset transactions)\n"
        "  provided that readers use isolation.level=read_committed\n"
    )


def test_ctrl_c_prints_no_traceback(capsys, file, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(validation, "validate", interrupted)
    assert cli.main(["validate", str(file)]) == 130
    assert capsys.readouterr() == ("", "")


def test_all_problems_are_printed_and_the_exit_code_is_2(capsys, file):
    file.write_text("nam = 1\n" + transform("SELECT 1") + CONSOLE, "utf-8")
    assert cli.main(["validate", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"{file}:1: key name is missing: letters, digits, '.', '_' and '-', not only dots\n"
        f"{file}:1: there is no source; write [source.NAME]\n"
        f"{file}:1: unknown key nam, did you mean name?\n"
    )


def test_a_running_pipeline_is_not_reset(capsys, file):
    with hold_lock(load(file, {}).state_folder):
        assert cli.main(["reset", str(file), "--to", "earliest"]) == 1
    assert "is already running as process" in capsys.readouterr().err


def test_a_broker_that_cannot_be_reached(capsys, file, monkeypatch):
    file.write_text(
        f'bootstrap.servers = "127.0.0.1:1"\nadmin.override."socket.timeout.ms" = 500\n{SOURCE}{TOPIC}', "utf-8"
    )
    monkeypatch.setattr("odradek.spark_it.kafka.cluster._TIMEOUT_S", 0.5)
    assert cli.main(["status", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == "orders: stopped, has never run\n"
    assert err.startswith("odradek pipeline: cannot list topics at 127.0.0.1:1: ") and err.count("\n") == 1
    assert cli.main(["status", str(file), "--json"]) == 1
    out, err = capsys.readouterr()
    state = json.loads(out)
    assert (state["name"], state["is_running"], state["has_run"], state["sources"]) == ("orders", False, False, None)
    assert err.startswith("odradek pipeline: cannot list topics at 127.0.0.1:1: ") and err.count("\n") == 1
    # These commands fail before they start Spark.
    for command in (["run"], ["reset", "--to", "earliest"], ["replay-dlq"]):
        assert cli.main([command[0], str(file), *command[1:]]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("odradek pipeline: ") and err.count("\n") == 1


def test_a_damaged_lock(capsys, file):
    state = load(file, {}).state_folder
    state.mkdir(parents=True)
    (state / "pipeline.lock.toml").write_text("version = 2")
    assert cli.main(["status", str(file)]) == 1
    assert "is damaged" in capsys.readouterr().err


def test_a_reset_does_not_need_the_lock(capsys, file, odradek_broker):
    create(odradek_broker.bootstrap_servers, "orders")
    file.write_text(f'bootstrap.servers = "{odradek_broker.bootstrap_servers}"\n{SOURCE}{TOPIC}', "utf-8")
    state = load(file, {}).state_folder
    state.mkdir(parents=True)
    for text in ("version = 1", "version = "):
        (state / "pipeline.lock.toml").write_text(text)
        assert cli.main(["status", str(file)]) == 1
        assert "start over with reset" in capsys.readouterr().err
        assert cli.main(["reset", str(file), "--to", "committed", "--execute"]) == 0
        assert capsys.readouterr().out.endswith("orders: reset complete\n")
        assert cli.main(["status", str(file)]) == 0


def test_a_task_that_outlives_its_driver_writes_nothing_after_a_reset(capsys, file, odradek_broker):
    """The reset fences the task. Its marker, which is older than the offset of the reset, would have no effect."""
    servers = odradek_broker.bootstrap_servers
    create(servers, "orders", "out")
    file.write_text(f'bootstrap.servers = "{servers}"\n{SOURCE}{TOPIC}', "utf-8")
    one = load(file, {})
    write_lock(one.state_folder, make_lock(one, None, 1))
    source = Producer({"bootstrap.servers": servers})
    source.produce("orders", b"{}")
    assert source.flush(10) == 0
    clients = Clients(servers)
    zombie = clients.make_producer("orders:orders-0")
    zombie.init_transactions(30)
    zombie.begin_transaction()
    reader = clients.make_consumer("orders")
    marker = [TopicPartition("orders", 0, 1, "1:0:1")]
    zombie.send_offsets_to_transaction(marker, reader.consumer_group_metadata(), 30)
    reader.close()
    zombie.produce("out", b"once")
    zombie.flush(30)
    assert cli.main(["reset", str(file), "--to", "committed"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert cli.main(["reset", str(file), "--to", "committed", "--execute"]) == 0
    with pytest.raises(KafkaException, match=r"(?i)fenced|epoch"):
        zombie.commit_transaction(30)
    assert values(servers, "out") == []


def test_status_and_reset_on_a_broker(capsys, file, odradek_broker):
    servers = {"bootstrap.servers": odradek_broker.bootstrap_servers}
    create(odradek_broker.bootstrap_servers, "orders")
    producer = Producer(servers)
    for _ in range(3):
        producer.produce("orders", b"{}")
    assert producer.flush(10) == 0
    file.write_text(f'bootstrap.servers = "{odradek_broker.bootstrap_servers}"\n{SOURCE}{TOPIC}', "utf-8")
    one = load(file, {})
    write_lock(one.state_folder, make_lock(one, None, 1))

    assert cli.main(["status", str(file)]) == 0
    assert "source orders: lag 3\n" in capsys.readouterr().out
    assert cli.main(["status", str(file), "--json"]) == 0
    source = json.loads(capsys.readouterr().out)["sources"]["orders"]
    assert (source["lag"], source["partitions"][0]["end"], source["partitions"][0]["committed"]) == (3, 3, None)
    assert cli.main(["reset", str(file), "--to", "2099-01-01T00:00:00Z"]) == 0
    said = capsys.readouterr().out
    assert "skips 3 records" in said and "nothing was changed" in said
    assert cli.main(["reset", str(file), "--to", "2099-01-01T00:00:00Z", "--execute"]) == 0
    assert capsys.readouterr().out.endswith("orders: reset complete\n")
    assert cli.main(["status", str(file)]) == 0
    assert "source orders: lag 0\n" in capsys.readouterr().out


def test_validate_and_run_look_up_topics(capsys, file, odradek_broker):
    file.write_text(f'bootstrap.servers = "{odradek_broker.bootstrap_servers}"\n{SOURCE}{TOPIC}', "utf-8")
    asked = ["validate", "--without-spark", "--connect", str(file)]
    assert cli.main(asked) == 1
    assert capsys.readouterr().err == "odradek pipeline: topics orders, out do not exist; create them\n"
    # A run fails before it starts Spark.
    assert cli.main(["run", str(file)]) == 1
    assert capsys.readouterr().err == "odradek pipeline: topic orders does not exist; create it\n"
    topics = Topics(odradek_broker.bootstrap_servers)
    topics.create("orders", 2)
    topics.create("out")
    assert cli.main(asked) == 0
    said = capsys.readouterr().out
    assert said.endswith("  source orders: topic orders exists, 2 partitions\n  sink: topic out exists, 1 partition\n")
    with hold_lock(load(file, {}).state_folder):
        assert cli.main(["run", str(file)]) == 1
    assert "is already running as process" in capsys.readouterr().err


def test_the_page_has_the_reference_of_the_declarations():
    page = PAGE.read_text("utf-8")
    assert reference.replace_reference(page) == page, (
        "run: python -m odradek.spark_it reference --into docs/pipelines.md"
    )


def test_the_reference_has_every_key():
    text = reference.make_reference()
    for declared in [*SOURCES.values(), *SINKS.values()]:
        for name in declared.declared():
            assert f"| `{name}` |" in text


def test_the_reference_goes_into_a_page(capsys, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{reference.BEGIN}\nold\n{reference.END}\nbelow\n", "utf-8")
    assert cli.main(["reference", "--into", str(page)]) == 0
    assert page.read_text("utf-8") == f"above\n{reference.make_reference()}below\n"
    page.write_text("nothing", "utf-8")
    assert cli.main(["reference", "--into", str(page)]) == 1
    assert cli.main(["reference"]) == 0
    assert capsys.readouterr().out == reference.make_reference()


def test_the_example_of_the_page_is_a_pipeline(tmp_path, monkeypatch):
    text = PAGE.read_text("utf-8").split("```toml\n")[1].split("```")[0]
    path = tmp_path / "orders.toml"
    path.write_text(text, "utf-8")
    monkeypatch.setenv("SHOP_PASSWORD", "x")
    assert cli.main(["validate", "--without-spark", str(path)]) == 0


def test_neither_spark_nor_the_broker_is_imported():
    code = (
        "import sys; from odradek.spark_it import cli; from odradek.spark_it.validation import report; "
        "cli.make_parser(); "
        "print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'pandas', 'twisted', 'confluent_kafka')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
