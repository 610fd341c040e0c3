import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.spark_it.definition.problems import PipelineError
from odradek.spark_it.definition.reader import load
from odradek.spark_it.definition.sink_keys import JdbcSink
from odradek.spark_it.definition.source_keys import GeneratorSource, TopicSource
from spark_it.tests.unit.support import CONSOLE, SOURCE, messages, pipeline, problems, transform

SAMPLE = """\
name = "orders"                    # group.id, transactional.id prefix, checkpoint folder
bootstrap.servers = "${ODRADEK:-localhost:9092}"
trigger = "10 seconds"             # or "available-now"
tasks.max = 4
spark.sql.session.timeZone = "UTC"

[source.orders]
connector = "topic"
topics = "orders"
auto.offset.reset = "earliest"
value.format = "json"
value.schema = "order_id BIGINT, customer STRING, amount DECIMAL(12,2), placed TIMESTAMP"
watermark = "placed 10 minutes"
max.offsets.per.trigger = 100000

[[transform]]
name = "per_minute"
sql = '''SELECT window.start AS minute, count(*) n, sum(amount) total
         FROM orders GROUP BY window(placed, '1 minute')'''

[expect.per_minute]
positive = { sql = "total > 0", action = "dead-letter" }   # warn | drop | dead-letter | fail

[sink]
connector = "jdbc"
connection.url = "jdbc:postgresql://localhost/shop"
connection.password = "${PASSWORD}"
table.name.format = "sales"
insert.mode = "upsert"
pk.fields = "minute"

[errors]
tolerance = "all"                  # default none: stop
deadletterqueue.topic.name = "orders.dlq"

[[test]]
name = "counts a minute"
given.orders = [{ order_id = 1, amount = "5.00", placed = "2026-01-01T00:00:01Z" }]
expect = [{ minute = "2026-01-01T00:00:00Z", n = 1, total = "5.00" }]
"""


def test_a_whole_pipeline():
    one = pipeline(SAMPLE, {"PASSWORD": "secret"})
    assert (one.name, one.settings.bootstrap_servers, one.settings.tasks_max) == ("orders", ("localhost:9092",), 4)
    assert one.settings.trigger_ms == 10_000
    assert one.settings.passed["spark."] == {"sql.session.timeZone": "UTC"}
    source = one.sources["orders"]
    assert isinstance(source, TopicSource)
    assert (source.topics, source.max_offsets_per_trigger) == (("orders",), 100_000)
    assert (source.watermark_column, source.watermark_ms) == ("placed", 600_000)
    assert source.get_part_format("value").format == "json" and source.get_part_format("key").format == "string"
    (step,) = one.transforms
    assert one.list_inputs(step) == ["orders"] and one.sink_input == "per_minute"
    (expectation,) = one.expectations
    assert (expectation.table, expectation.name) == ("per_minute", "positive")
    assert expectation.settings.action == "dead-letter"
    assert isinstance(one.sink, JdbcSink)
    assert (one.sink.insert_mode, one.sink.pk_fields) == ("upsert", ("minute",))
    assert one.sink.connection_password == "secret" and "secret" not in repr(one.sink)
    assert one.errors.deadletterqueue_topic_name == "orders.dlq"
    (case,) = one.cases
    assert case.given["orders"][0]["order_id"] == 1 and case.expect[None][0]["n"] == 1
    assert str(one.state_folder) == "/pipelines/pipelines/orders"


def test_keys_may_have_every_form_of_toml():
    start = 'name = "a"\n[source.orders]\nconnector = "topic"\ntopics = "t"\n'
    for keys in (
        'value.format = "string"',
        '"value.format" = "string"',
        'value = { format = "string" }',
        '[source.orders.value]\nformat = "string"',
    ):
        one = pipeline(f"{start}{keys}\n{CONSOLE}")
        assert one.sources["orders"].value_format == "string"


