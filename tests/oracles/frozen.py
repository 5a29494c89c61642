"""What is kept of an oracle: sizes and digests, in a file that people read."""

import hashlib
import json
from pathlib import Path
from typing import Any

FROZEN = Path(__file__).with_name("frozen.json")
WIDTH = 110
Value = Any


def digest(data: bytes) -> str:
    """Size and SHA-256, shortened; of JSON lines their number, too."""
    lines = f"{data.count(10)} lines, " if data[:1] == b"{" else ""
    return f"{lines}{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:32]}"


def load() -> dict[str, dict[str, Value]]:
    """Area -> oracle -> what it was when it was frozen."""
    return json.loads(FROZEN.read_text(encoding="utf-8")) if FROZEN.is_file() else {}


def moved(area: str, found: dict[str, Value]) -> list[str]:
    """The oracles of an area that are not what they were: a line for each difference."""
    return _differences(area, load().get(area, {}), json.loads(json.dumps(found)))


def _differences(where: str, before: Value, now: Value) -> list[str]:
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [*before, *(key for key in now if key not in before)]
        lines = [_differences(f"{where} / {key}", before.get(key), now.get(key)) for key in keys]
        return [line for part in lines for line in part]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = zip(before, now, strict=True)
        return [line for n, pair in enumerate(pairs) for line in _differences(f"{where} / {n}", *pair)]
    return [f"{where}:", f"  frozen {json.dumps(before)}", f"  now    {json.dumps(now)}"]


def write(areas: dict[str, dict[str, Value]]) -> None:
    """Freeze these areas; the others stay."""
    FROZEN.write_text(_text(load() | areas) + "\n", encoding="utf-8")


def _text(value: Value, indent: str = "") -> str:
    """JSON, with what fits into a line on one."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not value or not isinstance(value, dict | list) or len(indent) + len(line) < WIDTH:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {_text(each, inner)}" for key, each in value.items()
        ]
        return f"{{\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}}}"
    return f"[\n{inner}" + f",\n{inner}".join(_text(each, inner) for each in value) + f"\n{indent}]"
