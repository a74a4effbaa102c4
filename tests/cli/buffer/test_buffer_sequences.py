from pathlib import Path

import numpy as np
import pytest
from cli.buffer.naive_sequences import NaiveSequences, check_sequences, open_sequences, play, sequences_of
from cli.buffer.replays import JOB, ScriptedActor, bytes_held, fragment_layout
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_algos.fields import FieldSpec
from tianji_cli.config.schema import MOST_IN_SEQUENCE
from tianji_cli.roles.buffer.replay.file import restore_replay, save_replay
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings, bytes_of, kept_first
from tianji_cli.roles.buffer.replay.samples import TERMINATED
from tianji_cli.wire.batches import BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout, common_fields
from tianji_envs.team import TeamSpace

EVENTS = st.lists(st.tuples(st.sampled_from("aaaaaaaalrx"), st.integers(0, 2)), min_size=1, max_size=30)
"""An actor's fragment arrives (a) or is lost (l), the actor restarts (r), or a stranger's is refused (x)."""


@settings(max_examples=200, deadline=None)
@given(
    events=EVENTS,
    seed=st.integers(0, 1000),
    end_rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    layout=st.builds(fragment_layout, st.integers(1, 4), st.integers(1, 3), lean=st.booleans()),
    fragments=st.integers(1, 8),
    most=st.sampled_from([1, 2, 3, 5, 9, 40]),
)
def test_every_sequence_is_what_its_steps_one_by_one_make_of_it(
    events: list[tuple[str, int]],
    seed: int,
    end_rate: float,
    layout: FragmentLayout,
    fragments: int,
    most: int,
) -> None:
    replay, naive = open_sequences(layout, fragments, most), NaiveSequences(layout, fragments, most)
    actors = [ScriptedActor(layout, number, seed, end_rate) for number in range(3)]
    stranger = ScriptedActor(layout, 9, seed, end_rate)
    drawn = 0
    for version, (event, number) in enumerate(events):
        match event:
            case "a":
                play(replay, naive, actors[number], version)
            case "l":
                actors[number].lose()
            case "r":
                actors[number].restart()
            case "x":
                stranger.fill(replay.free)
        complete = naive.complete
        assert (replay.ring.drawable, replay.drawable) == (len(complete), bool(complete))
        assert (replay.size, replay.accepted) == (naive.size, naive.accepted)
        assert replay.steps_given_up == naive.given_up
        if complete:
            into = sequences_of(replay, 8)
            check_sequences(into, naive)
            drawn += into.steps
            assert into.steps == sum(len(complete[key].actions) for key in into.key.tolist())
            assert replay.uses.total == drawn


class Stage:
    """One actor with one environment, whose fragments of 3 steps are written by hand, and others."""

    def __init__(self, most: int = 10, fragments: int = 10, num_envs: int = 1) -> None:
        self.layout = fragment_layout(3, num_envs, shape=())
        self.replay = open_sequences(self.layout, fragments, most)
        self.next: dict[int, int] = {}
        self.rows: dict[int, int] = {}

    def send(self, *columns: str, actor: int = 0, lost: bool = False, incarnation: int = 0) -> None:
        """Send a fragment: in each environment a step goes on (.), terminates (t), truncates (c), resets (r).

        What is observed counts the vector steps of the actor, plus a thousand for each environment.
        """
        memory = memoryview(bytearray(self.layout.nbytes)) if lost else self.replay.free
        fragment = Fragment(self.layout, memory)
        number = self.next.get(actor, 0)
        fragment.begin(
            job=JOB, actor=actor, incarnation=incarnation, sequence=number, before=0, version=number
        )
        self.next[actor] = number + 1
        first = self.rows.get(actor, 0)
        self.rows[actor] = first + 3
        for array in fragment.fields.values():
            array[...] = 0
        for n, column in enumerate(columns):
            fields = {name: array[:, n] for name, array in fragment.fields.items()}
            fields["observation"][:] = first + np.arange(4) + 1000 * n
            fields["action"][:] = first + np.arange(3)
            fields["reward"][:] = first + np.arange(3)
            flags = np.array(list(column))
            fields["mask"][:] = flags != "r"
            fields["terminated"][:] = flags == "t"
            fields["truncated"][:] = flags == "c"
        fragment.header["samples"] = fragment.fields["mask"].sum()
        if not lost:
            self.replay.accept()

    @property
    def sequences(self) -> set[tuple[int, int, bool]]:
        """First observation, length and termination of all that can be drawn."""
        if not self.replay.drawable:
            return set()
        arrays = sequences_of(self.replay, 64).arrays
        firsts = arrays["observation"][:, 0].astype(int).tolist()
        found = set(zip(firsts, arrays["length"].tolist(), arrays["terminated"].tolist(), strict=True))
        assert len(found) == self.replay.ring.drawable
        return found


