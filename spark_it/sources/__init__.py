"""Sources. Each connector has a module, which is imported only when a pipeline uses it.

- `connectors`: creation of the source for a connector
- `topic`: topics
- `files`: new files in a folder
- `file_lines`: file names and line numbers of bad records
- `csv_lines`: parser for CSV lines
- `jdbc`: new rows of a database table
- `jdbc_poll`: queries for new rows
- `jdbc_spool`: files with the rows of each poll
- `generator`: generated rows with a number and a time
- `python_source`: Spark data sources written in Python
"""
