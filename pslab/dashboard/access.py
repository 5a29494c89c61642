"""Checks of a request's headers: host name, other sites, token. Pure."""

import hmac
import ipaddress
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie

COOKIE = "ps_dashboard"

# Headers of every response: only the page's own files may run or be fetched, and no other page may frame it.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def host_problem(host: str, names: frozenset[str]) -> str:
    """Return why a request with this Host header is refused; empty if it is not.

    Another site's name may resolve to this address (DNS rebinding).
    """
    name = _name(host)
    if name in names or name == "localhost" or _is_address(name):
        return ""
    return f"this is not {name or 'a host without a name'}: open the address that ps-lab dashboard printed"


def _name(host: str) -> str:
    """Return the host without its port, and an IPv6 address without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def foreign(headers: Mapping[str, str]) -> bool:
    """Whether the browser reports that another site's page caused the request."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def knows(token: str, given: str, cookie: str) -> bool:
    """Whether the token is in the link (`given`) or in the cookie that replaced it."""
    try:
        morsel = SimpleCookie(cookie).get(COOKIE)
    except CookieError:
        morsel = None
    stored = morsel.value if morsel is not None else ""
    return any(hmac.compare_digest(token.encode(), one.encode()) for one in (given, stored))
