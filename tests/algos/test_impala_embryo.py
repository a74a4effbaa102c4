from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from algos.fragments import Fragment, random_fragment, random_rollout
from algos.training import parameters, train

from tianji_algos.core import Spaces, build_model
from tianji_algos.distributions import distribution_for
from tianji_algos.impala.impala import IMPALAEmbryo
from tianji_algos.impala.settings import IMPALASettings
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.mlp import MLPActorCritic
from tianji_algos.models.recurrent import RecurrentActorCritic
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.settings import NoSettings

SMALL: dict[str, Any] = {
    "rollout_steps": 64,
    "minibatch_size": 16,
    "epochs": 3,
    "optimizer": "adam",
    "learning_rate": 1e-2,
}


class Remembering(RecurrentActorCritic):
    """Remembers the sum of what it saw in the episode."""

    settings_type = NoSettings

    def __init__(self, spaces: Spaces, settings: NoSettings) -> None:  # noqa: ARG002 - as models are built
        super().__init__()
        assert spaces.observation.shape is not None
        (self.state_size,) = spaces.observation.shape
        self.outputs = distribution_for(spaces.action).outputs
        self.head = torch.nn.Linear(self.state_size, self.outputs + 1)
        self.unrolled: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def unroll(
        self, observation: torch.Tensor, first: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.unrolled.append((observation.clone(), first.clone(), state.clone()))
        sums = []
        for seen, is_first in zip(observation, first, strict=True):
            state = torch.where(is_first[:, None], 0.0, state) + seen
            sums.append(state)
        output = self.head(torch.cat(sums))
        return output[:, :-1], output[:, -1], state

    def backprop(self) -> Any:
        def backprop(batch: Any, loss_gradient: Any) -> None:
            self.zero_grad(set_to_none=False)
            given = (torch.from_numpy(np.array(x)) for x in (batch.observation, batch.first, batch.state))
            policy, value, _ = self.unroll(*given)
            derivatives = loss_gradient(policy.detach().numpy(), value.detach().numpy())
            torch.autograd.backward((policy, value), [torch.from_numpy(d.copy()) for d in derivatives])

        return backprop


def build(
    spaces: Spaces,
    seed: int = 0,
    model_type: type[ActorCritic] = MLPActorCritic,
    hidden: tuple[int, ...] = (8,),
    **settings: Any,
) -> IMPALAEmbryo:
    of_model = NoSettings() if model_type is Remembering else MLPActorCriticSettings(hidden=hidden)
    model = build_model(model_type, spaces, of_model, seed)
    assert isinstance(model, ActorCritic)
    return IMPALAEmbryo(spaces, model, IMPALASettings(**(SMALL | settings)), seed)


@pytest.fixture
def fragments(spaces: Spaces) -> list[Fragment]:
    return random_rollout(spaces, seed=5)


def test_every_experience_is_seen_once_an_epoch_and_reset_steps_never(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    embryo = build(spaces)
    experience = sorted(x for f in fragments for x in f["log_prob"][f["mask"] == 1].tolist())
    batches = [batch.log_prob.copy() for batch in embryo.minibatches(fragments)]
    assert 0 < len(experience) < 64
    assert len(batches) == 3 * 4
    assert sorted(np.concatenate(batches).tolist()) == sorted(experience * 3)
    assert train(embryo, fragments) == 3 * len(experience)
    assert embryo.uses_per_sample == 3.0


def test_a_minibatch_is_whole_sequences_with_the_observations_that_end_them(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    columns = {f["reward"][:, n].tobytes(): f["observation"][:, n] for f in fragments for n in range(4)}
    shape = spaces.observation.shape or ()
    for batch in build(spaces, epochs=1).minibatches(fragments):
        assert batch.reward.shape == batch.mask.shape == (8, 2)
        seen = batch.observation.reshape(9, 2, *shape)
        for n in range(2):
            of_column = columns.pop(np.ascontiguousarray(batch.reward[:, n]).tobytes())
            np.testing.assert_array_equal(seen[:, n], of_column)
    assert not columns


def test_what_is_in_reset_steps_and_after_terminations_changes_nothing(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    for fragment in fragments:
        fragment["truncated"][fragment["truncated"] == 1] = 0
        fragment["terminated"][:-1] = fragment["mask"][1:] == 0
    clean = build(spaces)
    train(clean, fragments)
    for fragment in fragments:
        resets = fragment["mask"] == 0
        fragment["observation"][:-1][resets] = 1e3
        fragment["action"][resets] = 0
        fragment["log_prob"][resets] = -1e3
        fragment["reward"][resets] = 1e3
    disturbed = build(spaces)
    train(disturbed, fragments)
    np.testing.assert_allclose(parameters(clean), parameters(disturbed), rtol=1e-5, atol=1e-6)


def test_a_network_that_remembers_gets_sequences_their_beginnings_and_what_it_remembered(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    rng = np.random.default_rng(9)
    width = (spaces.observation.shape or ())[0]
    for fragment in fragments:
        fragment["state"] = rng.standard_normal((1, 4, width)).astype(np.float32)
    embryo = build(spaces, model_type=Remembering, epochs=1)
    before = parameters(embryo)
    assert train(embryo, fragments) == sum(int(fragment["mask"].sum()) for fragment in fragments)
    assert (parameters(embryo) != before).any()
    model: Any = embryo.model
    columns = {f["state"][0, n].tobytes(): (f, n) for f in fragments for n in range(4)}
    for observation, first, state in model.unrolled:
        assert observation.shape[:2] == first.shape == (9, 2)
        for k in range(2):
            fragment, n = columns.pop(state[k].numpy().tobytes())
            np.testing.assert_array_equal(observation[:, k], fragment["observation"][:, n])
            np.testing.assert_array_equal(first[1:, k], fragment["mask"][:, n] == 0)
            assert not first[0, k]
    assert not columns


def test_targets_follow_the_parameters_from_update_to_update(cartpole_spaces: Spaces) -> None:
    fragment = random_fragment(np.random.default_rng(0), 16, 4, cartpole_spaces)
    embryo = build(cartpole_spaces, epochs=200, minibatch_size=64, entropy_coef=0.0)
    losses = []
    for minibatch in embryo.minibatches([fragment]):
        embryo.update(minibatch)
        losses.append(embryo.metrics())
    assert losses[-1]["value_loss"] < 0.8 * losses[0]["value_loss"]
    assert losses[-1]["approx_kl"] > losses[0]["approx_kl"]
    assert losses[-1]["rho"] < losses[0]["rho"]


def test_without_a_correction_it_does_not_matter_how_likely_actions_were(
    spaces: Spaces, fragments: list[Fragment]
) -> None:
    trained = {}
    for correction in ("vtrace", "none"):
        for shift in (0.0, -0.5):
            embryo = build(spaces, correction=correction)
            changed = [f | {"log_prob": f["log_prob"] + np.float32(shift)} for f in fragments]
            train(embryo, changed)
            trained[correction, shift] = parameters(embryo)
    np.testing.assert_array_equal(trained["none", 0.0], trained["none", -0.5])
    assert (trained["vtrace", 0.0] != trained["vtrace", -0.5]).any()
