import pytest

from odradek.spark_it.definition.guarantees import Level, TransactionKind, determine_guarantee, find_stateful_reason
from odradek.spark_it.definition.problems import PipelineError, Problem
from odradek.spark_it.sql.deterministic import find_expressions, list_conditions
from odradek.spark_it.validation.report import validate
from spark_it.tests.unit.support import CONSOLE, SOURCE, TOPIC, pipeline, problems, transform

DLQ = '[errors]\ndeadletterqueue.topic.name = "dlq"\n'
COUNTS = transform("SELECT customer, count(*) n\nFROM orders GROUP BY customer")
SINKS = {
    "files": '[sink]\nconnector = "files"\npath = "out"\nformat = "parquet"\n',
    "delta": '[sink]\nconnector = "delta"\npath = "out"\n',
    "iceberg": '[sink]\nconnector = "iceberg"\niceberg.tables = "a.b"\niceberg.catalog.type = "rest"\n',
    "jdbc": '[sink]\nconnector = "jdbc"\nconnection.url = "jdbc:x"\ntable.name.format = "t"\n',
    "console": CONSOLE,
    "python": '[sink]\nconnector = "python:mod.fn"\n',
}


def of(text):
    one = pipeline(text)
    return determine_guarantee(one, find_stateful_reason(one))


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ("", None),
        (transform("SELECT upper(a) FROM orders"), None),
        (COUNTS, "GROUP BY in step"),
        (COUNTS + "stateful = false\n", None),
        (transform("SELECT a FROM orders") + "stateful = true\n", "stateful = true in step"),
        ('[[transform]]\nname = "step"\npython = "m.f"\n', "its function in step"),
        ('[[transform]]\nname = "step"\npython = "m.f"\nstateful = false\n', None),
    ],
)
def test_stateful_transforms(step, why):
    assert find_stateful_reason(pipeline(SOURCE + step + CONSOLE)) == why


LATE = '[expect.{}]\nnot_yet = {{ sql = "placed < now()", action = "{}" }}\n'
STAMPED = transform("SELECT *, current_timestamp() AS at FROM orders")
LARGE = '[expect.step]\nx = { sql = "id > 1", action = "dead-letter" }\n'


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (LATE.format("orders", "dead-letter") + DLQ, "now() in not_yet"),
        (LATE.format("orders", "drop") + DLQ, None),
        (STAMPED + DLQ, None),
        (STAMPED + LARGE + DLQ, "current_timestamp in step"),
        (STAMPED + "stateful = false\n" + LARGE + DLQ, None),
    ],
)
def test_rows_and_dead_letters_are_separated_at_one_time(more, why):
    """A stateless pipeline computes rows and dead letters one after the other, and reads the clock each time."""
    assert find_stateful_reason(pipeline(SOURCE + more + CONSOLE)) == why


def test_a_stateless_topic_sink_writes_offset_transactions():
    one = of(SOURCE + TOPIC + DLQ)
    assert (one.level, one.transaction_kind, one.dead_letters) == (
        Level.EXACTLY_ONCE,
        TransactionKind.OFFSETS,
        Level.EXACTLY_ONCE,
    )
    assert str(one) == (
        "topic out: exactly once, rows and source offsets in one transaction per source partition "
        "(offset transactions)\n"
        "  dead letters: exactly once, in the same transaction\n"
        "  provided that readers use isolation.level=read_committed"
    )


def test_a_stateful_topic_sink_writes_batch_transactions():
    assert (of(SOURCE + COUNTS + TOPIC).transaction_kind, of(SOURCE + COUNTS + TOPIC).level) == (
        TransactionKind.BATCHES,
        Level.EXACTLY_ONCE,
    )


def test_a_topic_sink_of_another_source_writes_batch_transactions():
    text = 'name = "g"\n[source.g]\nconnector = "generator"\n' + TOPIC
    assert of(text).transaction_kind is TransactionKind.BATCHES


@pytest.mark.parametrize("name", SINKS)
@pytest.mark.parametrize("step", ["", COUNTS])
def test_other_sinks(name, step):
    one = of(SOURCE + step + SINKS[name] + DLQ)
    assert one.level is (Level.AT_LEAST_ONCE if name in ("console", "python") else Level.EXACTLY_ONCE)
    assert (one.transaction_kind, one.dead_letters) == (None, Level.AT_LEAST_ONCE)


