"""What strangers and confused members sent: counted by whom it was refused, and reported once for each."""

from __future__ import annotations

from collections.abc import Callable

from tianji_cli.root.endpoint import RootEndpoint
from tianji_cli.root.overview import Overview
from tianji_cli.wire.control import ControlServer


class Rejections:
    """Adds up the frames that were refused.

    Args:
        overview: what the workers report.
        control: the control channel.
        averaging: the root's own endpoint.
        say: tells the user something.
    """

    def __init__(
        self,
        overview: Overview,
        control: ControlServer,
        averaging: RootEndpoint,
        say: Callable[[str], None],
    ) -> None:
        self._overview = overview
        self._control = control
        self._averaging = averaging
        self._say = say
        self._reported: set[str] = set()

    @property
    def total(self) -> int:
        """Frames refused so far."""
        return sum(count for _, count, _ in self._all())

    def report(self) -> None:
        """Tell the user of whoever has refused something for the first time; the summary counts the rest."""
        for whom, count, why in self._all():
            if whom not in self._reported:
                self._reported.add(whom)
                self._say(f"{whom} refused {count} frame{'s' if count > 1 else ''} (such as: {why})")

    def _all(self) -> list[tuple[str, int, str]]:
        rejections = self._overview.rejections()
        if self._control.rejected:
            rejections.append(("the control channel", self._control.rejected, self._control.last_rejection))
        count, why = self._averaging.rejected
        if count:
            rejections.append(("the root", count, why))
        return rejections
