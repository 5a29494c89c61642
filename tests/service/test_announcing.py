"""What ps-server prints about the end of a job."""

import pytest

from psserver.serving import announce_text


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        (("summary.json", "weights.safetensors"), "log, summary and weights"),
        (("summary.json",), "log and summary, no weights"),
        (("weights.safetensors",), "log and weights, no summary"),
        ((), "log, no summary, no weights"),
    ],
)
def test_only_what_was_written_is_named(files, kept, tmp_path, capsys):
    for file in files:
        (tmp_path / file).touch()
    announce_text("stopped", {"reason": "done", "out": str(tmp_path)})
    assert capsys.readouterr().out == f"stopped: done\n{kept}: {tmp_path}\n"
