"""The definition of a pipeline: its file, keys and guarantees. No module here needs Spark or a broker.

- `problems`: mistakes in a file, with their line numbers
- `durations`: durations and instants
- `passwords`: removal of passwords from addresses and messages
- `settings`: keys of the file, and keys that sources and sinks share
- `source_keys`: keys of each kind of source
- `sink_keys`: keys of each kind of sink
- `toml_lines`: line numbers of keys in a TOML document
- `spec`: the pipeline that a file declares
- `expansion`: environment variables in values
- `reader`: reader of a file as a `spec.Pipeline`
- `static_checks`: checks of names, references and keys that depend on each other
- `guarantees`: delivery guarantees and their conditions
- `python_functions`: import of functions that a file names
- `reference`: the generated reference in docs/pipelines.md
"""