def test_values_may_be_strings_since_variables_are():
    text = SAMPLE.replace("tasks.max = 4", 'tasks.max = "${TASKS:-8}"')
    assert pipeline(text, {"PASSWORD": ""}).settings.tasks_max == 8
    assert pipeline(text, {"PASSWORD": "", "TASKS": "2"}).settings.tasks_max == 2


def test_dates_of_toml():
    text = f'name = "g"\n[source.g]\nconnector = "generator"\nstart.timestamp = 1970-01-01T00:00:01Z\n{CONSOLE}'
    source = pipeline(text).sources["g"]
    assert isinstance(source, GeneratorSource) and source.start_timestamp_ms == 1000


def test_connectors_in_python_take_options():
    text = 'name = "g"\n[source.g]\nconnector = "python:my.module.Poll"\noptions.rows = 3\noptions.deep.er = true\n'
    source = pipeline(text + CONSOLE).sources["g"]
    assert source.passed["options."] == {"rows": "3", "deep.er": "true"}


def test_all_problems_at_once_with_their_lines():
    text = (
        SAMPLE.replace("\ntrigger = ", "\ntriger = ")
        .replace("tasks.max = 4", "tasks.max = true")
        .replace("max.offsets.per.trigger = 100000", "max.offset.per.trigger = 1\nmax.files.per.trigger = 1")
        .replace('insert.mode = "upsert"', 'insert.mode = "update"')
        .replace('name = "per_minute"\n', "")
    )  # fmt: skip
    assert problems(text) == [
        "3: unknown key triger, did you mean trigger?",
        "4: tasks.max is a boolean; write an integer",
        "14: source.orders: unknown key max.offset.per.trigger, did you mean max.offsets.per.trigger?",
        "15: source.orders: unknown key max.files.per.trigger: it belongs to connector files",
        "17: transform: key name is missing: a letter or '_', then letters, digits and '_'",
        "27: sink: connection.password: environment variable PASSWORD is not set; set it, or write a default as in "
        "${PASSWORD:-...}",
        "29: sink: insert.mode = update: must be one of: insert, upsert",
    ]


def test_names_are_checked_despite_other_problems():
    assert problems(SAMPLE.replace("FROM orders", "FROM ordrs").replace("tasks.max = 4", "tasks.max = 0")) == [
        "4: tasks.max = 0: must be between 1 and 1024",
        "7: source orders is not used",
        "19: transform per_minute: no source or transform has the name ordrs, did you mean orders?",
        "27: sink: connection.password: environment variable PASSWORD is not set; set it, or write a default as in "
        "${PASSWORD:-...}",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [("name = ", 1), ("\n[source.a]\n[source.a]", 3), ('\na = """\n\n', 2), ("name = 5" + CONSOLE, 1)],
)
def test_files_that_are_not_toml(text, line):
    (problem,) = problems(text)
    assert problem.startswith(f"{line}: not TOML: ")


