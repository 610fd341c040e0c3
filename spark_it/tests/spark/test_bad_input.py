"""Errors of users and failures of other systems: each is reported in one line with the remedy, and no row is written
twice. The command runs in the tests' session."""

import re
import threading
import time

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from compat_tests import limits
from odradek.spark_it import cli
from odradek.spark_it.definition.reader import load
from odradek.spark_it.execution import runner
from odradek.spark_it.execution.preflight import make_claim
from odradek.spark_it.kafka.cluster import KafkaCluster
from odradek.spark_it.spark import session
from odradek.spark_it.state.lock import get_checkpoint_folder, read_lock
from spark_it.tests.data import Topics
from spark_it.tests.records import values
from spark_it.tests.spark.engine import Engine, errors, order, orders, transform

WAIT_S = limits.TOOL_S
COUNTS = "SELECT window.start AS minute, count(*) AS n FROM orders GROUP BY window(placed, '1 minute')"


class Command:
    """`odradek pipeline` on one file, with the tests' Spark."""

    def __init__(self, servers, folder, name, capsys):
        self.servers = servers
        self.file = folder / "p.toml"
        self.name = name
        self.capsys = capsys

    def write(self, text):
        head = f'name = "{self.name}"\nbootstrap.servers = "{self.servers}"\n'
        self.file.write_text(head + text, "utf-8")

    def __call__(self, command, *options):
        """Return exit code, standard output, and the lines of standard error that do not report progress."""
        self.capsys.readouterr()
        code = cli.main([command, str(self.file), *options])
        out, err = self.capsys.readouterr()
        return code, out, [line for line in err.splitlines() if not line.startswith(f"{self.name}: ")]

    def runs(self):
        code, _, err = self("run", "--available-now")
        assert (code, err) == (0, [])

    def refused(self, text=None, code=1):
        """Return the only line that a refused run prints, without the program's name."""
        if text is not None:
            self.write(text)
        found, out, err = self("run", "--available-now")
        assert (found, out, len(err)) == (code, "", 1), (found, out, err)
        return err[0].removeprefix("odradek pipeline: ").removeprefix(f"{self.file}:")

    def reset(self, to):
        code, out, err = self("reset", "--to", to, "--execute")
        assert (code, err) == (0, []) and out.endswith(": reset complete\n")
        return out


@pytest.fixture
def commands(spark, capsys, monkeypatch):
    """commands(servers, folder, name): the command on a file of the folder."""
    monkeypatch.setattr(session, "build", lambda *_, **__: spark)
    monkeypatch.setattr(session, "end", lambda _: None)
    session.disable_query_context_log()
    return lambda servers, folder, name: Command(servers, folder, name, capsys)


@pytest.fixture
def command(commands, broker, tmp_path, unique):
    return commands(broker.bootstrap_servers, tmp_path, unique)


@pytest.fixture
def copies_of(commands, broker, tmp_path, unique):
    """copies_of(text): the command on two copies of a file, with a folder each for their state, as on two machines."""

    def made(text):
        for place in ("one", "two"):
            (tmp_path / place).mkdir()
            copy = commands(broker.bootstrap_servers, tmp_path / place, unique)
            copy.write(text)
            yield copy

    return made


def to_topic(topic):
    return f'[sink]\nconnector = "topic"\ntopic = "{topic}"\nkey.fields = "id"\n'


def to_table(postgres, table, more=""):
    return f"""[sink]
connector = "jdbc"
connection.url = "{postgres.jdbc_url}"
connection.user = "{postgres.user}"
connection.password = "{postgres.password}"
table.name.format = "{table}"
{more}
"""


def test_missing_topics(command, topics, unique):
    text = orders(unique) + to_topic(f"{unique}-out") + errors(f"{unique}-dead")
    assert command.refused(text) == f"topic {unique} does not exist; create it"
    topics.produce(topics.create(unique), [order(1), (b"x", b"bad")])
    said = command.refused()
    assert said.startswith(f"dead-letter topic {unique}-dead does not exist, and cannot be created: errors.deadletterq")
    assert said.endswith("factor is 3, but there is 1 broker; set it to 1 or less, or create the topic")
    text += "deadletterqueue.topic.replication.factor = 1\n"
    assert command.refused(text).startswith(f"topic {unique}-out does not exist (")
    topics.create(f"{unique}-out")
    command.runs()
    assert len(values(command.servers, f"{unique}-out")) == 1
    assert values(command.servers, f"{unique}-dead") == [b"bad"]
    nothing = orders(unique).replace(f'topics = "{unique}"', f'topics.regex = "{unique}-none-.*"')
    said = command.refused(nothing + to_topic(f"{unique}-out"))
    assert said == f"source orders: no topic matches {unique}-none-.*"


