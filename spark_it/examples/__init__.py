"""Example pipelines: a folder for each, and a module that generates its data.

    python -m odradek.spark_it.examples orders      # copies the folder and fills the topic

The data is generated from a seed, so it is the same in every run. Each data module also computes the expected output in
plain Python, with which the demo and the tests compare the pipeline's output.
"""
