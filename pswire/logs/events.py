"""Logging: plain lines for people, or one JSON object per line with a stable event name.

Every logging call names its event, `log.info("%s is back", worker, extra=event("connection_back", worker=worker))`, and
`EVENTS` lists them; a test compares the two. A server also logs entries of the decision log, which name their events
themselves. Texts may change between releases; names of events and fields do not.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from pswire.logs.lines import LONGEST, MAX_LINES, BoundedHandler

FORMATS: Final = ("text", "json")
TEXT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"


@dataclass(frozen=True, slots=True)
class Event:
    """A kind of log line. `by`: the commands that log it. `fields`: its keys besides the common ones."""

    by: str
    fields: tuple[str, ...]
    meaning: str


SERVER, WORKER, BOTH = "ps-server", "ps-worker", "both"

EVENTS: Final[dict[str, Event]] = {
    # Members
    "worker_joined": Event(
        SERVER,
        ("worker", "incarnation", "task_index", "computes"),
        "a worker has become a member; its framework and device",
    ),
    "connection_lost": Event(
        SERVER, ("worker", "grace"), "a worker's session broke; seconds it has to return"
    ),
    "session_cut": Event(SERVER, ("worker",), "a worker does not read its messages"),
    "chief_changed": Event(
        BOTH, ("worker",), "another worker validates and writes files for all, from the next epoch on"
    ),
    "backend": Event(WORKER, ("backend", "device"), "the framework and device of your own loop"),
    "worker_waits": Event(SERVER, ("seconds",), "a worker has waited long; the message says for what"),
    "end_awaits_others": Event(
        SERVER, ("worker",), "under a robust policy one worker alone does not end a job"
    ),
    "uncounted": Event(SERVER, (), "at the end: workers whose work did not count"),
    # Certificates
    "identity_renewed": Event(
        BOTH, ("subject",), "the files of the certificate have changed: the new one is used"
    ),
    "identity_not_renewed": Event(BOTH, (), "they have changed but cannot be used: the old ones stay in use"),
    # Servers
    "too_many_workers": Event(
        SERVER, ("workers", "room"), "more workers are expected than the server has descriptors or memory for"
    ),
    "options_unused": Event(SERVER, ("options",), "given to another server, which does not use them"),
    "variable_misspelt": Event(BOTH, ("variable",), "the environment has a name like one that is read"),
    "server_ready": Event(SERVER, ("server", "address"), "another server executes the log of server 0"),
    "server_unreachable": Event(
        SERVER, ("server", "address", "seconds"), "another server does not answer yet"
    ),
    "follower_failed": Event(
        SERVER, ("server",), "sending decisions to another server failed with an unexpected error"
    ),
    "server_cut_off": Event(
        SERVER, ("server", "address"), "the connection to another server broke; server 0 dials it again"
    ),
    "coordinator_cut_off": Event(
        SERVER, ("seconds",), "the connection to server 0 broke; this server waits for it"
    ),
    "standstill": Event(SERVER, ("version", "seconds"), "the job has made no version for so long, and why"),
    "can_go_on": Event(SERVER, ("version",), "the job ended early; the options that go on from this version"),
    "takes_long": Event(SERVER, ("seconds",), "work on a folder, or compilation, takes long"),
    "server_lost": Event(SERVER, ("server",), "another server is gone: the job ends"),
    "replicas_missing": Event(
        SERVER, ("servers",), "servers of a job with replicas were not here yet; nothing is decided before"
    ),
    "replica_leads": Event(
        SERVER, ("epoch", "members", "part"), "this server leads a part; the members have copies"
    ),
    "replica_promoted": Event(
        SERVER, ("epoch", "lost"), "a person had this server go on alone, because the other one is dead"
    ),
    "replica_unreached": Event(
        SERVER, ("epoch", "server"), "no worker reaches this server, which leaves the lead to another one"
    ),
    "replica_refused": Event(SERVER, ("server",), "another server of the job refuses this one's stream"),
    "replica_stream_failed": Event(
        SERVER, ("server",), "a stream to another server of the job ended with an unexpected error"
    ),
    "replica_ends": Event(
        SERVER, ("signal", "seconds"), "after a signal, this server waits so long at most for the job to end"
    ),
    "replica_failed": Event(SERVER, (), "this copy cannot execute the log of the primary"),
    "copy_given": Event(
        SERVER, ("server", "bytes", "seconds"), "this server gave another one a copy of the job"
    ),
    "copy_refused": Event(
        SERVER, ("server",), "this server cannot give another one a copy: no memory, or no state"
    ),
    "copy_taken": Event(
        SERVER, ("version",), "this server was given a copy of the job, and follows from there"
    ),
    "copies_differ": Event(
        SERVER, ("server", "version", "variable"), "a copy is not the leading server's equal: it is made anew"
    ),
    "following": Event(SERVER, ("job",), "this server executes that job's log"),
    "shard_ready": Event(SERVER, ("bytes", "variables"), "this server holds its part of the model"),
    "open_to_all": Event(
        SERVER, (), "others can reach this server without authentication; repeated each minute"
    ),
    "certificate_ends": Event(
        SERVER, (), "the certificate or its authority's expires within a week; repeated each day"
    ),
    "certificate_misnamed": Event(
        SERVER, (), "the certificate is not for the server's own name in --ps-hosts"
    ),
    "call_refused": Event(
        SERVER,
        ("peer", "method"),
        "no valid credentials, or a method that is not for its role; one line a minute",
    ),
    "data_port": Event(SERVER, ("port",), "payloads of workers on other machines arrive at this port"),
    # Decisions and their execution
    "advice": Event(SERVER, (), "the policy is meant for another optimizer"),
    "nonfinite": Event(
        SERVER,
        ("version", "kept", "variable", "workers"),
        "elements keep their old values, because their new ones would not be finite; ever more seldom",
    ),
    "decision_failed": Event(SERVER, (), "a policy or the coordinator raised an error"),
    "job_failed": Event(SERVER, (), "no decision is possible any more: the job ends"),
    "entry_failed": Event(SERVER, ("entry",), "a shard cannot execute an entry of the log: the job ends"),
    "tickets_taken_back": Event(SERVER, ("seconds",), "granted versions were not read in time"),
    "grant_without_version": Event(SERVER, ("ticket",), "the worker must pull the version itself"),
    "compile_failed": Event(SERVER, (), "what the job computes with cannot be compiled: it ends"),
    "restore_failed": Event(SERVER, (), "the server cannot restore its part of the model: it ends"),
    "code_not_kept": Event(SERVER, (), "compiled code cannot be cached and is compiled at each start"),
    # Connections for payloads
    "data_port_refused": Event(SERVER, (), "no port for payloads: they travel over gRPC"),
    "local_socket_refused": Event(SERVER, (), "no Unix socket for workers of this machine"),
    "shared_memory_refused": Event(SERVER, ("reason",), "no memory is shared with workers"),
    "accept_failed": Event(SERVER, (), "a connection cannot be accepted yet"),
    "connection_refused": Event(SERVER, (), "a connection was closed at its beginning"),
    "connection_broken": Event(SERVER, (), "a connection to a worker broke during a message"),
    "session_failed": Event(BOTH, ("worker",), "a fault of this program in a session"),
    "exchange_failed": Event(SERVER, (), "a fault of this program in an exchange"),
    # Ends
    "checkpoint_written": Event(
        SERVER,
        ("version", "bytes", "seconds"),
        "a checkpoint is complete: all servers have written their part",
    ),
    "part_copied": Event(
        SERVER,
        ("bytes", "seconds"),
        "this server's part of a checkpoint is copied, without rows of tables; for debugging",
    ),
    "checkpoint_failed": Event(SERVER, ("version",), "a checkpoint was not written; training continues"),
    "checkpoint_skipped": Event(
        SERVER, ("version",), "a checkpoint was due while the one before was being written"
    ),
    "checkpoint_passed_over": Event(SERVER, (), "a checkpoint is damaged, or of another run"),
    "log_damaged": Event(
        SERVER, ("entries",), "a line of the decision log cannot be read: only the lines before it count"
    ),
    "generation_damaged": Event(
        SERVER, (), "a file was damaged: the number of the job's generation leaps ahead"
    ),
    "resumed": Event(SERVER, ("version", "rolled_back"), "the job continues from a checkpoint"),
    "begins_anew": Event(SERVER, ("rolled_back",), "a job that was interrupted before its first checkpoint"),
    "begins_again": Event(
        SERVER, (), "a server was lost: this one returns to the last checkpoint and waits for it"
    ),
    "metrics_differ": Event(SERVER, (), "workers of one job report different metrics; logged once"),
    "no_final_weights": Event(SERVER, (), "the weights of the last version are not available"),
    "no_room_for_weights": Event(SERVER, (), "the disk cannot reserve room for the final weights"),
    "checkpoints_given_up": Event(SERVER, ("count",), "older checkpoints made room for the next one"),
    "run_folder_failed": Event(SERVER, (), "the run folder cannot be written to"),
    "nothing_kept": Event(SERVER, (), "no run folder was given, and the default one cannot be made"),
    "metrics_not_written": Event(SERVER, (), "metrics.prom cannot be written"),
    # Workers
    "leader_changed": Event(
        WORKER, ("address", "epoch"), "another server leads the job with replicas; the worker goes on there"
    ),
    "contribution_void": Event(WORKER, (), "the coordinator cancelled the ticket meanwhile"),
    "batch_skipped": Event(WORKER, (), "its gradient is not finite"),
    "state_is_trained": Event(
        WORKER, (), "a variable that looks like state (a moving average) is trained as a weight"
    ),
    "no_validation": Event(WORKER, (), "Keras: an epoch ended without worker 0, which validates for all"),
    "same_data": Event(
        WORKER, ("workers",), "Keras: all workers have the same data, which was not divided among them"
    ),
    "another_seed": Event(
        WORKER, ("seed",), "the worker drew initial values with another seed than the servers'"
    ),
    "workers_clip": Event(WORKER, (), "Keras: each worker clips its own gradient, not the mean"),
    "no_batches": Event(WORKER, ("index",), "the worker's part of the data is empty; it is done at once"),
    "not_deterministic": Event(WORKER, (), "TensorFlow had started with several threads, which stay"),
    "metric_own": Event(
        WORKER, (), "Keras: a metric cannot be summed; each worker's logs have its own value"
    ),
    "slots_missing": Event(WORKER, (), "Keras: the model's optimizer did not get the servers' slots"),
    "optimizer_anew": Event(WORKER, (), "Keras: the servers do not know the optimizer's earlier steps"),
    "session_closed": Event(WORKER, (), "the coordinator closed the session; the worker joins again"),
    "session_refused": Event(WORKER, (), "the coordinator had given this worker up; it joins again"),
    "loss_reduction": Event(
        WORKER,
        ("reduction",),
        "the reduction or mask of a loss makes several workers differ from one process",
    ),
    "request_stuck": Event(WORKER, ("server", "seconds"), "a server has not answered a request for so long"),
    "server_moved": Event(WORKER, ("server", "address"), "a server came back at another address"),
    "joined_again": Event(WORKER, ("incarnation", "job"), "the worker joined as a new incarnation"),
    "rolled_back": Event(
        WORKER, ("batch",), "commits of this worker are undone, and it goes back to this batch"
    ),
    "commits_undone": Event(WORKER, ("batches",), "by a rollback, and this loop cannot repeat them"),
    "server_silent": Event(
        WORKER, ("server", "pause"), "a server does not answer; seconds to the next attempt"
    ),
    "transport_unavailable": Event(WORKER, ("server",), "a faster transport is not available"),
    "version_cut_off": Event(
        WORKER, (), "a version that came with a grant was incomplete; it is pulled again"
    ),
    # Both
    "task_index": Event(BOTH, ("task_index", "source"), "--task-index auto was found in the environment"),
    "failed": Event(BOTH, ("exit_code",), "the command's last message"),
    "crashed": Event(BOTH, (), "a fault of this program, with the traceback in `exception`"),
    "library": Event(BOTH, (), "logged by a library, or a Python warning"),
}


def event(name: str, **fields: object) -> dict[str, object]:
    """Return the `extra` of a log call."""
    return {"event": name, "fields": fields}


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger, event, message, the event's fields, and any `exception`. Texts are bounded."""

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
            line["exception"] = "".join(traceback.format_exception(*record.exc_info))[-MAX_LINES * 100 :]
        return json.dumps(line, default=str)


