"""`python -m tianji_cli`, and the `tianji` script: handles signals, then imports the command line."""

from __future__ import annotations

import sys

from tianji_cli.signals import INTERRUPTED, Interruption, ignore_signals, raise_signals


def main() -> None:
    """Run the command line, ready to be interrupted from the first import on."""
    try:
        raise_signals()
        from tianji_cli.main import main as run  # noqa: PLC0415 - imports typer

        run()
    except Interruption:
        sys.stderr.write("tianji: interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        ignore_signals()  # What happens from here on is only the end of the interpreter.


if __name__ == "__main__":
    main()
