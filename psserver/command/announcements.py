"""What a server prints on standard output: for a program that waits for it, or for a reader."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def announce_json(event: str, fields: Mapping[str, Any]) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def announce_text(event: str, fields: Mapping[str, Any]) -> None:
    match event:
        case "ready":
            print(f"ps-server {fields['task_index']} is ready at {fields['address']}", flush=True)
            if "out" in fields:
                print(f"run folder: {fields['out']}", flush=True)
            if "metrics" in fields:
                scheme = "https" if fields["security"] in ("tls", "tokens") else "http"
                print(f"metrics: {scheme}://{fields['metrics']}/metrics", flush=True)
        case "plan":
            print(fields["text"], flush=True)
        case "stopped":
            print(f"stopped: {fields['reason']}", flush=True)
            if "out" in fields:
                # A job that lost a server, say, has none.
                trained = (Path(fields["out"]) / "weights.safetensors").exists()
                kept = "log, summary and weights" if trained else "log and summary, no weights"
                print(f"{kept}: {fields['out']}", flush=True)
