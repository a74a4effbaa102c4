"""Defaults of `tianji train --env ID`: settings that have to learn before anyone has tuned them.

The defaults follow from the environment's spaces, from the agent, from the number of cores and, with more
than two cores, from the time of a step; never from the environment's id. ``docs/defaults.md`` has a table of
the defaults with their reasons. A key that is not here has the schema's default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import gymnasium as gym
import numpy as np

from tianji_algos import registry as algorithms
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.images import ImageShape, image_shape, is_picture
from tianji_algos.models.settings import ImageLayout
from tianji_cli.errors import UsageError
from tianji_plugins import did_you_mean

Table = dict[str, Any]

STEPS: Final = 1_000_000
STEPS_OF_IMAGES: Final = 10_000_000
"""Env steps after which a run ends."""

REPLAY_BYTES: Final = 2**30
"""Maximum memory of a replay's observations; the rest of a sample is small beside them."""
SMALLEST_REPLAY: Final = 10_000
"""Minimum env steps of a replay, even of very large observations."""

CORES_OF_ONE_ACTOR: Final = 2
"""Up to this number of cores there is one actor, however long steps take."""
MOST_ACTORS: Final = 16

_FRAGMENTS: Final = 4
"""Fragments of a rollout of PPO: 1, 2 or 4 actors share them evenly. More actors have fewer environments."""
_FOLLOWED_S: Final = {"ppo": 25e-6, "dqn": 45e-6, "sac": 6e-3, "td3": 6e-3}
"""Seconds of a learner on one core for all its work with an env step, about."""
_FOLLOWED_S_OF_IMAGES: Final = 600e-6
"""Seconds of a learner for an env step whose observations are images, about."""

_NATURE_SIDE: Final = 36
"""Height and width, in pixels, from which the strides of the plain convolutions leave something to see."""
_LEARNT_S: Final = 100e-6
"""Core seconds that learning from one image once may take: three epochs of 10 M then take under an hour."""
_TORCH_TO_NUMPY: Final = 4
"""Multiply-adds of convolutions that torch makes in the time of one of numpy's products, about."""


@dataclass(frozen=True)
class Seen:
    """Spaces and speed of one copy of an environment.

    Attributes:
        stack: observations in a row that a policy sees as one.
        image_layout: of ``[environment]``.
        step_s: seconds of a step, about; 0 if it was not measured.
        work_per_s: multiply-adds that numpy makes on a core of this machine in a second, about.
    """

    observation: gym.Space[Any]
    action: gym.Space[Any]
    stack: int = 1
    image_layout: ImageLayout = "auto"
    step_s: float = 0.0
    work_per_s: float = 5e9

    @property
    def has_pictures(self) -> bool:
        """Whether observations have images that are large enough for convolutions."""
        return any(is_picture(part, self.image_layout) for part in self._parts)

    @property
    def _parts(self) -> Collection[gym.Space[Any]]:
        space = self.observation
        return space.spaces.values() if isinstance(space, gym.spaces.Dict) else (space,)

    @property
    def pictures(self) -> Sequence[ImageShape]:
        """Shapes of the images; raises as ``image_shape`` if the channels may be on either side."""
        layout = self.image_layout
        found = [image_shape(part, layout) for part in self._parts if is_picture(part, layout)]
        return [image for image in found if image is not None]

    @property
    def is_bounded(self) -> bool:
        """Whether actions are real numbers between bounds, which limit how far random actions lie apart."""
        return self.is_steered and isinstance(self.action, gym.spaces.Box) and self.action.is_bounded()

    @property
    def is_steered(self) -> bool:
        """Whether actions are real numbers."""
        return isinstance(self.action, gym.spaces.Box) and np.issubdtype(self.action.dtype, np.floating)


def usual_steps(seen: Seen) -> int:
    """Count the env steps after which a run ends without another stop rule."""
    return STEPS_OF_IMAGES if seen.has_pictures else STEPS


