"""Benchmarks: what the kernel and the sessions on it cost, as ratios against something measured in the same run.

Nothing here is imported by the packages, and nothing is asserted: figures are for reading. ``make bench`` prints the
table; each room can be run alone as ``python -m benchmarks.<room>``.
"""
