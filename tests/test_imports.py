"""Who may import whom (CONTRIBUTING.md). Each rule is one line of the table below.

Files are parsed, not imported, so an import inside a function or under
TYPE_CHECKING counts too. What a running process really loads is asked of a
fresh interpreter further down.
"""

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.promises import promise

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pswire", "psserver", "psworker", "pslab")
TENSORFLOW = ("tensorflow", "keras")
PYDANTIC = ("pydantic", "pydantic_core")
# What would let time, chance, other threads or other machines into the pure parts.
IMPURE = (
    *("time", "datetime", "random", "secrets", "uuid"),
    *("threading", "asyncio", "concurrent", "multiprocessing", "subprocess", "signal"),
    *("socket", "selectors", "grpc"),
)
# What `psserver.service.runtime` gives a server.
MACHINE = (
    *("time", "threading", "concurrent", "select", "selectors", "pswire.running"),
    *("pswire.transport.connecting", "pswire.transport.socket_handshake"),
)
# Formats that run code when they are read.
PICKLES = ("pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve")
STDLIB = tuple(sys.stdlib_module_names)
# How knobs are declared, checked and described: pure, and the standard library only.
KNOBS = ("pswire.knobs", "pswire.domains", "pswire.nearest")


@dataclass(frozen=True)
class Rule:
    """Files of module `where` (but not `but`) import nothing of `never` (except what is in `save`),
    and only `only` when it is given."""

    where: str
    only: tuple[str, ...] | None = None
    never: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    save: tuple[str, ...] = ()


# Keras' other backends.
OTHER_STEPS = ("psworker.backends.jax.step", "psworker.backends.torch.step")