def defaults(agent: str, seen: Seen, cores: int, env_steps: int | None) -> Table:
    """Choose the sections of a config other than ``[environment]``'s type and id.

    Args:
        agent: one of ``AGENTS``.
        seen: spaces and speed of the environment.
        cores: that this job may use.
        env_steps: after which the run ends; None if something else ends it.

    Raises:
        UsageError: there are no defaults for this agent, or it cannot act in this environment.
    """
    check_agent(agent)
    if why := _refusal(agent, seen):
        raise UsageError(f"--agent {agent}: {why}")
    try:
        table = AGENTS[agent](seen, cores, env_steps)
    except UnsupportedSpaceError as error:  # An image whose channels may be anywhere.
        raise UsageError(f"--agent {agent}: {error}") from error
    table["experiment"] = {"stop": {"env_steps": usual_steps(seen)}}
    if seen.has_pictures:
        table["experiment"]["eval_episodes"] = 10  # Episodes with images are long.
    if env_steps is not None and "warmup_steps" in table["training"]:
        least = max(table["training"]["batch_size"], env_steps // 4)
        table["training"]["warmup_steps"] = min(table["training"]["warmup_steps"], least)
    table["agent"] = {"type": agent} | table.get("agent", {})
    table["training"]["type"] = agent
    return table


def check_agent(agent: str) -> None:
    """Refuse an agent that has no defaults.

    Raises:
        UsageError: names the agents that have defaults.
    """
    if agent in AGENTS:
        return
    *most, last = AGENTS
    known = f"{', '.join(most)} or {last}"
    if agent in algorithms.names("agent"):
        raise UsageError(f"--agent {agent}: it has no defaults; {known} has, and others take a config")
    raise UsageError(f"--agent {agent}: no such agent; {did_you_mean(agent, AGENTS, 'agents with defaults')}")


def _refusal(agent: str, seen: Seen) -> str:
    """Describe why an agent cannot act in these spaces; empty if it can."""
    if not (seen.is_steered or isinstance(seen.action, gym.spaces.Discrete | gym.spaces.MultiDiscrete)):
        return (
            f"no agent chooses from {seen.action}; Discrete, MultiDiscrete or a Box of floats would be "
            "right, which a wrapper can make of it (environment.wrappers)"
        )
    if agent == "dqn" and not isinstance(seen.action, gym.spaces.Discrete):
        return f"it compares single actions, and these are {seen.action}; ppo would be right" + (
            ", or sac or td3" if seen.is_steered else ""
        )
    if agent in {"sac", "td3"} and not seen.is_steered:
        right = "ppo or dqn" if isinstance(seen.action, gym.spaces.Discrete) else "ppo"
        return f"it chooses real numbers, and actions are {seen.action}; {right} would be right"
    return ""


def _ppo(seen: Seen, cores: int, env_steps: int | None) -> Table:
    of_body = seen.is_steered and not seen.has_pictures
    # A short run has several rollouts, too; their size is a power of two.
    rollout_steps = 2048 if env_steps is None else min(2048, 1 << max(8, (env_steps // 4).bit_length() - 1))
    training: Table = {
        "rollout_steps": rollout_steps,
        "minibatch_size": 64 if seen.is_steered else 256,
        "epochs": 10,
        "learning_rate": 3e-4 if seen.is_steered else 1e-3,
        **({} if seen.is_steered else _falling_rate(env_steps)),
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "entropy_coef": 0.0 if seen.is_steered else 0.01,
        "normalize_rewards": True,  # With images, too.
    }
    if seen.has_pictures:
        training |= {"epochs": 3, "learning_rate": 3e-4, "clip_range": 0.1, "minibatch_size": 256}
        if seen.is_steered:
            training["learning_rate_schedule"] = "adaptive"
    num_envs = 4 if of_body else 16  # A body's actions pay late: fragments are longer.
    send_size = training["rollout_steps"] // (_FRAGMENTS * num_envs)
    wanted = max(_FRAGMENTS, _actors_to_follow("ppo", seen, cores))
    actors = max(actors for actors in (1, 2, 4, 8, 16) if actors <= min(wanted, max(1, cores - 1)))
    num_envs = min(num_envs, _FRAGMENTS * num_envs // actors)
    model = _image_model("cnn_actor_critic", seen) or {"type": "mlp_actor_critic"}
    if of_body and seen.is_bounded:
        model["initial_log_std"] = -0.5
    return {
        "environment": {"num_envs": num_envs},
        "model": model,
        "training": training,
        "distribution": {"actor": {"num": actors, "send_size": send_size}},
    }


def _dqn(seen: Seen, cores: int, env_steps: int | None) -> Table:
    training: Table = {
        "replay_ratio": 16.0,
        "batch_size": 128,
        "warmup_steps": 2000,
        "n_step": 3,
        "gamma": 0.99,
        "double": True,
        "target_every": 200,
        "learning_rate": 1e-3,
        "publish_every": 10,
        **_falling_rate(env_steps),
    }
    if seen.has_pictures:
        training |= {
            "replay_ratio": 2.0,
            "batch_size": 32,
            "warmup_steps": SMALLEST_REPLAY,
            "target_every": 500,
            "learning_rate": 2.5e-4,
            "publish_every": 20,
        }
    return {
        "environment": {"num_envs": 8},
        "agent": {
            "epsilon_schedule": "linear",
            "epsilon_start": 1.0,
            "epsilon_end": 0.02,
            "epsilon_steps": max(1, (env_steps or usual_steps(seen)) // 10),
        },
        "model": _image_model("cnn_q", seen) or {"type": "mlp_q"},
        "training": training,
        "distribution": _replay("dqn", seen, cores, 200_000, send_size=16),
    }


def _sac(seen: Seen, cores: int, env_steps: int | None) -> Table:
    del env_steps  # The papers' rates are constant.
    return _actor_q("sac", "gaussian_q", seen, cores)


def _td3(seen: Seen, cores: int, env_steps: int | None) -> Table:
    del env_steps  # The papers' rates are constant.
    return _actor_q("td3", "deterministic_q", seen, cores)


def _actor_q(agent: str, model: str, seen: Seen, cores: int) -> Table:
    training: Table = {
        "replay_ratio": 256.0,
        "batch_size": 256,
        "warmup_steps": 4000,
        "n_step": 1,
        "gamma": 0.99,
        "learning_rate": 3e-4,
        "target_tau": 0.005,
        "publish_every": 10,
    }
    if seen.has_pictures:
        training |= {"replay_ratio": 64.0, "batch_size": 128, "warmup_steps": 2000}
    return {
        "environment": {"num_envs": 4},
        "agent": {"warmup_hold": 16},
        "model": _image_model(f"cnn_{model}", seen) or {"type": f"mlp_{model}"},
        "training": training,
        "distribution": _replay(agent, seen, cores, 1_000_000, send_size=4),
    }


AGENTS: Final[Mapping[str, Callable[[Seen, int, int | None], Table]]] = MappingProxyType(
    {"ppo": _ppo, "dqn": _dqn, "sac": _sac, "td3": _td3}
)
"""Functions that choose the defaults, by the agent's name."""


def _image_model(name: str, seen: Seen) -> Table | None:
    """Choose the convolutions for images, residual ones where this machine is fast; None without images."""
    if not (images := [replace(image, planes=image.planes * seen.stack) for image in seen.pictures]):
        return None
    small: Table = {"encoder": "impala_small"}
    if min(min(image.height, image.width) for image in images) < _NATURE_SIDE:
        small |= {"kernels": [4, 3], "strides": [2, 2]}
    learnt_s = 3 * sum(map(_residual_work, images)) / (_TORCH_TO_NUMPY * seen.work_per_s)
    return {"type": name, **(small if learnt_s > _LEARNT_S else {"encoder": "impala_large"})}


def _residual_work(image: ImageShape) -> int:
    """Count the multiply-adds of impala_large's forward pass over an image; backward takes twice as many."""
    work, planes, height, width = 0, image.planes, image.height, image.width
    for channels in (16, 32, 32):
        work += 9 * planes * channels * height * width
        planes, height, width = channels, (height + 1) // 2, (width + 1) // 2
        work += 4 * 9 * channels**2 * height * width
    return work + 256 * planes * height * width


def _falling_rate(env_steps: int | None) -> Table:
    """Let the learning rate fall to 0 by the end of the run, if the end is known."""
    if env_steps is None:
        return {}
    return {"learning_rate_schedule": "linear", "schedule_steps": env_steps}


def _actors_to_follow(agent: str, seen: Seen, cores: int) -> int:
    """Count the actors that keep pace with the learner: they make as many steps as it can use."""
    followed_s = _FOLLOWED_S_OF_IMAGES if seen.has_pictures else _FOLLOWED_S[agent]
    return max(1, min(MOST_ACTORS, cores - 1, round(seen.step_s / followed_s)))


def _replay(agent: str, seen: Seen, cores: int, most: int, send_size: int) -> Table:
    """Choose actors and a replay of ``most`` env steps, or fewer if observations are large."""
    space = seen.observation
    bytes_of_one = math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize
    capacity = max(SMALLEST_REPLAY, min(most, REPLAY_BYTES // max(1, bytes_of_one)))
    actors = _actors_to_follow(agent, seen, cores)
    return {"actor": {"num": actors, "send_size": send_size}, "buffer": {"capacity": capacity}}
