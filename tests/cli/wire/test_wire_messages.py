import math
import typing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.wire.messages import (
    Addresses,
    Adopt,
    Allow,
    Answer,
    Arrive,
    Ask,
    AskClock,
    Began,
    BuildReport,
    Built,
    Cleared,
    Clock,
    Exited,
    Failed,
    Finished,
    FromForkServer,
    FromRoot,
    FromWorker,
    MalformedMessageError,
    Message,
    PageReport,
    PeerLost,
    Present,
    Register,
    Report,
    SpansOf,
    Stop,
    Stopped,
    ToForkServer,
    ToRoot,
    Trace,
    Traced,
    WindDown,
    decode_from_fork_server,
    decode_from_root,
    decode_to_fork_server,
    decode_to_root,
    encode,
)
from tianji_cli.wire.reports import (
    ActorReport,
    BufferReport,
    EvaluatorReport,
    FollowerReport,
    LearnerReport,
    UserReport,
)
from tianji_transports.wiring import Channel, Slot, Wiring

RANKS = 8
for message_type in Message.__subclasses__():
    message_type.model_rebuild()  # Its signature is not known before.
st.register_type_strategy(Path, st.sampled_from([Path("/runs/1"), Path("runs/2")]))
ranks = st.integers(0, RANKS - 1)
finite = st.floats(0, 1e12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
plain_data = st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.none(), max_size=3)
values = st.dictionaries(st.text(), json_values, max_size=4)
rejected = st.dictionaries(st.text(), st.tuples(st.integers(0, 2**53), st.text()), max_size=3)
role_reports = st.one_of(
    st.builds(UserReport, role=st.just("user"), rejected=rejected, values=values),
    *(
        st.builds(kind, role=st.just(kind.role), rejected=rejected, **{name: finite | st.none()})
        for kind, name in (
            (LearnerReport, "mean_100"),
            (BufferReport, "ratio"),
            (EvaluatorReport, "win_rate"),
        )
    ),
    st.builds(ActorReport, role=st.just("actor"), waited_s=st.dictionaries(st.text(), finite, max_size=2)),
    st.builds(FollowerReport, role=st.just("follower"), version=st.integers(0, 2**53)),
)
reports = st.builds(
    Report,
    kind=st.just("report"),
    rank=ranks,
    incarnation=st.integers(0, 10**6),
    roles=st.lists(role_reports, max_size=3),
    busy_s=st.lists(finite, max_size=3),
    running_s=finite,
)
plain = [
    kind for kind in typing.get_args(FromWorker) if kind not in {Report, Stopped, AskClock, SpansOf, Traced}
]
tracing = st.one_of(
    st.builds(AskClock, kind=st.just("ask_clock"), rank=ranks, asked_s=finite),
    st.builds(SpansOf, kind=st.just("spans"), rank=ranks, trace=st.integers(0, 2**20)),
    st.builds(
        Traced,
        kind=st.just("traced"),
        rank=ranks,
        trace=st.integers(0, 2**20),
        began_s=finite,
        ended_s=finite,
        dropped=st.integers(0, 2**53),
        offset_s=st.floats(-1e12, 1e12),
        uncertainty_s=finite,
    ),
)
stopped = st.builds(Stopped, kind=st.just("stopped"), report=reports)
pages = st.builds(PageReport, first_step_age_s=st.none() | finite)
nodes = st.one_of(
    st.builds(Present, kind=st.just("present"), suspended_server=st.none() | st.integers(0, 2**22)),
    st.from_type(Began),
    st.builds(Arrive, kind=st.just("arrive"), cores=st.lists(st.integers(0, 2**20))),
    st.builds(Exited, kind=st.just("exited"), pages=st.lists(pages, max_size=3)),
    st.builds(Answer, kind=st.just("answer"), result=plain_data),
)
to_root = st.one_of(reports, stopped, nodes, tracing, *(st.builds(kind, rank=ranks) for kind in plain))
asks = st.builds(Ask, kind=st.just("ask"), step=plain_data)
from_root = st.one_of(
    asks,
    st.builds(Allow, kind=st.just("allow"), fragments=st.none() | st.integers(min_value=0)),
    st.builds(Clock, kind=st.just("clock"), asked_s=finite, root_s=finite),
    st.builds(Trace, kind=st.just("trace"), until_s=finite),
    st.builds(Adopt, kind=st.just("adopt"), hyperparameters=st.dictionaries(st.text(), st.floats(0, 1))),
    *(
        st.from_type(kind)
        for kind in typing.get_args(FromRoot)
        if kind not in {Ask, Adopt, Allow, Clock, Trace}
    ),
)


from_fork_server = st.one_of(
    st.builds(Built, kind=st.just("built"), report=st.builds(BuildReport, init=st.none() | plain_data)),
    st.from_type(Began),
    st.from_type(Cleared),
    st.builds(Exited, kind=st.just("exited"), pages=st.just([])),
)
to_fork_server = st.one_of(*map(st.from_type, typing.get_args(ToForkServer)))


