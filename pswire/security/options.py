"""The options of TLS and tokens, declared once for every command that listens or connects."""

import functools
from collections.abc import Callable
from typing import Any

import click

from pswire.security.settings import SecurityOptions

_CA = (
    "Authorities whose certificates are believed (PEM); TLS is spoken from then on, and nothing else. Or PS_TLS_CA, or "
    "[security] of the experiment file; so are the others."
)
_CERT = (
    "This process's certificate (PEM), whose name ps://CLUSTER/ROLE/NAME says what it may do. Or PS_TLS_CERT."
)
_KEY = "Its private key, which nobody else may read. Or PS_TLS_KEY."
_TOKENS = (
    "Instead of certificates of clients: a file (mode 0600) with lines such as 'worker/w0 SECRET', a client's with its "
    "own line only. Or the lines themselves in PS_TOKEN."
)


def security_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--tls-ca, --tls-cert, --tls-key and --token-file; the command gets them as `security`, a SecurityOptions."""

    @functools.wraps(command)
    def with_security(*args: Any, **given: Any) -> Any:
        names = ("tls_ca", "tls_cert", "tls_key", "token_file", "insecure")
        said = {name: given.pop(name) for name in names if name in given}
        return command(*args, security=SecurityOptions(**said), **given)

    made: Callable[..., Any] = with_security
    for name, text in (
        ("--token-file", _TOKENS),
        ("--tls-key", _KEY),
        ("--tls-cert", _CERT),
        ("--tls-ca", _CA),
    ):
        made = click.option(name, metavar="FILE", help=text)(made)
    return made


def insecure_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--insecure, above `security_options`, for what listens."""
    text = (
        "Let other machines reach this process without TLS. Whoever reaches it may join, read the model and change it; "
        "on a network of its own that may be right."
    )
    return click.option("--insecure", is_flag=True, help=text)(command)
