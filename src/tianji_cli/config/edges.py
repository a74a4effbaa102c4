"""Names of the built-in channels and slots; ``[graph]`` may lead two of them through roles of one's own.

Channels carry messages that all arrive; of a slot only the newest value counts.
"""

from __future__ import annotations

from typing import Final

FRAGMENTS: Final = "fragments"
"""Channel from the actors of a group to its buffer: one message a fragment."""

BATCHES: Final = "batches"
"""Channel from a buffer in a process of its own to the learner: one message a batch, or a fragment of one."""

ARRIVALS: Final = "arrivals"
"""Channel from a buffer in a process of its own to the learner: one message for each received fragment."""

PRIORITIES: Final = "priorities"
"""Channel to the role with the replay: one message for each used batch."""

HEADERS: Final = "headers"
"""Channel from the learner to its followers: one message for each round of updates."""

SHARDS: Final = "shards"
"""Channel from the learner to its followers: fragments or batches of a round."""

REQUESTS: Final = "requests"
"""Channel from actors to inference apart: observations of one actor's environments."""

ANSWERS: Final = "answers"
"""Channel back to the actors: what the network gives for a request."""

CONTRIBUTIONS: Final = "contributions"
"""Channel from the learners of all groups to the root: parameters to average."""

MEMBERS: Final = "members"
"""Channel from the learners of a population to the root: states of the members, to compare."""

TAKEOVERS: Final = "takeovers"
"""Channel from the root to each learner of a population: the state that it goes on with."""

POLICY: Final = "policy"
"""Slot of a group's newest policy."""

AVERAGE: Final = "average"
"""Slot of the newest average over all groups."""

THROUGH_ROLES: Final = (FRAGMENTS, BATCHES)
"""Channels that may pass roles of one's own."""

RESERVED: Final = (
    *THROUGH_ROLES, ARRIVALS, PRIORITIES, HEADERS, SHARDS, REQUESTS, ANSWERS, CONTRIBUTIONS, MEMBERS,
    TAKEOVERS, POLICY, AVERAGE,
)  # fmt: skip
"""Names that no channel or slot of one's own has."""
