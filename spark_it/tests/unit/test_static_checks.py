import pytest

from spark_it.tests.unit.support import CONSOLE, SOURCE, TOPIC, messages, pipeline, problems, transform

TEXTS = 'name = "p"\n[source.lines]\nconnector = "topic"\ntopics = "lines"\nvalue.format = "string"\n'
DLQ = '[errors]\ndeadletterqueue.topic.name = "dlq"\n'


def jdbc(keys):
    return f'name = "p"\n[source.s]\nconnector = "jdbc"\nconnection.url = "jdbc:x"\n{keys}\n{CONSOLE}'


def files(keys):
    return f'name = "p"\n[source.s]\nconnector = "files"\npath = "in"\n{keys}\n{CONSOLE}'


def upsert(keys):
    return f'{TEXTS}[sink]\nconnector = "jdbc"\nconnection.url = "jdbc:x"\ntable.name.format = "t"\n{keys}\n'


def iceberg(table, keys=""):
    return f'{TEXTS}[sink]\nconnector = "iceberg"\niceberg.tables = "{table}"\n{keys}\n'


GOOD = [
    upsert('insert.mode = "upsert"\npk.fields = "id"\ncast = "at"'),
    "spark.speculation = false\n" + upsert(""),
    "spark.speculation = true\n" + SOURCE + CONSOLE,
    SOURCE + CONSOLE,
    SOURCE + transform("SELECT * FROM Orders") + CONSOLE,
    SOURCE + transform("SELECT * FROM orders", "a") + transform("SELECT * FROM A", "b") + CONSOLE,
    SOURCE + '[[transform]]\nname = "a"\npython = "mod.fn"\n' + CONSOLE,
    SOURCE + '[[transform]]\nname = "a"\npython = "mod.fn"\ninput = ["orders"]\n' + CONSOLE,
    TEXTS + TOPIC,
    TEXTS + TOPIC + 'key.fields = "id"\nkey.format = "json"\n',
    upsert('insert.mode = "upsert"\npk.fields = "id"'),
    jdbc('table.whitelist = "t"\nincrementing.column.name = "id"\noverlap = 100\npk.fields = "id"'),
    jdbc('table.whitelist = "t"\nincrementing.column.name = "id"\noverlap = "${N:-100}"\npk.fields = "id"'),
    jdbc('query = "SELECT 1"\nmode = "timestamp"\ntimestamp.column.name = "at"'),
    files('format = "text"'),
    files('format = "csv"\nschema = "a INT"\ncsv.header = false'),
    TEXTS + CONSOLE + '[errors]\ntolerance = "all"\ndeadletterqueue.topic.name = "dlq"\n',
]


