"""Captions in and beside photos: the picture stays as it is, people's words stay, nothing is lost."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from typer.testing import CliRunner, Result

from xlan.cli.main import app
from xlan.errors import DataError, ImageError
from xlan.photos.containers import essence, kind_of, read_xmp, with_xmp
from xlan.photos.library import PhotoLibrary, sidecar_of
from xlan.photos.xmp import Description, changed_packet, new_packet, read_packet

TEXT = 'A "dog" & a <cat> – it\'s ’ é 日本 😀.'
XMP = 'xmlns:xmp="http://ns.adobe.com/xap/1.0/"'
RDF = 'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"'


def pixels(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (35, 47, 3), dtype=np.uint8))


def packet(inside: str) -> bytes:
    text = f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF {RDF}>{inside}</rdf:RDF></x:xmpmeta>'
    return f'<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>{text}{" " * 200}<?xpacket end="w"?>'.encode()


def human(text: str, about: str = "") -> bytes:
    return packet(
        f'<rdf:Description rdf:about="{about}" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xmp="http://ns.adobe.com/'
        f'xap/1.0/" xmp:Rating="4"><dc:description><rdf:Alt><rdf:li xml:lang="x-default">{text}</rdf:li></rdf:Alt>'
        "</dc:description><dc:subject><rdf:Bag><rdf:li>sea</rdf:li></rdf:Bag></dc:subject></rdf:Description>"
    )


def save(path: Path, seed: int = 0, **options: object) -> Path:
    pixels(seed).save(path, **options)
    return path


FILES = {
    "plain.jpg": {},
    "exif.jpg": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0", "comment": b"kept"},
    "xmp.jpg": {"xmp": packet(f'<rdf:Description rdf:about="uuid:1" {XMP} xmp:Rating="4"/>')},
    "progressive.jpg": {"progressive": True, "icc_profile": b"x" * 70_000},
    "plain.png": {},
    "plain.webp": {},
    "lossless.webp": {"lossless": True},
    "icc.webp": {"icc_profile": b"12345", "xmp": packet("")},
}


@pytest.mark.parametrize("name", FILES)
def test_embedding_leaves_the_picture_alone(tmp_path: Path, name: str) -> None:
    photo = save(tmp_path / name, **FILES[name])
    photo.chmod(0o640)
    os.utime(photo, (1_000_000_000, 1_000_000_000))
    before = photo.read_bytes()
    library = PhotoLibrary("model 1", sidecar=False, embed=True)
    assert not library.is_done(photo)
    library.add(photo, TEXT, 0.75)
    after = photo.read_bytes()
    assert essence(after) == essence(before)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(after))), np.asarray(Image.open(io.BytesIO(before))))
    embedded = read_xmp(io.BytesIO(after))
    assert embedded is not None
    found = read_packet(embedded)
    assert (found.description, found.model, found.is_ours) == (TEXT, "model 1", True)
    assert photo.stat().st_mode & 0o777 == 0o640
    assert photo.stat().st_mtime == 1_000_000_000
    assert [path.name for path in tmp_path.iterdir()] == [name]
    if "xmp" in FILES[name] and name.endswith("jpg"):
        assert b'xmp:Rating="4"' in after
        assert after.count(b'rdf:about="uuid:1"') == 2
    again = PhotoLibrary("model 1", sidecar=False, embed=True)
    assert again.is_done(photo)
    newer = PhotoLibrary("model 2", sidecar=False, embed=True)
    assert not newer.is_done(photo)
    newer.add(photo, "Another.", 0.5)
    final = photo.read_bytes()
    assert essence(final) == essence(before)
    assert final.count(b"<dc:description>") == 1
    assert TEXT.encode() not in final


def test_transparent_and_animated_pictures_keep_all(tmp_path: Path) -> None:
    frames = [pixels(seed).convert("RGBA") for seed in range(3)]
    for name in ("moving.webp", "moving.png"):
        photo = tmp_path / name
        frames[0].save(photo, save_all=True, append_images=frames[1:], lossless=True)
        library = PhotoLibrary("m", sidecar=False, embed=True)
        library.is_done(photo)
        library.add(photo, TEXT, 0.5)
        with Image.open(photo) as image:
            assert image.n_frames == 3
    clear = Image.new("RGBA", (9, 8), (1, 2, 3, 40))
    clear.save(tmp_path / "clear.webp", lossless=True)
    changed = with_xmp((tmp_path / "clear.webp").read_bytes(), new_packet(Description("x", 1, "m"), sidecar=False))
    with Image.open(io.BytesIO(changed)) as image:
        assert image.convert("RGBA").getpixel((0, 0)) == (1, 2, 3, 40)


def test_what_a_person_wrote_stays(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "Our house"
    camera = Image.Exif()
    camera[0x010E] = "OLYMPUS DIGITAL CAMERA         "
    save(tmp_path / "xmp.jpg", xmp=human("My dog"))
    save(tmp_path / "exif.jpg", exif=exif)
    save(tmp_path / "camera.jpg", exif=camera)
    save(tmp_path / "sidecar.png")
    sidecar_of(tmp_path / "sidecar.png").write_bytes(human("The sea"))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    library = PhotoLibrary("m", sidecar=True, embed=True)
    assert [library.is_done(tmp_path / name) for name in ("xmp.jpg", "exif.jpg", "camera.jpg", "sidecar.png")] == [
        True,
        True,
        False,
        True,
    ]
    library.add(tmp_path / "xmp.jpg", TEXT, 0.5)  # not open: nothing happens
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert library.kept == 3
    told = PhotoLibrary("m", sidecar=True, embed=True, overwrite_description=True)
    for name in ("xmp.jpg", "exif.jpg", "sidecar.png"):
        assert not told.is_done(tmp_path / name)
        told.add(tmp_path / name, TEXT, 0.5)
        assert told.is_done(tmp_path / name)
    changed = (tmp_path / "xmp.jpg").read_bytes()
    assert b"My dog" not in changed
    assert b'xmp:Rating="4"' in changed
    assert b"<rdf:li>sea</rdf:li>" in changed


def test_a_caption_that_somebody_edited_is_a_persons() -> None:
    made = new_packet(Description("A dog.", 0.5, "m"), sidecar=True)
    edited = made.replace(b'x-default">A dog.', b'x-default">Rex on the beach')
    assert read_packet(made).is_ours
    assert not read_packet(edited).is_ours
    assert read_packet(edited).description == "Rex on the beach"


def test_properties_that_another_program_turned_into_attributes_are_replaced() -> None:
    """The XMP toolkit of Adobe writes simple properties as attributes."""
    short = packet(
        '<rdf:Description rdf:about="" xmlns:xlan="urn:xlan:caption:1.0#" xlan:Caption="A dog." xlan:Model=\'m\' '
        'xlan:Confidence="0.5" xmlns:dc="http://purl.org/dc/elements/1.1/" dc:format="image/jpeg"><dc:description>'
        '<rdf:Alt><rdf:li xml:lang="x-default">A dog.</rdf:li></rdf:Alt></dc:description></rdf:Description>'
    )
    assert read_packet(short).is_ours
    changed = changed_packet(short, Description("A cat.", 0.25, "n"))
    assert (read_packet(changed).description, read_packet(changed).model) == ("A cat.", "n")
    assert b"A dog." not in changed
    assert b'dc:format="image/jpeg"' in changed


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60).map(lambda s: " ".join(s.split())))
def test_any_text_comes_back(text: str) -> None:
    made = new_packet(Description(text, 0.5, "m"), sidecar=False)
    assert read_packet(made).description == text
    assert read_packet(changed_packet(made, Description(text + "x", 0.5, "m"))).description == text + "x"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not UTF-8"),
        (b"<x", "not well-formed"),
        (b"<x/>", "no rdf:RDF"),
        (b"<!DOCTYPE x><x/>", "document type"),
        (b"<a>" * 1000, "nested too deeply"),
        ("<x/>".encode("utf-16"), "not UTF-8"),
    ],
)
def test_hostile_packets(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_packet(data)


@pytest.mark.parametrize("inside", ["&amp;" * 1_500_000, " " * 100_000 + "x", "\n" * 3_000_000])
def test_a_packet_takes_time_in_proportion_to_its_length(inside: str) -> None:
    made = packet(f"<rdf:Description {XMP}><xmp:Label>{inside}</xmp:Label></rdf:Description>")
    began = time.perf_counter()
    file = io.BytesIO()
    pixels().save(file, "PNG")
    changed = with_xmp(file.getvalue(), changed_packet(made, Description(TEXT, 0.5, "m")))
    assert time.perf_counter() - began < 8
    assert read_packet(read_xmp(io.BytesIO(changed)) or b"").is_ours


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["JPEG", "PNG", "WebP"]), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_damaged_files_are_refused_or_changed_rightly(kind: str, at: int, junk: bytes) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, kind)
    data = bytearray(file.getvalue())
    data[at : at + len(junk)] = junk
    try:
        changed = with_xmp(bytes(data), new_packet(Description("x", 1, "m"), sidecar=False))
    except ImageError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both ends are right, and the message has a rule
    else:
        assert essence(changed) == essence(bytes(data))


def test_compressed_xmp_in_png_and_bombs() -> None:
    def png(text: bytes) -> bytes:
        file = io.BytesIO()
        pixels().save(file, "PNG")
        data = file.getvalue()
        content = b"iTXtXML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(text)
        chunk = struct.pack(">I", len(content) - 4) + content + struct.pack(">I", zlib.crc32(content))
        return data[:33] + chunk + data[33:]

    assert read_xmp(io.BytesIO(png(human("x")))) == human("x")
    with pytest.raises(ImageError, match="more than"):
        read_xmp(io.BytesIO(png(b" " * (17 << 20))))


def test_a_packet_too_large_for_a_jpeg_is_refused(tmp_path: Path) -> None:
    photo = save(tmp_path / "a.jpg")
    with pytest.raises(ImageError, match="more than the 65,504 a JPEG has room for"):
        with_xmp(photo.read_bytes(), new_packet(Description("x" * 40_000, 1, "m"), sidecar=False))


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
@pytest.mark.parametrize("embed", [False, True])
def test_a_pipe_among_the_photos_is_not_waited_for(tmp_path: Path, embed: bool) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    code = (
        "from pathlib import Path; from xlan.photos.library import PhotoLibrary; "
        f"print(PhotoLibrary('m', sidecar={not embed}, embed={embed}).is_done(Path('pipe.jpg')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, timeout=30, check=True)
    assert done.stdout == b"False\n"  # captioning it reports what it is


def test_a_photo_with_the_longest_name_is_described_inside_and_reported_beside(tmp_path: Path) -> None:
    photo = save(tmp_path / f"{'x' * 251}.jpg")
    library = PhotoLibrary("m", sidecar=False, embed=True)
    assert not library.is_done(photo)
    library.add(photo, TEXT, 0.5)
    assert library.is_done(photo)
    library = PhotoLibrary("m", sidecar=True, embed=False)
    assert not library.is_done(photo)
    with pytest.raises(ImageError, match="cannot be written: File name too long"):
        library.add(photo, TEXT, 0.5)


def test_a_photo_replaced_meanwhile_is_left_alone(tmp_path: Path) -> None:
    photo = save(tmp_path / "a.jpg")
    library = PhotoLibrary("m", sidecar=False, embed=True)
    assert not library.is_done(photo)
    save(tmp_path / "b.jpg", seed=5).replace(photo)
    before = photo.read_bytes()
    with pytest.raises(ImageError, match="changed while it was being captioned"):
        library.add(photo, TEXT, 0.5)
    assert photo.read_bytes() == before
    library.is_done(photo)
    photo.unlink()
    with pytest.raises(ImageError, match="removed while it was being captioned"):
        library.add(photo, TEXT, 0.5)


def exiftool(*arguments: str | Path) -> list[dict[str, str]]:
    if shutil.which("exiftool") is None:
        pytest.skip("exiftool is not installed (Debian: apt install libimage-exiftool-perl)")
    command = ["exiftool", "-json", "-G1", *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_exiftool_reads_the_same_text(tmp_path: Path) -> None:
    library = PhotoLibrary("model 1", sidecar=True, embed=True)
    for name, options in FILES.items():
        photo = save(tmp_path / name, **options)
        assert not library.is_done(photo)
        library.add(photo, TEXT, 0.75)
    records = exiftool("-XMP:all", "-validate", "-warning", tmp_path)
    assert len(records) == 2 * len(FILES)  # photos and sidecars
    for record in records:
        assert record["XMP-dc:Description"] == TEXT
        assert record["XMP-dc:Description-en"] == TEXT
        assert record["XMP-xlan:Caption"] == TEXT
        assert float(record["XMP-xlan:Confidence"]) == 0.75
        assert "ExifTool:Error" not in record
    assert [r["XMP-xmp:Rating"] for r in records if "XMP-xmp:Rating" in r] == [4]


def test_what_exiftool_wrote_is_a_persons(tmp_path: Path) -> None:
    photo = save(tmp_path / "a.jpg")
    if shutil.which("exiftool") is None:
        pytest.skip("exiftool is not installed (Debian: apt install libimage-exiftool-perl)")
    for tag in ("-XMP-dc:Description=Mine", "-IPTC:Caption-Abstract=Mine", "-EXIF:ImageDescription=Mine"):
        other = tmp_path / "b.jpg"
        shutil.copy(photo, other)
        subprocess.run(["exiftool", "-q", "-overwrite_original", tag, str(other)], check=True)
        assert PhotoLibrary("m", sidecar=True, embed=True).is_done(other), tag


@pytest.fixture
def run(model_directory: Path):
    def invoke(*arguments: str | Path) -> Result:
        typed = ["caption", "--model", str(model_directory), *map(str, arguments)]
        return CliRunner().invoke(app, typed, catch_exceptions=False)

    return invoke


def test_the_command(run, tmp_path: Path) -> None:
    photos = [save(tmp_path / name, seed) for seed, name in enumerate(["a.jpg", "b.png", "c.webp", "e.bmp"])]
    save(tmp_path / "h.jpg", xmp=human("My dog"))
    result = run(tmp_path, "--sidecar")
    assert result.exit_code == 0
    assert result.stderr == "4 photos described, 1 described by a person (--overwrite-description replaces it)\n"
    for photo in photos:
        said = read_packet(sidecar_of(photo).read_bytes())
        assert said.description[0].isupper()
        assert said.description.endswith(".")
        assert said.model.startswith("model ")
    assert run(tmp_path, "--sidecar").stderr.startswith("0 photos described, 4 already described, 1 described by")
    result = run(tmp_path, "--embed")
    assert result.exit_code == 1
    assert "e.bmp: captions can be written into JPEG, PNG and WebP only; use --sidecar" in result.stderr
    assert "3 photos described" in result.stderr
    assert run("-", "--embed").exit_code == 2
    assert run(tmp_path, "--overwrite-description").exit_code == 2


LOOP = """
import sys
from pathlib import Path
from xlan.photos.library import PhotoLibrary
print("ready", flush=True)
for number in range(10**6):
    library = PhotoLibrary(str(number), sidecar=True, embed=True)
    for photo in sorted(Path(sys.argv[1]).glob("*.*g")):
        if not library.is_done(photo):
            library.add(photo, f"Text {number}.", 0.5)
