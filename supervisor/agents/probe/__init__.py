"""What a known agent really does, tried on this machine: `supervisor agents`, and its conformance probe.

Everything runs under wardens, in scratch directories, against a model server on loopback unless another one is named.
"""

__all__: list[str] = []
