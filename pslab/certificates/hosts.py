"""`--servers`: where the servers of a cluster are, and what else they are called."""

from dataclasses import dataclass

from pswire.addresses import Address, AddressError, parse_address

# Of an address that is given without one.
PORT = 7070


@dataclass(frozen=True, slots=True)
class ServerHost:
    """`address`: as in --ps-hosts; `others`: names and addresses by which it is reached, too."""

    address: Address
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.address.host, *self.others)


def parse_servers(text: str) -> tuple[ServerHost, ...]:
    """`h0,h1:7071/10.0.0.7`: servers in task order, each with its port if that is not 7070, and behind slashes what
    else it is called. Raises AddressError."""
    return tuple(_server(part.strip()) for part in text.split(","))


def _server(text: str) -> ServerHost:
    first, *others = text.split("/")
    if not all((first, *others)):
        raise AddressError(f"expected servers such as h0,h1 or h0:7070/10.0.0.7, got {text!r}")
    return ServerHost(_address(first), tuple(_address(other).host for other in others))


def _address(text: str) -> Address:
    """With a port or without; an IPv6 address without one needs no brackets."""
    bare = text.count(":") > 1 and not text.startswith("[")
    if bare or text.endswith("]"):
        return parse_address(f"[{text.strip('[]')}]:{PORT}")
    return parse_address(text if ":" in text else f"{text}:{PORT}")