class JsonHandler(BoundedHandler):
    """Bounded like lines for people, but without escaping, which JSON does itself."""

    def format(self, record: logging.LogRecord) -> str:
        return JsonFormatter().format(record)


def set_up(command: str, form: str) -> None:
    """Make the root logger write to standard error in one of FORMATS. In "json", warnings and crashes are lines."""
    handler = JsonHandler(sys.stderr) if form == "json" else BoundedHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if form != "json":
        return
    logging.captureWarnings(True)

    def crashed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        info = (kind, error, trace)
        logging.getLogger(command).critical("%s", error, exc_info=info, extra=event("crashed"))

    sys.excepthook = crashed


def last_words(command: str, message: str, code: int) -> None:
    """Print why the command ends, on standard error in the form of `set_up`."""
    if any(isinstance(handler, JsonHandler) for handler in logging.root.handlers):
        logging.getLogger(command).error("%s", message, extra=event("failed", exit_code=code))
    else:
        print(f"{command}: {message}", file=sys.stderr)


def spoken(line: str) -> str:
    """Return a daemon's log line for people: the message of a JSON line, any other line as it is."""
    if not line.startswith('{"time"'):
        return line
    try:
        parsed = json.loads(line)
        who, message = str(parsed["logger"]), str(parsed["message"])
    except (ValueError, KeyError, TypeError):
        return line
    if parsed.get("event") == "failed":
        return f"{who}: {message}"
    return f"{who} {str(parsed.get('level', '')).upper()} {message}" + _trace(parsed)


def _trace(parsed: Mapping[str, Any]) -> str:
    return f"\n{parsed['exception']}".rstrip() if "exception" in parsed else ""