def test_unreadable_schemas(command, topics, unique, tmp_path):
    topics.create(unique)
    sink = to_topic(topics.create(f"{unique}-out"))
    source = orders(unique)
    assert "source.orders: value.schema is not a schema such as" in command.refused(
        source.replace("BIGINT", "BIGINTT") + sink, code=2
    )
    for form, schema, more, said in (
        ("avro", "none.avsc", "", "cannot read none.avsc: No such file or directory"),
        ("avro", '{"type": "recor"}', "", "value.schema"),
        ("protobuf", "none.desc", 'value.message = "a.B"', "value.schema = none.desc: there is no such file"),
    ):
        other = source.replace('value.schema = "id BIGINT, amount DECIMAL(12,2), placed TIMESTAMP"', more)
        line = command.refused(f"{other}value.format = \"{form}\"\nvalue.schema = '{schema}'\n{sink}", code=2)
        assert line.startswith(tuple("123456789")) and said in line
    (tmp_path / "damaged.desc").write_bytes(b"\x0a\xff")
    other = source.replace("value.schema", "# value.schema") + 'value.format = "protobuf"\nvalue.message = "a.B"\n'
    assert "damaged.desc" in command.refused(f'{other}value.schema = "damaged.desc"\n{sink}', code=2)


def test_a_function_that_spark_refuses(command, topics, unique):
    topics.create(unique)
    step = '[[transform]]\nname = "step"\npython = "spark_it.tests.spark.pieces.broken"\n'
    said = command.refused(orders(unique) + step + to_topic(topics.create(f"{unique}-out")), code=2)
    assert "transform step: A column, variable, or function parameter with name `idd` cannot be resolved." in said


def test_a_table_whose_columns_do_not_fit(command, postgres, topics, unique):
    table = unique.replace("-", "_")
    topics.produce(topics.create(unique), [order(1), order(2)])
    text = orders(unique) + transform("SELECT id, amount FROM orders") + to_table(postgres, table)
    assert command.refused(text).endswith(f"table {table} does not exist; create it, or set auto.create = true")
    postgres.execute(f"CREATE TABLE {table} (id BIGINT)")
    assert f"table {table} has no column amount" in command.refused()
    postgres.execute(f"ALTER TABLE {table} ADD COLUMN amount TIMESTAMP")
    assert "amount" in command.refused()
    assert postgres.rows(f"SELECT * FROM {table}") == []
    postgres.execute(f"ALTER TABLE {table} DROP COLUMN amount", f"ALTER TABLE {table} ADD COLUMN amount NUMERIC")
    command.runs()
    assert postgres.rows(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,)]
    # The table is changed between two runs: the batch is refused until the table fits again.
    topics.produce(unique, [order(3)])
    postgres.execute(f"ALTER TABLE {table} RENAME COLUMN amount TO total")
    assert f"table {table} has no column amount" in command.refused()
    postgres.execute(f"ALTER TABLE {table} RENAME COLUMN total TO amount")
    command.runs()
    assert postgres.rows(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,), (3,)]