def test_an_episode_may_lie_in_many_fragments_and_can_be_drawn_once_it_is_over() -> None:
    stage = Stage()
    stage.send("...")
    stage.send("...")
    assert not stage.replay.drawable
    assert stage.replay.size == 6
    stage.send(".tr")
    assert stage.sequences == {(0, 8, True)}


def test_steps_of_an_episode_that_outlives_its_beginning_are_counted_and_given_up() -> None:
    stage = Stage(fragments=2)
    for _ in range(3):
        stage.send("...")
    assert stage.replay.steps_given_up == 0
    stage.send("..t")
    assert stage.replay.steps_given_up == 10, "its first ten steps were full, and their beginning was evicted"
    assert stage.sequences == {(10, 2, True)}


@pytest.mark.parametrize(
    ("most", "sent", "observations"),
    [
        pytest.param(
            6,
            ["..t", "r..", ".c."],
            {(0, 1, 2, 3, 3, 3, 3), (4, 5, 6, 7, 8, 8, 8)},
            id="the last observation is repeated",
        ),
        # The next fragment's first row shows the same, unless the one between was lost.
        pytest.param(
            3, ["...", "lost", "..."], {(0, 1, 2, 3), (6, 7, 8, 9)}, id="it is read in its own fragment"
        ),
    ],
)
def test_observations_of_a_sequence_end_with_the_one_that_its_last_step_led_to(
    most: int, sent: list[str], observations: set[tuple[int, ...]]
) -> None:
    stage = Stage(most=most)
    for column in sent:
        stage.send("..." if column == "lost" else column, lost=column == "lost")
    arrays = sequences_of(stage.replay, 40).arrays
    assert {tuple(rows) for rows in arrays["observation"].astype(int).tolist()} == observations


@pytest.mark.parametrize(
    ("most", "sent", "sequences"),
    [
        pytest.param(10, ["..c"], {(0, 3, False)}, id="a time limit is no termination"),
        pytest.param(
            10,
            ["trt", "rrt"],
            {(0, 1, True), (2, 1, True), (5, 1, True)},
            id="steps that only reset are in no sequence",
        ),
        pytest.param(4, ["..."] * 3, {(0, 4, False), (4, 4, False)}, id="a long episode fills several"),
        pytest.param(
            4, [*["..."] * 3, "t.."], {(0, 4, False), (4, 4, False), (8, 2, True)}, id="and ends in the last"
        ),
        pytest.param(3, ["..t"], {(0, 3, True)}, id="full with the last step of an episode"),
        pytest.param(3, ["..c"], {(0, 3, False)}, id="full where an episode is truncated"),
        pytest.param(3, ["..."], {(0, 3, False)}, id="full in the middle of an episode"),
        pytest.param(10, ["...", "lost"], set(), id="a sequence is open until it is known to be cut"),
        pytest.param(
            10, ["...", "lost", ".t."], {(0, 3, False), (6, 2, True)}, id="a lost fragment cuts a sequence"
        ),
    ],
)
def test_sequences_end_where_episodes_end_or_steps_are_missing(
    most: int, sent: list[str], sequences: set[tuple[int, int, bool]]
) -> None:
    stage = Stage(most=most)
    for column in sent:
        stage.send("..." if column == "lost" else column, lost=column == "lost")
    assert stage.sequences == sequences
    assert stage.replay.size == sum(len(column.replace("r", "")) for column in sent if column != "lost")


def test_sequences_of_environments_and_actors_are_kept_apart() -> None:
    stage = Stage(num_envs=2)
    stage.send("..t", "...", actor=0)
    stage.send("...", ".c.", actor=1)
    stage.send("r..", "t..", actor=0)
    stage.send("..t", "...", actor=1)
    assert stage.sequences == {(0, 3, True), (1000, 4, True), (1000, 2, False), (0, 6, True)}


def test_what_a_dead_actor_has_left_open_is_cut_when_its_successor_is_heard_of() -> None:
    stage = Stage()
    stage.send("t..")
    stage.next.clear()
    stage.send("...", incarnation=1)
    assert stage.sequences == {(0, 1, True), (1, 2, False)}


def test_a_sequence_can_be_drawn_until_the_fragment_of_its_first_step_is_evicted() -> None:
    stage = Stage(fragments=3)
    stage.send("..t")
    stage.send("r..")
    stage.send("..t")
    assert stage.sequences == {(0, 3, True), (4, 5, True)}
    stage.send("r..")
    assert stage.sequences == {(4, 5, True)}
    stage.send("...")
    assert not stage.replay.drawable
    with pytest.raises(ValueError, match="has no batches"):
        sequences_of(stage.replay, 1)


def test_a_sequence_whose_beginning_was_evicted_before_its_end_came_is_never_drawn() -> None:
    stage = Stage(most=20, fragments=2)
    for _ in range(3):
        stage.send("...")
    stage.send("..t")
    assert not stage.replay.drawable
    stage.send("r.t")
    assert stage.sequences == {(13, 2, True)}