def test_a_key_that_extends_a_key_with_a_value():
    assert messages("[a]\ntopics = 't'\ntopics.regex = 'x'\n") == [
        "not TOML: a key is defined twice, or extends a key that has a value, as topics.regex extends topics"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no source; write [source.NAME]"),
        ("", "there is no [sink]"),
        ("", "key name is missing: letters, digits, '.', '_' and '-', not only dots"),
        ("name = 5", "name is an integer; write a string"),
        ("name = 'a b'", "name = a b: must be letters, digits, '.', '_' and '-', not only dots"),
        ("name = 2026-01-01", "name is a date or time; write a string"),
        ("source = 1", "source: write [source.NAME] for each source"),
        ("[source]\nconnector = 'topic'", "source.connector: not a table; write [source.NAME] with a name for "
         "the source"),
        ("[source.'a b']", "source.a b: a b is not a valid name: a letter or '_', then letters, digits and '_'"),
        ("[source.a]\nconnector = 'topc'", "source.a: unknown connector topc, did you mean topic?"),
        ("[source.a]\nconnector = 'x'", "source.a: unknown connector x; the connectors are "
         "topic, files, jdbc, generator, python"),
        ("[source.a]\nconnector = 'python:x'", "source.a: connector = python:x: write python:module.name"),
        ("[source.a]", "source.a: key connector is missing: topic, files, jdbc, generator, python"),
        ("[source.a]\nconector = 'topic'", "source.a: unknown key conector, did you mean connector?"),
        ("[source.a]\nconnector='files'\nformat='xml'", "source.a: format = xml: must be one of: json, csv, "
         "parquet, text"),
        ("[source.a]\nconnector='files'\npath=['a']", "source.a: path is an array; write a string"),
        ("[source.a]\nconnector='topic'\ntopics=['a,b']", "source.a: topics is an array; write a string or an "
         "array of strings"),
        ("[source.a]\nconnector='topic'\nwatermark='10 minutes'", "source.a: watermark = 10 minutes: must be a "
         "column and a duration, such as placed 10 minutes"),
        ("[[sink]]", "sink: write [sink]; a pipeline has one"),
        ("[transform]", "transform: write [[transform]] for each"),
        ("[[transform]]\nname='a'\nsql=''", "transform: sql = : must not be empty"),
        ("[[transform]]\nname='a'\npython='f'", "transform: python = f: must be module.function"),
        ("[expect]\na = 1", 'expect.a: write name = { sql = "...", action = "..." } for each expectation'),
        ("[expect.a]\nb = { sql = 'x', action = 'dead' }", "expect.a: action = dead: must be one of: warn, drop, "
         "dead-letter, fail"),
        ("[expect.a]\nb = { action = 'drop' }", "expect.a: key sql is missing"),
        ("errors = 1", "errors: write [errors]"),
        ("[[test]]\nname='a'\ngiven.x = 1", "test: rows are written [{ column = value }, ...]"),
        ("[[test]]\nname='a'\ngiven = []", "test: write given.NAME = [{ column = value }, ...]"),
        ("[[test]]\nname='a'\nexpects = []", "test: unknown key expects, did you mean expect?"),
        ("[sorce]", "unknown key sorce, did you mean source?"),
        ("[sinks]\nconnector = 'files'", "unknown key sinks, did you mean sink?"),
        ("[errors]\nerrors.tolerance = 'all'", "errors: unknown key errors.tolerance, did you mean tolerance?"),
        ("[source.a]\nconnector.class = 'x'", "source.a: connector is a table; write a string"),
        ("name = '..'", "name = ..: must be letters, digits, '.', '_' and '-', not only dots"),
        ("[sink]\nconnector = 'files'\npath = ''\nformat = 'csv'", "sink: path must not be empty"),
        ("spark.x.y = []", "spark.x.y is an array; write a string, number or boolean"),
        ("[sink]\nconnector = 'python:m.f'\noptions.x = []", "sink: options.x is an array; write a string, number "
         "or boolean"),
        ("home = '${'", "home: invalid variable after ${; write ${NAME} or ${NAME:-default}, or $${ for a "
         "literal ${"),
        ("[sink]\nconnector='jdbc'\nconnection.password = 5", "sink: connection.password is an "
         "integer; write a string"),
    ],
)  # fmt: skip
def test_problems_in_tables(text, message):
    assert message in messages(text)


SHORT = SAMPLE.replace("${PASSWORD}", "x").split("\n")
VALUES = ["1", "true", "''", "'x'", "[]", "['a']", "{}", "{ a = 1 }", "[{}]", "1.5", "2026-01-01", "'''SELECT ('''"]
KEYS = ["name", "sink", "source", "errors", "value.format", "a.b", "connector", "sql", "input"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_file_has_problems_with_lines(data):
    lines = list(SHORT)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(["remove", "repeat", "swap", "value", "key", "cut"])):
            case "remove":
                del lines[at]
            case "repeat":
                lines.insert(at, lines[at])
            case "swap":
                other = data.draw(st.integers(0, len(lines) - 1))
                lines[at], lines[other] = lines[other], lines[at]
            case "value":
                lines[at] = f"{lines[at].split(' = ')[0]} = {data.draw(st.sampled_from(VALUES))}"
            case "key":
                lines[at] = f"{data.draw(st.sampled_from(KEYS))} = {lines[at].partition(' = ')[2]}"
            case "cut":
                lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
    try:
        pipeline("\n".join(lines))
    except PipelineError as error:
        for problem in error.problems:
            assert 1 <= problem.line <= len(lines)


