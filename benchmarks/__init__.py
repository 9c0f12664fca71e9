"""Benchmarks: the cost of the kernel and of sessions, as ratios against a reference measured in the same run.

The packages import no benchmark, and no figure is asserted: figures are for reading. ``make bench`` prints the table;
each module can be run alone as ``python -m benchmarks.<module>``.
"""