def test_validate_connects_to_a_database(command, postgres, topics, unique):
    table = unique.replace("-", "_")
    topics.create(unique)
    text = orders(unique) + to_table(postgres, table)
    command.write(text)
    code, _, err = command("validate", "--connect")
    said = f"odradek pipeline: sink: table {table} does not exist; create it, or set auto.create = true"
    assert (code, err) == (1, [said])
    command.write(text + "auto.create = true\n")
    code, out, err = command("validate", "--connect")
    assert (code, err) == (0, []) and f"  sink: table {table} does not exist yet; the pipeline creates it\n" in out
    postgres.execute(f"CREATE TABLE {table} (id BIGINT, amounts NUMERIC)")
    command.write(orders(unique) + transform("SELECT id, amount FROM orders") + to_table(postgres, table))
    code, _, [said] = command("validate", "--connect")
    assert code == 1 and f"sink: table {table} has no column amount (did you mean amounts?); add it" in said
    postgres.execute(f"ALTER TABLE {table} ADD COLUMN amount NUMERIC(12,1)")
    code, _, [said] = command("validate", "--connect")
    assert code == 1 and f"sink: column amount of table {table} is numeric(12,1), but the pipeline has decimal" in said
    assert "write CAST(amount AS DECIMAL(12,1)) in SQL" in said
    postgres.execute(f"ALTER TABLE {table} DROP COLUMN amount")
    read = f"""[source.t]
connector = "jdbc"
connection.url = "{postgres.jdbc_url}"
connection.user = "{postgres.user}"
connection.password = "{postgres.password}"
table.whitelist = "{table}"
incrementing.column.name = "id"
{{}}
[sink]
connector = "console"
"""
    command.write(read.format(""))
    code, out, err = command("validate", "--connect")
    assert (code, err) == (0, []) and f"  source t: table {table} exists, 2 columns\n" in out
    # Its test cases run without the database.
    test = '[[test]]\nname = "as given"\ngiven.t = [{ id = 1 }]\nexpect = [{ id = 1 }]\n'
    gone = read.format("").replace(postgres.jdbc_url, "jdbc:postgresql://127.0.0.1:1/none")
    command.write(gone + test)
    code, _, [said] = command("validate", "--connect")
    assert code == 1 and "cannot be reached" in said
    code, out, err = command("test")
    assert (code, err) == (0, []) and out.endswith("test as given: passed\n1 of 1 test passed\n")
    assert "cannot be reached" in out


def test_a_record_that_cannot_be_decoded(command, topics, unique):
    topics.produce(topics.create(unique), [order(1), (b"k", b"{garbage"), order(2)])
    text = orders(unique) + to_topic(topics.create(f"{unique}-out"))
    for _ in range(2):
        said = command.refused(text)
        assert said.startswith(f"record {unique}-0 at offset 1: value is not a JSON object with id BIGINT, ")
    _, out, _ = command("status")
    assert f"record {unique}-0 at offset 1" in out
    # With tolerance = all the other records are written, once.
    topics.create(f"{unique}-dead")
    command.write(text + errors(f"{unique}-dead"))
    command.runs()
    assert len(values(command.servers, f"{unique}-out")) == 2
    assert values(command.servers, f"{unique}-dead") == [b"{garbage"]


def test_a_changed_pipeline_on_an_old_checkpoint(command, topics, unique):
    topics.produce(topics.create(unique), [order(n) for n in range(120)])
    topics.create(f"{unique}-other")
    out = topics.create(f"{unique}-out")
    windows = orders(unique, 'watermark = "placed 0 seconds"') + transform(COUNTS)
    sink = f'[sink]\nconnector = "topic"\ntopic = "{out}"\n'
    command.write(windows + sink)
    command.runs()
    written = values(command.servers, out)
    resets = "revert the change, or reset --to earliest or reset --to committed"
    other = windows.replace(f'topics = "{unique}"', f'topics = "{unique}-other"')
    for text, what in (
        (other + sink, "source orders reads from another place: "),
        (windows.replace("1 minute", "2 minutes") + sink, "the transforms changed: "),
        (windows.replace("BIGINT", "INT") + sink, "the columns of source orders changed: "),
        (windows + sink.replace("-out", "-other"), "the sink writes to another place: "),
        ("tasks.max = 3\n" + windows + sink, "tasks.max changed from 4 to 3: "),
    ):
        said = command.refused(text)
        assert said.startswith(what) and said.endswith(resets)
    command.write(windows + sink)
    command.runs()
    assert values(command.servers, out) == written and written


