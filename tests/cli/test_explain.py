"""`xlan explain` and `xlan caption --explain`, from what is typed to what comes out."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer.main
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner, Result

from xlan.cli.explain import model_names
from xlan.cli.explain_folder import page_name
from xlan.cli.main import app
from xlan.errors import DataError, DecodingError, ImageError

Run = Callable[..., Result]


def picture(seed: int, size: tuple[int, int] = (40, 60)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures, two of one name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    for seed, name in enumerate(("a.png", "b.png", "deep/a.png")):
        picture(seed).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


@pytest.fixture
def run(model_directory: Path) -> Run:
    def invoke(command: str, *arguments: str | Path, **options: object) -> Result:
        typed = [command, "--model", str(model_directory), *map(str, arguments)]
        return CliRunner().invoke(app, typed, catch_exceptions=False, **options)  # type: ignore[arg-type]

    return invoke


@pytest.fixture
def plain_directory(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second model of other words, without a channel gate."""
    import torch

    from xlan.model.build import build_model
    from xlan.pretrained import save_pretrained
    from xlan.text.vocab import Vocabulary

    words = Vocabulary.from_words(["man", "surfs", "wave"])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build_model("ablation-base", vocab_size=len(words), feature_dim=1280)
    folder = tmp_path_factory.mktemp("plain") / "updown"
    save_pretrained(
        folder,
        model.spec,
        model.state_dict(),
        words,
        extras={"vision.safetensors": model_directory / "vision.safetensors"},
    )
    return folder


def test_a_page(run: Run, photos: Path) -> None:
    result = run("explain", "photos/a.png", "-o", "out/page.html")
    assert result.exit_code == 0
    said, where = result.stdout.splitlines()
    assert where == str(Path("out/page.html"))
    page = Path(where).read_text(encoding="utf-8")
    assert f">{said}</p>" in page
    assert page.count('<li class="word">') == len(said.split())
    assert page.count('class="strip"') == len(said.split())
    assert '<h1 dir="auto">a.png</h1>' in page
    assert "runners-up" in page


def test_it_says_what_caption_says(run: Run, photos: Path) -> None:
    arguments = ("--beams", "5", "--must", "cat|dogs")
    explained = run("explain", "photos/b.png", "-o", "page.html", *arguments).stdout.splitlines()[0]
    assert explained == run("caption", "photos/b.png", *arguments).stdout.strip()
    assert Path("page.html").read_text().count("<li><bdi>") == 4  # the other beams


def test_the_page_draws_what_the_model_returns(run: Run, photos: Path, model_directory: Path) -> None:
    from xlan import Captioner, CaptionOptions

    run("explain", "photos/a.png", "-o", "page.html")
    cards = Path("page.html").read_text().split('<li class="word">')[1:]
    words = Captioner.from_pretrained(model_directory).caption("photos/a.png", CaptionOptions(attention=True)).words
    for card, word in zip(cards, words, strict=True):
        assert word.spatial is not None
        assert word.spatial.sum() == pytest.approx(1, abs=1e-5)
        drawn = {int(i): float(w) for i, w in re.findall(r'data-region="(\d+)" data-weight="([\d.]+)"', card)}
        assert drawn == pytest.approx({i: float(word.spatial[i]) for i in range(1, 5)}, abs=1e-4)


def test_a_figure(run: Run, photos: Path) -> None:
    said, where = run("explain", "photos/a.png", "-o", "out/FIGURE.PNG").stdout.splitlines()
    with Image.open(where) as figure:
        figure.load()
        assert figure.format == "PNG"
        assert figure.info["Description"].endswith(said)


