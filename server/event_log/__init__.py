"""The broker's own log: events of the standard library's logging, as lines on standard output.

- `text_lines`: lines for people
- `json_lines`: lines for programs (`log.format=json`)
- `setup`: levels, and the destination of all events
"""