def test_sequences_are_drawn_uniformly_however_long_they_are() -> None:
    layout = fragment_layout(5, 3)
    replay, naive = open_sequences(layout, 60, 8, seed=3), NaiveSequences(layout, 60, 8)
    actors = [ScriptedActor(layout, number, 5, end_rate=0.15) for number in range(2)]
    for number in range(80):
        play(replay, naive, actors[number % 2])
    draws, counts = 400, dict.fromkeys(naive.complete, 0)
    for _ in range(draws):
        for key in sequences_of(replay, 32).key.tolist():
            counts[key] += 1
    expected = draws * 32 / len(counts)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    freedom = len(counts) - 1
    assert abs(statistic - freedom) < 4 * np.sqrt(2 * freedom)


def test_uses_are_counted_by_step() -> None:
    stage = Stage()
    stage.send(".t.")
    stage.send("...")
    for _ in range(5):
        sequences_of(stage.replay, 1)
    summary = stage.replay.uses.summary()
    assert summary is not None
    assert stage.replay.uses.counts[:6].tolist() == [5, 5, 0, 0, 0, 0]
    assert (stage.replay.uses.total, summary.mean) == (10, 10 / 6)


def test_a_replay_of_sequences_takes_what_was_predicted() -> None:
    layout = fragment_layout(16, 4)
    replay = open_sequences(layout, 50, 20)
    predicted = bytes_of(layout, replay.settings, ("action",))
    assert bytes_held(replay) == predicted.total


@pytest.mark.parametrize("most", [0, MOST_IN_SEQUENCE + 1])
def test_a_length_that_two_bytes_do_not_hold_is_refused(most: int) -> None:
    with pytest.raises(ValueError, match="a sequence has 1 to 65535 steps"):
        open_sequences(fragment_layout(2, 2), 5, most)


def test_stacks_of_observations_are_refused() -> None:
    with pytest.raises(ValueError, match="fragments hold stacks"):
        open_sequences(fragment_layout(2, 2, stack=3), 5, 4)


def test_another_sampler_than_the_uniform_one_is_refused() -> None:
    layout = fragment_layout(2, 2)
    with pytest.raises(ValueError, match="a sampler 'fresh' has no use for sequences"):
        Replay(layout, ReplaySettings(16, "fresh", sequence_steps=4), agent_fields=("action",), seed=1)


def test_a_span_says_whether_the_sequence_terminated() -> None:
    stage = Stage()
    stage.send("trc")
    assert stage.replay.index.starts[:3].tolist() == [TERMINATED + 1, 0, 1]


@pytest.mark.parametrize("state", [0, 3, 300], ids=["none", "small", "copied row by row"])
def test_records_of_teams_are_gathered_and_saved_as_any_observation(tmp_path: Path, state: int) -> None:
    space = TeamSpace(agents=2, observation=5, actions=3, state=state)
    fields = (*common_fields(space), FieldSpec("action", np.dtype(np.int64), (2,)))
    layout = FragmentLayout(3, 2, kept_first(fields))
    replay, rng, acted = open_sequences(layout, 9, 5), np.random.default_rng(0), []
    for number in range(4):
        fragment = Fragment(layout, replay.free)
        fragment.begin(job=JOB, actor=0, incarnation=0, sequence=number, before=0, version=0)
        for array in fragment.fields.values():
            array.reshape(-1).view(np.uint8)[:] = 0
        for name in space.dtype.names:
            part = fragment.fields["observation"][name]
            part[...] = rng.integers(0, 2, part.shape)
        fragment.fields["mask"][...] = True
        fragment.fields["action"][...] = rng.integers(0, 3, (3, 2, 2))
        fragment.header["samples"] = 6
        acted.append({name: fragment.fields[name].copy() for name in ("observation", "action")})
        replay.accept()
    save_replay(replay, tmp_path)
    restored = open_sequences(layout, 9, 5)
    restore_replay(restored, tmp_path)
    seen = np.concatenate([one["observation"][:3] for one in acted] + [acted[-1]["observation"][3:]])
    actions = np.concatenate([one["action"] for one in acted])
    for one in (replay, restored):
        into = sequences_of(one, 16)
        for place, key in enumerate(into.key.tolist()):
            row, n = divmod(key, 2)
            for name in space.dtype.names:
                drawn = into.arrays["observation"][name][place]
                # The row after a fragment's last is another that its actor has written.
                np.testing.assert_array_equal(drawn[:5], seen[name][row : row + 5, n])
            np.testing.assert_array_equal(into.arrays["fields/action"][place], actions[row : row + 5, n])
        assert set(into.key.tolist()) == {0, 1, 10, 11}


def test_layouts_of_other_records_are_told_apart() -> None:
    layouts = []
    for space in (TeamSpace(2, 5, 3), TeamSpace(2, 5, 4), TeamSpace(2, 5, None)):
        fields = (*common_fields(space), FieldSpec("action", np.dtype(np.int64), (2,)))
        layouts.append(BatchLayout.of(FragmentLayout(3, 2, fields), 4, ("action",), 5))
    assert len({layout.record.fingerprint for layout in layouts}) == 3