"""


@pytest.mark.slow
def test_no_kill_loses_a_photo(tmp_path: Path) -> None:
    """A process that embeds without end is killed at six moments; every photo is whole then, and none is missing."""
    photos = [save(tmp_path / f"{seed}.{kind}", seed) for seed, kind in enumerate(["jpg", "png", "jpg"])]
    before = {photo: essence(photo.read_bytes()) for photo in photos}
    for delay in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
        process = subprocess.Popen([sys.executable, "-c", LOOP, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for photo in photos:
            data = photo.read_bytes()
            assert essence(data) == before[photo]
            with Image.open(io.BytesIO(data)) as image:
                image.load()
            for packet_bytes in (
                read_xmp(io.BytesIO(data)),
                *map(Path.read_bytes, filter(Path.exists, [sidecar_of(photo)])),
            ):
                assert packet_bytes is None or read_packet(packet_bytes).is_ours
    leftovers = [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
    for path in leftovers:
        assert path.name.startswith(".")  # hidden: no folder of photos shows them


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = save(tmp_path / "a.jpg")
    ours, others = tmp_path / ".a.jpg.ab12cd_9.tmp", tmp_path / ".notes.tmp"
    ours.touch()
    others.touch()
    now = time.time()
    PhotoLibrary("m", sidecar=True, embed=False).is_done(photo)
    assert ours.exists()  # of this minute: perhaps of a run that is still at work
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    PhotoLibrary("m", sidecar=True, embed=False).is_done(photo)
    assert not ours.exists()
    assert others.exists()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    photo = save(tmp_path / "a.png")
    before = photo.read_bytes()
    code = (
        "import resource, sys; from pathlib import Path; from xlan.photos.library import PhotoLibrary\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "library = PhotoLibrary('m', sidecar=False, embed=True); photo = Path(sys.argv[1]); library.is_done(photo)\n"
        "try: library.add(photo, 'A dog.', 0.5)\n"
        "except OSError as error: print(error.strerror)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(photo)], capture_output=True, text=True, check=True)
    assert result.stdout == "File too large\n"
    assert photo.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_other_chunks_of_a_png_stay(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("Author", "me")
    photo = save(tmp_path / "a.png", pnginfo=info)
    changed = with_xmp(photo.read_bytes(), human("x"))
    assert kind_of(changed[:16]) == "PNG"
    with Image.open(io.BytesIO(changed)) as image:
        assert image.text["Author"] == "me"
