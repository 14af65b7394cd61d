"""A file says which command wrote it, and nothing that a person made or changed says so."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from kvsim.files.atomic import whole_file
from kvsim.files.marks import HASH_COMMENT, HTML_COMMENT, MARK_BYTES, maker_of

SAID = "Made by: kvsim plot 00112233445566778899aabbccddeeff"


def _picture(kind: str, **options: object) -> bytes:
    drawn = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(drawn, format=kind, **options)
    return drawn.getvalue()


def _table(metadata: Mapping[str, str] | None = None) -> bytes:
    drawn = io.BytesIO()
    pq.write_table(pa.table({"x": list(range(50_000))}).replace_schema_metadata(metadata), drawn)
    return drawn.getvalue()


def _box(kind: bytes, content: bytes) -> bytes:
    return (8 + len(content)).to_bytes(4) + kind + content


CONTENTS: dict[str, Callable[[], bytes]] = {
    "a.png": lambda: _picture("png"),
    "a.gif": lambda: _picture("gif"),
    "a.pdf": lambda: _picture("pdf"),
    "a.mp4": lambda: _box(b"ftyp", b"isom") + _box(b"mdat", bytes(200_000)),
    "a.parquet": _table,
    "a.svg": lambda: b'<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    "a.toml": lambda: b"x = 1\n" * 30_000,
    "a.md": lambda: b"# Title\n",
    "a.html": lambda: b"<!doctype html>\n<p>Text</p>\n",
}


def _marked(folder: Path, name: str, command: str = "plot") -> Path:
    comment = HASH_COMMENT if name.endswith("toml") else HTML_COMMENT
    with whole_file(folder / name, made_by=command, comment=comment) as file:
        file.write_bytes(CONTENTS[name]())
    return folder / name


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_says_which_command_wrote_it(tmp_path: Path, name: str) -> None:
    file = _marked(tmp_path, name)
    assert maker_of(file) == "plot"
    assert 0 < len(file.read_bytes()) - len(CONTENTS[name]()) <= MARK_BYTES
    assert maker_of(_marked(tmp_path, name, "sweep")) == "sweep"
    file.write_bytes(CONTENTS[name]())
    assert maker_of(file) is None


@pytest.mark.parametrize("name", CONTENTS)
def test_a_marked_file_is_read_as_before(tmp_path: Path, name: str) -> None:
    file = _marked(tmp_path, name)
    match file.suffix:
        case ".png" | ".gif":
            with Image.open(file) as marked, Image.open(io.BytesIO(CONTENTS[name]())) as unmarked:
                assert marked.tobytes() == unmarked.tobytes()
                assert file.suffix == ".gif" or str(marked.info["Software"]).startswith("Made by: kvsim plot ")
        case ".parquet":
            assert pq.read_table(file)["x"].to_pylist() == list(range(50_000))
        case ".pdf":
            content = file.read_bytes()
            begin, end = content.index(b"% Made by: kvsim plot"), content.rindex(b"startxref")
            assert content[:begin] + content[end:] == CONTENTS[name]()
            assert begin > int(content[end:].split()[1]), "nothing moves to which an address points"
        case ".mp4":
            content, boxes = file.read_bytes(), []
            while content:
                boxes.append(content[4:8])
                content = content[int.from_bytes(content[:4]) :]
            assert boxes == [b"ftyp", b"mdat", b"free"]
        case _:
            assert file.read_bytes().startswith(CONTENTS[name]())


@pytest.mark.parametrize("name", CONTENTS)
def test_any_change_makes_it_the_users(tmp_path: Path, name: str) -> None:
    file = _marked(tmp_path, name)
    content = file.read_bytes()
    size = len(content)
    changes = [
        content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in range(0, size, max(1, size // 200))
    ]
    changes += [content[:end] for end in (0, 1, 8, 33, size // 2, size - 1)]
    changes += [content + b"\n", content + content, content.replace(b"kvsim plot", b"kvsim tui"), content[1:]]
    for changed in changes:
        file.write_bytes(changed)
        assert maker_of(file) is None


def _png_that_says(text: str) -> bytes:
    info = PngInfo()
    info.add_text("Software", text)
    return _picture("png", pnginfo=info)


def test_words_alone_make_nothing_kvsims(tmp_path: Path) -> None:
    for content in (
        b'My notes. The figure says "' + SAID.encode() + b'"; do not lose this file.\n',
        f"<!-- {SAID} -->\n".encode(),
        f"# {SAID}\n".encode(),
        SAID.encode(),
        b"\x89PNG\r\n\x1a\n" + bytes(29) + SAID.encode(),
        b"PAR1" + SAID.encode() + b"\0\0\0\0PAR1",
        b"GIF89a" + SAID.encode() + b";",
        _png_that_says(SAID),
        _picture("gif", comment=SAID.encode()),
        _table({"made_by": SAID}),
    ):
        (tmp_path / "notes.png").write_bytes(content)
        assert maker_of(tmp_path / "notes.png") is None, content


def test_a_mark_that_was_moved_to_another_file_is_none(tmp_path: Path) -> None:
    marked = _marked(tmp_path, "a.md").read_bytes()
    (tmp_path / "b.md").write_bytes(b"# Mine\n" + marked[len(CONTENTS["a.md"]()) :])
    assert maker_of(tmp_path / "b.md") is None


def test_what_cannot_be_read_is_nobodys(tmp_path: Path) -> None:
    assert maker_of(tmp_path / "nothing") is None
    assert maker_of(tmp_path) is None