RULES = (
    *(Rule(package, never=PICKLES) for package in PACKAGES),
    Rule(
        "pswire",
        only=(
            *(*STDLIB, "pswire", "numpy", "ml_dtypes", "grpc", "google.protobuf", *PYDANTIC),
            # Options that several commands have.
            "click",
            # Compiled when a job uses a codec with blocks.
            "numba",
        ),
    ),
    Rule(
        "pswire",
        never=("numba",),
        but=("pswire.compiled", "pswire.transport.block_kernels", "pswire.model.batch_kernels"),
    ),
    Rule(
        "psserver",
        never=("numba", "llvmlite"),
        but=("psserver.fast.compiler", "psserver.fast.row_kernels", "psserver.fast.row_updates"),
    ),
    Rule(
        "psserver.fast",
        only=(*STDLIB, "numpy", "numba", "llvmlite", "psserver.fast", "pswire.salt", "pswire.compiled"),
    ),
    Rule("pswire", never=("click",), but=("pswire.command.options",)),
    # TLS itself is Python's and gRPC's; to make certificates is an extra.
    *(Rule(package, never=("cryptography",), but=("pslab.authority",)) for package in PACKAGES),
    Rule(
        "pswire",
        never=PYDANTIC,
        but=(
            "pswire.command.options",
            "pswire.config.experiment",
            "pswire.config.flags",
            "pswire.config.problems",
            # Reads the ranges from the models' fields.
            "pswire.config.ranges",
            "pswire.config.run_sections",
            "pswire.config.sections",
        ),
    ),
    *(Rule(module, only=(*STDLIB, *KNOBS), never=IMPURE) for module in KNOBS),
    Rule("psserver", never=(*TENSORFLOW, "psworker", "examples")),
    Rule(
        "psserver.policies",
        only=(*STDLIB, "psserver.policies", "psserver.records", "pswire.values", *KNOBS),
        never=IMPURE,
    ),
    Rule(
        "psserver.coordinator",
        only=(
            *(*STDLIB, "psserver.policies", "psserver.coordinator", "psserver.records", "pswire.domains"),
            *("pswire.protocol", "psserver.decisions.entries", "pswire.values"),
        ),
        never=IMPURE,
    ),
    Rule("psserver.replication", only=(*STDLIB, "psserver.replication"), never=IMPURE),
    Rule(
        "psserver.shard",
        only=(
            *(
                *STDLIB,
                "numpy",
                "psserver.shard",
                "psserver.policies",
                "psserver.optimizers",
                "psserver.fast",
            ),
            *("pswire.model.plan", "psserver.records", "psserver.decisions.orders", "pswire.values"),
            *("pswire.transport.blocks", "pswire.transport.codecs", "pswire.transport.deltas"),
            *(
                "pswire.model.tables",
                "pswire.model.initial_rows",
                "pswire.model.rows",
                "psserver.table_figures",
                "pswire.model.adjacent",
                "pswire.model.groups",
            ),
        ),
        never=IMPURE,
    ),
    Rule(
        "psserver.optimizers",
        only=(*STDLIB, "numpy", "psserver.optimizers", "psserver.fast", *KNOBS),
        never=IMPURE,
    ),
    Rule(
        "psserver.checkpoint",
        only=(
            *(*STDLIB, "numpy", "psserver.checkpoint", "psserver.coordinator", "psserver.policies"),
            *("psserver.shard", "pswire.model", "psserver.records", "pswire.generations", "pswire.own_files"),
            "psserver.decisions",
            "pswire.domains",
        ),
        never=IMPURE,
    ),
    # An extra: a server without metrics does not load it.
    Rule("psserver", never=("prometheus_client",), but=("psserver.metrics",)),
    Rule("psworker", never=("psserver", "pslab", "examples")),
    Rule("pswire", never=("psserver",)),
    Rule(
        "psserver.decisions",
        only=(*STDLIB, "psserver.decisions", "pswire.domains", "pswire.values"),
        never=IMPURE,
    ),
    # What only the laboratory reads of an experiment file, and how certificates are made, stand in it.
    *(Rule(package, never=("pslab",)) for package in ("pswire", "psserver")),
    Rule(
        "psworker",
        never=TENSORFLOW,
        but=(
            "psworker.keras",
            "psworker.backends.tensorflow",
            "psworker.backends.keras",
            *OTHER_STEPS,
        ),
    ),
    # Keras' part knows no backend: what is TensorFlow's own is in that backend.
    Rule("psworker.keras", never=("tensorflow", "torch", "jax", "jaxlib")),
    Rule("psworker.backends.keras", never=("tensorflow",)),
    *(Rule(name, never=("tensorflow",)) for name in OTHER_STEPS),
    Rule("psworker", never=("torch",), but=("psworker.torch", "psworker.backends.torch")),
    Rule("psworker", never=("jax", "jaxlib"), but=("psworker.jax", "psworker.backends.jax")),
    # A chain is known by what it is made of, and Optax is loaded by whoever makes one.
    *(Rule(package, never=("optax", "flax")) for package in PACKAGES),
    *(Rule(package, never=("torch", "jax", "jaxlib")) for package in PACKAGES if package != "psworker"),
    Rule("psworker.backends", never=("psworker.torch", "psworker.jax", "psworker.keras", "grpc")),
    Rule(
        "psworker.local",
        only=(
            *(*STDLIB, "numpy", "psworker.local", *KNOBS),
            *("pswire.model.plan", "pswire.model.groups", "pswire.model.tables"),
        ),
        never=IMPURE,
    ),
    Rule(
        "psworker.engine",
        only=(
            *STDLIB,
            "psworker.engine",
            "psworker.errors",
            "pswire.protocol",
            "pswire.values",
            "psserver.records",
        ),
        never=IMPURE,
    ),
    Rule("pslab", never=(*TENSORFLOW, "psworker.keras", "examples")),
    # Slow to load, and only the laboratory's: see test_commands_start_without_pandas.
    *(Rule(package, never=("pandas",)) for package in ("pswire", "psserver", "psworker")),
    Rule("pslab", never=("pandas",), but=("pslab.runs.frames", "pslab.compare.charts")),
    Rule("pslab", never=("tensorboardX",), but=("pslab.observe.tensorboard",)),
    # Extras: `ps-lab` starts without them.
    Rule("pslab.manifests", only=(*STDLIB, "pslab.manifests", "pslab.experiment", "pswire"), never=IMPURE),
    Rule("pslab", never=("ray",), but=("pslab.launch.engines.ray",)),
    # An extra: everything but the page does without it.
    Rule(
        "pslab",
        never=("starlette", "uvicorn"),
        but=("pslab.dashboard.app", "pslab.dashboard.serve"),
    ),
    # Chance comes from generators that are passed in; nobody may ask the clock or the network.
    Rule(
        "pslab.simulator",
        never=(
            *(name for name in IMPURE if name != "random"),
            "random.random",
            "psworker",
            "psserver.service",
        ),
        but=("pslab.simulator.folder",),
        # A job's import and errors are those of a problem of one's own, too.
        save=("psworker.engine", "psworker.local", "psworker.work", "psworker.job"),
    ),
    # gRPC stands in what serves its calls, or makes some.
    Rule(
        "psserver",
        never=("grpc",),
        but=(
            "psserver.metrics.collector",
            *(
                "psserver.service.runtime",
                "psserver.service.net.registration",
                "psserver.service.net.services",
            ),
            "psserver.service.net.sessions",
            *("psserver.service.job.follower", "psserver.service.replicas.link"),
            "psserver.service.server",
            *("psserver.service.life.results", "psserver.service.life.listeners"),
        ),
    ),
    # A server takes clock, threads, disk and connections from the Runtime that it is given. What serves replicas does
    # not yet. Of the others: threads of real sockets, what tells people of long work, the trial of the system's
    # limits, certificates, which count by the wall clock, and the wait between two servers of a process.
    Rule(
        "psserver.service",
        never=(*MACHINE, "socket"),
        but=(
            *("psserver.service.runtime", "psserver.service.pools", "psserver.service.replicas"),
            *("psserver.service.net.sockets", "psserver.service.net.connection"),
            *("psserver.service.net.bulk", "psserver.service.net.tls_connection"),
            *("psserver.service.store.slow", "psserver.service.guard.machine"),
            *("psserver.service.life.listeners", "psserver.service.life.servers"),
        ),
    ),
    Rule(
        "pslab.simulator.folder",
        never=("grpc", "time", "psserver.service.server", "psserver.service.job"),
        save=("psserver.service.job.run_log",),
    ),
)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path: Path, root: Path) -> tuple[tuple[int, str], ...]:
    """(line, absolute module name) of every import; `from a import b` is named a.b, for b may be a module."""
    return tuple(named_imports(path, root))


