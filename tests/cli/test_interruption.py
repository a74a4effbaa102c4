"""A signal at a moment when Python swallows what its handler raises."""

import subprocess
import sys

SWALLOWED = """
import signal, time, weakref
from tianji_cli.signals import Interruption, raise_signals

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


SWALLOWED_IN_C = """
import ctypes, signal
from tianji_cli.signals import StopSignals
from tianji_cli.signals import Interruption, raise_signals

class Thing:
    def __getattr__(self, name):
        signal.raise_signal(signal.SIGTERM)

raise_signals()
assert not ctypes.pythonapi.PyObject_HasAttr(ctypes.py_object(Thing()), ctypes.py_object("any"))
try:
    with StopSignals():
        print("goes on")
except Interruption:
    print("interrupted", signal.getsignal(signal.SIGTERM).__name__)
"""


def test_an_interruption_that_a_library_swallows_ends_the_command_before_the_job_begins() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED_IN_C], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("interrupted _raise\n", "")


MANY = """
import select, signal
from tianji_cli.signals import StopSignals

with StopSignals() as signals:
    for _ in range(5000):
        signal.raise_signal(signal.SIGHUP)
    print(signals.count, bool(select.select([signals.descriptor], (), (), 0)[0]))
"""


def test_more_signals_than_anybody_has_looked_at_are_one_wish_and_no_complaint() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1 True\n", "")


def test_what_else_a_finalizer_raises_is_shown_as_ever() -> None:
    other = SWALLOWED.replace("signal.raise_signal(signal.SIGTERM)", "1 / 0").replace("60.0", "0.0")
    done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert "ZeroDivisionError" in done.stderr


AT_ONCE = """
import signal, time
from tianji_cli.signals import SAME_S, Interruption, raise_signals

raise_signals()
try:
    signal.raise_signal(signal.SIGTERM)
except Interruption:
    signal.raise_signal(signal.SIGTERM)
    print("has time to save")
try:
    time.sleep(SAME_S)
    signal.raise_signal(signal.SIGTERM)
except Interruption:
    print("has none")
"""


def test_signals_that_come_at_once_are_one_interruption() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("has time to save\nhas none\n", "")
