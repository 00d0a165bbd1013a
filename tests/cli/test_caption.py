"""`xlan caption`, from what is typed to what comes out."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import typer.main
from PIL import Image
from typer.testing import CliRunner, Result

from xlan.cli.caption import _plain_writer
from xlan.cli.main import app
from xlan.errors import DataError, DecodingError, ModelError
from xlan.options import CaptionOptions
from xlan.threads import leave_a_core
from xlan.types import Caption

KEPT = " already existed (--overwrite replaces them)\n"


def picture(seed: int, size: tuple[int, int] = (40, 60)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Seven pictures, one of them deeper down."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for i in range(6):
        picture(i).save(folder / f"{i}.png")
    picture(9).save(folder / "deep" / "9.jpg")
    return folder


@pytest.fixture
def run(model_directory: Path):
    def invoke(*arguments: str | Path, **options: object) -> Result:
        typed = ["caption", "--model", str(model_directory), *map(str, arguments)]
        return CliRunner().invoke(app, typed, catch_exceptions=False, **options)  # type: ignore[arg-type]

    return invoke


def command(model: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "xlan", "caption", "--model", str(model), *arguments]


def test_one_picture_is_one_sentence(run, photos: Path) -> None:
    result = run(photos / "0.png")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1
    assert set(result.stdout.split()) <= {"a", "dog", "dogs", "cat", "on", "grass", "the"}
    assert result.stderr == ""


def test_a_folder_is_a_line_each_in_order(run, photos: Path) -> None:
    result = run("photos", "--batch-size", "2")
    names = [line.split("\t")[0] for line in result.stdout.splitlines()]
    assert names == [*(f"photos/{i}.png" for i in range(6)), "photos/deep/9.jpg"]
    alone = run("photos/4.png").stdout.strip()
    assert result.stdout.splitlines()[4] == f"photos/4.png\t{alone}"


def test_standard_input(run, photos: Path) -> None:
    data = (photos / "0.png").read_bytes()
    assert run("-", input=data).stdout == run("photos/0.png").stdout
    empty = run("-", input=b"")
    assert empty.exit_code == 1
    assert empty.stderr == "-: is empty (0 bytes)\n"


def test_json_lines(run, photos: Path) -> None:
    result = run("photos/0.png", "photos/1.png", "--json", "--beams", "2")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["image"] for record in records] == ["photos/0.png", "photos/1.png"]
    keys = {"image", "version", "caption", "confidence", "score", "words", "others", "boxes", "things"}
    assert set(records[0]) == keys
    assert len(records[0]["others"]) == 1
    assert " ".join(word["text"] for word in records[0]["words"]) == records[0]["caption"]


def test_must(run, photos: Path) -> None:
    result = run("photos", "--must", "dog|dogs", "--must", "cat")
    for line in result.stdout.splitlines():
        words = line.split("\t")[1].split()
        assert "cat" in words
        assert {"dog", "dogs"} & set(words)


def test_samples_are_drawn_by_seed(run, photos: Path) -> None:
    options = ("photos/0.png", "--sample", "3", "--temperature", "1.5", "--top-p", "0.9")
    first = run(*options, "--seed", "5").stdout
    assert len(first.splitlines()) == 3
    assert run(*options, "--seed", "5").stdout == first
    assert run(*options, "--seed", "6").stdout != first


def test_broken_pictures_are_reported_and_the_rest_goes_on(run, photos: Path) -> None:
    (photos / "2.png").write_bytes(b"%PDF-1.7")
    result = run("photos", "none.jpg", "https://example.org/cat.jpg")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 6
    assert result.stderr.splitlines() == [
        "https://example.org/cat.jpg: addresses are not fetched; download the picture and give its path",
        "photos/2.png: is not a picture but a PDF document",
        "none.jpg: no such file",
    ]


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as box:
        box.writestr("a", "b")
    return file.getvalue()


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


REFUSED = {
    "truncated.jpg": (lambda: encoded(picture(0, (200, 200)), "JPEG")[:900], "truncated.jpg: is damaged"),
    "zero.jpg": (lambda: b"", "zero.jpg: is empty (0 bytes)"),
    "huge.png": (lambda: png_that_claims(50_000, 50_000), "huge.png: claims 50,000×50,000 pixels, more than the limit"),
    "zip.jpg": (zipped, "zip.jpg: is not a picture but a ZIP archive"),
    "noise.jpg": (lambda: bytes(range(256)), "noise.jpg: is not a picture of a known format"),
    "page.png": (lambda: b"<!doctype html><p>", "page.png: is not a picture but a web page"),
    "phone.jpg": (lambda: b"\0\0\0\x18ftypisom" + bytes(20), "phone.jpg: is an AVIF or video file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_pictures_are_refused_with_one_line(run, tmp_path: Path, name: str) -> None:
    make, message = REFUSED[name]
    (tmp_path / name).write_bytes(make())
    result = run(tmp_path / name)
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(str(tmp_path / message))


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(0), "JPEG", exif=exif)


def animated() -> bytes:
    return encoded(picture(0), "GIF", save_all=True, append_images=[picture(1), picture(2)])


ACCEPTED = {
    "cmyk.jpg": lambda: encoded(picture(0).convert("CMYK"), "JPEG"),
    "deep.png": lambda: encoded(Image.fromarray(np.full((9, 9), 40_000, np.uint16)), "PNG"),
    "palette.png": lambda: encoded(picture(0).quantize(8), "PNG", transparency=3),
    "animated.gif": animated,
    "rotated.jpg": rotated,
    "dot.png": lambda: encoded(Image.new("RGB", (1, 1)), "PNG"),
    "thin.png": lambda: encoded(Image.new("RGB", (10_000, 3)), "PNG"),
}


def test_odd_pictures_get_captions(run, tmp_path: Path) -> None:
    for name, make in ACCEPTED.items():
        (tmp_path / name).write_bytes(make())
    result = run(*(tmp_path / name for name in ACCEPTED))
    assert result.exit_code == 0
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == len(ACCEPTED)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_an_output_file_is_continued(run, photos: Path, suffix: str) -> None:
    output = Path(f"out.{suffix}")
    first = run("photos/0.png", "photos/3.png", "-o", output)
    assert (first.exit_code, first.stdout) == (0, "")
    assert first.stderr == f"{output}: 2 captions written\n"
    whole = output.read_bytes()
    output.write_bytes(whole[:-20])  # killed in the middle of the second line
    again = run("photos", "-o", output)
    assert again.stderr == f"{output}: 6 captions written, 1{KEPT}"
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file)) if suffix == "csv" else [json.loads(line) for line in file]
    names = [row["image"] for row in rows]
    assert sorted(names) == sorted([*(f"photos/{i}.png" for i in range(6)), "photos/deep/9.jpg"])
    assert run("photos", "-o", output).stderr == f"{output}: 0 captions written, 7{KEPT}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--beams", "5"), "was made with beams 3 and not 5; use --overwrite to start again, or choose another name"),
        (("--must", "dog"), r"was made with must \[\] and not \['dog'\]; use --overwrite"),
        (("--sample", "1"), "was made with samples 0 and not 1; use --overwrite"),
    ],
)
def test_captions_made_otherwise_are_not_taken_for_these(
    run, photos: Path, options: tuple[str, ...], message: str
) -> None:
    run("photos/0.png", "-o", "out.jsonl")
    before = Path("out.jsonl").read_bytes()
    with pytest.raises(DataError, match=rf"^out\.jsonl: {message}"):
        run("photos/0.png", "-o", "out.jsonl", *options)
    assert Path("out.jsonl").read_bytes() == before
    again = run("photos/0.png", "-o", "out.jsonl", *options, "--overwrite")
    assert again.stderr == "out.jsonl: 1 caption written\n"
    assert run("photos/0.png", "-o", "out.jsonl", *options).exit_code == 0


def test_captions_of_another_model_are_not_taken_for_these(run, photos: Path, model_directory: Path) -> None:
    shutil.copytree(model_directory, "other")
    config = json.loads(Path("other/config.json").read_text())
    vocabulary = json.loads(Path("other/vocab.json").read_text())
    text = json.dumps(vocabulary)  # the same words, written on one line: other bytes
    Path("other/vocab.json").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    config["files"]["vocab.json"] = {"bytes": len(text.encode()), "sha256": digest}
    Path("other/config.json").write_text(json.dumps(config))
    run("photos/0.png", "-o", "out.csv", "--explain", "why")
    with pytest.raises(DataError, match=r"^out\.csv: was made with another model \(model\); use --overwrite"):
        run("photos/0.png", "-o", "out.csv", "--model", "other")
    with pytest.raises(DataError, match=r"^why: was made with another model \(model\); use --overwrite"):
        run("photos/0.png", "--explain", "why", "--model", "other")


def test_captions_with_another_detector_are_not_taken_for_these(run, photos: Path, detector_directory: Path) -> None:
    for folder in ("a", "b", "c"):
        shutil.copytree(detector_directory, Path(folder, "det"))
    settings = json.loads(Path("b/det/detector.json").read_text())
    Path("b/det/detector.json").write_text(json.dumps(settings))  # the same name, other bytes
    assert run("photos/0.png", "-o", "out.csv", "--detector", "a/det").exit_code == 0
    assert run("photos/1.png", "-o", "out.csv", "--detector", "c/det").exit_code == 0
    for detector in (("--detector", "b/det"), ()):
        with pytest.raises(DataError, match=r"^out\.csv: was made with another detector; use --overwrite"):
            run("photos/2.png", "-o", "out.csv", *detector)
    run("photos/0.png", "-o", "plain.csv")
    with pytest.raises(DataError, match=r"^plain\.csv: was made with the model's own regions, without --detector; use"):
        run("photos/1.png", "-o", "plain.csv", "--detector", "a/det")


def test_captions_of_unknown_origin_are_not_continued(run, photos: Path) -> None:
    Path("out.jsonl").write_text('{"image": "photos/0.png", "caption": "a dog"}\n')
    with pytest.raises(DataError, match=r"already exists, but the model and options it was made with are unknown"):
        run("photos", "-o", "out.jsonl")


def test_coco_results(run, photos: Path) -> None:
    picture(1).save("COCO_val2014_000000391895.jpg")
    run("photos/3.png", "-o", "out.jsonl")
    done = run("COCO_val2014_000000391895.jpg", "photos/3.png", "-o", "out.jsonl", "--coco", "results.json")
    assert "results.json: 2 results written\n" in done.stderr
    results = json.loads(Path("results.json").read_text())
    assert [result["image_id"] for result in results] == [3, 391895]
    assert results[0]["caption"] == json.loads(Path("out.jsonl").read_text().splitlines()[0])["caption"]
    Path("a").mkdir()
    picture(2).save("a/3.png")
    with pytest.raises(DataError, match=r"photos/3\.png and a/3\.png have the same image_id 3"):
        run("photos/3.png", "a/3.png", "-o", "both.jsonl", "--coco", "results.json")
    assert not Path("both.jsonl").exists()  # found before the work
    assert len(json.loads(Path("results.json").read_text())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--coco", "photos/1.png"), "photos/1.png: expected a file name that ends in .json"),
        (("-o", "out.jsonl", "--coco", "out.jsonl"), "out.jsonl: expected a file name that ends in .json"),
        (("--explain", "why", "--coco", "results.json"), "needs -o too"),  # a continued run would leave captions out
        (("--sidecar", "--coco", "results.json"), "needs -o too"),
    ],
)
def test_coco_results_replace_no_other_file_and_are_complete(
    run, photos: Path, options: tuple[str, ...], message: str
) -> None:
    done = run("photos", *options)
    assert done.exit_code == 2
    assert message in done.stderr


def test_confidence_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write = _plain_writer(CaptionOptions(), named=False, confidence=True)
    write("a.jpg", Caption("a dog", -1.0, 0.62, ()))
    write("a.jpg", Caption("a cat", -1.0, 0.12, ()))
    assert capsys.readouterr().out == "a dog  (confidence 62 %)\na cat  (confidence 12 %, low)\n"


def test_a_picture_that_is_named_twice_is_written_once(run, photos: Path) -> None:
    result = run("photos", "photos/0.png", "photos/*.png", "-o", "out.csv", "--coco", "out.json")
    assert result.stderr.splitlines()[-1] == "out.csv: 7 captions written"
    names = [row["image"] for row in csv.DictReader(Path("out.csv").read_text().splitlines())]
    assert names == [f"photos/{i}.png" for i in range(6)] + ["photos/deep/9.jpg"]
    assert len(json.loads(Path("out.json").read_text())) == 7


def test_broken_pictures_are_tried_again(run, photos: Path) -> None:
    good = (photos / "2.png").read_bytes()
    (photos / "2.png").write_bytes(good[:60])
    assert run("photos", "-o", "out.jsonl").exit_code == 1
    (photos / "2.png").write_bytes(good)
    assert run("photos", "-o", "out.jsonl").stderr == f"out.jsonl: 1 caption written, 6{KEPT}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--temperature", "0.5"), "has an effect only together with --sample"),
        (("--seed", "1"), "has an effect only together with --sample"),
        (("--sample", "2", "--beams", "2"), "leave one out"),
        (("--sample", "2", "--temperature", "0"), "--temperature: expected a number from 0.05 to 10, got 0.0"),
        (("--sample", "2", "--top-p", "1.5"), "--top-p: expected a number from 0.01 to 1, got 1.5"),
        (("--json", "-o", "x.csv"), "leave one out"),
        (("--beams", "0"), "--beams: expected a whole number from 1 to 10, got 0"),
        (("--beams", "20000"), "--beams: expected a whole number from 1 to 10, got 20000"),
        (("--sample", "100000"), "--sample: expected a whole number from 0 to 10, got 100000"),
        (("--sample", "2", "--seed", "12345678901234567890123"), "--seed: expected a whole number from 0 to"),
        (("--max-length", "51"), "--max-length: expected a whole number from 1 to 50, got 51"),
        (("--overwrite",), "has an effect only together with -o or --explain"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(run, options: tuple[str, ...], message: str) -> None:
    result = run("a.jpg", *options, env={"COLUMNS": "200", "TERMINAL_WIDTH": "200"})
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_nothing_to_caption_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["caption"]).exit_code == 2


def test_what_the_model_cannot_do_is_said_before_anything_is_written(run, photos: Path) -> None:
    with pytest.raises(DecodingError, match="must: the model does not know the word 'zebra'"):
        run("photos", "--must", "zebra", "-o", "out.jsonl")
    assert not Path("out.jsonl").exists()
    with pytest.raises(DataError, match=r"out\.txt: expected a file name that ends in \.jsonl or \.csv"):
        run("photos", "-o", "out.txt")


def test_without_a_model_it_says_so(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlan.pretrained.SHIPPED", photos / "none")
    with pytest.raises(ModelError, match="ships no trained model; give a model directory"):
        CliRunner().invoke(app, ["caption", str(photos)], catch_exceptions=False)


@pytest.mark.parametrize(("given", "before", "after"), [(None, 4, 3), (None, 1, 1), ("4", 4, 4)])
def test_a_core_is_left_for_others_unless_told(
    monkeypatch: pytest.MonkeyPatch, given: str | None, before: int, after: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr("xlan.threads.cores", lambda: before)
    assert leave_a_core() == after


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "it ended before it could be stopped"
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
def test_stopped_at_any_time_the_file_is_usable(model_directory: Path, tmp_path: Path, how: signal.Signals) -> None:
    image = encoded(picture(0), "PNG")
    (tmp_path / "p").mkdir()
    for i in range(3000):
        (tmp_path / "p" / f"{i:05}.png").write_bytes(image)
    arguments = command(model_directory, "p", "-o", "out.jsonl", "--batch-size", "8")
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output = tmp_path / "out.jsonl"
    wait_for_lines(output, 24, process)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    assert b"Traceback" not in errors
    if how == signal.SIGINT:
        message = r"interrupted: out\.jsonl has [0-9,]+ captions; the same command continues from there\n"
        assert re.fullmatch(message, errors.decode())
    before = output.read_bytes()
    kept = before[: before.rfind(b"\n") + 1]
    done = kept.count(b"\n")
    assert 24 <= done < 3000
    for extra in sorted((tmp_path / "p").iterdir())[done + 20 :]:
        extra.unlink()
    again = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0
    assert again.stderr == f"out.jsonl: 20 captions written, {done:,}{KEPT}"
    after = output.read_bytes()
    assert after.startswith(kept)
    names = [json.loads(line)["image"] for line in after.splitlines()]
    assert names == [str(Path("p") / path.name) for path in sorted((tmp_path / "p").iterdir())]


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback(model_directory: Path, tmp_path: Path) -> None:
    for i in range(40):
        picture(i).save(tmp_path / f"{i:02}.png")
    process = subprocess.Popen(
        command(model_directory, ".", "--batch-size", "1"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"00.png\t")
    process.stdout.close()
    errors = process.stderr.read()
    process.wait(timeout=60)
    process.stderr.close()
    assert errors == b""
    assert process.returncode not in (0, -signal.SIGKILL)


MEASURE = """
import itertools, resource, sys
from xlan import Captioner
captioner = Captioner.from_pretrained(sys.argv[1])
endless = itertools.repeat(("a", sys.argv[2]), int(sys.argv[3]))
peaks = []
for i, _ in enumerate(captioner.caption_many(endless, batch_size=4)):
    if i in (int(sys.argv[3]) // 4, int(sys.argv[3]) - 1):
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks are in kilobytes on Linux")
def test_memory_is_flat(model_directory: Path, tmp_path: Path) -> None:
    picture(0, (300, 300)).save(tmp_path / "a.png")
    # 270 KB each when open: holding on to them would show.
    arguments = [sys.executable, "-c", MEASURE, str(model_directory), str(tmp_path / "a.png"), "240"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=180, check=True, env=environment)
    assert int(done.stdout) < 24_000  # held, they would be 48,000


def test_the_page_explains_every_option() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "caption.md").read_text()
    command = typer.main.get_command(app).commands["caption"]  # type: ignore[attr-defined]
    names = [name for parameter in command.params for name in parameter.opts if name.startswith("-")]
    assert len(names) > 10
    for name in names:
        assert name in ("--help", "-h") or f"`{name}`" in page, name
