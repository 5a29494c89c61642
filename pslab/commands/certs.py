"""The command ``ps-lab certs``."""

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from pslab.certificates import (
    CA,
    CertificateFolder,
    HeldCertificate,
    MadeCertificates,
    WantedCertificate,
    parse_servers,
)
from pslab.commands.failure import EPILOG, Failure, console
from pswire.addresses import AddressError
from pswire.security.names import IdentityError, Role

# A certificate that ends within this many days is marked.
SOON = 7
DAYS = 30


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--servers",
    metavar="HOST,...",
    help="Servers in task order: h0,h1 or h0:7070,h1:7070. Other names of a server follow slashes: h0/10.0.0.7.",
)
@click.option(
    "--any-server",
    is_flag=True,
    help="Make one certificate, server.pem, that all --servers share, for pods that read one Secret.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=0,
    help="Number of workers, named w0, w1, ... Default: 0.",
)
@click.option(
    "--any-worker", is_flag=True, help="Make one certificate, worker.pem, that workers of any name share."
)
@click.option(
    "--observers",
    type=click.IntRange(min=0),
    help="Number of observers, for status and dashboard. Default: 1 for a new folder.",
)
@click.option(
    "--days",
    type=click.IntRange(min=1, max=3650),
    help="Validity in days; the authority is valid for a year at least.  [default: 30]",
)
@click.option("--cluster", metavar="NAME", help='Name in every certificate. Default: "lab".')
@click.option(
    "--renew", is_flag=True, help="Replace all certificates in DIR, with new keys; the authority stays."
)
def certs(
    folder: Path,
    servers: str | None,
    any_server: bool,
    workers: int,
    any_worker: bool,
    observers: int | None,
    days: int | None,
    cluster: str | None,
    renew: bool,
) -> None:
    """Make certificates for the processes of a cluster in DIR, and list them.

    DIR gets an authority (ca.pem, which every process needs; ca-key.pem, which stays here), and a certificate with its
    key for each server, worker and observer. Existing certificates stay: the same command with more workers adds
    theirs. Without options, DIR is listed, with the day on which each certificate ends. Needs the extra tls.

    \b
      ps-lab certs certs --servers h0,h1 --workers 4
      ps-lab certs certs --workers 6        # two more
      ps-lab certs certs                    # list them, with their last day
      ps-lab certs certs --renew            # before they end; servers reload the files, workers restart
    """
    made = CertificateFolder(folder)
    try:
        hosts = parse_servers(servers) if servers else ()
        wanted = [
            *_wanted_servers(hosts, any_server),
            *_wanted(workers, any_worker, _observers(observers, folder, servers, workers, any_worker)),
        ]
        if not (wanted or renew) and (days is not None or cluster is not None):
            raise IdentityError(
                f"{'--cluster' if days is None else '--days'}: expected also what to make (--servers, --workers, "
                "--observers), or --renew"
            )
        new = made.make(wanted, cluster, days or DAYS, renew=renew) if wanted or renew else None
        held = made.held()
        if not held:
            raise IdentityError(
                f"{folder} has no certificates: expected --servers and --workers to make some"
            )
    except (IdentityError, AddressError) as error:
        raise Failure(error) from error
    except OSError as error:
        raise Failure(f"{error.filename or folder}: {error.strerror or error}") from error
    console().print(_table(held))
    if new is not None:
        _say(folder, new)


def _observers(given: int | None, folder: Path, servers: str | None, workers: int, any_worker: bool) -> int:
    """Return the number of observers: by default one for a new cluster."""
    if given is not None:
        return given
    return int(bool(servers or workers or any_worker) and not (folder / f"{CA}.pem").exists())


def _wanted_servers(hosts: Sequence[tuple[str, ...]], shared: bool) -> list[WantedCertificate]:
    if shared:
        if not hosts:
            raise IdentityError("--any-server: expected --servers with the names of the servers, got none")
        return [WantedCertificate(Role.SERVER, "", tuple(name for names in hosts for name in names))]
    return [WantedCertificate(Role.SERVER, f"server-{index}", names) for index, names in enumerate(hosts)]


def _wanted(workers: int, any_worker: bool, observers: int) -> Iterator[WantedCertificate]:
    if any_worker:
        yield WantedCertificate(Role.WORKER, "")
    # The names that ps-worker uses for itself.
    yield from (WantedCertificate(Role.WORKER, f"w{index}") for index in range(workers))
    yield from (WantedCertificate(Role.OBSERVER, f"observer-{index}") for index in range(observers))


def _table(held: Sequence[HeldCertificate]) -> Table:
    table = Table(header_style="bold")
    for title in ("file", "of", "for hosts", "until"):
        table.add_column(title, overflow="fold")
    for each in held:
        found = each.certificate
        subject = "the authority" if each.stem == CA else str(found.subject or "no process of a cluster")
        table.add_row(f"{each.stem}.pem", Text(subject), Text(", ".join(found.hosts)), Text(_until(each)))
    return table


def _until(held: HeldCertificate) -> str:
    ends = held.certificate.ends
    left = (ends - datetime.datetime.now(datetime.UTC)) / datetime.timedelta(days=1)
    if left <= 0:
        return f"{ends:%Y-%m-%d}: ended"
    return f"{ends:%Y-%m-%d}, {left:.0f} days" + (": renew it" if left < SOON else "")


def _say(folder: Path, made: MadeCertificates) -> None:
    kept = f"; {len(made.kept)} existing ones are unchanged" if made.kept else ""
    new = ", ".join(made.new) or "none"
    console().print(f"cluster {made.cluster}, new: {new}{kept}", soft_wrap=True)
    console().print(
        f"Each process needs ca.pem and its own two files. {folder / f'{CA}-key.pem'} makes certificates: keep it here "
        "and copy it nowhere.",
        soft_wrap=True,
    )
