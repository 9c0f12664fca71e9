"""The record of everything that happened, behind ``supervisor.ports.Journal``, and the directory it lies in.

What was acknowledged is here; everything else in the state directory can be made again from it. Files, locks and
worker threads of the journal are used in this package only, and nothing in it knows what a lifecycle is.
"""

__all__: list[str] = []