def named_imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    package = module_name(path, root).split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def violations(rule: Rule, root: Path) -> list[str]:
    found = []
    for path in sorted((root / rule.where.split(".")[0]).rglob("*.py")):
        name = module_name(path, root)
        if not within(name, (rule.where,)) or within(name, rule.but):
            continue
        for line, imported in imports(path, root):
            forbidden = within(imported, rule.never) and not within(imported, rule.save)
            if forbidden or (rule.only is not None and not within(imported, rule.only)):
                found.append(f"{path.relative_to(root)}:{line}: {name} must not import {imported}")
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.where)
def test_rule_holds(rule: Rule) -> None:
    found = violations(rule, ROOT)
    assert not found, "\n".join(found)


def test_rules_name_what_exists() -> None:
    """A rule about a module that was renamed would hold for ever."""
    for rule in RULES:
        for name in (rule.where, *rule.but):
            path = ROOT / name.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), f"no module {name}; correct the table"


def test_no_thread_or_connection_is_got_from_the_loop() -> None:
    """By what would be no import."""
    machine = {"to_thread", "run_in_executor", "open_connection", "start_server", "create_server"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.attr}"
        for path in sorted((ROOT / "psserver" / "service").rglob("*.py"))
        if "replicas" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in machine
    ]
    assert not found, f"ask the Runtime: {found}"


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import time", "time"),
        ("def f() -> None:\n    from time import monotonic", "time.monotonic"),
        ("import numpy.linalg as la", "numpy.linalg"),
        ("from ..coordinator import entries", "psserver.coordinator.entries"),
        ("from .. import service", "psserver.service"),
        ("import psserver.policiesque", "psserver.policiesque"),
    ],
)
def test_violation_is_found(tmp_path: Path, source: str, imported: str) -> None:
    home = tmp_path / "psserver" / "policies"
    home.mkdir(parents=True)
    (home / "machine.py").write_text(f"import math\nfrom . import events\nfrom .a import A\n{source}\n")
    rule = Rule("psserver.policies", only=(*STDLIB, "psserver.policies"), never=IMPURE)
    line = 3 + len(source.splitlines())
    assert violations(rule, tmp_path) == [
        f"psserver/policies/machine.py:{line}: psserver.policies.machine must not import {imported}"
    ]


