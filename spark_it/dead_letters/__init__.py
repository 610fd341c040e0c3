"""Dead letters: records that failed, in a topic, with Kafka Connect's headers.

- `headers`: Kafka Connect's headers, and the errors that they describe
- `bad_records`: bad records that stop a pipeline, carried by Spark's errors
- `topic`: creation of the dead-letter topic
- `writer`: writes dead letters for sinks that do not write them in a transaction
- `replay`: writes dead letters back to the topic that they came from
- `replay_position`: progress of a replay, in a file
"""
