"""What daemons log, and how: plain lines for people, or one JSON object per line with a stable event name.

Every call of a logger names its event, `log.info("%s is back", worker, extra=event("connection_back", worker=worker))`,
and `EVENTS` has them all; a test compares. Texts may change between releases, names of events and fields do not.
"""

import inspect
import json
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from pswire.decisions.entries import KINDS, Entry
from pswire.decisions.records import declared
from pswire.logs.lines import LONGEST, MOST_LINES, BoundedHandler

FORMATS: Final = ("text", "json")
TEXT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"


@dataclass(frozen=True, slots=True)
class Event:
    """`by`: the commands that log it. `fields`: keys that its line has beside the common ones."""

    by: str
    fields: tuple[str, ...]
    meaning: str


SERVER, WORKER, BOTH = "ps-server", "ps-worker", "both"

EVENTS: Final[dict[str, Event]] = {
    # Members
    "worker_joined": Event(SERVER, ("worker", "incarnation", "task_index"), "a worker has become a member"),
    "connection_lost": Event(
        SERVER, ("worker", "grace"), "a worker's session broke; seconds it has to return"
    ),
    "session_cut": Event(SERVER, ("worker",), "a worker does not read what it is sent"),
    "chief_changed": Event(
        BOTH, ("worker",), "another worker validates and writes files for all, from the next epoch on"
    ),
    "backend": Event(WORKER, ("backend", "device"), "what a loop of your own computes with"),
    "worker_waits": Event(SERVER, ("seconds",), "somebody has waited long; the message says for what"),
    # Certificates
    "identity_renewed": Event(
        BOTH, ("subject",), "the files of the certificate have changed: the new one is used"
    ),
    "identity_not_renewed": Event(BOTH, (), "they have changed and cannot be used: the former ones are"),
    # Servers
    "too_many_workers": Event(
        SERVER, ("workers", "room"), "more workers are expected than the server has descriptors or memory for"
    ),
    "server_ready": Event(SERVER, ("server", "address"), "server 0 follows: another server executes the log"),
    "server_unreachable": Event(
        SERVER, ("server", "address", "seconds"), "another server does not answer yet"
    ),
    "not_where_expected": Event(
        SERVER, ("server", "address"), "server 0 looks for this server elsewhere, or takes another one for it"
    ),
    "server_lost": Event(SERVER, ("server",), "another server is gone: the job ends"),
    "following": Event(SERVER, ("job",), "this server executes that job's log"),
    "shard_ready": Event(SERVER, ("bytes", "variables"), "this server holds its part of the model"),
    "open_to_all": Event(
        SERVER, (), "others can reach this server, and nothing keeps them out; said each minute"
    ),
    "certificate_ends": Event(
        SERVER, (), "the certificate or its authority's ends within a week; said each day"
    ),
    "certificate_misnamed": Event(
        SERVER, (), "the certificate is not for the server's own name in --ps-hosts"
    ),
    "call_refused": Event(SERVER, ("peer", "method"), "a peer is known, and the method is not for its role"),
    "data_port": Event(SERVER, ("port",), "payloads of other machines' workers are taken here"),
    # Decisions and their execution
    "advice": Event(SERVER, (), "the policy is meant for another optimizer"),
    "update_refused": Event(
        SERVER, ("version", "workers"), "an update would not be finite: its contributions are dropped"
    ),
    "decision_failed": Event(SERVER, (), "a policy or the coordinator raised"),
    "job_failed": Event(SERVER, (), "nothing more can be decided: the job ends"),
    "entry_failed": Event(SERVER, ("entry",), "a shard cannot execute an entry of the log: the job ends"),
    "tickets_taken_back": Event(SERVER, ("seconds",), "granted versions were not read in time"),
    "grant_without_version": Event(SERVER, ("ticket",), "the worker must pull the version itself"),
    "updates_in_numpy": Event(SERVER, ("reason",), "compiled arithmetic is not available"),
    "code_not_kept": Event(SERVER, (), "compiled code is made anew at each start"),
    # Connections for payloads
    "data_port_refused": Event(SERVER, (), "no port for payloads: they travel over gRPC"),
    "local_socket_refused": Event(SERVER, (), "no Unix socket for workers of this machine"),
    "shared_memory_refused": Event(SERVER, ("reason",), "no memory is shared with workers"),
    "accept_failed": Event(SERVER, (), "a connection cannot be accepted yet"),
    "connection_refused": Event(SERVER, (), "a connection was closed at its beginning"),
    "connection_broken": Event(SERVER, (), "a connection to a worker ended in the middle"),
    "session_failed": Event(BOTH, ("worker",), "a fault of this program in a session"),
    "exchange_failed": Event(SERVER, (), "a fault of this program in an exchange"),
    # Ends
    "trial_unanswered": Event(
        SERVER, ("servers",), "no word whether an update would be finite: the job ends"
    ),
    "staying": Event(SERVER, (), "the job has ended; a worker that joins begins the next one"),
    "checkpoint_written": Event(
        SERVER,
        ("version", "bytes", "seconds"),
        "a checkpoint is complete: all servers have written their part",
    ),
    "part_copied": Event(
        SERVER, ("bytes", "seconds"), "what this server saves is copied, and may change again; for debugging"
    ),
    "checkpoint_failed": Event(SERVER, ("version",), "a checkpoint was not written; training goes on"),
    "checkpoint_skipped": Event(
        SERVER, ("version",), "one was due while the one before it was being written"
    ),
    "checkpoint_passed_over": Event(SERVER, (), "a checkpoint is damaged, or is none of this run's"),
    "log_damaged": Event(
        SERVER, ("entries",), "a line of the decision log cannot be read: what is before it counts"
    ),
    "generation_damaged": Event(
        SERVER, (), "a file was damaged: the job's generations are counted on further ahead"
    ),
    "resumed": Event(SERVER, ("version", "rolled_back"), "the job goes on from a checkpoint"),
    "begins_anew": Event(SERVER, ("rolled_back",), "a job that was cut off before its first checkpoint"),
    "begins_again": Event(
        SERVER, (), "a server was lost: this one goes back to what is saved, and waits for it"
    ),
    "metrics_differ": Event(SERVER, (), "workers of one job measure different things; said once"),
    "no_final_weights": Event(SERVER, (), "the weights of the last version cannot be had"),
    "no_room_for_weights": Event(SERVER, (), "the disk keeps no room for the final weights"),
    "checkpoints_given_up": Event(SERVER, ("count",), "older checkpoints made room for the next one"),
    "run_folder_failed": Event(SERVER, (), "the run folder cannot be written to"),
    "nothing_kept": Event(SERVER, (), "no run folder was named, and the default one cannot be made"),
    "metrics_not_written": Event(SERVER, (), "metrics.prom cannot be written"),
    # Workers
    "contribution_void": Event(WORKER, (), "the coordinator cancelled the ticket meanwhile"),
    "batch_skipped": Event(WORKER, (), "its gradient is not finite"),
    "state_is_trained": Event(WORKER, (), "a moving average, say, was named as if it were a weight"),
    "no_validation": Event(WORKER, (), "Keras: an epoch ended without worker 0, which validates for all"),
    "same_data": Event(
        WORKER, ("workers",), "Keras: all workers were given the same data, which nobody has cut"
    ),
    "another_seed": Event(
        WORKER, ("seed",), "it drew the initial values with another seed than the servers'"
    ),
    "workers_clip": Event(WORKER, (), "Keras: each worker clips its own gradient, not the mean"),
    "no_batches": Event(WORKER, ("index",), "its part of the data is empty; it is done at once"),
    "not_deterministic": Event(WORKER, (), "TensorFlow had started with several threads, which stay"),
    "metric_own": Event(WORKER, (), "Keras: a metric is no sum; each worker's logs have its own value"),
    "slots_missing": Event(WORKER, (), "Keras: the model's optimizer did not get the servers' slots"),
    "optimizer_anew": Event(WORKER, (), "Keras: the optimizer's earlier steps are not known to the servers"),
    "session_closed": Event(WORKER, (), "the coordinator closed the session; the worker joins again"),
    "session_refused": Event(WORKER, (), "the coordinator had given this worker up; it joins again"),
    "server_moved": Event(WORKER, ("server", "address"), "a server is at another address since it came back"),
    "joined_again": Event(WORKER, ("incarnation", "job"), "as a new incarnation"),
    "rolled_back": Event(
        WORKER, ("batch",), "commits of this worker are undone, and it goes back to this batch"
    ),
    "commits_undone": Event(WORKER, ("batches",), "by a rollback, and this loop cannot work on them again"),
    "server_silent": Event(WORKER, ("server", "pause"), "a server does not answer; seconds to the next try"),
    "data_port_silent": Event(WORKER, ("server",), "what is sent there is not acknowledged; connects again"),
    "transport_unavailable": Event(WORKER, ("server",), "a faster way of travelling is not to be had"),
    "version_cut_off": Event(WORKER, (), "the version that came with a grant; it is pulled again"),
    "ticket_settled": Event(WORKER, ("ticket",), "its fate was decided while an answer was lost"),
    # Both
    "task_index": Event(BOTH, ("task_index", "source"), "--task-index auto was found in the environment"),
    "failed": Event(BOTH, ("exit_code",), "the command's last sentence"),
    "crashed": Event(BOTH, (), "a fault of this program, with the traceback in `exception`"),
    "library": Event(BOTH, (), "logged by somebody else's code, or a Python warning"),
}


