"""All errors of this package, in one tree; imports no gymnasium, so that naming a type stays cheap.

    EnvironmentFailure
    ├── UnknownEnvironmentError    no such type, id or wrapper; names the nearest one
    ├── MissingExtraError          the environment's library is not installed; the message is the pip command
    ├── UnsupportedSpaceError      a space whose values are neither one array nor a record of arrays
    └── BrokenEnvironmentError     found, and cannot be imported, built or stepped as the contract says
        └── WrongOptionError       an option that does not exist, or a value that does not fit it

Exceptions that an environment's own ``reset`` or ``step`` raises pass through as they are.
"""


class EnvironmentFailure(Exception):  # noqa: N818 - builtins.EnvironmentError is an alias of OSError
    """Base class of all errors of this package."""


class UnknownEnvironmentError(EnvironmentFailure):
    """No environment has that type or id, or no wrapper that name."""


class MissingExtraError(EnvironmentFailure):
    """The environment needs a library that is not installed."""


class UnsupportedSpaceError(EnvironmentFailure):
    """Observations or actions are neither one array of fixed dtype and shape nor a record of such."""


class BrokenEnvironmentError(EnvironmentFailure):
    """The environment cannot be imported or built, or does not keep the contract of ``BaseEnv``."""


class WrongOptionError(BrokenEnvironmentError):
    """The environment has no such option, or the option does not take that value."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option
