"""Whether an update takes the derivatives that were found by hand."""

from __future__ import annotations

from tianji_algos.core import Model
from tianji_algos.device import device_of
from tianji_algos.errors import UnsuitableModelError
from tianji_algos.settings import Backend


def is_by_hand(backend: Backend, model: Model, *, fits: bool, what_fits: str) -> bool:
    """Decide by the setting, and by whether the derivatives fit this network where it is.

    Raises:
        UnsuitableModelError: they are asked for and do not fit; the message says ``what_fits``.
    """
    if backend == "numpy" and not fits:
        this = f"this is {type(model).__name__} on {device_of(model)}"
        raise UnsuitableModelError(
            f'backend = "numpy" is for {what_fits}, and {this}; backend = "auto" would be right'
        )
    return fits and backend != "torch"