def test_markers_that_expired(commands, start_broker, tmp_path, unique):
    broker = start_broker()
    servers, topics = broker.bootstrap_servers, Topics(broker.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": servers})
    topics.produce(topics.create("in"), [order(n) for n in range(5)])
    # Offset transactions.
    command = commands(servers, tmp_path, unique)
    command.write(orders("in") + to_topic(topics.create("copy")))
    command.runs()
    admin.delete_consumer_groups([unique])[unique].result(10)
    topics.produce("in", [order(n) for n in range(5, 8)])
    said = command.refused()
    assert said.startswith(f"the offset of group {unique} for in-0 is gone, expired or deleted, so it is not known")
    assert said.endswith("; reset --to committed or reset --to earliest")
    assert len(values(servers, "copy")) == 5
    command.reset("committed")
    command.runs()
    assert len(values(servers, "copy")) == len(set(values(servers, "copy"))) == 8
    # The batch has only the first records of an added partition.
    topics.add_partitions("in", 2)
    topics.produce("in", [order(n) for n in range(8, 10)], partition=1)
    command.runs()
    assert len(values(servers, "copy")) == 10
    admin.delete_consumer_groups([unique])[unique].result(10)
    code, _, [said] = command("run", "--available-now", "--rewind-last")
    assert code == 1 and f"group {unique} has no offset for in-1, so its rows may or may not be in the sink" in said
    # The other partition has a marker, and this one's may have expired since the batch was planned.
    one = load(command.file, {})
    KafkaCluster(one.settings).commit(unique, {("in", 0): 8})
    lock = read_lock(one.state_folder)
    assert lock is not None
    [planned] = get_checkpoint_folder(one.state_folder, lock).glob("offsets/1")
    at_ms = f'"batchTimestampMs":{int(time.time() * 1000) - 4 * 24 * 3_600_000}'
    planned.write_text(re.sub(r'"batchTimestampMs":\d+', at_ms, planned.read_text()))
    planned.with_name(".1.crc").unlink()
    said = command.refused()
    assert "it was planned 96.0 hours ago, more than half of the time for which Kafka retains offsets" in said
    assert len(values(servers, "copy")) == 10
    # Batch transactions: their topic is deleted, and with it their offsets.
    command = commands(servers, tmp_path, f"{unique}-sums")
    topics.create("more")
    more = orders("more").replace("source.orders", "source.more")
    steps = transform("SELECT id FROM orders UNION ALL SELECT id FROM more")
    command.write(orders("in") + more + steps + to_topic(topics.create("ids")))
    command.runs()
    assert len(values(servers, "ids")) == 10
    admin.delete_consumer_groups([f"{unique}-sums:batches"])[f"{unique}-sums:batches"].result(10)
    for future in admin.delete_topics(["__pipeline_batches"]).values():
        future.result(10)
    topics.produce("in", [order(n) for n in range(10, 12)])
    said = command.refused()
    assert said.startswith(f"the offset of group {unique}-sums:batches for __pipeline_batches-")
    assert "is gone, expired or deleted" in said and "reset --to committed" in said
    assert len(values(servers, "ids")) == 10
    command.reset("committed")
    command.runs()
    assert len(values(servers, "ids")) == len(set(values(servers, "ids"))) == 12


def test_a_second_copy(copies_of, topics, unique):
    """The copies have separate states: only the sink shows that there are two."""
    topics.produce(topics.create(unique), [order(n) for n in range(5)])
    topics.create(f"{unique}-out")
    text = orders(unique) + to_topic(f"{unique}-out")
    one, two = copies_of(text)
    one.runs()
    topics.produce(unique, [order(n) for n in range(5, 8)])
    for _ in range(2):
        said = two.refused()
        assert said.startswith(f"the topic sink belongs to another copy of pipeline {unique}, not to the state in ")
        assert said.endswith(": reset --to committed or reset --to earliest")
    two.reset("committed")
    two.runs()
    assert len(values(one.servers, f"{unique}-out")) == 8
    topics.produce(unique, [order(n) for n in range(8, 10)])
    assert one.refused().startswith("the topic sink belongs to another copy")
    assert len(values(one.servers, f"{unique}-out")) == 8
    two.runs()
    one.reset("committed")
    one.runs()
    written = values(one.servers, f"{unique}-out")
    assert len(written) == len(set(written)) == 10


@pytest.mark.parametrize("into", ["offset transactions", "batch transactions", "files"])
def test_a_second_copy_that_starts_before_the_first_record(copies_of, topics, tmp_path, unique, into, monkeypatch):
    """Each copy would read all records. Their generations are minutes, so they may be equal or not."""
    topics.produce(topics.create(unique), [order(n) for n in range(5)])
    out = topics.create(f"{unique}-out")
    text = orders(unique)
    if into == "batch transactions":
        topics.create(f"{unique}-more")
        text += orders(f"{unique}-more").replace("source.orders", "source.more")
        text += transform("SELECT id FROM orders UNION ALL SELECT id FROM more")
    files = f'[sink]\nconnector = "files"\npath = "{tmp_path / "out"}"\nformat = "json"\n'
    text += files if into == "files" else to_topic(out)
    one, two = copies_of(text)

    def written():
        if into == "files":
            return sum(len(path.read_text().splitlines()) for path in (tmp_path / "out").glob("batch=*/*.json"))
        return len(values(one.servers, out))

    def claim_then_run_the_other(*given):
        claim = make_claim(*given)
        monkeypatch.setattr(runner, "make_claim", make_claim)
        one.runs()
        return claim

    # The first copy runs after the second one has found nothing in the sink.
    monkeypatch.setattr(runner, "make_claim", claim_then_run_the_other)
    assert re.search("claimed at the same time by another copy of this pipeline; run only one$", two.refused())
    assert re.search(r"the \w+ sink (has|belongs to)|has committed", two.refused())
    one.runs()
    assert written() == 5
    topics.produce(unique, [order(n) for n in range(5, 8)])
    two.reset("committed")
    two.runs()
    assert written() == 8
    # The sink refuses it, or the group's offsets if they are not part of the sink.
    one.refused()
    two.runs()
    assert written() == 8


@pytest.mark.parametrize("into", ["files", "table"])
def test_a_second_copy_that_reads_no_topic(copies_of, postgres, tmp_path, unique, into):
    """Without topics no group shows that there are two copies; the sink does. A lost state is like a second copy."""
    given, table = tmp_path / "in", unique.replace("-", "_")
    given.mkdir()
    (given / "one.json").write_text('{"id": 1}\n{"id": 2}\n')
    text = f"""[source.numbers]
connector = "files"
path = "{given}"
format = "json"
schema = "id BIGINT"
"""
    if into == "files":
        text += f'[sink]\nconnector = "files"\npath = "{tmp_path / "out"}"\nformat = "json"\n'
    else:
        postgres.execute(f"CREATE TABLE {table} (id BIGINT)")
        text += to_table(postgres, table)
    one, two = copies_of(text)

    def rows():
        if into == "table":
            return postgres.value(f"SELECT count(*) FROM {table}")
        return sum(len(path.read_text().splitlines()) for path in (tmp_path / "out").glob("batch=*/*.json"))

    one.runs()
    for _ in range(2):
        said = two.refused()
        kind = "files" if into == "files" else "jdbc"
        place = f"which the checkpoint in {tmp_path / 'two'}"
        assert said.startswith(f"the {kind} sink has batch 0 of pipeline {unique}, {place}")
        assert said.endswith("or is used elsewhere; reset --to earliest")
    assert rows() == 2
    (given / "two.json").write_text('{"id": 3}\n')
    one.runs()
    assert rows() == 3
    two.reset("earliest")
    two.runs()
    assert rows() == 6
    (given / "three.json").write_text('{"id": 4}\n')
    assert one.refused().endswith("reset --to earliest")
    assert rows() == 6


def test_positions_of_resets(command, topics, unique):
    topics.create(unique, 2)
    out = topics.create(f"{unique}-out")
    for n in range(6):
        topics.produce(unique, [order(n)], partition=n % 2, timestamp_ms=1_700_000_000_000 + 1000 * n)
    command.write(orders(unique) + to_topic(out))
    command.runs()

    def written():
        return len(values(command.servers, out))

    assert written() == 6
    assert "continues at its current position" in command.reset("committed")
    command.runs()
    assert written() == 6
    topics.produce(unique, [order(6)], partition=0)
    command.runs()
    assert written() == 7
    assert "reads 7 records again" in command.reset("earliest")
    command.runs()
    assert written() == 14
    # From 22:13:24 on: the last two of the six, and the seventh.
    assert "reads 3 records again" in command.reset("2023-11-14T22:13:24Z")
    command.runs()
    assert written() == 17
    command.runs()
    assert written() == 17


def follow(engine, text, sink, until):
    """Run a pipeline in a thread during `until(wait)`. `wait(text)` waits until a new message of it contains `text`."""
    stop, failures, taken = threading.Event(), [], 0

    def target():
        try:
            engine.run('trigger = "100 milliseconds"\n' + text, sink, stop=stop, now=False)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=target)

    def wait(wanted):
        nonlocal taken
        give_up_at = time.monotonic() + WAIT_S
        while not any(wanted in line for line in engine.said[taken:]):
            assert not failures, failures
            assert time.monotonic() < give_up_at, f"no {wanted!r} in {engine.said}"
            time.sleep(0.02)
        taken = len(engine.said)

    thread.start()
    try:
        until(wait)
    finally:
        stop.set()
        thread.join(WAIT_S)
    assert not failures, failures


