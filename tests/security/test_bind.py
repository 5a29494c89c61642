"""What listens where other machines reach it is protected, or somebody has said that it need not be."""

import logging
import socket
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from psserver import cli
from psserver.options import Options
from psserver.service.life.listeners import remind
from psserver.settings import SettingsError, resolve
from pswire.exits import ExitCode
from pswire.security.credentials import NO_TLS
from pswire.security.names import Role
from pswire.security.settings import SecurityOptions
from tests.promises import promise
from tests.security.identities import Identities
from tests.sentences import Recorder


def run(*options: str) -> tuple[Result, mock.Mock]:
    """The command's end, and the calls that would have bound or listened."""
    opened = mock.Mock(side_effect=AssertionError("a port was opened"))
    with mock.patch.object(socket.socket, "bind", opened), mock.patch.object(cli, "set_up"):
        return CliRunner().invoke(cli.main, list(options)), opened


@promise("Off the loopback without TLS no port is ever open, unless --insecure was given.")
@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "192.0.2.7"])
def test_off_the_loopback_without_tls_is_refused_before_any_port_is_open(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acceptance 1."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    result, opened = run("--ps-hosts", "127.0.0.1:0", "--bind", bind, "--no-out")
    assert result.exit_code == ExitCode.USAGE and not opened.called
    [line] = result.output.splitlines()
    assert line.startswith(f"ps-server: --bind {bind}: other machines reach this address")
    assert "--tls-ca" in line and "--insecure" in line


def test_an_address_off_the_loopback_says_where_it_came_from(sentences: Recorder) -> None:
    hosts = '{"cluster": {"ps": ["ps0.invalid:7070"], "worker": ["w:1"]}, "task": {"type": "ps", "index": 0}}'
    with pytest.raises(SettingsError) as refused:
        resolve(Options(), hosts)
    sentences.check(refused)
    with pytest.raises(SettingsError) as refused:
        resolve(Options(ps_hosts="192.0.2.7:7070"), None)
    sentences.check(refused)


def test_loopback_needs_nothing() -> None:
    for place in ("127.0.0.1", "localhost", "[::1]"):
        settings = resolve(Options(ps_hosts=f"{place}:7070"), None)
        assert (settings.security, settings.exposure) == ("loopback", None)


def test_tls_or_insecure_opens_a_server_to_others(identities: Identities) -> None:
    def settings(security: SecurityOptions):  # type: ignore[no-untyped-def]
        return resolve(Options(ps_hosts="127.0.0.1:0", bind="0.0.0.0", security=security), None)

    protected = settings(identities.options(Role.SERVER, "s0"))
    assert (protected.security, protected.exposure) == ("tls", None)
    open_to_all = settings(SecurityOptions(insecure=True))
    assert open_to_all.security == "insecure" and "without TLS (--insecure)" in str(open_to_all.exposure)


def test_insecure_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        remind(NO_TLS, "open to all", 0.0)
    assert [record.getMessage() for record in caplog.records] == ["open to all"]


def test_what_does_not_fit_together_is_one_sentence(identities: Identities) -> None:
    files = identities.files(Role.SERVER, "s0")
    ca, cert, key = str(files.ca), str(files.cert), str(files.key)
    for security, words in (
        (SecurityOptions(tls_cert=cert, tls_key=key), "expected --tls-ca"),
        (SecurityOptions(ca), "expected --tls-cert and --tls-key, too"),
        (SecurityOptions(ca, cert), "expected --tls-key, too"),
        (SecurityOptions(ca, cert, key, insecure=True), "--insecure means without TLS"),
    ):
        with pytest.raises(SettingsError, match=words):
            resolve(Options(ps_hosts="127.0.0.1:0", security=security), None)


def test_an_option_counts_before_the_environment_and_that_before_the_file(identities: Identities) -> None:
    files = identities.files(Role.SERVER, "s0")
    overrides = ('security.ca="/nowhere/ca.pem"', 'security.cert="/nowhere/cert.pem"')
    environment = {"PS_TLS_CERT": str(files.cert), "PS_TLS_KEY": str(files.key)}
    found = resolve(
        Options(
            ps_hosts="127.0.0.1:0",
            overrides=overrides,
            environment=environment,
            security=SecurityOptions(tls_ca=str(files.ca)),
        ),
        None,
    )
    assert found.credentials.identity.facts.subject.name == "s0"


def test_a_certificate_that_is_no_servers_is_refused_at_once(identities: Identities) -> None:
    options = identities.options(Role.WORKER, "w0")
    given = ("--tls-ca", options.tls_ca, "--tls-cert", options.tls_cert, "--tls-key", options.tls_key)
    result, opened = run("--ps-hosts", "127.0.0.1:0", "--no-out", *map(str, given))
    assert result.exit_code == ExitCode.UNTRUSTED and not opened.called
    assert "a server needs one with the role server" in result.output
