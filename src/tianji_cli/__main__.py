"""Entry point of `tianji` and `python -m tianji_cli`: handles signals, then imports the command line."""

from __future__ import annotations

import os
import sys

if sys.platform != "linux":
    sys.exit("tianji: error: this is not Linux, which tianji is made for: WSL 2 or a Linux container will do")

from tianji_cli.signals import INTERRUPTED, Interruption, ignore_signals, leave_threads, raise_signals


def main() -> None:
    """Run the command line, ready to be interrupted from the first import on."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # Closed, as by 2>&-: the next opened file would take its number.
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))
    others: set[int] = set()
    try:
        raise_signals()
        from tianji_cli.launch.children import adopt_orphans  # noqa: PLC0415 - takes its time
        from tianji_cli.main import main as run  # noqa: PLC0415 - imports typer

        others = adopt_orphans()
        run()
    except Interruption:
        sys.stderr.write("tianji: interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        ignore_signals()  # From here on the command only ends.
        from tianji_cli.launch.children import end_descendants  # noqa: PLC0415 - likewise

        end_descendants(others)
        leave_threads()


if __name__ == "__main__":
    main()
