from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tianji_algos.models.settings import TeamQSettings
from tianji_algos.models.teams.q_network import MonotonicMixer, build_mixer, separate, summed
from tianji_algos.team import Team

AGENTS, STATE, WIDTH, HYPERNET = 3, 4, 5, 6

TEAM = Team(AGENTS, 2, (2, 2, 2), discrete=True, state=STATE, has_state=True)

Floats = npt.NDArray[np.float32]


def numbers(*shape: int) -> st.SearchStrategy[Floats]:
    return arrays(np.float32, shape, elements=st.floats(-100, 100, width=32))


def monotonic(parameters: Floats | None = None) -> MonotonicMixer:
    mixer = MonotonicMixer(AGENTS, STATE, WIDTH, HYPERNET)
    if parameters is not None:
        start = 0
        for parameter in mixer.parameters():
            values = np.resize(parameters, start + parameter.numel())[start:]
            parameter.data.copy_(torch.from_numpy(values).view_as(parameter))
            start += parameter.numel()
    return mixer


@settings(max_examples=200, deadline=None)
@given(values=numbers(2, AGENTS), state=numbers(2, STATE), parameters=numbers(97))
def test_the_teams_value_never_falls_as_an_agents_rises(
    values: Floats, state: Floats, parameters: Floats
) -> None:
    own = torch.from_numpy(values).requires_grad_()
    mixed = monotonic(parameters)(own, torch.from_numpy(state))
    (slopes,) = torch.autograd.grad(mixed.sum(), own)
    assert torch.isfinite(mixed).all()
    assert (slopes >= 0.0).all()


def test_qmix_mixes_as_the_paper_writes_it() -> None:
    torch.manual_seed(1)
    mixer = monotonic()
    values, state = torch.randn(7, AGENTS), torch.randn(7, STATE)
    with torch.no_grad():
        mixed = mixer(values, 5.0 - 8.0 * state)
        state = 5.0 - 8.0 * state
        mean, deviation = state.mean(dim=1, keepdim=True), state.std(dim=1, correction=0, keepdim=True)
        of_both = mean.sign() * (1.0 + mean.abs()).log(), (1.0 + deviation).log()
        state = torch.cat(((state - mean) / deviation, *of_both), dim=1)
        for row in range(7):
            of_hidden, of_output, of_bias, bias = mixer.first(state[row]).split(
                [HYPERNET, HYPERNET, WIDTH, WIDTH]
            )
            w_1 = mixer.hidden_weight(of_hidden.relu()).abs().view(AGENTS, WIDTH)
            w_2 = mixer.output_weight(of_output.relu()).abs()
            hidden = torch.nn.functional.elu(values[row] @ w_1 + bias)
            expected = hidden @ w_2 + mixer.output_bias(of_bias.relu())
            torch.testing.assert_close(mixed[row], expected)


def test_coordinates_in_the_state_do_not_make_values_large() -> None:
    torch.manual_seed(3)
    state = 1000.0 * torch.randn(64, STATE)
    with torch.no_grad():
        assert monotonic()(torch.zeros(64, AGENTS), state).abs().max() < 10.0


@pytest.mark.parametrize(
    "states",
    [
        torch.randn(3, STATE, generator=torch.Generator().manual_seed(2)),
        torch.tensor([[-5.0], [0.0], [1.0], [5.0]]).expand(4, STATE),
        torch.tensor([[-3.0, -1.0, 1.0, 3.0], [-6.0, -2.0, 2.0, 6.0], [2.0, 4.0, 6.0, 8.0]]),
        torch.tensor([[-1.0], [0.0], [1.0], [2.0]]),
    ],
    ids=["of any kind", "of one number each", "of one shape", "of width 1"],
)
def test_different_states_mix_differently(states: torch.Tensor) -> None:
    torch.manual_seed(2)
    with torch.no_grad():
        mixer = MonotonicMixer(AGENTS, states.shape[1], WIDTH, HYPERNET)
        mixed = mixer(torch.ones(len(states), AGENTS), states)
    assert torch.pdist(mixed).min() > 1e-3


@settings(max_examples=50, deadline=None)
@given(values=numbers(4, AGENTS), state=numbers(4, STATE))
def test_vdn_is_the_sum_whatever_the_state(values: Floats, state: Floats) -> None:
    mixed = summed(torch.from_numpy(values), torch.from_numpy(state))
    np.testing.assert_allclose(mixed.numpy(), values.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "kind", "outputs"),
    [("qmix", MonotonicMixer, 1), ("vdn", summed, 1), ("none", separate, AGENTS)],
)
def test_settings_choose_the_mixer(name: str, kind: object, outputs: int) -> None:
    mixer = build_mixer(TEAM, TeamQSettings.model_validate({"mixer": name}))
    assert kind in {mixer, type(mixer)}
    assert mixer(torch.zeros(2, AGENTS), torch.zeros(2, STATE)).shape == (2, outputs)
