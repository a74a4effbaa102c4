"""The two-step game of Rashid et al. (2018, section 5), which only a mixer beyond sums solves."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from algos.team_episodes import empty_records, team_spaces
from algos.training import parameters

from tianji_algos.batch import SequenceBatch
from tianji_algos.core import build_model
from tianji_algos.models.settings import TeamQSettings
from tianji_algos.models.teams.q_network import TeamQ
from tianji_algos.qmix.qmix import QMIXAgent, QMIXEmbryo
from tianji_algos.qmix.settings import QMIXAgentSettings, QMIXSettings

SPACES = team_spaces(agents=2, observation=3, actions=2, state=3)
PAYOFFS: Final = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)
EPISODES, UPDATES = 32, 250


def play(agent: QMIXAgent, episodes: int) -> SequenceBatch:
    """Agent 0 chooses which game both play then; everybody sees where they are."""
    seen = empty_records(SPACES, episodes, 3)
    action = np.zeros((episodes, 2, 2), np.uint8)
    agent.begin_episodes(np.ones(episodes, np.bool_))
    where = np.zeros(episodes, np.int64)
    for t in range(2):
        seen["state"][:, t] = np.eye(3)[where]
        seen["observation"][:, t] = seen["state"][:, t, None]
        actions = agent.act(seen[:, t], {"action": action[:, t]})
        if t == 0:
            where = 1 + actions[:, 0]
    reward = np.zeros((episodes, 2), np.float32)
    reward[:, 1] = PAYOFFS[where - 1, action[:, 1, 0], action[:, 1, 1]]
    seen["reward"][:, 2] = reward[:, 1, None]
    ended = np.ones(episodes, np.bool_)
    return SequenceBatch(seen, {"action": action}, reward, np.full(episodes, 2, np.int32), ended)


def learn(mixer: str, seed: int) -> float:
    """Train on random episodes, as the paper does; give the return of what was learnt."""
    model = build_model(TeamQ, SPACES, TeamQSettings.model_validate({"mixer": mixer, "width": 32}), seed)
    assert isinstance(model, TeamQ)
    embryo = QMIXEmbryo(SPACES, model, QMIXSettings(learning_rate=2e-3, target_every=50), seed)
    explorer = QMIXAgent(SPACES, model, QMIXAgentSettings(epsilon_end=1.0), EPISODES, seed)
    for _ in range(UPDATES):
        embryo.update(play(explorer, EPISODES))
    greedy = QMIXAgent(SPACES, model, QMIXAgentSettings(epsilon_start=0.0, epsilon_end=0.0), 1, seed)
    greedy.adopt(parameters(embryo))
    return float(play(greedy, 1).reward.sum())


@pytest.mark.parametrize("seed", range(1, 6))
def test_qmix_finds_the_optimum_of_the_two_step_game(seed: int) -> None:
    assert learn("qmix", seed) == 8.0


@pytest.mark.parametrize("seed", range(1, 3))
def test_vdn_settles_for_the_safe_game(seed: int) -> None:
    assert learn("vdn", seed) == 7.0
