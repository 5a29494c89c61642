"""Addresses: what is read, and that every refusal names its part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pswire.addresses import Address, AddressError, parse_hosts


def test_hosts() -> None:
    assert parse_hosts("h0:7070, h-1.example.org:7071 ,[::1]:0") == (
        Address("h0", 7070),
        Address("h-1.example.org", 7071),
        Address("::1", 0),
    )
    assert [str(address) for address in parse_hosts("h0:7070,[fe80::1%eth0]:1")] == [
        "h0:7070",
        "[fe80::1%eth0]:1",
    ]
    assert len(parse_hosts("127.0.0.1:0,127.0.0.1:0")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected addresses such as h0:7070,h1:7070, got nothing"),
        ("h0", "expected host:port, got 'h0'"),
        ("h0:", "expected a port from 0 to 65535 after the last colon, got ''"),
        ("h0:seven", "got 'seven' in 'h0:seven'"),
        ("h0:65536", "got '65536'"),
        ("h0:-1", "got '-1'"),
        ("h0:٣", "expected a port"),
        (":7070", "expected host:port, got ':7070'"),
        ("::1:7070", r"write an IPv6 address in brackets: \[::1\]:7070"),
        ("[h0]:7070", "expected host:port"),
        ("http://h0:7070", "expected host:port"),
        ("h0:1,,h1:1", "expected host:port, got ''"),
        ("h0:1,h0:1", "h0:1 is listed twice"),
    ],
)
def test_wrong_hosts_are_refused(text: str, words: str) -> None:
    with pytest.raises(AddressError, match=words):
        parse_hosts(text)


@given(st.text(max_size=20) | st.text("h0:[],.7", max_size=12))
def test_any_text_is_addresses_that_print_alike_or_an_error(text: str) -> None:
    try:
        addresses = parse_hosts(text)
    except AddressError:
        return
    assert parse_hosts(",".join(str(address) for address in addresses)) == addresses