def test_conditions_of_sinks():
    assert [of(SOURCE + SINKS[name]).conditions for name in ("files", "delta", "iceberg", "jdbc", "console")] == [
        (
            "the file system renames folders atomically, as local file systems and HDFS do, or nothing reads during a "
            "write and no second driver writes",
        ),
        (),
        ("the pipeline's newest snapshot does not expire while a batch is incomplete",),
        ("the database supports transactions",),
        (),
    ]
    hadoop = of(SOURCE + SINKS["iceberg"].replace("rest", "hadoop")).conditions
    assert hadoop[1:] == ("the hadoop catalog is on HDFS, or no second process writes to the table",)


@pytest.mark.parametrize("name", ["console", "python"])
def test_exactly_once_is_refused_for_sinks_that_do_not_support_it(name):
    text = SOURCE + SINKS[name] + 'exactly.once.support = "required"\n'
    (problem,) = problems(text)
    assert "cannot write exactly once" in problem
    assert text.split("\n")[int(problem.split(":")[0]) - 1].startswith("exactly.once.support")


def test_nondeterministic_transforms_are_refused_in_batch_transactions():
    step = transform("SELECT customer, first(amount) a\nFROM orders\nGROUP BY customer, rand()")
    found = problems(SOURCE + step + TOPIC)
    assert [problem.split(" may differ")[0] for problem in found] == ["9: step: first()", "11: step: rand()"]
    assert "and batches are written in parts (GROUP BY in step)" in found[0]
    assert problems(SOURCE + step + SINKS["files"]) == []
    requested = of(SOURCE + step + TOPIC + 'exactly.once.support = "requested"\n' + DLQ)
    # A row that moves to another part is lost if that part is already written.
    assert (requested.level, requested.dead_letters) == (Level.NOT_IF_REPEATED, Level.NOT_IF_REPEATED)
    assert "dead letters: once, but twice or never if a batch is repeated after a crash, in" in str(requested)


def test_the_clock_is_that_of_the_batch_only_in_the_streaming_plan():
    generator = 'name = "g"\n[source.g]\nconnector = "generator"\n'
    now = transform(
        "SELECT *, current_timestamp() AS at,\nunix_timestamp() AS s, unix_timestamp(d), t.current_date FROM g t"
    )
    found = problems(generator + now + TOPIC)
    assert [one.split(" may differ when a batch is repeated: it is the time at which")[0] for one in found] == [
        "6: step: current_timestamp",
        "7: step: unix_timestamp()",
    ]
    assert "stateful = true in its transform" in found[0]
    assert problems(generator + now + "stateful = true\n" + TOPIC) == []
    assert problems(generator + now + SINKS["files"]) == []
    assert problems(SOURCE + transform("SELECT now() AS at FROM orders") + TOPIC) == []
    old = '[expect.g]\nold = { sql = "timestamp < now()", action = "drop" }\n'
    assert [one.split(" may")[0] for one in problems(generator + old + TOPIC)] == ["5: old: now()"]


def test_ties_and_sums_of_inexact_numbers_are_conditions():
    step = transform("SELECT customer, max_by(a, b) m, sum(a) s FROM orders GROUP BY customer")
    assert of(SOURCE + step + TOPIC).conditions == (
        "readers use isolation.level=read_committed",
        "no rows tie in max_by() in step, or key.fields identify each row",
        "no FLOAT or DOUBLE is the argument of sum() in step, or key.fields identify each row",
    )
    assert of(SOURCE + step + TOPIC + 'key.fields = "customer"\n').conditions[1:] == ()
    assert of(SOURCE + step + SINKS["files"]).conditions[1:] == ()
    assert list(list_conditions("SELECT count(*), max(a) FROM t")) == []


def test_conditions_of_sources():
    jdbc = '[source.t]\nconnector = "jdbc"\nconnection.url = "jdbc:x"\ntable.whitelist = "t"\n'
    jdbc += 'incrementing.column.name = "id"\n'
    # A poll of a database is stored, and not repeated. Rows that no poll finds are a condition.
    left_out = "no row of source t commits with id null, infinite, or {} a value already read"
    assert of(f'name = "p"\n{jdbc}{TOPIC}').conditions[1:] == (left_out.format("not above"),)
    late = 'overlap = "10"\npk.fields = "id"\n'
    assert of(f'name = "p"\n{jdbc}{late}{TOPIC}').conditions[1:] == (left_out.format("more than 10 below"),)
    files = '[source.t]\nconnector = "files"\npath = "in"\nformat = "text"\n'
    assert of(f'name = "p"\n{files}{TOPIC}').conditions[1:] == ("files that source t has read do not change",)


def test_nondeterministic_transforms_are_permitted_in_offset_transactions():
    assert of(SOURCE + transform("SELECT uuid() id FROM orders") + TOPIC).level is Level.EXACTLY_ONCE


