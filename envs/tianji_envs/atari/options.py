"""What a config's ``environment.options`` may say of Atari games."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tianji_envs.typed_options import read_typed

BACKENDS: Final = ("ale", "envpool")


@dataclass(frozen=True)
class AtariOptions:
    """Preprocessing of Mnih et al. 2015 ("Methods") and Machado et al. 2018 (section 3 and Table 5).

    The defaults are those of Mnih et al. and of what PPO, IMPALA and Ape-X were measured with. Machado et
    al. recommend ``sticky = 0.25``, ``noop_max = 0``, ``full_action_space = true``, ``life_loss = false``
    and ``fire_reset = false``. An observation is the maximum of the last two frames of a step.

    Attributes:
        backend: the library that emulates: "ale" or "envpool".
        frame_skip: frames that one step takes, its action repeated.
        stack: frames that a policy sees at once.
        noop_max: a game begins with a random number of frames without action, at most so many; rewards
            in these count nowhere. EnvPool makes at least one.
        size: height and width of a frame, in pixels.
        sticky: probability that the emulator repeats the previous action instead, in every frame.
        clip_rewards: rewards are clipped to [-1, 1], in training.
        life_loss: a lost life ends an episode though the game goes on, in training.
        full_action_space: all 18 actions, not only those that the game knows.
        fire_reset: the first action of a game is FIRE, whatever the policy chose: in Breakout and a few
            others the ball waits for it, and a greedy policy that never learnt to press it would wait
            for ever. So is the first of each further life in evaluation and where ``life_loss`` makes it
            no experience; elsewhere in training it is the policy's own, which is what is recorded.
    """

    backend: str = "ale"
    frame_skip: int = 4
    stack: int = 4
    noop_max: int = 30
    size: int = 84
    sticky: float = 0.0
    clip_rewards: bool = True
    life_loss: bool = True
    full_action_space: bool = False
    fire_reset: bool = True


_AT_LEAST: Final = {"frame_skip": 1, "stack": 1, "noop_max": 0, "size": 8}

_AT_MOST: Final = {"stack": 255}  # A replay counts the frames of a stack in a byte.


def read_options(options: Mapping[str, Any] | None) -> AtariOptions:
    """Check options and complete them.

    Raises:
        WrongOptionError: an option that does not exist, or a value that does not fit it.
    """
    return read_typed(AtariOptions, options, "Atari", _wanted)


def _wanted(name: str, value: Any) -> str:
    """Say what a value should be; empty if it is."""
    if name == "backend" and value not in BACKENDS:
        return " or ".join(f'"{backend}"' for backend in BACKENDS)
    if name in _AT_LEAST and value < _AT_LEAST[name]:
        return f"at least {_AT_LEAST[name]}"
    if name in _AT_MOST and value > _AT_MOST[name]:
        return f"at most {_AT_MOST[name]}"
    if name == "sticky" and not 0 <= value < 1:
        return "a probability below 1"
    return ""
