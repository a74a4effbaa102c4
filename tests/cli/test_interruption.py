"""A signal at a moment when Python swallows what its handler raises."""

import subprocess
import sys

SWALLOWED = """
import signal, time, weakref
from tianji_cli.interruption import Interruption, raise_signals

class Thing:
    pass

raise_signals()
thing = Thing()
watched = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
try:
    del thing
    time.sleep(60.0)
except Interruption:
    print("interrupted")
"""


def test_an_interruption_that_an_import_or_a_finalizer_swallows_is_raised_once_more() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_what_else_a_finalizer_raises_is_shown_as_ever() -> None:
    other = SWALLOWED.replace("signal.raise_signal(signal.SIGTERM)", "1 / 0").replace("60.0", "0.0")
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert "ZeroDivisionError" in done.stderr
