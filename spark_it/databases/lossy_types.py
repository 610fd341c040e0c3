"""Column types of databases that change values of a Spark type without an error: they round, truncate or convert.

A value that the database rejects with an error, such as a number that is too large or a text that is too long, is not
lossy: its row is a bad row.
"""

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from odradek.spark_it.databases.jdbc import TableColumn

# Numbers of java.sql.Types, and of Oracle's and SQL Server's drivers.
TINYINT, SMALLINT, INTEGER, BIGINT = -6, 5, 4, -5
REAL, FLOAT, DOUBLE, NUMERIC, DECIMAL = 7, 6, 8, 2, 3
BIT, BOOLEAN, BINARY, ARRAY = -7, 16, -2, 2003
CHAR, VARCHAR, LONGVARCHAR = 1, 12, -1
DATE, TIME, TIMESTAMP = 91, 92, 93
_TIMES = (TIME, 2013)
TIMESTAMPS = (TIMESTAMP, 2014, -155, -101, -102)
_INTEGERS = {TINYINT: ByteType(), SMALLINT: ShortType(), INTEGER: IntegerType(), BIGINT: LongType()}
_DECIMALS = (NUMERIC, DECIMAL)
_SINGLE_PRECISION = (REAL, 100)
_DOUBLE_PRECISION = (DOUBLE, FLOAT, 101)
_NUMBERS = (*_INTEGERS, *_DECIMALS, *_SINGLE_PRECISION, *_DOUBLE_PRECISION)
_BOOLEANS = (BIT, BOOLEAN)
_DATES_AND_TIMES = (DATE, *_TIMES, *TIMESTAMPS)

_BITS = {ByteType: 7, ShortType: 15, IntegerType: 31, LongType: 63}
_SINGLE_BITS, _DOUBLE_BITS = 24, 53
_SINGLE_DIGITS, DOUBLE_DIGITS = 6, 15
"""Number of decimal digits that a REAL and a DOUBLE preserve."""
_MICROSECONDS = 6
_MAX_DIGITS = 38


def is_lossy(type_: DataType, column: TableColumn) -> bool:
    """Return whether a column changes values of a Spark type. The column has types of the SQL standard."""
    if isinstance(type_, ByteType | ShortType | IntegerType | LongType):
        return _is_lossy_for_integers(_BITS[type(type_)], column)
    if isinstance(type_, DecimalType):
        return _is_lossy_for_decimals(type_.precision, type_.scale, column)
    if isinstance(type_, FloatType | DoubleType):
        # Databases convert floating-point numbers to decimals with fewer digits.
        is_narrower = isinstance(type_, DoubleType) and _is_single(column)
        return is_narrower or column.type in (*_INTEGERS, *_DECIMALS, *_BOOLEANS, *_DATES_AND_TIMES)
    if isinstance(type_, TimestampType | TimestampNTZType):
        is_truncated = column.type in TIMESTAMPS and column.scale < _MICROSECONDS
        return is_truncated or column.type in (DATE, *_TIMES, *_NUMBERS, *_BOOLEANS)
    if isinstance(type_, DateType):
        return column.type in (*_TIMES, *_NUMBERS, *_BOOLEANS)
    if isinstance(type_, StringType):
        return column.type in (*_NUMBERS, *_BOOLEANS, *_DATES_AND_TIMES)
    if isinstance(type_, BooleanType):
        return column.type in _DATES_AND_TIMES
    # Values that are shorter than the fixed length of a BINARY are padded with zeros.
    return isinstance(type_, BinaryType) and column.type in (BINARY, *_NUMBERS, *_BOOLEANS, *_DATES_AND_TIMES)


def _is_lossy_for_integers(bits: int, column: TableColumn) -> bool:
    if _is_single(column):
        return bits > _SINGLE_BITS
    if column.type in _DOUBLE_PRECISION:
        return bits > _DOUBLE_BITS
    has_negative_scale = column.type in _DECIMALS and column.precision > 0 and column.scale < 0
    return has_negative_scale or column.type in (*_BOOLEANS, *_DATES_AND_TIMES)


def _is_lossy_for_decimals(precision: int, scale: int, column: TableColumn) -> bool:
    if _is_single(column):
        return precision > _SINGLE_DIGITS
    if column.type in _DOUBLE_PRECISION:
        return precision > DOUBLE_DIGITS
    if column.type in _DECIMALS:
        # A column without a precision stores any number exactly.
        return column.precision > 0 and scale > column.scale
    return (column.type in _INTEGERS and scale > 0) or column.type in (*_BOOLEANS, *_DATES_AND_TIMES)


def _is_single(column: TableColumn) -> bool:
    """Return whether a column has single precision. Drivers report the precision of a FLOAT in digits or in bits."""
    is_short = column.type == FLOAT and (0 < column.precision < DOUBLE_DIGITS or column.precision == _SINGLE_BITS)
    return is_short or column.type in _SINGLE_PRECISION


def find_exact_type(column: TableColumn) -> DataType | None:
    """Return the type to which values must be cast so that the column stores them exactly; None if Spark has none."""
    if column.type in _INTEGERS:
        return _INTEGERS[column.type]
    if column.type in _DECIMALS and column.precision <= 0:
        return DecimalType(_MAX_DIGITS, _MAX_DIGITS // 2 - 1)
    if column.type in _DECIMALS and 0 <= column.scale <= _MAX_DIGITS:
        return DecimalType(min(column.precision, _MAX_DIGITS), column.scale)
    if _is_single(column):
        return FloatType()
    if column.type in _DOUBLE_PRECISION:
        return DoubleType()
    if column.type in _BOOLEANS:
        return BooleanType()
    if column.type in TIMESTAMPS:
        return TimestampType()
    if column.type == DATE:
        return DateType()
    return StringType() if column.type in (CHAR, VARCHAR, LONGVARCHAR) else None


def describe_type(column: TableColumn) -> str:
    """Return a column's type as in SQL."""
    if column.type in _DECIMALS and column.precision > 0:
        return f"{column.type_name}({column.precision},{column.scale})"
    return f"{column.type_name}({column.scale})" if column.type in TIMESTAMPS else column.type_name
