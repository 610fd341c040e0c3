"""python -m benchmarks.scale: see the package's docstring."""

from __future__ import annotations

import argparse
import sys

from benchmarks.scale import commands, pages, scrapes
from benchmarks.scale.filling import Size

ROUNDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description="Times with many topics.")
    parts = parser.add_subparsers(dest="part", required=True)
    of_pages = parts.add_parser("pages", help="the pages of the console")
    of_pages.add_argument("--topics", type=int, default=5_000)
    of_pages.add_argument("--groups", type=int, default=1_000)
    of_pages.add_argument("--wide", type=int, default=5_000, help="partitions of one more topic")
    of_commands = parts.add_parser("commands", help="the commands that list and describe")
    of_commands.add_argument("--topics", type=int, default=1_000)
    of_scrapes = parts.add_parser("scrapes", help="/metrics")
    of_scrapes.add_argument("--partitions", type=int, default=10_000)
    for part in (of_pages, of_commands, of_scrapes):
        part.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if arguments.part == "pages":
        pages.measure(Size(arguments.topics, arguments.groups, arguments.wide), arguments.rounds)
    elif arguments.part == "commands":
        commands.measure(arguments.topics, arguments.rounds)
    else:
        scrapes.measure(arguments.partitions, arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