def test_no_secret_is_shown():
    said = "\n".join(problems("[sink]\nconnector='jdbc'\nconnection.password = ['geheim']"))
    assert "connection.password is an array" in said and "geheim" not in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tasks.max = '${SECRET}'", "tasks.max = ${SECRET}: "),
        ("[source.orders]\nconnector = 'topic'\nstart.offsets = ['a:${SECRET}']", "start.offsets = a:${SECRET}: "),
        ("[sink]\nconnector = '${SECRET}'", "unknown connector ${SECRET};"),
        ("[sink]\nconnector = 'python:${SECRET}'", "connector = python:${SECRET}: "),
    ],
)
def test_no_variable_is_shown(text, shown):
    said = "\n".join(problems(text, environment={"SECRET": "ge-heim"}))
    assert shown in said and "heim" not in said


def test_a_place_has_no_secrets():
    keys = {"type": "rest", "uri": "http://x", "token": "a", "s3.secret-access-key": "b", "s3.access-key-id": "c"}
    sink = '[sink]\nconnector = "iceberg"\niceberg.tables = "a.b"\n'
    sink += "".join(f'iceberg.catalog.{key} = "{value}"\n' for key, value in keys.items())
    assert pipeline(SOURCE + sink).sink.get_texts("identity_keys") == {
        "connector": "iceberg",
        "iceberg.tables": "a.b",
        "iceberg.catalog.type": "rest",
        "iceberg.catalog.uri": "http://x",
    }


def test_sql_may_have_dollars():
    one = pipeline(SOURCE + transform("SELECT '$${x}' FROM orders") + CONSOLE)
    assert one.transforms[0].sql == "SELECT '${x}' FROM orders"


def test_a_file(tmp_path):
    path = tmp_path / "orders.toml"
    path.write_text("name = 1", "utf-8")
    with pytest.raises(PipelineError) as raised:
        load(path, {})
    assert str(raised.value).startswith(f"{path}:1: ")
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(PipelineError, match="not UTF-8"):
        load(path, {})
    for encoding in ("utf-8", "utf-8-sig"):  # some editors begin a file with a byte order mark
        path.write_text(SAMPLE, encoding)
        assert load(path, {"PASSWORD": "x"}).state_folder == tmp_path / "pipelines" / "orders"


def test_paths_are_normalized(tmp_path):
    """Spark reports the folder of a stream without dots."""
    path = tmp_path / "orders.toml"
    path.write_text(SAMPLE.replace('name = "orders" ', 'home = "../state/./x"\nname = "orders" '), "utf-8")
    (tmp_path / "there").mkdir()
    one = load(tmp_path / "there" / ".." / "orders.toml", {"PASSWORD": "x"})
    assert one.folder == tmp_path
    assert one.state_folder == tmp_path.parent / "state" / "x" / "orders"
    assert one.locate_path("../in/./a b%20") == str(tmp_path.parent / "in" / "a b%20")
    assert one.locate_path("s3a://bucket/a/../b") == "s3a://bucket/a/../b"


def test_with_available_now():
    read = pipeline(f'trigger = "5 seconds"\nspark.sql.x = "y"\ntasks.max = 7\n{SOURCE}{CONSOLE}')
    taking = read.with_available_now()
    assert (read.settings.trigger_ms, taking.settings.trigger_ms) == (5000, None)
    assert taking.settings.passed["spark."] == {"sql.x": "y"}
    assert (taking.settings.tasks_max, taking.name, taking.sources) == (7, "orders", read.sources)
