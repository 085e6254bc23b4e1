"""Benchmarks: what a turn costs, against a floor measured in the same run."""
