"""Pipelines for tests, from the text of their files."""

from pathlib import Path

from odradek.spark_it.definition.problems import PipelineError
from odradek.spark_it.definition.reader import parse
from odradek.spark_it.validation.report import validate

SOURCE = """
name = "orders"
[source.orders]
connector = "topic"
topics = "orders"
value.schema = "order_id BIGINT, amount DECIMAL(12,2), placed TIMESTAMP"
"""
CONSOLE = '[sink]\nconnector = "console"\n'
TOPIC = '[sink]\nconnector = "topic"\ntopic = "out"\n'


def transform(sql, name="step"):
    return f"[[transform]]\nname = \"{name}\"\nsql = '''{sql}'''\n"


def pipeline(text, environment=None, folder=Path("/pipelines")):
    return parse(text, environment or {}, file="p.toml", folder=folder)


def problems(text, **options):
    """The problems of a pipeline, one in a line, without the file's name."""
    try:
        validate(pipeline(text, **options))
    except PipelineError as error:
        return [line.removeprefix("p.toml:") for line in str(error).split("\n")]
    return []


def messages(text, **options):
    return [line.split(": ", 1)[1] for line in problems(text, **options)]
