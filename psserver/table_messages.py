"""Figures of tables to messages and back."""

from psserver.table_figures import TableFigures
from pswire.messages import MessageCodec
from pswire.v1 import memory_pb2

_FIGURES = MessageCodec(TableFigures, memory_pb2.TableUse)
table_to_wire = _FIGURES.to_wire
table_from_wire = _FIGURES.from_wire