def test_a_database_that_stops_and_starts_again(spark, broker, postgres, topics, tmp_path, unique):
    engine = Engine(spark, broker.bootstrap_servers, tmp_path, unique)
    table = unique.replace("-", "_")
    postgres.execute(f"CREATE TABLE {table} (id BIGINT)")
    topics.produce(topics.create(unique), [order(n) for n in range(10)])
    topics.create(f"{unique}-dead")
    retries = errors(f"{unique}-dead").replace("= 10\n", "= 200\n")

    def until(wait):
        wait("; retrying in 0.2 s")
        postgres.start()
        wait("batch 0: 10 read, 10 written")
        postgres.kill()
        topics.produce(unique, [order(n) for n in range(10, 20)] + [(None, b"bad")])
        wait("; retrying in 0.2 s")
        assert engine.progress().last_error is not None
        postgres.start()
        wait("batch 1: 11 read, 10 written, 1 dead letters")

    postgres.kill()
    try:
        steps = transform("SELECT id FROM orders")
        follow(engine, orders(unique) + steps + retries, to_table(postgres, table), until)
    finally:
        if not _answers(postgres):
            postgres.start()
    assert postgres.rows(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(20, 20)]
    assert values(broker.bootstrap_servers, f"{unique}-dead") == [b"bad"]


