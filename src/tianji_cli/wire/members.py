"""State of a population's member as a record, on its way to the root and on to another member.

The root copies a state and looks at the header alone: it knows of no tensors. Both learners derive the layout
of a state from the same config.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.wire.records import Array, InHeader, Record, RecordLayout, aligned

Octets = npt.NDArray[np.uint8]

_TEXT_BYTES: Final = 16 << 10
"""Room for hyperparameters as JSON."""
MOST_RETURNS: Final = 100
"""Maximum returns that go with a policy."""


@cache
def member_layout(state_bytes: int) -> RecordLayout:
    """Lay out a member with a state of so many bytes; 0 for a message without a state."""
    return RecordLayout(
        0x544A504D,  # "TJPM"
        (
            ("group", "<u8"),
            ("number", "<u8"),
            ("env_steps", "<u8"),
            ("since", "<u8"),
            ("score", "<f8"),
            ("episodes", "<u8"),
            ("text_bytes", "<u8"),
        ),
        (
            Array("text", np.uint8, (_TEXT_BYTES,)),
            Array("returns", np.float64, (MOST_RETURNS,)),
            Array("state", np.uint8, (state_bytes,)),
        ),
    )


_OVERHEAD: Final = aligned(member_layout(0).nbytes)


class Member(Record):
    """Views of a member; owns nothing.

    A learner sends its member to the root, which compares the ``score`` and answers each: with a state and
    the hyperparameters to go on with, or without a state where the member goes on as it is.

    Args:
        memory: memory of one ``member_layout``, exactly as long.

    Attributes:
        state: all that a learner knows, ``[state_bytes]``; empty if the learner keeps its own.
    """

    __slots__ = ("state",)

    def __init__(self, memory: memoryview) -> None:
        super().__init__(member_layout(max(0, memory.nbytes - _OVERHEAD)), memory)
        self.state: Octets = self.arrays["state"]

    group = InHeader("group", int)
    """The group whose state this is."""

    number = InHeader("number", int)
    """Number of this message at its sender, or of the message that it answers, from 1; 0: it answers none."""

    env_steps = InHeader("env_steps", int)
    """Env steps that the state's learner has received, over all sessions."""

    since = InHeader("since", int)
    """Version that was published when the learner last took over another member; 0 if it never did."""

    @property
    def score(self) -> float | None:
        """Score of the member; None if it is unknown."""
        score = float(self.header["score"])
        return score if math.isfinite(score) else None

    def fill_header(
        self,
        job: int,
        *,
        group: int,
        number: int,
        env_steps: int,
        since: int,
        score: float | None,
        returns: npt.NDArray[np.float64],
        hyperparameters: Mapping[str, Any],
    ) -> None:
        """Write the header, by the names of the properties.

        Raises:
            ValueError: the hyperparameters are too long.
        """
        text = json.dumps(hyperparameters).encode()
        if len(text) > _TEXT_BYTES:
            raise ValueError(f"hyperparameters of {len(text)} bytes are more than {_TEXT_BYTES}")
        self.arrays["text"][: len(text)] = np.frombuffer(text, np.uint8)
        self.arrays["returns"][: len(returns)] = returns
        known = math.nan if score is None else score
        self.stamp(job, group, number, env_steps, since, known, len(returns), len(text))

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """Returns of the last episodes that its policy, or one trained on from it, has played."""
        found: npt.NDArray[np.float64] = self.arrays["returns"][: int(self.header["episodes"])]
        return found

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Hyperparameters, by the keys that are perturbed.

        Raises:
            ValueError: the text is no JSON.
        """
        found: dict[str, Any] = json.loads(bytes(self.arrays["text"][: int(self.header["text_bytes"])]))
        return found
