"""Who may put a fragment into a buffer: checks its size, its header and its place in line, and counts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_cli.wire.refusals import Refusals
from tianji_cli.wire.reports import Reception, Source
from tianji_transports.core import Claim


class Admission:
    """Checks every message that claims to be a fragment of this job, and counts what each actor delivered.

    Args:
        layout: of every fragment of the group.
        job: the job's number, which every header carries.
        actors: numbers of the actors, by the rank of the process that carries them.

    Attributes:
        receptions: what was received, by source.
        refusals: messages that were refused.
    """

    def __init__(self, layout: FragmentLayout, job: int, actors: Mapping[int, Sequence[int]]) -> None:
        self.receptions: dict[Source, Reception] = {}
        self.refusals = Refusals()
        self._layout = layout
        self._job = job
        self._actors = actors

    def has_its_size(self, claim: Claim) -> bool:
        """Say whether a message is as large as a fragment; one that is not is noted as refused."""
        if claim.nbytes == self._layout.nbytes:
            return True
        self.refusals.add(claim, f"it has {claim.nbytes} bytes, not {self._layout.nbytes}")
        return False

    def admit(self, claim: Claim, fragment: Fragment) -> Reception | None:
        """Check what a message of the right size holds.

        Returns:
            What was received from its source, this fragment followed but its samples not counted; None if it
            is refused.
        """
        refusal = fragment.refusal(self._job, self._actors.get(claim.source, ()))
        refusal = refusal or self._refusal_of_order(fragment)
        if refusal is not None:
            self.refusals.add(claim, refusal)
            return None
        header = fragment.header
        reception = self.receptions.setdefault(fragment.source, Reception())
        reception.follow(int(header["sequence"]), int(header["before"]), int(header["samples"]))
        return reception

    def _refusal_of_order(self, fragment: Fragment) -> str | None:
        reception = self.receptions.get(fragment.source, Reception())
        sequence, before = int(fragment.header["sequence"]), int(fragment.header["before"])
        if sequence < reception.next_sequence or before < reception.position:
            return f"it is number {sequence} where {reception.next_sequence} is next"
        return None
