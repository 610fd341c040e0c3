from pathlib import Path

import pytest

from odradek.spark_it.spark import daemon, packages, session
from odradek.spark_it.spark.packages import PackagesError
from spark_it.tests.unit.support import CONSOLE, SOURCE, TOPIC, pipeline

JDBC = '[sink]\nconnector = "jdbc"\ntable.name.format = "t"\nconnection.url = "jdbc:{}://h/d"\n'
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"


def settings(text, folder, master="local[2]"):
    one = pipeline(text, folder=folder)
    found = session.make_settings(one, master)
    return found | session.make_connector_settings(one, found)


def test_packages_that_a_pipeline_needs(tmp_path):
    assert packages.list_packages(pipeline(SOURCE + TOPIC)) == [KAFKA]
    assert packages.list_packages(pipeline(SOURCE + JDBC.format("postgresql"))) == [
        KAFKA,
        "org.postgresql:postgresql:42.7.7",
    ]
    generated = 'name = "g"\n[source.g]\nconnector = "generator"\n'
    assert packages.list_packages(pipeline(generated + CONSOLE)) == []
    dead = '[errors]\ndeadletterqueue.topic.name = "dead"\n'
    assert packages.list_packages(pipeline(generated + CONSOLE + dead)) == []
    delta = '[sink]\nconnector = "delta"\npath = "t"\n'
    assert packages.list_packages(pipeline(generated + delta)) == ["io.delta:delta-spark_2.13:4.0.0"]
    with pytest.raises(PackagesError, match=r"no JDBC driver is known for foo: .* plugin\.path"):
        packages.list_packages(pipeline(SOURCE + JDBC.format("foo")))
    assert settings(SOURCE + CONSOLE, tmp_path)["spark.jars.packages"] == KAFKA
    assert "spark.jars.packages" not in settings(generated + CONSOLE, tmp_path)


def test_connectors_in_a_folder(tmp_path):
    (tmp_path / "lib").mkdir()
    with pytest.raises(PackagesError, match=r"plugin\.path = lib: the folder contains no jars"):
        settings('plugin.path = "lib"\n' + SOURCE + CONSOLE, tmp_path)
    for name in ("b.jar", "a.jar", "c.txt"):
        (tmp_path / "lib" / name).touch()
    found = settings('plugin.path = "lib"\nspark.jars = "/x.jar"\n' + SOURCE + CONSOLE, tmp_path)
    assert found["spark.jars"] == f"{tmp_path}/lib/a.jar,{tmp_path}/lib/b.jar,/x.jar"
    assert "spark.jars.packages" not in found


def test_settings_of_the_file_take_precedence(tmp_path):
    text = 'tasks.max = 3\nspark.sql.session.timeZone = "Europe/Berlin"\nspark.jars.packages = "a:b:1"\n'
    found = settings(text + SOURCE + CONSOLE, tmp_path)
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert found["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert found["spark.jars.packages"] == f"a:b:1,{KAFKA}"


def test_database_sinks_have_no_speculative_tasks(tmp_path):
    assert settings(SOURCE + JDBC.format("postgresql"), tmp_path)["spark.speculation"] == "false"
    assert "spark.speculation" not in settings(SOURCE + CONSOLE, tmp_path)


def test_packages_of_the_file_are_added_to_those_that_are_needed(tmp_path):
    other = KAFKA.replace("4.0.0", "4.0.1")
    found = settings(f'spark.jars.packages = "{other}, a:b:1"\n' + SOURCE + JDBC.format("foo"), tmp_path)
    assert found["spark.jars.packages"] == f"{other},a:b:1"


def test_a_connector_that_cannot_be_found(tmp_path):
    log = tmp_path / "spark.log"
    said = "[unresolved dependency: org.apache.spark#spark-sql-kafka-0-10_2.13;4.9.9: not found]"
    log.write_text(f':: problems ::\nException in thread "main" java.lang.RuntimeException: {said}\n\tat Main.main\n')
    why = session.describe_start_failure(RuntimeError("Java gateway process exited"), log)
    assert why.startswith(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.9.9 was not found in the configured repositories"
    )
    assert "plugin.path" in why and "spark.jars.repositories" in why and str(log) in why


def test_a_local_spark_listens_on_this_machine_alone(tmp_path):
    here, elsewhere = (settings(SOURCE + CONSOLE, tmp_path, master) for master in ("local[2]", "spark://host:7077"))
    assert here["spark.driver.bindAddress"] == "127.0.0.1"
    assert here["spark.python.daemon.module"] == "odradek.spark_it.spark.daemon"
    assert not {"spark.driver.bindAddress", "spark.python.daemon.module"} & elsewhere.keys()


def test_workers_import_pyspark_from_its_folder_not_from_archives():
    packages = Path("/python/site-packages")
    archive = "/python/site-packages/pyspark/python/lib/pyspark.zip"
    others = ["", "/opt/spark/python/lib/pyspark.zip", "/python/site-packages"]
    assert daemon.remove_pyspark_archives([archive, *others], packages) == others
