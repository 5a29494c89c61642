"""Figures of sparse tables, as rows of text for terminals and pages. Pure."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from pslab.display.status import number
from psserver.table_figures import TableFigures, together
from psserver.table_messages import table_from_wire
from pswire.v1 import coordinator_pb2 as pb

TITLES = ("table", "rows", "MiB")


def figures_of(status: pb.StatusReply) -> list[TableFigures]:
    """Return the figures of each table of a running job, added up over servers."""
    return together(table_from_wire(table) for server in status.servers for table in server.memory.tables)


def table_row(table: TableFigures) -> tuple[str, ...]:
    """Return the cells of a table, under `TITLES`."""
    return table.name, str(table.rows), number(table.nbytes / 2**20, 2)


def tables_view(tables: Iterable[TableFigures]) -> Table:
    """Return a table of tables."""
    view = Table(box=None, pad_edge=False, header_style="dim")
    for title in TITLES:
        view.add_column(title, no_wrap=True, justify="left" if title == "table" else "right")
    for table in tables:
        view.add_row(*map(escape, table_row(table)))
    return view
