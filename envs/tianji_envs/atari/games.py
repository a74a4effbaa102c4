"""Names of the Atari games, and their ``environment.options``.

The list stands here so that a config is checked without loading an emulator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tianji_envs.errors import UnknownEnvironmentError
from tianji_envs.options import nearest, read_typed

GAMES: Final = tuple(
    """
    adventure air_raid alien amidar assault asterix asteroids atlantis atlantis2 backgammon bank_heist
    basic_math battle_zone beam_rider berzerk blackjack bowling boxing breakout carnival casino
    centipede chopper_command crazy_climber crossbow darkchambers defender demon_attack donkey_kong
    double_dunk earthworld elevator_action enduro entombed et fishing_derby flag_capture freeway frogger
    frostbite galaxian gopher gravitar hangman haunted_house hero human_cannonball ice_hockey jamesbond
    journey_escape kaboom kangaroo keystone_kapers king_kong klax koolaid krull kung_fu_master
    laser_gates lost_luggage mario_bros miniature_golf montezuma_revenge mr_do ms_pacman name_this_game
    othello pacman phoenix pitfall pitfall2 pong pooyan private_eye qbert riverraid road_runner robotank
    seaquest sir_lancelot skiing solaris space_invaders space_war star_gunner superman surround tennis
    tetris tic_tac_toe_3d time_pilot trondead turmoil tutankham up_n_down venture video_checkers
    video_chess video_cube video_pinball wizard_of_wor word_zapper yars_revenge zaxxon
    """.split()  # noqa: SIM905 - 104 quoted strings are no list to read
)
"""Names of the ROMs that one player can play, in alphabetical order; the same in ALE and EnvPool."""

WITHOUT_FIRE: Final = frozenset(
    {
        "asterix",
        "crazy_climber",
        "freeway",
        "frogger",
        "journey_escape",
        "koolaid",
        "kung_fu_master",
        "lost_luggage",
        "ms_pacman",
        "pacman",
        "skiing",
        "surround",
        "tutankham",
    }
)
"""Games whose minimal action set has no FIRE; in those of nearly all others it is action 1."""

_VERSION: Final = re.compile(r"(NoFrameskip|Deterministic)?-v\d+$")


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


_BY_FOLDED: Final = {_folded(game): game for game in GAMES}


def find_game(id: str) -> str:  # noqa: A002 - the config's word for it
    """Find the ROM that an id means.

    Gymnasium's ids lead to the game alone: the options, not the id, set frame skip and sticky actions.

    >>> [find_game(id) for id in ("SpaceInvaders", "space_invaders", "ALE/Pong-v5", "PongNoFrameskip-v4")]
    ['space_invaders', 'space_invaders', 'pong', 'pong']

    Raises:
        UnknownEnvironmentError: names the nearest games.
    """
    name = _folded(_VERSION.sub("", id.removeprefix("ALE/")))
    if name in _BY_FOLDED:
        return _BY_FOLDED[name]
    near = nearest(name, _BY_FOLDED, lambda folded: title(_BY_FOLDED[folded]), most=3)
    hint = near or '; an id is a game such as "Pong" or "SpaceInvaders"'
    raise UnknownEnvironmentError(f"there is no Atari game {id!r}{hint}")


def title(game: str) -> str:
    """Write a ROM's name as ids do.

    >>> title("space_invaders")
    'SpaceInvaders'
    """
    return "".join(word.capitalize() for word in game.split("_"))


BACKENDS: Final = ("ale", "envpool")


@dataclass(frozen=True)
class AtariOptions:
    """Preprocessing of Mnih et al. 2015 ("Methods") and Machado et al. 2018 (section 3 and Table 5).

    The defaults are those of Mnih et al. and of the experiments of PPO, IMPALA and Ape-X. Machado et
    al. recommend ``sticky = 0.25``, ``noop_max = 0``, ``full_action_space = true``, ``life_loss = false``
    and ``fire_reset = false``. An observation is the maximum of the last two frames of a step.

    Attributes:
        backend: the library that emulates: "ale" or "envpool".
        frame_skip: frames that one step takes, its action repeated.
        stack: frames that a policy sees at once.
        noop_max: most frames without action at the begin of a game, a random number; their rewards do not
            count. EnvPool makes at least one.
        size: height and width of a frame, in pixels.
        sticky: probability that the emulator repeats the previous action instead, in every frame.
        clip_rewards: rewards are clipped to [-1, 1], in training.
        life_loss: a lost life ends an episode though the game goes on, in training.
        full_action_space: all 18 actions, not only those that the game knows.
        fire_reset: the first action of a game is FIRE, not the policy's: in Breakout and a few
            others the ball waits for it, and a greedy policy that never learnt to press it would wait
            for ever. The same holds for the first action of each further life in evaluation, and where
            ``life_loss`` makes its step no experience; elsewhere in training it is the policy's own, as
            recorded.
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
    """Describe the right values of an option; empty if the value is right."""
    if name == "backend" and value not in BACKENDS:
        return " or ".join(f'"{backend}"' for backend in BACKENDS)
    if name in _AT_LEAST and value < _AT_LEAST[name]:
        return f"at least {_AT_LEAST[name]}"
    if name in _AT_MOST and value > _AT_MOST[name]:
        return f"at most {_AT_MOST[name]}"
    if name == "sticky" and not 0 <= value < 1:
        return "a probability below 1"
    return ""
