"""Rows of Delta and Iceberg tables, read by pyarrow from the files that their newest metadata names."""

import json
from pathlib import Path

import fastavro
import pyarrow.parquet


def delta_files(folder: Path):
    """Files of a Delta table, by the actions in its log."""
    there = set()
    for log in sorted((folder / "_delta_log").glob("*.json")):
        for action in map(json.loads, log.read_text().splitlines()):
            if "add" in action:
                there.add(folder / action["add"]["path"])
            if "remove" in action:
                there.discard(folder / action["remove"]["path"])
    return there


def iceberg_files(folder: Path):
    """Files of an Iceberg table, by the manifests of its current snapshot."""
    version = int((folder / "metadata" / "version-hint.text").read_text())
    # A killed writer may have written metadata without updating the hint.
    while (folder / "metadata" / f"v{version + 1}.metadata.json").exists():
        version += 1
    metadata = json.loads((folder / "metadata" / f"v{version}.metadata.json").read_text())
    current = [each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"]]
    there = set()
    for manifest in avro_rows(current[0]["manifest-list"]) if current else ():
        for entry in avro_rows(manifest["manifest_path"]):
            if entry["status"] != 2:
                there.add(local(entry["data_file"]["file_path"]))
    return there


def local(address):
    return Path(address.removeprefix("file:"))


def avro_rows(address):
    with local(address).open("rb") as file:
        return list(fastavro.reader(file))


def column(files, name):
    """A column of all files together, with nulls for files that lack it."""
    found = []
    for file in files:
        read = pyarrow.parquet.ParquetFile(file).read()
        found += read[name].to_pylist() if name in read.column_names else [None] * len(read)
    return found
