"""Python code of users: sources and transforms."""

from pathlib import Path

from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


class Letters(DataSource):
    """A source of numbered letters, two in a partition. File `rows` has the number of rows."""

    @classmethod
    def name(cls):
        return "letters"

    def schema(self):
        return "number INT, letter STRING"

    def streamReader(self, schema):  # noqa: N802
        return LettersReader(Path(self.options["rows"]))


class LettersReader(DataSourceStreamReader):
    def __init__(self, rows):
        self._rows = rows

    def initialOffset(self):  # noqa: N802
        return {"number": 0}

    def latestOffset(self):  # noqa: N802
        return {"number": int(self._rows.read_text())}

    def partitions(self, start, end):
        return [LettersPartition(n, min(n + 2, end["number"])) for n in range(start["number"], end["number"], 2)]

    def read(self, partition):
        for number in range(partition.start, partition.end):
            yield number, chr(ord("a") + number)


class LettersPartition(InputPartition):
    def __init__(self, start, end):
        super().__init__(start)
        self.start = start
        self.end = end


class Silent(Letters):
    """A source without a stream reader."""

    @classmethod
    def name(cls):
        return "silent"

    def streamReader(self, schema):  # noqa: N802
        raise NotImplementedError("nothing to read")


def doubled(rows):
    return rows.select("id", (f.col("amount") * 2).alias("amount"))


def both(doubled, orders):
    return doubled.unionByName(orders.select("id", "amount"))


def broken(rows):
    return rows.select("idd")


def nothing(rows):
    return None


def ends(rows):
    raise ValueError("no more")