def test_two_models(run: Run, photos: Path, plain_directory: Path) -> None:
    result = run("explain", "photos/a.png", "-o", "page.html", "--compare", plain_directory)
    first, second, _ = result.stdout.splitlines()
    assert first.startswith("model\t")
    assert set(second.removeprefix("updown\t").split()) <= {"man", "surfs", "wave"}
    page = Path("page.html").read_text()
    one, two = page.split('<section class="account">')[1:]
    assert 'class="strip"' in one
    assert 'class="strip"' not in two
    run("explain", "photos/a.png", "-o", "figure.png", "--compare", plain_directory)
    with Image.open("figure.png") as figure:
        assert "; updown: " in figure.info["Description"]


def test_a_word_that_only_one_model_knows(run: Run, photos: Path, plain_directory: Path) -> None:
    with pytest.raises(DecodingError, match="updown: must: the model does not know the word 'dog'"):
        run("explain", "photos/a.png", "-o", "page.html", "--compare", plain_directory, "--must", "dog")
    assert not Path("page.html").exists()


def test_standard_input(run: Run, photos: Path) -> None:
    result = run("explain", "-", "-o", "page.html", input=(photos / "a.png").read_bytes())
    assert result.stdout.splitlines()[0] == run("caption", "photos/a.png").stdout.strip()
    assert ">standard input</h1>" in Path("page.html").read_text()


def test_the_page_shows_the_picture_upright(run: Run, photos: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    picture(0, (40, 60)).save("turned.jpg", exif=exif)
    run("explain", "turned.jpg", "-o", "page.html")
    assert 'viewBox="0 0 40 60"' in Path("page.html").read_text()


@pytest.mark.parametrize("name", ["page.pdf", "page", "page.html.gz"])
def test_other_kinds_of_file_are_refused(run: Run, photos: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"^{name}: expected a file name that ends in .html .a page. or .png"):
        run("explain", "photos/a.png", "-o", name)


def test_the_picture_itself_is_never_overwritten(run: Run, photos: Path) -> None:
    before = (photos / "a.png").read_bytes()
    with pytest.raises(DataError, match="is the picture itself"):
        run("explain", "photos/a.png", "-o", "photos/../photos/a.png")
    assert (photos / "a.png").read_bytes() == before


def test_what_is_no_picture_is_one_line(run: Run, photos: Path) -> None:
    Path("notes.txt").write_text("hello")
    for name, message in (("notes.txt", "not a picture"), ("photos", "is a folder"), ("none.jpg", "no such file")):
        with pytest.raises(ImageError, match=message):
            run("explain", name, "-o", "page.html")
    assert not Path("page.html").exists()


def test_the_page_explains_every_option() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "explain.md").read_text()
    command = typer.main.get_command(app).commands["explain"]  # type: ignore[attr-defined]
    names = [name for parameter in command.params for name in parameter.opts if name.startswith("-")]
    assert len(names) > 4
    for name in names:
        assert name in ("--help", "-h") or f"`{name}`" in page, name


def test_models_are_told_apart(tmp_path: Path) -> None:
    assert model_names(None, tmp_path / "x") == ["xlan", "x"]
    assert model_names(tmp_path / "a" / "model", tmp_path / "b" / "model") == ["a/model", "b/model"]
    assert model_names(tmp_path / "m", tmp_path / "m") == ["m (1)", "m (2)"]


def test_a_page_for_every_picture(run: Run, photos: Path) -> None:
    result = run("caption", "photos", "--explain", "why")
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == "why: 3 pages written\n"
    pages = sorted(path.name for path in Path("why").glob("*.html"))
    assert [name[:2] for name in pages] == ["a-", "a-", "b-"]
    for line in result.stdout.splitlines():
        name, said = line.split("\t")
        page = (Path("why") / page_name(name)).read_text()
        assert f">{said}</p>" in page
        assert 'data-region="1"' in page


def test_pictures_that_have_a_page_are_skipped(run: Run, photos: Path) -> None:
    run("caption", "photos", "--explain", "why")
    (Path("why") / page_name("photos/b.png")).unlink()
    result = run("caption", "photos", "--explain", "why")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["photos/b.png"]
    assert result.stderr == "why: 1 page written, 2 already existed (--overwrite replaces them)\n"


