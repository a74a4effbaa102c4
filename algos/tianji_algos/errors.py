"""All errors of this package, in one tree; imports no torch, so that checking a config stays cheap.

AlgorithmError
├── UnknownNameError           no agent, embryo or model of that name; names the nearest one
├── BrokenExtensionError       the name is known and its class does not load; keeps the cause
├── UnsupportedSpaceError      an observation or action space that this algorithm cannot handle
├── UnsuitableModelError       a model that this agent or embryo cannot work with
├── NotExportableError         a policy that cannot be written into a file of its own
├── StateMismatchError         a checkpoint that belongs to another model or algorithm (a ValueError, too)
└── DivergedError              the loss is not finite any more
"""


class AlgorithmError(Exception):
    """Base class of all errors of this package."""


class UnknownNameError(AlgorithmError):
    """No agent, embryo or model is registered under that name."""


class BrokenExtensionError(AlgorithmError):
    """An agent, embryo or model is named correctly but does not load or is no such class."""


class UnsupportedSpaceError(AlgorithmError):
    """An observation or action space that the algorithm cannot handle."""


class UnsuitableModelError(AlgorithmError):
    """A model that the agent or embryo cannot work with."""


class NotExportableError(AlgorithmError):
    """An agent or a network that cannot be written into a file that acts without tianji."""


class StateMismatchError(AlgorithmError, ValueError):
    """A saved state that does not fit the model or the algorithm it is loaded into."""


class DivergedError(AlgorithmError):
    """The loss is not finite any more, and no further update would make it so."""
