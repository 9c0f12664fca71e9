"""Journal on disk and in memory (``supervisor.ports.Journal``), and the state directory in which it lies.

The journal holds everything that was acknowledged; all other files of the state directory can be made again from the
journal. Files, locks and worker threads of the journal are used in this package only, and no module of it depends on
the lifecycles.
"""

__all__: list[str] = []
