"""Sources. Each connector has a module, imported when a pipeline uses it.

- `connectors`: the source for a connector's name
- `topic`: topics
- `files`: files that appear in a folder
- `file_lines`: file names and line numbers of bad records
- `csv_lines`: CSV
- `jdbc`: new and changed rows of a database table
- `jdbc_poll`: the query for new rows
- `jdbc_spool`: files with the rows that were read
- `generator`: rows with a number and a time
- `python_source`: Spark data sources written in Python
"""