@given(to_root)
def test_messages_to_the_root_arrive_unchanged(message: ToRoot) -> None:
    assert decode_to_root(encode(message), RANKS) == message


@given(from_root)
def test_messages_of_the_root_arrive_unchanged(message: FromRoot) -> None:
    assert decode_from_root(encode(message)) == message


@given(to_fork_server)
def test_requests_to_a_fork_server_arrive_as_they_were_sent_on_a_line_of_their_own(
    message: ToForkServer,
) -> None:
    assert b"\n" not in encode(message)
    assert decode_to_fork_server(encode(message)) == message


@given(from_fork_server)
def test_news_of_a_fork_server_arrive_as_they_were_sent_on_a_line_of_their_own(
    message: FromForkServer,
) -> None:
    assert b"\n" not in encode(message)
    assert decode_from_fork_server(encode(message)) == message


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_arrives_as_nothing(number: float) -> None:
    user = UserReport(values={"loss": number, "inner": {"losses": [number, 1.0]}})
    learner = LearnerReport(losses={"value": number}, mean_100=number, time_to={475.5: None, 30.0: 1.5})
    sent = Report(rank=1, incarnation=0, roles=[user, learner], busy_s=[0.5, 0.5], running_s=1.0)
    received = decode_to_root(encode(sent), RANKS)
    assert isinstance(received, Report)
    assert received.roles[0] == UserReport(values={"loss": None, "inner": {"losses": [None, 1.0]}})
    assert isinstance(received.roles[1], LearnerReport)
    assert math.isnan(received.roles[1].losses["value"])
    assert replace(received.roles[1], losses={}) == LearnerReport(time_to={475.5: None, 30.0: 1.5})


GARBAGE = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{",
    b"{}",
    b'{"kind": "no_such_kind"}',
    b'{"kind": "register"}',
    b'{"kind": "register", "rank": "one", "incarnation": 0, "pid": 1, "address": ""}',
    b'{"kind": "finished", "rank": 1, "reason": "", "more": 1}',
    b'{"kind": "addresses", "addresses": {"one": ""}}',
    *(
        b'{"kind": "report", "rank": 1, "incarnation": 0, "busy_s": [0], "running_s": 1, "roles": [%b]}'
        % role
        for role in (
            b"{}",
            b'{"role": "king"}',
            b'{"role": "learner", "updates": "many"}',
            b'{"role": "learner", "lag": 1}',
            b'{"role": "learner", "no_such_field": 1}',
            b'{"role": "buffer", "receptions": [[0, 0, 1]]}',
        )
    ),
    b"[" * 100_000,
]


@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: repr(data[:30]))
def test_garbage_is_a_malformed_message(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_to_root(data, RANKS)
    with pytest.raises(MalformedMessageError):
        decode_from_root(data)


@pytest.mark.parametrize("rank", [-1, RANKS, 2**70])
def test_a_rank_that_the_job_does_not_have_says_nothing(rank: int) -> None:
    report = Report(rank=rank, incarnation=0, roles=[], busy_s=[], running_s=0.0)
    for message in (report, Stopped(report=report), Finished(rank=rank, reason="")):
        with pytest.raises(MalformedMessageError, match="no rank"):
            decode_to_root(encode(message), RANKS)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_malformed_message(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_to_root(data, RANKS)


@pytest.mark.parametrize("message", [Stop(), WindDown(), PeerLost(rank=1), Addresses(addresses={1: "x"})])
def test_a_worker_cannot_speak_as_the_root(message: FromRoot) -> None:
    with pytest.raises(MalformedMessageError):
        decode_to_root(encode(message), RANKS)


@pytest.mark.parametrize(
    "message",
    [
        Register(rank=1, incarnation=0, pid=2, address=""),
        Finished(rank=1, reason="done"),
        Failed(rank=1, incarnation=0, cause="", traceback=""),
    ],
)
def test_the_root_cannot_speak_as_a_worker(message: ToRoot) -> None:
    with pytest.raises(MalformedMessageError):
        decode_from_root(encode(message))


def test_a_wiring_reaches_the_root_as_it_was_and_one_that_cannot_be_is_malformed() -> None:
    wiring = Wiring(
        "a job",
        (Channel("contributions", 0, (1, 4), 1 << 20), Channel("fragments", 1, (2, 3), 100, 4, 8)),
        (Slot("policy-0", 1, (2, 3), 64), Slot("average", 0, (1, 4), 1 << 20)),
    )
    message = Register(rank=1, incarnation=0, pid=7, address="here", wiring=wiring)
    heard = decode_to_root(encode(message), RANKS)
    assert isinstance(heard, Register)
    assert heard.wiring == wiring
    with pytest.raises(MalformedMessageError):
        decode_to_root(encode(message).replace(b"[1,4]", b"[]"), RANKS)