def _answers(postgres):
    try:
        postgres.connect().close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_broker_that_stops_and_starts_again(spark, start_broker, tmp_path, unique):
    broker = start_broker()
    topics = Topics(broker.bootstrap_servers)
    topics.produce(topics.create("in"), [order(n) for n in range(10)])
    topics.create("out")
    engine = Engine(spark, broker.bootstrap_servers, tmp_path, unique)

    def until(wait):
        wait("batch 0: 10 read, 10 written")
        broker.restart(clean=False)
        topics.produce("in", [order(n) for n in range(10, 20)])
        wait(": 10 read, 10 written")

    follow(engine, orders("in"), to_topic("out"), until)
    written = values(broker.bootstrap_servers, "out")
    assert len(written) == len(set(written)) == 20


def test_records_and_settings_that_the_sink_refuses(command, topics, unique):
    topics.produce(topics.create(unique), [order(1), (b"2", b'{"id": 2, "amount": 1}')])
    out = topics.create(f"{unique}-out")
    sink = to_topic(out)
    steps = transform("SELECT id, repeat('x', 5000) AS text FROM orders")
    small = 'producer.override."message.max.bytes" = "2000"\n'
    said = command.refused(small + orders(unique) + steps + sink)
    assert said.startswith(f"record {unique}-0 at offset 0: becomes a record of 50")
    assert "increase the topic's max.message.bytes or producer.override" in said
    header = "array(struct('h' AS key, cast(repeat('x', 5000) AS binary) AS value))"
    with_header = transform(f"SELECT id, if(id = 2, {header}, NULL) AS headers FROM orders")
    said = command.refused(small + orders(unique) + with_header + sink + "include.headers = true\n")
    assert said.startswith(f"record {unique}-0 at offset 1: becomes a record of 50")
    assert "producer.override" in command.refused('producer.override.acks = "some"\n' + orders(unique) + steps + sink)
    assert values(command.servers, out) == []
    command.write(orders(unique) + steps + sink)
    command.runs()
    assert len(values(command.servers, out)) == 2


def test_consumer_overrides_that_are_refused(command, topics, unique):
    topics.produce(topics.create(unique), [order(1)])
    sink = to_topic(topics.create(f"{unique}-out"))
    said = command.refused('consumer.override."max.poll.records" = "few"\n' + orders(unique) + sink)
    assert "max.poll.records" in said
    said = command.refused('consumer.override."auto.offset.reset" = "latest"\n' + orders(unique) + sink)
    assert "auto.offset.reset" in said
    command.write('consumer.override."max.poll.records" = "7"\n' + orders(unique) + sink)
    command.runs()
    assert len(values(command.servers, f"{unique}-out")) == 1


def test_a_lost_checkpoint(command, topics, unique):
    """The sink stores no offsets, so nothing shows which rows are written."""
    from spark_it.tests.spark import engine

    kept = engine.kept.setdefault(unique, engine.Kept())
    topics.produce(topics.create(unique), [order(n) for n in range(5)])
    command.write(orders(unique) + f'[sink]\nconnector = "python:{engine.HERE}.keep"\noptions.name = "{unique}"\n')
    command.runs()
    state = load(command.file, {}).state_folder
    state.rename(state.with_name("away"))
    said = command.refused()
    assert said.startswith(f"group {unique} has committed offset 5 of {unique}-0, but there is no checkpoint in ")
    assert said.endswith("; reset --to committed or reset --to earliest")
    command.reset("committed")
    topics.produce(unique, [order(5)])
    command.runs()
    assert sorted(row.id for row in kept.rows) == list(range(6))
