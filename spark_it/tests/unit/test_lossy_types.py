"""Pairs of a Spark type and a column that changes its values or keeps them. Columns are as drivers report them."""

import re

import pytest
from pyspark.sql import types

from odradek.spark_it.databases.dialects import Dialect, MySQL, PostgreSQL, SQLite, SQLServer
from odradek.spark_it.databases.jdbc import TableColumn
from odradek.spark_it.databases.lossy_types import describe_type, find_exact_type

TEXT = (1 << 31) - 1

# Name, java.sql.Types, precision, scale: as pgjdbc 42.7 reports them.
POSTGRESQL = {
    "smallint": ("int2", 5, 5, 0),
    "integer": ("int4", 4, 10, 0),
    "bigint": ("int8", -5, 19, 0),
    "real": ("float4", 7, 8, 8),
    "double precision": ("float8", 8, 17, 17),
    "numeric": ("numeric", 2, 0, 0),
    "numeric(10,2)": ("numeric", 2, 10, 2),
    "numeric(4,-3)": ("numeric", 2, 4, 2045),
    "money": ("money", 8, TEXT, 0),
    "boolean": ("bool", -7, 1, 0),
    "text": ("text", 12, TEXT, 0),
    "varchar(3)": ("varchar", 12, 3, 0),
    "char(3)": ("bpchar", 1, 3, 0),
    "name": ("name", 12, TEXT, 0),
    "bytea": ("bytea", -2, TEXT, 0),
    "uuid": ("uuid", 1111, TEXT, 0),
    "jsonb": ("jsonb", 1111, TEXT, 0),
    "date": ("date", 91, 13, 0),
    "time": ("time", 92, 15, 6),
    "timestamp": ("timestamp", 93, 29, 6),
    "timestamp(0)": ("timestamp", 93, 22, 0),
    "timestamptz": ("timestamptz", 93, 35, 6),
    "timestamptz(3)": ("timestamptz", 93, 32, 3),
    "real[]": ("_float4", 2003, 8, 8),
    "double precision[]": ("_float8", 2003, 17, 17),
    "numeric(10,2)[]": ("_numeric", 2003, 10, 2),
    "timestamp(0)[]": ("_timestamp", 2003, 22, 0),
}
# As Connector/J 8 reports them: a DATETIME has a length only, and 31 stands for any scale.
MYSQL = {
    "TINYINT(1)": ("BIT", -7, 1, 0),
    "INT": ("INT", 4, 10, 0),
    "FLOAT": ("FLOAT", 7, 12, 31),
    "DOUBLE": ("DOUBLE", 8, 22, 31),
    "DOUBLE(10,2)": ("DOUBLE", 8, 10, 2),
    "DECIMAL(10,2)": ("DECIMAL", 3, 10, 2),
    "DATETIME": ("DATETIME", 93, 19, 0),
    "DATETIME(3)": ("DATETIME", 93, 23, 0),
    "DATETIME(6)": ("DATETIME", 93, 26, 0),
    "VARCHAR(3)": ("VARCHAR", 12, 3, 0),
    "YEAR": ("YEAR", 91, 4, 0),
    "BINARY(4)": ("BINARY", -2, 4, 0),
    "VARBINARY(4)": ("VARBINARY", -3, 4, 0),
}
# SQLite's columns have an affinity, by the name that the type begins with.
NAMES = ("INTEGER", "NUMERIC", "DECIMAL(10,2)", "REAL", "DOUBLE PRECISION", "TEXT", "VARCHAR(3)", "BLOB", "DATETIME")
SQLITE = {name: (name.partition("(")[0], 2, 0, 0) for name in NAMES}
OTHERS = {
    "BOOLEAN": ("BOOLEAN", 16, 1, 0),
    "DECIMAL(10,2)": ("DECIMAL", 3, 10, 2),
    "NUMBER": ("NUMBER", 2, 0, -127),
    "DATE": ("DATE", 93, 7, 0),
    "TIMESTAMP": ("TIMESTAMP", 93, 26, 6),
    "FLOAT": ("FLOAT", 6, 53, 0),
    "FLOAT(24)": ("FLOAT", 6, 24, 0),
}
SQL_SERVER = {
    "varchar(9)": ("varchar", 12, 9, 0),
    "nvarchar(9)": ("nvarchar", -9, 9, 0),
    "datetime": ("datetime", 93, 23, 3),
    "datetime2": ("datetime2", 93, 27, 7),
    "datetimeoffset(3)": ("datetimeoffset", -155, 30, 3),
    "bit": ("bit", -7, 1, 0),
}


