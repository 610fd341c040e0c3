"""The definition of a pipeline: its file, keys and guarantees. No module here needs Spark or a broker.

- `problems`: mistakes in a file, with their lines
- `durations`: durations and instants
- `passwords`: removal of passwords from texts
- `settings`: keys of the file, and of what sources and sinks share
- `source_keys`: keys of each kind of source
- `sink_keys`: keys of each kind of sink
- `toml_lines`: line numbers of keys in a TOML document
- `spec`: the pipeline that a file declares
- `expansion`: environment variables in values
- `reader`: reads a file to a `spec.Pipeline`
- `static_checks`: checks of a pipeline against itself
- `guarantees`: how often a row is written, and under which conditions
- `python_functions`: functions that a file names
- `reference`: the reference in docs/pipelines.md
"""
