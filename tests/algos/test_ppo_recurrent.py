"""PPO with networks that remember: minibatches are sequences, and what was long ago can be learned from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch
from algos.fragments import Fragment, random_rollout
from algos.tiny_gru import TinyGRU
from algos.training import parameters, train

from tianji_algos.core import Fields, Spaces, build_model
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.ppo import PPOAgent, PPOEmbryo, PPOMinibatch
from tianji_algos.ppo.settings import PPOAgentSettings, PPOSettings
from tianji_algos.rollout_observations import Sequences

STEPS, ENVS = 8, 4
SMALL: dict[str, Any] = {"rollout_steps": 64, "minibatch_size": 24, "epochs": 3, "learning_rate": 1e-2}
HIDDEN = (6,)


def build(spaces: Spaces, model_type: type[ActorCritic] = TinyGRU, **settings: Any) -> PPOEmbryo:
    hidden = settings.pop("hidden", HIDDEN)
    model = build_model(model_type, spaces, MLPActorCriticSettings(hidden=hidden), 0)
    assert isinstance(model, ActorCritic)
    return PPOEmbryo(spaces, model, PPOSettings(**(SMALL | settings)), 0)


@pytest.fixture
def fragments(spaces: Spaces) -> list[Fragment]:
    return random_rollout(spaces, seed=5, steps=STEPS, envs=ENVS, state_size=HIDDEN[0])


def test_minibatches_are_whole_sequences_as_near_to_their_size_as_can_be(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    embryo = build(spaces, epochs=1)
    seen: list[tuple[int, int]] = []
    widths = []
    for batch in embryo.minibatches(fragments):
        assert isinstance(batch.observation, Sequences)
        widths.append(batch.observation.first.shape[1])
        for b, state in enumerate(batch.observation.state):
            ((f, n),) = [
                (f, n) for f in range(2) for n in range(ENVS) if (fragments[f]["state"][0, n] == state).all()
            ]
            seen.append((f, n))
            fragment = fragments[f]
            np.testing.assert_array_equal(
                batch.observation.observation[:, b], fragment["observation"][:-1, n]
            )
            np.testing.assert_array_equal(batch.observation.first[1:, b], fragment["mask"][:-1, n] == 0)
            assert not batch.observation.first[0, b]
    assert sorted(seen) == [(f, n) for f in range(2) for n in range(ENVS)]
    assert seen != sorted(seen)
    assert sorted(widths) == [2, 3, 3], "64 steps in minibatches of about 24"


def test_samples_are_the_outputs_of_steps_that_are_experience(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    embryo = build(spaces, epochs=1, normalize_advantage="none")
    recorded: list[float] = []
    for batch in embryo.minibatches(fragments):
        sequences = batch.observation
        assert batch.outputs is not None
        shown = sequences.observation.reshape(-1, *sequences.observation.shape[2:])[batch.outputs]
        for observation, log_prob, value in zip(shown, batch.log_prob, batch.value, strict=True):
            ((f, t, n),) = [
                (f, *where)
                for f in range(2)
                for where in np.argwhere((fragments[f]["observation"] == observation).all(axis=-1)).tolist()
            ]
            assert fragments[f]["mask"][t, n]
            assert (fragments[f]["log_prob"][t, n], fragments[f]["value"][t, n]) == (log_prob, value)
        recorded += batch.log_prob.tolist()
    assert sorted(recorded) == sorted(x for f in fragments for x in f["log_prob"][f["mask"] == 1].tolist())


def test_what_is_in_reset_steps_changes_nothing(spaces: Spaces, fragments: list[Fragment]) -> None:
    clean, disturbed = build(spaces), build(spaces)
    train(clean, fragments)
    expected = parameters(clean)
    for fragment in fragments:
        resets = fragment["mask"] == 0
        assert resets.any()
        fragment["observation"][:-1][resets] = 7.0
        fragment["action"][resets] = 0
        fragment["log_prob"][resets] = -1e6
    train(disturbed, fragments)
    np.testing.assert_array_equal(parameters(disturbed), expected)


def test_the_gradient_is_autograds_of_the_steps_that_are_experience(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    whole: dict[str, Any] = {"minibatch_size": 64, "epochs": 1, "max_grad_norm": 1e9, "entropy_coef": 0.01}
    embryo, twin = build(spaces, **whole), build(spaces, **whole).model
    (batch,) = embryo.minibatches(fragments)
    embryo.update(batch)
    assert isinstance(twin, TinyGRU)
    torch.autograd.backward(loss(twin, batch, spaces))
    for ours, theirs in zip(embryo.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def loss(model: TinyGRU, batch: PPOMinibatch, spaces: Spaces) -> torch.Tensor:
    """PPO's, step by step and environment by environment."""
    terms = []
    sequences, samples = batch.observation, list(batch.outputs if batch.outputs is not None else ())
    steps, envs = sequences.first.shape
    for b in range(envs):
        state = torch.from_numpy(sequences.state[b : b + 1])
        for t in range(steps):
            shown = torch.from_numpy(sequences.observation[t, b : b + 1])
            state = torch.zeros_like(state) if sequences.first[t, b] else state
            policy, value, state = model.unroll(shown[None], torch.zeros(1, 1, dtype=torch.bool), state)
            if t * envs + b not in samples:
                continue
            k = samples.index(t * envs + b)
            action = torch.as_tensor(batch.action[k : k + 1])
            if isinstance(spaces.action, gym.spaces.Discrete):
                chosen: Any = torch.distributions.Categorical(logits=policy)
                log_prob, entropy = chosen.log_prob(action), chosen.entropy()
            else:
                chosen = torch.distributions.Normal(policy[:, :1], policy[:, 1:].exp())
                log_prob, entropy = chosen.log_prob(action)[:, 0], chosen.entropy()[:, 0]
            ratio = (log_prob - float(batch.log_prob[k])).exp()
            advantage = float(batch.advantage[k])
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            terms.append(-gain + 0.25 * (value - float(batch.target[k])) ** 2 - 0.01 * entropy)
    return torch.cat(terms).mean()