def import_graph(root: Path, packages: Iterable[str]) -> dict[str, set[str]]:
    """Module -> the modules that its file names in imports, wherever they stand."""
    files = {
        module_name(path, root): path
        for package in packages
        for path in sorted((root / package).rglob("*.py"))
    }
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        named = {
            found
            for _, found in imports(path, root)
            for found in (found, found.rpartition(".")[0])
            if found in files
        }
        # `from a import b` names a.b and perhaps a; the module is enough.
        graph[name] = {found for found in named if not any(n.startswith(found + ".") for n in named)} - {name}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or not: what is left when all without a circle are taken away."""
    left = dict(graph)
    while True:
        ends = {name for name, named in left.items() if not named & left.keys()}
        starts = left.keys() - {found for named in left.values() for found in named}
        if not ends and not starts:
            break
        left = {name: named for name, named in left.items() if name not in ends | starts}
    return [sorted(left)] if left else []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(import_graph(ROOT, PACKAGES)) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    home = tmp_path / "package"
    home.mkdir()
    for name, source in (
        ("a", "from package.b import x"),
        ("b", "def f():\n    import package.c"),
        ("c", ""),
    ):
        (home / f"{name}.py").write_text(source)
    assert circles(import_graph(tmp_path, ["package"])) == []
    (home / "c.py").write_text("from package import a")
    imports.cache_clear()
    assert circles(import_graph(tmp_path, ["package"])) == [["package.a", "package.b", "package.c"]]


# A line of a package docstring that names a module and what it holds.
MAP_LINE = re.compile(r"^    ([a-z_]+)  +\S", re.MULTILINE)


def unknown_modules(package: Path) -> list[str]:
    """Names in the module map of the package's docstring that are no module of it."""
    source = (package / "__init__.py").read_text(encoding="utf-8")
    named = MAP_LINE.findall(ast.get_docstring(ast.parse(source), clean=False) or "")
    return [
        name for name in named if not (package / f"{name}.py").is_file() and not (package / name).is_dir()
    ]


def test_module_maps_in_docstrings_name_what_exists() -> None:
    homes = [init.parent for package in PACKAGES for init in sorted((ROOT / package).rglob("__init__.py"))]
    found = {str(home.relative_to(ROOT)): unknown for home in homes if (unknown := unknown_modules(home))}
    assert not found, found


def test_a_stale_module_map_is_found(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('"""One.\n\n    here   a module\n    gone   none any more\n"""\n')
    (tmp_path / "here.py").touch()
    assert unknown_modules(tmp_path) == ["gone"]


def loaded(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter holds after `code`, and psworker's modules by full name."""
    ask = "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + ask], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return {name for name in modules if "." not in name or name.startswith("psworker.")}


def import_all(package: str, but: tuple[str, ...] = ()) -> str:
    """Code that imports every module of `package`; importing a __main__ would run it."""
    names = (module_name(path, ROOT) for path in sorted((ROOT / package).rglob("*.py")))
    wanted = [name for name in names if not name.endswith("__main__") and not within(name, but)]
    return f"import importlib\nfor name in {wanted!r}:\n    importlib.import_module(name)"


@promise("ps-server never loads TensorFlow.")
def test_no_server_module_loads_tensorflow() -> None:
    assert not loaded(import_all("psserver")) & {*TENSORFLOW, "psworker", "pslab"}


def test_worker_without_tensorflow() -> None:
    """The session is a library for loops that need numpy only."""
    ours = ("psworker.keras", "psworker.torch", "psworker.jax")
    backends = tuple(f"psworker.backends.{name}" for name in ("keras", "tensorflow", "torch", "jax"))
    code = import_all("psworker", but=(*ours, *backends))
    assert not loaded(code) & {*TENSORFLOW, "torch", "jax", "psserver", "psworker.keras"}


def test_lab_loads_no_tensorflow() -> None:
    assert not loaded(import_all("pslab")) & {*TENSORFLOW, "psworker.keras"}


def test_commands_start_without_pandas() -> None:
    """It takes half a second to load, and the base installation lacks it."""
    assert not loaded("import pslab.cli") & {"pandas", "matplotlib"}


def test_simulator_loads_no_network() -> None:
    found = loaded(import_all("pslab/simulator"))
    assert not found & {*TENSORFLOW, "grpc"}
    worker = {name for name in found if name.startswith("psworker.")}
    assert all(
        within(name, tuple(f"psworker.{each}" for each in ("engine", "local", "work", "errors", "job")))
        for name in worker
    ), worker


def test_light_parts_of_the_wire_stay_light() -> None:
    """They are on the start-up path of every daemon."""
    modules = ("model.plan", "transport.frames", "addresses", "exits", "transport.channels")
    code = "; ".join(f"import pswire.{module}" for module in modules)
    assert not loaded(code) & {*TENSORFLOW, "pydantic", "ml_dtypes"}
