"""Which Atari games there are, and what a config may call them.

The list stands here so that a config is checked without loading an emulator.
"""

from __future__ import annotations

import re
from typing import Final

from tianji_envs.errors import UnknownEnvironmentError
from tianji_envs.suggestions import nearest

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
"""Names of the ROMs that one player can play, in alphabetical order: of ALE and EnvPool alike."""

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

    Gymnasium's ids lead to the game alone: how many frames are skipped and how often an action sticks is
    what the options say.

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
