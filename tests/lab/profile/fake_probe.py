"""A process that speaks as probes do, or as they should not: ``python fake_probe.py HOW``."""

import json
import os
import signal
import sys
import time

ANSWERS = {
    "prepare": {
        "kind": "prepared",
        "seconds": 0.0,
        "fragment_bytes": 1000,
        "batch_bytes": 0,
        "policy_bytes": 100,
        "parameters": 23,
        "rho": None,
    },
    "run": {"kind": "acted", "windows": []},
    "average": {"kind": "averaged", "seconds": [0.25]},
}


def main(how: str) -> None:
    """Answer as ``how`` says; the key of a step, or its rank, may say it for one probe of several."""
    for line in sys.stdin:
        step = json.loads(line)
        now = step.get("key", how) if how == "as asked" else how
        if now == "dies":
            sys.stderr.writelines(f"line {number} of a long story\n" for number in range(100))
            sys.stderr.write("out of luck\n")
            sys.exit(3)
        elif now == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif now == "fails":
            say(json.dumps({"kind": "failed", "cause": "no such environment"}))
        elif now == "chats":
            say("Hello from the makers of this environment! " * 10)
        elif now == "misunderstands":
            say(json.dumps(ANSWERS["average" if step["step"] == "run" else "run"]))
        elif now == "is deaf":
            sys.stderr.write("thinking\n")
            sys.stderr.flush()
            while True:
                time.sleep(100)
        elif now == "stutters":
            words = json.dumps(ANSWERS[step["step"]])
            say(words[:5], end="")
            time.sleep(0.02)
            say(words[5:], end="")
            time.sleep(0.02)
            say("")
        else:
            say(json.dumps(ANSWERS[step["step"]]))


def say(words: str, end: str = "\n") -> None:
    sys.stdout.write(words + end)
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
