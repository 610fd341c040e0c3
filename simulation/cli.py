"""Command line: many seeds on all cores, or one seed with its trace."""

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from twisted.logger import globalLogBeginner

from odradek.simulation.clients.workload import make_clients
from odradek.simulation.run import Report, run_seed
from odradek.simulation.safeguards.catalogue import BY_NAME, finding, run_without

_SHOWN_LINES = 12


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code, 1 if a seed failed."""
    options = _parse(arguments)
    # Unhandled exceptions that Twisted logs are reported to the run.
    begin: Any = globalLogBeginner.beginLoggingTo
    begin([], redirectStandardIO=False, discardBuffer=True)
    if options.seed is not None:
        return _replay(options.seed, options.brokers, print_trace=not options.quiet)
    if options.without is not None:
        names = list(BY_NAME) if options.without == "all" else options.without.split(",")
        return _search(names, range(options.first, options.first + options.seeds), options.jobs)
    seeds = range(options.first, options.first + options.seeds)
    return _run_many(seeds, options.brokers, options.jobs, options.stop_at)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m odradek.simulation",
        description="Runs the whole broker in simulated time, with simulated faults, and checks what clients observed.",
    )
    parser.add_argument("--seeds", type=int, default=200, help="number of seeds to run (200)")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes (one per core)")
    parser.add_argument("--stop-at", type=int, default=10, help="stop after this number of failing seeds (10)")
    parser.add_argument(
        "--brokers", type=int, choices=(1, 3, 4, 5), default=1, help="brokers; several share a ZooKeeper (1)"
    )
    parser.add_argument("--seed", type=int, help="run this seed and print its trace")
    parser.add_argument("--quiet", action="store_true", help="with --seed: print the result without the trace")
    parser.add_argument(
        "--without", metavar="NAME", help=f"search a seed that fails without a safeguard: all, {', '.join(BY_NAME)}"
    )
    return parser.parse_args(arguments)


def _replay(seed: int, broker_count: int, *, print_trace: bool) -> int:
    report = run_seed(seed, make_clients, print if print_trace else None, broker_count=broker_count)
    print(f"seed {seed}: {report.simulated_s:.1f} simulated seconds, {report.steps} steps, trace {report.trace_hash}")
    for failure in report.failures:
        print(failure)
    print("failed" if report.failures else "passed")
    return 1 if report.failures else 0


def _run_many(seeds: range, broker_count: int, jobs: int, stop_at: int) -> int:
    started_s = time.monotonic()
    count = steps = 0
    simulated_s = 0.0
    failed: list[int] = []
    for report in reports(seeds, jobs, broker_count):
        count += 1
        steps += report.steps
        simulated_s += report.simulated_s
        if report.failures:
            failed.append(report.seed)
            _show(report, broker_count)
            if len(failed) >= stop_at:
                break
    elapsed_s = time.monotonic() - started_s
    print(
        f"{count} seeds in {elapsed_s:.1f} s, {count / elapsed_s:.1f} seeds/s, {simulated_s / 3600:.1f} simulated "
        f"hours, {steps} steps; {len(failed)} failed{': ' if failed else ''}{', '.join(map(str, sorted(failed)))}"
    )
    return 1 if failed else 0


def reports(seeds: Iterable[int], jobs: int, broker_count: int = 1) -> Iterator[Report]:
    """Run seeds in `jobs` processes; iterate over the reports in order of completion."""
    run = partial(run_one, broker_count=broker_count)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    # `gc.freeze` excludes the imported modules from the collection after each seed.
    with multiprocessing.get_context("fork").Pool(jobs, initializer=gc.freeze) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=4)


def _search(names: list[str], seeds: range, jobs: int) -> int:
    """Search, for each safeguard, the first seed that detects its absence; return 1 if one has none."""
    missing = 0
    for name in names:
        with multiprocessing.get_context("fork").Pool(jobs, initializer=gc.freeze) as pool:
            for seed, found in pool.imap(_find_one, ((name, seed) for seed in BY_NAME[name].seeds(seeds))):
                if found is not None:
                    print(f"{name}: seed {seed}: {found.splitlines()[0][:200]}", flush=True)
                    break
            else:
                missing += 1
                print(f"{name}: nothing found in {len(seeds)} seeds", flush=True)
    return 1 if missing else 0


def _find_one(job: tuple[str, int]) -> tuple[int, str | None]:
    name, seed = job
    return seed, finding(BY_NAME[name], run_without(BY_NAME[name], seed))


def run_one(seed: int, broker_count: int = 1) -> Report:
    """Run a seed without a trace."""
    return run_seed(seed, make_clients, broker_count=broker_count)


def _show(report: Report, broker_count: int) -> None:
    brokers = "" if broker_count == 1 else f" --brokers {broker_count}"
    print(f"seed {report.seed} failed; replay it with: python -m odradek.simulation --seed {report.seed}{brokers}")
    for failure in report.failures[:3]:
        lines = failure.splitlines()
        if len(lines) > _SHOWN_LINES:
            lines = [*lines[:2], "...", *lines[2 - _SHOWN_LINES :]]
        print("\n".join(f"    {line}" for line in lines))
    sys.stdout.flush()