def _of_entries() -> Iterator[tuple[str, Event]]:
    """Yield an event for each kind of entry that a server's own log has, with the entry's fields."""
    for kind in KINDS.values():
        if kind.event:
            meaning = inspect.cleandoc(kind.__doc__ or "").split("\n")[0].rstrip(".")
            yield kind.event, Event(SERVER, tuple(each.name for each in declared(kind)), meaning)


EVENTS.update(_of_entries())


def event(name: str, **fields: object) -> dict[str, object]:
    """The `extra` of a log call."""
    return {"event": name, "fields": fields}


def entry_event(entry: Entry) -> dict[str, object]:
    """Return the `extra` of a log call about an entry of the decision log."""
    return event(entry.event, **{each.name: getattr(entry, each.name) for each in declared(type(entry))})


class JsonFormatter(logging.Formatter):
    """time, level, logger, event, message, the event's fields, `exception` where there is one. Texts are bounded."""

    def format(self, record: logging.LogRecord) -> str:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{whole}.{int(record.created % 1 * 1e6):06d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", "library"),
            "message": record.getMessage()[:LONGEST],
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))[-MOST_LINES * 100 :]
        return json.dumps(line, default=str)


class JsonHandler(BoundedHandler):
    """Bounded as lines for people are; JSON escapes by itself."""

    def format(self, record: logging.LogRecord) -> str:
        return JsonFormatter().format(record)