def test_a_minibatch_has_one_sequence_at_least(spaces: Spaces, fragments: list[Fragment]) -> None:
    embryo = build(spaces, minibatch_size=STEPS - 1, epochs=1)
    widths = [batch.observation.first.shape[1] for batch in embryo.minibatches(fragments)]
    assert widths == [1] * (2 * ENVS)


@pytest.mark.parametrize("normalize", ["minibatch", "rollout"])
def test_sequences_without_experience_make_no_update(
    spaces: Spaces, fragments: list[Fragment], normalize: str
) -> None:
    fragments[0]["mask"][:] = 0
    embryo = build(spaces, minibatch_size=STEPS, epochs=1, normalize_advantage=normalize)
    used = [embryo.update(batch) for batch in embryo.minibatches(fragments)]
    assert (len(used), sum(used)) == (ENVS, fragments[1]["mask"].sum())
    assert list(embryo.minibatches(fragments[:1])) == []


class Recall:
    """Environments that show a sign once; three steps later, the action that goes with it is rewarded.

    The step after an episode's end resets.
    """

    LENGTH = 4
    spaces = Spaces(gym.spaces.Box(-1.0, 1.0, (1,), np.float32), gym.spaces.Discrete(2))

    def __init__(self, envs: int) -> None:
        self._rng = np.random.default_rng(1)
        self._age = self._rng.integers(self.LENGTH, size=envs)
        self._sign = self._rng.integers(2, size=envs)

    def observe(self) -> npt.NDArray[np.float32]:
        shown = np.where(self._age == 0, 2.0 * self._sign - 1.0, 0.0)
        return shown.astype(np.float32)[:, None]

    def step(self, action: npt.NDArray[Any], row: Fields) -> None:
        """Write reward, terminated, truncated and mask."""
        row["mask"][:] = self._age < self.LENGTH
        ends = self._age == self.LENGTH - 1
        row["terminated"][:], row["truncated"][:] = ends, 0
        row["reward"][:] = ends & (action == self._sign)
        begins = self._age == self.LENGTH
        self._sign = np.where(begins, self._rng.integers(2, size=len(action)), self._sign)
        self._age = np.where(begins, 0, self._age + 1)


def share_of_rewards(embryo: PPOEmbryo, rounds: int) -> float:
    """Train; how many of the last ten rollouts' episodes were rewarded. Fragments end amid episodes."""
    spaces, steps, envs = Recall.spaces, 13, 64
    model = embryo.model
    agent = PPOAgent(spaces, embryo.model, PPOAgentSettings(), envs, 0)
    specs = (
        *PPOAgent.fields(spaces, None),
        *type(model).recorded(spaces, MLPActorCriticSettings(hidden=(16,))),
    )
    fields = {s.name: np.zeros((s.rows(steps), envs, *s.shape), s.dtype) for s in specs}
    fields["observation"] = np.zeros((steps + 1, envs, 1), np.float32)
    fields["reward"] = np.zeros((steps, envs), np.float32)
    fields |= {name: np.zeros((steps, envs), np.uint8) for name in ("terminated", "truncated", "mask")}
    once = {spec.name for spec in specs if spec.once}
    world, flat, shares = Recall(envs), np.empty(model.parameter_count, np.float32), []
    for _ in range(rounds):
        agent.begin(fields)
        for t in range(steps):
            row = {name: field[t] for name, field in fields.items() if name not in once}
            row["observation"][:] = world.observe()
            world.step(agent.act(row["observation"], row), row)
            agent.begin_episodes(row["mask"] == 0)
        fields["observation"][steps] = world.observe()
        agent.finish(fields, fields["observation"][steps])
        shares.append(fields["reward"].sum() / fields["terminated"].sum())
        for minibatch in embryo.minibatches([fields]):
            embryo.update(minibatch)
        model.write_parameters(flat)
        agent.adopt(flat)
    return float(np.mean(shares[-10:]))


def test_a_network_that_remembers_learns_what_another_cannot() -> None:
    settings: dict[str, Any] = {"rollout_steps": 13 * 64, "minibatch_size": 208, "epochs": 4, "hidden": (16,)}
    remembers = share_of_rewards(build(Recall.spaces, **settings), 30)
    forgets = share_of_rewards(build(Recall.spaces, MLPActorCritic, **settings), 30)
    assert remembers > 0.95
    assert forgets < 0.6
