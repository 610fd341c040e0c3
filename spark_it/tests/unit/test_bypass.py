import pytest

from odradek.spark_it.transforms.bypass import is_bypassed
from spark_it.tests.unit.support import CONSOLE, SOURCE, pipeline, transform

LARGE = transform("SELECT order_id, amount FROM orders WHERE amount > 100", "large")
ROUNDED = transform("SELECT order_id, round(amount) AS amount FROM Large", "rounded")
SMALL = transform("SELECT order_id, amount FROM orders WHERE amount < 1", "small")
OTHERS = """
[source.refunds]
connector = "topic"
topics = "refunds"
value.schema = "order_id BIGINT, amount DECIMAL(12,2)"
"""


def both(left, right):
    return transform(f"SELECT * FROM {left} UNION ALL SELECT * FROM {right}", "together")


@pytest.mark.parametrize(
    ("text", "table", "expected"),
    [
        (LARGE + ROUNDED, "large", False),
        (LARGE + ROUNDED, "rounded", False),
        (LARGE + ROUNDED, "orders", False),
        (LARGE + SMALL + both("Large", "small"), "large", True),
        (LARGE + SMALL + both("large", "small"), "together", False),
        (LARGE + ROUNDED + both("large", "rounded"), "Rounded", True),
        (LARGE + ROUNDED + both("large", "rounded"), "large", False),
        (LARGE + both("large", "orders"), "large", True),
        (OTHERS + LARGE + both("large", "refunds"), "large", False),
        ('[[transform]]\nname = "made"\npython = "m.f"\ninput = "orders"\n' + both("made", "orders"), "made", True),
    ],
)
def test_tables_that_are_bypassed(text, table, expected):
    assert is_bypassed(pipeline(SOURCE + text + CONSOLE), table) is expected