def set_up(command: str, form: str) -> None:
    """The root logger writes to standard error in one of FORMATS. In "json", warnings and crashes are lines too."""
    handler = JsonHandler(sys.stderr) if form == "json" else BoundedHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if form != "json":
        return
    logging.captureWarnings(True)

    def crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        told = (kind, error, trace)
        logging.getLogger(command).critical("%s", error, exc_info=told, extra=event("crashed"))

    sys.excepthook = crashed


def last_words(command: str, message: str, code: int) -> None:
    """Why the command ends, on standard error in the form of `set_up`."""
    if any(isinstance(handler, JsonHandler) for handler in logging.root.handlers):
        logging.getLogger(command).error("%s", message, extra=event("failed", exit_code=code))
    else:
        print(f"{command}: {message}", file=sys.stderr)


def spoken(line: str) -> str:
    """A line of a daemon's log for people: of a JSON line the message, any other as it is."""
    if not line.startswith('{"time"'):
        return line
    try:
        told = json.loads(line)
        who, message = str(told["logger"]), str(told["message"])
    except (ValueError, KeyError, TypeError):
        return line
    if told.get("event") == "failed":
        return f"{who}: {message}"
    return f"{who} {str(told.get('level', '')).upper()} {message}" + _trace(told)


def _trace(told: Mapping[str, Any]) -> str:
    return f"\n{told['exception']}".rstrip() if "exception" in told else ""
