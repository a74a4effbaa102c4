"""Everything that can go wrong in an algorithm, in one tree. Imports no torch.

AlgorithmError
├── UnknownNameError           no agent, embryo or model of that name; names the nearest one
├── BrokenExtensionError       the name is known and its class does not load; keeps the cause
├── UnsupportedSpaceError      an observation or action space that this algorithm cannot handle
└── StateMismatchError         a checkpoint that belongs to another model or algorithm (a ValueError, too)
"""


class AlgorithmError(Exception):
    """Anything this package raises."""


class UnknownNameError(AlgorithmError):
    """No agent, embryo or model is registered under that name."""


class BrokenExtensionError(AlgorithmError):
    """An agent, embryo or model is named correctly but does not load or is no such class."""


class UnsupportedSpaceError(AlgorithmError):
    """An observation or action space that the algorithm cannot handle."""


class StateMismatchError(AlgorithmError, ValueError):
    """A saved state that does not fit the model or the algorithm it is loaded into."""
