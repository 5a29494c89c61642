"""What a coordinator is given reaches its copies as it is: the same requests, to the last character."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from psserver.coordinator.inputs import Requested
from psserver.service.replicas.inputs import decode, encode
from pswire.messages import COMMITS, LOGGED_REASON, REQUESTS
from pswire.v1 import coordinator_pb2 as pb
from tests.promises import promise

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3 * LOGGED_REASON)
long_texts = st.builds(lambda text, times: text * times, texts, st.integers(1, 20))
counts = st.integers(0, 2**53 - 1)
numbers = st.floats(allow_nan=True)
messages = st.one_of(
    st.builds(lambda holding: pb.SessionRequest(ready=pb.Ready(holding=holding)), counts),
    st.builds(
        lambda ticket, reason, ends: pb.SessionRequest(
            abandon=pb.Abandon(ticket=ticket, reason=reason, unit_ends=ends)
        ),
        *(counts, long_texts, st.booleans()),
    ),
    st.builds(lambda text: pb.SessionRequest(done=pb.Done(ends=text)), long_texts),
    st.builds(lambda text: pb.SessionRequest(leave=pb.Leave(reason=text)), long_texts),
    st.builds(
        lambda version, metrics: pb.SessionRequest(report=pb.Report(version=version, metrics=metrics)),
        *(counts, st.dictionaries(texts, numbers, max_size=5)),
    ),
    st.builds(
        lambda loss, receipts, rate, pull: pb.Commit(
            ticket=1,
            loss=loss,
            receipts=receipts,
            learning_rate=rate,
            times=pb.Times(pull=pull, before=pull),
        ),
        *(numbers, st.lists(st.binary(max_size=64), max_size=3), st.none() | numbers, numbers),
    ),
)


def plain(value: Any) -> Any:
    """Return what tells values apart, also numbers that are not equal to themselves."""
    if is_dataclass(value):
        return type(value).__name__, [plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return repr(value) if isinstance(value, float) else value


@promise("A copy of a job decides from each request as it was decided, to the last character.")
@given(messages)
@example(pb.SessionRequest(abandon=pb.Abandon(ticket=1, reason="x" * 201)))
@example(pb.SessionRequest(abandon=pb.Abandon(ticket=1, reason="\n" * 150)))
@example(pb.Commit(ticket=1, loss=math.nan))
def test_a_copy_decides_from_the_request_that_was_decided(message: pb.SessionRequest | pb.Commit) -> None:
    codec: Any = COMMITS if isinstance(message, pb.Commit) else REQUESTS
    request = codec.from_wire(message)
    assert request is not None
    asked = Requested("w0", 3, request, norm=math.inf)
    [noted], now = decode(encode([(1.5, asked)], 2.0))
    assert isinstance(noted, tuple) and noted[0] == 1.5 and now == 2.0
    assert plain(noted[1]) == plain(asked)