TYPES = {
    "TINYINT": types.ByteType(),
    "INT": types.IntegerType(),
    "BIGINT": types.LongType(),
    "FLOAT": types.FloatType(),
    "DOUBLE": types.DoubleType(),
    "STRING": types.StringType(),
    "TIMESTAMP": types.TimestampType(),
    "TIMESTAMP_NTZ": types.TimestampNTZType(),
    "DATE": types.DateType(),
    "BOOLEAN": types.BooleanType(),
    "BINARY": types.BinaryType(),
}


def type_of(name):
    if element := re.fullmatch(r"ARRAY<(.*)>", name):
        return types.ArrayType(type_of(element[1]))
    if digits := re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", name):
        return types.DecimalType(*map(int, digits.groups()))
    return TYPES[name]


def is_lossy(dialect, columns, type_, name):
    type_name, number, precision, scale = columns[name]
    column = dialect.normalize_column(TableColumn("x", number, type_name, True, precision, scale))
    return dialect.is_lossy(type_of(type_), column)


def check(dialect, columns, pairs):
    """Check `pairs`: a Spark type, columns that keep its values or refuse them, and columns that change them."""
    for type_, good, bad in pairs:
        found = {name for name in columns if is_lossy(dialect, columns, type_, name)}
        assert found >= set(bad), (type_, set(bad) - found)
        assert not found & set(good), (type_, found & set(good))
        unknown = {*good, *bad} - set(columns)
        assert not unknown, unknown


def test_postgresql():
    numbers = ("bigint", "numeric", "numeric(10,2)", "money", "text", "varchar(3)")
    times = ("date", "time", "timestamp", "timestamptz(3)", "boolean")
    check(
        PostgreSQL(),
        POSTGRESQL,
        [
            ("TINYINT", (*numbers, "smallint", "real", "double precision"), ("numeric(4,-3)", *times)),
            ("INT", (*numbers, "integer", "smallint", "double precision"), ("real", *times)),
            ("BIGINT", (*numbers, "integer"), ("real", "double precision", "numeric(4,-3)")),
            ("DECIMAL(10,2)", ("numeric(10,2)", "double precision"), ("bigint", "real", "numeric(4,-3)")),
            ("DECIMAL(12,2)", ("numeric(10,2)", "numeric", "money"), ("bigint", "real", *times)),
            ("DECIMAL(12,3)", ("numeric", "text"), ("numeric(10,2)", "money", "integer")),
            ("DECIMAL(16,2)", ("numeric(10,2)",), ("double precision",)),
            ("DECIMAL(5,2)", ("real",), ("bigint",)),
            ("DECIMAL(18,0)", ("bigint", "smallint", "numeric(10,2)"), ("double precision", "numeric(4,-3)")),
            ("FLOAT", ("real", "double precision", "text"), ("numeric", "integer", "numeric(10,2)", *times)),
            ("DOUBLE", ("double precision", "text"), ("real", "numeric", "numeric(10,2)", "bigint", "money", *times)),
            ("STRING", ("text", "varchar(3)", "char(3)", "uuid", "jsonb"), ("name", "integer", "date", "boolean")),
            ("TIMESTAMP", ("timestamp", "timestamptz", "text"), ("timestamp(0)", "timestamptz(3)", "date", "time")),
            ("TIMESTAMP_NTZ", ("timestamp", "timestamptz"), ("timestamp(0)", "timestamptz(3)", "date", "bigint")),
            ("DATE", ("date", "timestamp", "timestamp(0)", "timestamptz(3)", "text"), ("time", "integer")),
            ("BOOLEAN", ("boolean", "text", "integer"), ("date",)),
            ("BINARY", ("bytea", "text"), ("integer", "date")),
            ("ARRAY<FLOAT>", ("real[]", "double precision[]"), ("numeric(10,2)[]",)),
            ("ARRAY<DOUBLE>", ("double precision[]",), ("real[]", "numeric(10,2)[]")),
            ("ARRAY<DECIMAL(12,3)>", (), ("numeric(10,2)[]", "real[]")),
            ("ARRAY<TIMESTAMP>", (), ("timestamp(0)[]",)),
        ],
    )


