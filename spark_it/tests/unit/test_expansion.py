import pytest

from odradek.spark_it.definition.expansion import ExpansionError, expand


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${A}", "1"),
        ("x${A}y${A:-2}", "x1y1"),
        ("${B:-localhost:9092}", "localhost:9092"),
        ("${B:-}", ""),
        ("${E}", ""),
        ("${E:-d}", "d"),
        ("$${A}", "${A}"),
        ("$A $ $$ {A}", "$A $ $$ {A}"),
        ("${B:-{\\}}", "{}"),
    ],
)
def test_variables(text, result):
    assert expand(text, {"A": "1", "E": ""}) == result


def test_values_of_variables_are_not_expanded():
    assert expand("${A}", {"A": "${A}"}) == "${A}"


@pytest.mark.parametrize("text", ["${B}", "${", "${1}", "${A:x}", "${B:-x"])
def test_invalid_variables(text):
    with pytest.raises(ExpansionError):
        expand(text, {"A": "1"})