def test_a_file_of_captions_gets_its_pages_later(run: Run, photos: Path) -> None:
    run("caption", "photos", "-o", "captions.jsonl")
    before = Path("captions.jsonl").read_bytes()
    result = run("caption", "photos", "-o", "captions.jsonl", "--explain", "why")
    assert result.stderr == "captions.jsonl: 0 captions written\nwhy: 3 pages written\n"
    assert Path("captions.jsonl").read_bytes() == before
    again = run("caption", "photos", "-o", "captions.jsonl", "--explain", "why").stderr
    kept = "3 already existed (--overwrite replaces them)"
    assert again == f"captions.jsonl: 0 captions written, {kept}\nwhy: 0 pages written, {kept}\n"


def test_lines_of_json_stay_as_they_are(run: Run, photos: Path) -> None:
    plain, explained = (
        [json.loads(line) for line in run("caption", "photos", "--json", *more).stdout.splitlines()]
        for more in ((), ("--explain", "why"))
    )
    assert plain == explained


def test_samples_are_explained_too(run: Run, photos: Path) -> None:
    run("caption", "photos/a.png", "--sample", "3", "--explain", "why")
    (page,) = Path("why").glob("*.html")
    assert "Also drawn" in page.read_text()


def test_each_picture_on_standard_input_is_another(run: Run, photos: Path) -> None:
    for name in ("a.png", "b.png"):
        result = run("caption", "-", "--explain", "why", input=(photos / name).read_bytes())
        assert result.stderr == "why: 1 page written\n"
        assert f">{result.stdout.strip()}</p>" in Path("why/standard-input.html").read_text()


def test_a_picture_that_is_gone_costs_only_its_page(run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(source: object, name: str) -> None:
        raise ImageError(f"{name}: no such file")

    monkeypatch.setattr("xlan.cli.explain_folder.open_for_page", gone)
    result = run("caption", "photos/a.png", "-o", "captions.jsonl", "--explain", "why")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "photos/a.png: no such file",
        "captions.jsonl: 1 caption written",
        "why: 0 pages written",
    ]


def test_a_folder_that_is_a_file(run: Run, photos: Path) -> None:
    Path("why").write_text("")
    with pytest.raises(OSError, match="why"):
        run("caption", "photos", "--explain", "why")


@settings(deadline=None, max_examples=200)
@given(st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=400))
def test_pages_stay_in_their_folder(name: str) -> None:
    found = page_name(name)
    assert Path(found).name == found
    assert found.endswith(".html")
    assert not found.startswith((".", "-"))
    assert len(found.encode("utf-8", "surrogatepass")) <= 255
    assert not set(found) & set('<>:"/\\|?*\n\r\t\u202e\u200f')


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text("ab/.-é\udcff", min_size=1, max_size=6), min_size=2, max_size=20, unique=True))
def test_pages_do_not_share_names(names: list[str]) -> None:
    assert len({page_name(name) for name in names}) == len(names)


def test_names_of_any_script_stay_readable() -> None:
    assert page_name("fotos/Grüße aus 東京.jpg").startswith("Grüße-aus-東京-")
    assert page_name("../../etc/passwd").startswith("passwd-")
    assert page_name("שלום.png").startswith("שלום-")


def test_bytes_of_a_page_are_text_whatever_the_name(run: Run, photos: Path) -> None:
    buffer = io.BytesIO()
    picture(0).save(buffer, "PNG")
    odd = photos / "odd\udcff<b>.png"
    try:
        odd.write_bytes(buffer.getvalue())
    except (OSError, UnicodeError):
        pytest.skip("this file system takes only names that are text")
    result = run("caption", "photos", "--explain", "why")
    assert result.stderr == "why: 4 pages written\n"
    for page in Path("why").glob("*.html"):
        page.read_bytes().decode("utf-8")