@pytest.mark.parametrize("text", GOOD)
def test_valid_pipelines(text):
    assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOURCE + transform("SELECT 'x FROM orders") + CONSOLE, "step: unterminated string"),
        (SOURCE + transform("DROP TABLE orders") + CONSOLE, "transform step: sql must be a SELECT, not DROP"),
        (iceberg("t", 'iceberg.catalog.type = "hadoop"'),
         "sink: iceberg.tables = t: write one table, as namespace.table"),
        (iceberg("a.b,a.c", 'iceberg.catalog.type = "rest"'),
         "sink: iceberg.tables = a.b,a.c: write one table, as namespace.table"),
        (iceberg("a.b"), "sink: no catalog; set iceberg.catalog.type and iceberg.catalog.warehouse"),
        ('spark.wap.branch = "audit"\n' + iceberg("a.b", 'iceberg.catalog.type = "rest"'),
         "sink: rows are written to the table's main branch; remove spark.wap.id and spark.wap.branch"),
        (SOURCE + '[expect.orders]\nx = { sql = "order_id IN (SELECT order_id FROM orders)" }\n' + CONSOLE,
         "expect x: a condition on one row cannot read orders; use a transform"),
        (SOURCE + transform("-- nothing") + CONSOLE, "transform step: sql must be a SELECT"),
        (SOURCE + SOURCE.replace("orders]", "Orders]").replace('name = "orders"', "") + CONSOLE,
         "source Orders: source orders exists already"),
        (SOURCE + transform("SELECT * FROM orders", "orders") + CONSOLE,
         "transform orders: source orders exists already"),
        (SOURCE + '[[transform]]\nname = "a"\n' + CONSOLE, "transform a: write either sql or python"),
        (SOURCE + transform("SELECT * FROM orders") + 'input = "orders"\n' + CONSOLE,
         "transform step: input is only for python; SQL names the tables that it reads"),
        (SOURCE + transform("SELECT * FROM order") + CONSOLE,
         "transform step: no source or transform has the name order, did you mean orders?"),
        (SOURCE + transform("SELECT * FROM late JOIN orders") + transform("SELECT * FROM step", "late") + CONSOLE,
         "transform step: late is defined only later"),
        (SOURCE + transform("SELECT * FROM orders", "a") + transform("SELECT * FROM orders", "b") + CONSOLE,
         "transform a is not used"),
        (SOURCE + transform("SELECT 1 FROM range(3)") + CONSOLE, "source orders is not used"),
        (SOURCE + CONSOLE + 'input = "order"\n',
         "sink: no source or transform has the name order, did you mean orders?"),
        (SOURCE + TEXTS.replace('name = "p"', "") + CONSOLE, "sink: set input to the source to write: orders, "
         "lines"),
        (SOURCE + '[expect.order]\na = { sql = "true" }\n' + CONSOLE,
         "expect: no source or transform has the name order, did you mean orders?"),
        (SOURCE + '[expect.orders]\na = { sql = "true", action = "dead-letter" }\n' + CONSOLE,
         "expect: a: action dead-letter needs errors.deadletterqueue.topic.name"),
        (SOURCE + CONSOLE + '[errors]\ntolerance = "all"\n',
         "errors: tolerance all needs deadletterqueue.topic.name, since bad records are never dropped"),
        (SOURCE + CONSOLE + DLQ.replace("dlq", "orders"),
         "errors: topic orders is read by the pipeline that writes it"),
        (SOURCE + TOPIC + DLQ.replace("dlq", "out"), "errors: topic out is also the sink's topic"),
        (SOURCE + TOPIC.replace("out", "orders"), "sink: topic orders is read by the pipeline that writes it"),
        (TEXTS.replace('topics = "lines"', 'topics.regex = "li.*"') + TOPIC.replace("out", "lines"),
         "sink: topic lines is read by the pipeline that writes it"),
        (TEXTS.replace('topics = "lines"', "") + CONSOLE, "source lines: write either topics or topics.regex"),
        (TEXTS + 'start.timestamp = 1\nstart.offsets = "lines:0:5"\n' + CONSOLE,
         "source lines: write either start.timestamp or start.offsets, not both"),
        (TEXTS + 'start.offsets = "line:0:5"\n' + CONSOLE, "source lines: start.offsets has topic line, which is "
         "missing in topics"),
        (TEXTS + "keep.unknown.fields = true\n" + CONSOLE,
         "source lines: keep.unknown.fields is for value.format = json"),
        (TEXTS.replace('"string"', '"json"') + CONSOLE,
         "source lines: value.format json needs value.schema, the columns as Spark DDL"),
        (TEXTS.replace('"string"', '"avro"') + CONSOLE,
         "source lines: value.format avro needs value.schema or schema.registry.url"),
        (TEXTS.replace('"string"', '"avro"') + 'value.schema = "{"\n' + CONSOLE,
         "source lines: the schema is not an Avro schema in JSON: Expecting property name enclosed in double quotes: "
         "line 1 column 2 (char 1)"),
        (TEXTS.replace('"string"', '"avro"') + 'value.schema = "no.avsc"\n' + CONSOLE,
         "source lines: cannot read no.avsc: No such file or directory"),
        (TEXTS.replace('"string"', '"protobuf"') + 'value.message = "M"\n' + CONSOLE,
         "source lines: value.format protobuf needs value.schema, the .desc file of a descriptor set"),
        (TEXTS.replace('"string"', '"protobuf"') + 'value.schema = "no.desc"\n' + CONSOLE,
         "source lines: value.schema = no.desc: there is no such file"),
        (TEXTS.replace('"string"', '"protobuf"') + 'value.schema = "no.desc"\n' + CONSOLE,
         "source lines: value.format protobuf needs value.message"),
        (TEXTS + 'value.schema = "a INT"\n' + CONSOLE, "source lines: value.format string has no schema"),
        (TEXTS + 'key.subject = "s"\n' + CONSOLE,
         "source lines: key.subject needs key.format avro and schema.registry.url"),
        (TEXTS + 'schema.registry.url = "http://r"\n' + CONSOLE,
         "source lines: schema.registry.url is for format avro"),
        (TEXTS + TOPIC + 'value.schema = "a INT"\n', "sink: value.schema is not allowed: value.format "
         "json is written without a schema"),
        (TEXTS + TOPIC + 'key.format = "json"\n', "sink: key.format and other keys key.* need key.fields"),
        (upsert('insert.mode = "upsert"'), "sink: insert.mode upsert needs pk.fields"),
        (upsert('insert.mode = "upsert"\npk.fields = "id, At"\ncast = "at, x"'),
         "sink: cast: at is in pk.fields; keys must not be rounded"),
        ("spark.speculation = true\n" + upsert(""),
         "sink: a batch is retried whenever a speculative copy of a task has written rows; remove spark.speculation"),
        (files('format = "json"'), "source s: format json needs schema"),
        (files('format = "text"\ncsv.header = true'), "source s: csv.header is for format csv"),
        (files('format = "text"\nschema = "a INT"'), "source s: format text has no schema: its only column is value"),
        (jdbc('incrementing.column.name = "id"'), "source s: write either table.whitelist or query"),
        (jdbc('table.whitelist = "t"'), "source s: mode incrementing needs incrementing.column.name"),
        (jdbc('table.whitelist = "t"\nincrementing.column.name = "id"\ntimestamp.column.name = "at"'),
         "source s: timestamp.column.name is for mode timestamp"),
        (jdbc('table.whitelist = "t,u"\nincrementing.column.name = "id"'),
         "source s: table.whitelist names one table; write a source for each"),
        (jdbc('table.whitelist = "t"\nincrementing.column.name = "id"\noverlap = "1 minute"'),
         "source s: overlap needs pk.fields, to recognize rows that were already read"),
        (jdbc('table.whitelist = "t"\nincrementing.column.name = "id"\noverlap = "1 minute"\npk.fields = "id"'),
         "source s: overlap = 1 minute: mode incrementing needs a number"),
        (SOURCE + CONSOLE + '[[test]]\nname = "t"\ngiven.order = []\n',
         "test t: no source has the name order, did you mean orders?"),
        (SOURCE + CONSOLE + '[[test]]\nname = "t"\n', "test t expects nothing; write expect or dead.letters"),
        (SOURCE + transform("SELECT * FROM orders") + CONSOLE + '[[test]]\nname = "t"\nexpect.stepp = []\n',
         "test t: no transform has the name stepp, did you mean step?"),
        (SOURCE + CONSOLE + '[[test]]\nname = "t"\nexpect = []\n' * 2, "test t: another test has the same name"),
    ],
)  # fmt: skip
def test_invalid_pipelines(text, message):
    assert message in messages(text)


def test_a_problem_in_sql_has_its_own_line():
    text = SOURCE + transform("\n \nSELECT *\nFROM orders\nJOIN custmers") + CONSOLE
    (problem,) = problems(text)
    line = int(problem.split(":")[0])
    assert text.split("\n")[line - 1] == "JOIN custmers'''"


def test_schema_files_are_found_beside_the_file(tmp_path):
    text = TEXTS.replace('"string"', '"avro"') + 'value.schema = "s.avsc"\n' + CONSOLE
    (tmp_path / "s.avsc").write_text('{"type": "record", "name": "r", "fields": []}', "utf-8")
    assert pipeline(text, folder=tmp_path).sources["lines"].value_schema == "s.avsc"