def test_mysql():
    check(
        MySQL(),
        MYSQL,
        [
            ("INT", ("TINYINT(1)", "INT", "DOUBLE", "DECIMAL(10,2)", "VARCHAR(3)"), ("FLOAT", "DATETIME", "YEAR")),
            ("BIGINT", ("TINYINT(1)", "INT"), ("FLOAT", "DOUBLE", "DOUBLE(10,2)")),
            ("DOUBLE", ("DOUBLE",), ("FLOAT", "DOUBLE(10,2)", "DECIMAL(10,2)", "INT", "TINYINT(1)")),
            ("DECIMAL(10,2)", ("DECIMAL(10,2)", "DOUBLE", "DOUBLE(10,2)"), ("INT", "FLOAT", "TINYINT(1)")),
            ("DECIMAL(10,3)", ("DOUBLE",), ("DECIMAL(10,2)", "DOUBLE(10,2)")),
            ("TIMESTAMP", ("DATETIME(6)",), ("DATETIME", "DATETIME(3)", "INT", "YEAR")),
            ("DATE", ("DATETIME",), ("YEAR", "INT")),
            ("STRING", ("VARCHAR(3)",), ("INT", "DECIMAL(10,2)", "DATETIME(6)", "TINYINT(1)")),
            ("BOOLEAN", ("TINYINT(1)", "INT"), ("DATETIME",)),
            ("BINARY", ("VARBINARY(4)",), ("BINARY(4)",)),
        ],
    )


def test_sqlite():
    check(
        SQLite(),
        SQLITE,
        [
            ("BIGINT", ("INTEGER", "NUMERIC", "TEXT", "BLOB"), ("REAL", "DOUBLE PRECISION")),
            ("INT", ("INTEGER", "REAL", "TEXT"), ()),
            ("DOUBLE", ("INTEGER", "NUMERIC", "REAL", "DECIMAL(10,2)", "BLOB"), ("TEXT", "VARCHAR(3)")),
            ("DECIMAL(15,3)", ("NUMERIC", "DECIMAL(10,2)", "REAL", "TEXT", "INTEGER"), ()),
            ("DECIMAL(16,3)", ("TEXT", "BLOB"), ("NUMERIC", "REAL", "INTEGER")),
            ("DECIMAL(18,0)", ("TEXT", "INTEGER", "NUMERIC"), ("REAL",)),
            ("DECIMAL(19,0)", ("TEXT",), ("INTEGER",)),
            ("STRING", ("TEXT", "VARCHAR(3)", "BLOB", "DATETIME"), ("INTEGER", "NUMERIC", "REAL")),
        ],
    )


def test_other_databases():
    check(
        Dialect(),
        OTHERS,
        [
            ("DECIMAL(38,18)", ("NUMBER",), ("DECIMAL(10,2)", "FLOAT", "BOOLEAN")),
            ("DECIMAL(15,2)", ("DECIMAL(10,2)", "FLOAT"), ("FLOAT(24)",)),
            ("DOUBLE", ("FLOAT",), ("FLOAT(24)", "DECIMAL(10,2)", "NUMBER")),
            ("TIMESTAMP", ("TIMESTAMP",), ("DATE",)),
            ("INT", ("NUMBER", "FLOAT"), ("BOOLEAN", "FLOAT(24)")),
        ],
    )
    check(
        SQLServer(),
        SQL_SERVER,
        [
            ("STRING", ("nvarchar(9)",), ("varchar(9)", "datetime2", "bit")),
            ("TIMESTAMP", ("datetime2",), ("datetime", "datetimeoffset(3)")),
            ("INT", ("varchar(9)",), ("bit", "datetime")),
        ],
    )


@pytest.mark.parametrize(
    ("dialect", "columns", "without"),
    [
        (PostgreSQL(), POSTGRESQL, {"name", "timestamp(0)", "timestamptz(3)"}),
        (MySQL(), MYSQL, {"DOUBLE(10,2)", "DATETIME", "DATETIME(3)", "YEAR"}),
        (Dialect(), OTHERS, {"DATE"}),
    ],
)
def test_values_that_are_cast_fit(dialect, columns, without):
    """Columns in `without` have no type of Spark that fits."""
    lossy = set()
    for name, (type_name, number, precision, scale) in columns.items():
        column = dialect.normalize_column(TableColumn("x", number, type_name, True, precision, scale))
        fitting = find_exact_type(column)
        if fitting is not None and dialect.is_lossy(fitting, column):
            lossy.add(name)
    assert lossy == without


def test_how_types_are_shown():
    column = TableColumn("x", 2, "numeric", True, 10, 2)
    assert (describe_type(column), find_exact_type(column).simpleString()) == ("numeric(10,2)", "decimal(10,2)")
    assert describe_type(TableColumn("x", 93, "timestamp", True, 22, 0)) == "timestamp(0)"
    assert describe_type(TableColumn("x", 12, "varchar", True, 9, 0)) == "varchar"
