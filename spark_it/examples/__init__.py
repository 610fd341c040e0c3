"""Pipelines to try: a folder for each, and what makes its data.

    python -m odradek.spark_it.examples orders      # brings the folder here and fills the topic

The data is made, not fetched: the same in every run, by a seed. Each module of data also says what the pipeline has to
come to, worked out in plain Python, for the demo and the tests to hold the pipeline's result against.
"""
