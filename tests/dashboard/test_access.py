"""Whose requests are answered: pure checks of their heads."""

import pytest

from pslab.dashboard import access


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost:8765", "LOCALHOST", "[::1]:8765", "10.0.0.3", "lab-7:1"]
)
def test_addresses_and_own_names_are_answered(host: str) -> None:
    assert access.host_problem(host, frozenset({"lab-7"})) == ""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "", "lab-8:1", "1.2.3"]
)
def test_a_name_that_leads_here_from_elsewhere_is_not(host: str) -> None:
    assert "open the address that ps-lab dashboard printed" in access.host_problem(host, frozenset({"lab-7"}))


def test_a_browser_says_who_made_it_ask() -> None:
    assert not access.foreign({}) and not access.foreign({"sec-fetch-site": "same-origin"})
    assert access.foreign({"sec-fetch-site": "cross-site"}) and access.foreign(
        {"sec-fetch-site": "same-site"}
    )


def test_the_token_is_in_the_link_or_in_the_cookie() -> None:
    assert access.knows("secret", "secret", "") and access.knows("secret", "", "a=b; ps_dashboard=secret")
    for given, cookie in (
        ("", ""),
        ("secre", ""),
        ("", "ps_dashboard=other"),
        ("", "ps_dashboard"),
        ("", "\x00"),
    ):
        assert not access.knows("secret", given, cookie)


def test_loopback() -> None:
    assert all(map(access.is_loopback, ("127.0.0.1", "127.3.2.1", "::1", "localhost")))
    assert not any(map(access.is_loopback, ("0.0.0.0", "10.0.0.1", "lab-7")))


def test_nothing_foreign_may_run_or_frame_the_page() -> None:
    policy = access.HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