def test_the_analysis_replaces_the_static_result():
    one = pipeline(SOURCE + transform("SELECT uuid() id, count(*) n FROM orders") + TOPIC)
    with pytest.raises(PipelineError, match=r"uuid\(\) may differ"):
        validate(one)
    assert validate(one, lambda _: (None, ())).transaction_kind is TransactionKind.OFFSETS
    with pytest.raises(PipelineError, match=r"p\.toml:3: no such column"):
        validate(one, lambda _: (None, [Problem(3, "no such column")]))


def test_functions_in_python_are_a_condition():
    one = of(SOURCE + '[[transform]]\nname = "s"\npython = "m.f"\n' + TOPIC)
    assert "m.f returns the same result for the same rows" in one.conditions


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT RAND(), randn(3), uuid ()", ["rand()", "randn()", "uuid()"]),
        ("SELECT current_timestamp(), now(), current_date, unix_timestamp()", []),
        ("SELECT 'rand()', `rand`, \"uuid()\" -- uuid()\n/* rand() */ FROM t", []),
        ("SELECT first(a), collect_list(b)", ["first()", "collect_list()"]),
        ("SELECT sort_array(collect_list(b)), array_sort(transform(collect_set(b), x -> x)), collect_list(c)",
         ["collect_list()"]),
        ("SELECT listagg(a) WITHIN GROUP (ORDER BY a), listagg(b)", ["listagg()"]),
        ("SELECT monotonically_increasing_id()", ["monotonically_increasing_id()"]),
        ("SELECT a.rand, t.limit FROM t TABLESAMPLE (5 ROWS) LIMIT 3", ["TABLESAMPLE", "LIMIT"]),
        ("SELECT reflect('java.util.UUID', 'randomUUID')", ["reflect()"]),
        ("SELECT aes_encrypt(a, b), aes_decrypt(a, b)", ["aes_encrypt()"]),
        ("SELECT percentile_approx(a, 0.5), histogram_numeric(a, 5)", ["percentile_approx()", "histogram_numeric()"]),
        ("SELECT regr_slope(a, b), stddev(a), count(*)", ["regr_slope()", "stddev()"]),
        ("SELECT TIMESTAMP 'now', DATE \"today\", r'Tomorrow UTC' > at, 'now is the time', 'nowhere' FROM t",
         ["'now'", '"today"', "r'Tomorrow UTC'"]),
        ("SELECT * FROM a JOIN csv.`/in/rates` r ON a.x = r.y, main.rates.today",
         ["table csv./in/rates", "table main.rates.today"]),
        ("SELECT current_user, `current_user`, a.current_user, current_database()",
         ["current_database()", "current_user"]),
        ("SELECT mine(a), main.abs(b), abs(c) FROM t", ["mine()", "abs()"]),
        ("SELECT CAST(a AS DECIMAL(10, 2)), CASE WHEN (a) THEN (b) ELSE (c) END, count(*) FILTER (WHERE a IN (1, 2)),"
         " x OVER (PARTITION BY (a) ORDER BY (b)) FROM (SELECT 1) t(a) JOIN (VALUES (1), (2)) AS v(b) ON (a = b)"
         " WHERE NOT (a) AND (b) OR EXISTS (SELECT 1) GROUP BY GROUPING SETS ((a), (b)) HAVING (a) LIKE ANY ('a')", []),
        ("WITH one(a, b) AS (SELECT 1, 2), two AS (SELECT 1) SELECT explode(split(a, ',')) FROM one", []),
    ],
)  # fmt: skip
def test_expressions_that_are_not_deterministic(sql, found):
    assert [one.what for one in find_expressions(sql)] == found


def test_answers_of_a_registry_need_a_folder_that_a_cluster_shares():
    avro = SOURCE.replace("value.schema", 'value.format = "avro"\nschema.registry.url = "http://r"\n# value.schema')
    cluster = avro.replace('name = "orders"', 'name = "orders"\nmaster = "spark://host:7077"', 1)
    tolerant = DLQ + 'tolerance = "all"\n'
    shared = "/pipelines/pipelines/orders is a folder shared by all machines that Spark runs on"
    assert of(cluster + SINKS["delta"] + tolerant).conditions == (shared,)
    assert shared in of(cluster + COUNTS + TOPIC + tolerant).conditions
    for text in (
        cluster + TOPIC + tolerant,
        cluster + SINKS["delta"] + DLQ,
        avro + SINKS["delta"] + tolerant,
        SOURCE.replace('name = "orders"', 'name = "orders"\nmaster = "yarn"', 1) + SINKS["delta"] + tolerant,
    ):
        assert shared not in of(text).conditions
