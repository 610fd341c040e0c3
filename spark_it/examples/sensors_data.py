"""Generated readings of sensors in CSV files, one per hour. In the second half the files have an additional column,
humidity."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

TOPIC = "example.readings"
DEAD_LETTERS = "example.readings.dead-letters"
PARTITIONS = 2
READ_FOLDER = "readings"
LATER_FOLDER = "later"
"""Folder for the second half until files_to_topic.toml has the additional column."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SENSORS = ("attic", "cellar", "kitchen", "porch")
BAD_SHARE = 0.01
EVERY = timedelta(seconds=30)


class Reading(NamedTuple):
    """A row of the table; `humidity` is None in the first half."""

    sensor: str
    at: datetime
    celsius: float
    humidity: float | None


@dataclass(frozen=True)
class Half:
    """Contents of files by name, their readings, and their invalid lines."""

    files: dict[str, str]
    readings: list[Reading]
    bad: list[str]

    def write(self, folder: Path) -> None:
        """Write the files to a folder, each atomically. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            temporary = folder / f".{name}.new"
            temporary.write_text(text, "utf-8")
            temporary.replace(folder / name)


@dataclass(frozen=True)
class Readings:
    """Both halves of the data."""

    first: Half
    second: Half


def make_readings(hours: int = 6, seed: int = 3) -> Readings:
    """Generate the data, with the given number of files in each half."""
    chance = random.Random(seed)
    return Readings(_make_half(chance, 0, hours), _make_half(chance, hours, hours, has_humidity=True))


def _make_half(chance: random.Random, first_hour: int, hours: int, *, has_humidity: bool = False) -> Half:
    half = Half({}, [], [])
    for hour in range(first_hour, first_hour + hours):
        lines = ["sensor,at,celsius" + (",humidity" if has_humidity else "")]
        begin = BEGIN + timedelta(hours=hour)
        for number in range(timedelta(hours=1) // EVERY):
            for sensor in SENSORS:
                celsius, humidity = round(chance.gauss(18, 4), 2), round(chance.uniform(30, 70), 1)
                reading = Reading(sensor, begin + number * EVERY, celsius, humidity if has_humidity else None)
                line = f"{sensor},{reading.at.isoformat().replace('+00:00', 'Z')},{celsius}"
                line += f",{humidity}" if has_humidity else ""
                if chance.random() < BAD_SHARE:
                    # Not a number, or an impossible temperature.
                    line = line.replace(f",{celsius}", chance.choice((",timeout", ",999.9")), 1)
                    half.bad.append(line)
                else:
                    half.readings.append(reading)
                lines.append(line)
        half.files[f"{begin:%Y-%m-%dT%H}.csv"] = "\n".join(lines) + "\n"
    return half
