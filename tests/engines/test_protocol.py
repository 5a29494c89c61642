"""What launcher and keeper say to each other arrives whole, however it is cut."""

from pathlib import Path

from hypothesis import assume, given
from hypothesis import strategies as st

from pslab.launch.remote import protocol, spawn
from pslab.launch.remote.keeper import SMALL, Mirror

KINDS = st.sampled_from([protocol.STDOUT, protocol.STDERR, protocol.FILE, protocol.EXIT])


@given(st.binary(max_size=50), st.lists(st.tuples(KINDS, st.binary(max_size=300))), st.integers(1, 40))
def test_frames_arrive_whole_behind_whatever_a_login_prints(
    noise: bytes, sent: list[tuple[bytes, bytes]], size: int
) -> None:
    # A login that prints the magic words itself is not told from the keeper.
    assume((noise + protocol.MAGIC).index(protocol.MAGIC) == len(noise))
    stream = noise + protocol.MAGIC + b"".join(protocol.frame(*each) for each in sent)
    frames, found = protocol.Frames(), []
    for start in range(0, len(stream), size):
        found += frames.feed(stream[start : start + size])
    if found and found[0][0] == protocol.NOISE:
        assert found.pop(0)[1] == noise
    assert found == sent and frames.noise == b""


def test_who_never_says_the_first_words_is_quoted() -> None:
    frames = protocol.Frames()
    assert list(frames.feed(b"Welcome.\nThis account is not available.\n")) == []
    assert frames.noise == b"Welcome.\nThis account is not available.\n"


def test_a_request_reads_back_equal() -> None:
    request = protocol.SpawnRequest(
        ["a", spawn.PARENT], {"K": "\0own;"}, ["TF_CONFIG"], "/x", files={"key": b"\0\xff"}, mirror=True
    )
    assert protocol.SpawnRequest.decode(request.encode()) == request
    assert request.encode().count(b"\n") == 1


def test_blanks_are_filled_in_where_they_stand_and_nowhere_else() -> None:
    known = spawn.placeholder_values(7, "fe80::1", "/run", {"experiment.toml": "/proc/self/fd/5"})
    words = [
        "--ps-hosts",
        f"h0:1,{spawn.OWN}",
        "--bind",
        spawn.BIND,
        "--parent",
        spawn.PARENT,
        "bind;own;",
    ]
    assert [spawn.fill(word, known) for word in words] == [
        *("--ps-hosts", "h0:1,[fe80::1]:0", "--bind", "fe80::1", "--parent", "7", "bind;own;")
    ]
    assert spawn.fill(spawn.file("experiment.toml"), known) == "/proc/self/fd/5"
    assert spawn.fill(f"{spawn.FOLDER}/logs", known) == "/run/logs"


class Copy:
    """What a mirror sends, put together again as the launcher does."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, bytearray] = {}
        self.pieces = 0
        self.mirror = Mirror(root, self.take)

    def take(self, path: str, offset: int, content: bytes, whole: bool) -> None:
        self.pieces += 1
        file = self.files.setdefault(path, bytearray())
        file[offset : offset + len(content)] = content
        if whole:
            del file[offset + len(content) :]


def test_a_log_is_sent_as_it_grows_and_everything_else_in_the_end(tmp_path: Path) -> None:
    log, weights, note = (tmp_path / name for name in ("decisions.jsonl", "weights.bin", "sub/note"))
    note.parent.mkdir()
    copy = Copy(tmp_path)
    log.write_bytes(b'{"a": 1}\n{"b"')
    weights.write_bytes(b"x" * (SMALL + 1))
    note.write_bytes(b"first, and longer")
    copy.mirror.send_changes()
    assert copy.files == {"decisions.jsonl": b'{"a": 1}\n{"b"', "sub/note": b"first, and longer"}
    sent = copy.pieces
    copy.mirror.send_changes()
    assert copy.pieces == sent
    with log.open("ab") as file:
        file.write(b": 2}\n")
    note.write_bytes(b"second")
    (tmp_path / "link").symlink_to("/etc/passwd")
    copy.mirror.send_changes(final=True)
    assert {name: bytes(content) for name, content in copy.files.items()} == {
        "decisions.jsonl": b'{"a": 1}\n{"b": 2}\n',
        "sub/note": b"second",
        "weights.bin": b"x" * (SMALL + 1),
    }


def test_a_large_file_is_sent_in_pieces(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10000
    (tmp_path / "weights").write_bytes(content)
    copy = Copy(tmp_path)
    copy.mirror.send_changes(final=True)
    assert copy.pieces == 3 and bytes(copy.files["weights"]) == content
