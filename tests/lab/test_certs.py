"""`ps-lab certs`: what it makes is what processes take, and nothing that is there is replaced unasked."""

import re
import shlex
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pslab import certificates as module
from pslab.authority import Authority, described
from pslab.certificates import parse_servers
from pslab.cli import cli
from pswire.addresses import AddressError
from pswire.extras import how_to_install
from pswire.security.files import TlsFiles
from pswire.security.names import Role
from pswire.security.secret import Secret
from tests.docs.markdown import ROOT, named, outside_blocks
from tests.security.authorities import ended


def certs(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["certs", str(folder), *arguments])


def made(folder: Path, *arguments: str) -> str:
    result = certs(folder, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(folder: Path, *arguments: str) -> str:
    result = certs(folder, *arguments)
    assert result.exit_code == 1 or result.exit_code == 2, result.output
    return " ".join(result.output.split())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "certs"


def test_the_page_shows_what_is_made(folder: Path) -> None:
    page = "docs/guides/tls.md"
    (command,) = [shlex.split(line) for line in named(page, "certs").splitlines()]
    assert command[:3] == ["ps-lab", "certs", "certs"]
    made(folder, *command[3:])
    shown = set(re.findall(r"`([\w-]+\.pem)`", outside_blocks(ROOT / page)))
    assert shown == {"ca.pem", "ca-key.pem"} | {
        f"{stem}{end}.pem" for stem in ("server-0", "w0", "observer-0") for end in ("", "-key")
    }
    assert shown <= set(contents(folder))


def test_every_process_has_its_own(folder: Path) -> None:
    made(folder, "--servers", "h0,h1:7071/10.0.0.7", "--workers", "2", "--cluster", "digits")
    stems = ("server-0", "server-1", "w0", "w1", "observer-0")
    assert set(contents(folder)) == {"ca.pem", "ca-key.pem"} | {
        f"{stem}{end}.pem" for stem in stems for end in ("", "-key")
    }
    subjects = [str(TlsFiles.in_folder(folder, stem).read().facts.subject) for stem in stems]
    assert subjects == [
        "ps://digits/server/server-0",
        "ps://digits/server/server-1",
        "ps://digits/worker/w0",
        "ps://digits/worker/w1",
        "ps://digits/observer/observer-0",
    ]
    keys = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*-key.pem")}
    assert set(keys.values()) == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_more_workers_are_added_and_all_else_stays(folder: Path) -> None:
    made(folder, "--servers", "h0", "--workers", "1")
    before = contents(folder)
    said = made(folder, "--servers", "h0", "--workers", "3", "--any-worker")
    assert "new: worker, w1, w2; 3 existing ones are unchanged" in said
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    assert TlsFiles.in_folder(folder, "worker").read().facts.subject.name == ""
    assert TlsFiles.in_folder(folder, "w2").read().ca == before["ca.pem"]


def test_the_same_again_changes_nothing(folder: Path) -> None:
    made(folder, "--servers", "h0", "--workers", "2")
    before = contents(folder)
    assert "new: none" in made(folder, "--servers", "h0", "--workers", "2")
    assert contents(folder) == before


def test_renewed_are_all_but_the_authority(folder: Path) -> None:
    made(folder, "--servers", "h0/10.0.0.7", "--workers", "1", "--days", "3")
    before = contents(folder)
    made(folder, "--renew", "--days", "20")
    after = contents(folder)
    assert after.keys() == before.keys(), "nothing is left beside them"
    assert {name for name in before if after[name] == before[name]} == {"ca.pem", "ca-key.pem"}
    server = described(after["server-0.pem"])
    assert str(server.subject) == "ps://lab/server/server-0"
    assert server.hosts == ("h0", "10.0.0.7", "localhost", "127.0.0.1", "::1")
    assert TlsFiles.in_folder(folder, "server-0").read().facts.subject.role is Role.SERVER


def test_a_folder_alone_is_listed(folder: Path) -> None:
    made(folder, "--servers", "h0", "--days", "3")
    before = contents(folder)
    said = made(folder)
    assert "ps://lab/server/server-0" in said
    assert "3 days: renew it" in said
    assert "365 days" in said
    assert contents(folder) == before


@pytest.mark.parametrize("option", [("--days", "9"), ("--cluster", "lab")])
def test_a_listing_has_no_settings(folder: Path, option: tuple[str, str]) -> None:
    made(folder, "--workers", "1")
    assert f"{option[0]}: expected also what to make" in refused(folder, *option)


def test_an_ended_certificate_is_listed_as_that(folder: Path) -> None:
    made(folder, "--servers", "h0")
    TlsFiles.in_folder(folder, "w0").write(ended(Role.WORKER, "w0"))
    assert ": ended" in made(folder)


def test_a_listing_without_a_folder_says_what_to_do(folder: Path) -> None:
    assert "has no certificates: expected --servers and --workers" in refused(folder)
    assert not folder.exists()


def test_a_server_that_moves_needs_a_new_certificate(folder: Path) -> None:
    made(folder, "--servers", "h0,h1")
    before = contents(folder)
    assert "server-1.pem exists and is not valid for h9: --renew" in refused(folder, "--servers", "h0,h9")
    assert contents(folder) == before
    made(folder, "--servers", "h0,h9", "--renew")
    assert "h9" in described(contents(folder)["server-1.pem"]).hosts


def test_another_cluster_needs_another_folder(folder: Path) -> None:
    made(folder, "--workers", "1", "--cluster", "one")
    assert "belongs to cluster 'one', got --cluster two" in refused(
        folder, "--workers", "2", "--cluster", "two"
    )
    made(folder, "--workers", "2", "--cluster", "one")


def test_certificates_do_not_outlive_their_authority(folder: Path) -> None:
    made(folder, "--workers", "1")
    assert "before certificates of 400 days would" in refused(folder, "--workers", "2", "--days", "400")
    made(folder.with_name("long"), "--workers", "1", "--days", "400")


def test_a_half_is_named(folder: Path) -> None:
    made(folder, "--workers", "1")
    (folder / "w0.pem").unlink()
    assert "expected both w0.pem and w0-key.pem, got one of them" in refused(folder, "--workers", "1")
    (folder / "w0-key.pem").unlink()
    (folder / "ca-key.pem").unlink()
    assert "expected both ca.pem and ca-key.pem" in refused(folder, "--workers", "1")


def test_a_file_of_somebody_elses_is_kept_and_named(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.pem").write_text("nothing of ours")
    assert "expected a certificate in PEM" in refused(folder, "--workers", "1")
    assert contents(folder) == {"notes.pem": b"nothing of ours"}


def test_an_authoritys_key_that_others_can_read_signs_nothing(folder: Path) -> None:
    made(folder, "--workers", "1")
    (folder / "ca-key.pem").chmod(0o644)
    assert "ca-key.pem can be read or written by others (mode 0644)" in refused(folder, "--workers", "2")


def test_without_the_extra_a_sentence_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslab.authority.find_spec", lambda name: None)
    assert how_to_install("tls") in refused(folder, "--workers", "1")
    assert not list(folder.glob("*.pem"))


def test_no_key_is_shown(folder: Path) -> None:
    shown = made(folder, "--servers", "h0", "--workers", "2") + made(folder)
    for path in folder.glob("*-key.pem"):
        for line in path.read_text().splitlines()[1:-1]:
            assert line not in shown


def test_an_authority_is_one_that_launchers_take(folder: Path) -> None:
    made(folder, "--workers", "1", "--cluster", "digits")
    found = Authority((folder / "ca.pem").read_bytes(), Secret((folder / "ca-key.pem").read_bytes()))
    assert found.cluster == "digits"
    assert module.CertificateFolder(folder).held()[0].certificate.subject is None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h0", ("h0",)),
        ("h0:1234/10.0.0.7/h0.example", ("h0", "10.0.0.7", "h0.example")),
        ("fd00::7", ("fd00::7",)),
        ("[fd00::7]:99/h0", ("fd00::7", "h0")),
        ("[fd00::7]", ("fd00::7",)),
    ],
)
def test_servers_are_named_in_the_ways_that_addresses_are(text: str, names: tuple[str, ...]) -> None:
    assert parse_servers(text) == (names,)


@pytest.mark.parametrize("text", ["", "h0,", "h0/", "/h0", "h0:x", "h 0"])
def test_what_is_no_server_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match="expected"):
        parse_servers(text)


def test_one_that_all_servers_share(folder: Path) -> None:
    """For pods, which read one Secret."""
    made(folder, "--any-server", "--servers", "a-0.run,a-1.run", "--any-worker")
    server = described(TlsFiles.in_folder(folder, "server").read().cert)
    assert server.subject is not None
    assert server.subject.role is Role.SERVER and server.subject.name == ""
    assert {"a-0.run", "a-1.run"} <= set(server.hosts)
