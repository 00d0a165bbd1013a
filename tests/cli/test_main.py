"""The command line as a whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from xlan.cli.main import app


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xlan", *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_help_explains_and_needs_no_heavy_import():
    code = "import sys; from xlan.cli.main import app; print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    assert "import-checkpoint" in run("--help").stdout


def test_only_the_typed_command_is_imported():
    code = (
        "import sys; sys.argv = ['xlan', 'caption', '--help']\n"
        "from xlan.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print({'xlan.cli.train', 'xlan.cli.doctor', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: xlan caption ")
    assert done.stderr.strip() == "set()"


def test_a_run_without_a_bar_does_not_import_rich():
    code = (
        "import sys; from xlan.cli.caption import _Console\n"
        "with _Console([], bar=True) as console: console.move()\n"
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_version():
    import xlan

    assert run("--version").stdout.strip() == f"xlan {xlan.__version__}"


def test_our_errors_are_one_line_and_status_1(tmp_path):
    done = run("import-checkpoint", "none.pth", "--vocab", "none.txt", "-o", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: none.txt: cannot be read as a vocabulary")
    assert len(done.stderr.splitlines()) == 1


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "r.json").write_text('[{"image_id": 1, "caption": "a dog"}]')
    (tmp_path / "a.json").write_text('{"annotations": [{"image_id": 1, "caption": "a dog"}]}')
    lines = ["--per-image", str(tmp_path / "file" / "out.jsonl")]
    done = run("evaluate", "r.json", "a.json", "--metrics", "bleu", *lines, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'file'}: ")
    assert len(done.stderr.splitlines()) == 1


def page_of_pictures(folder: Path, name: str = "page.html", count: int = 1) -> str:
    (folder / name).write_text("<img src=photo.jpg>\n" * count)
    return name


def test_a_reader_that_goes_away_is_status_141(tmp_path):
    page = page_of_pictures(tmp_path, count=5000)  # more than a pipe holds
    command = [sys.executable, "-m", "xlan", "alt", "--check", page]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"page.html:1:1: ")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_names_that_the_encoding_of_the_output_lacks_are_escapes(tmp_path):
    page = page_of_pictures(tmp_path, "日é😀.html")
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "xlan", "alt", "--check", page]
    done = subprocess.run(command, cwd=tmp_path, env=latin, capture_output=True, timeout=60, check=False)
    assert done.stdout.startswith(b"\\u65e5\xe9\\ud83d\\ude00.html:1:1: ")
    done = subprocess.run([*command, "--json"], cwd=tmp_path, env=latin, capture_output=True, timeout=60, check=False)
    assert json.loads(done.stdout.decode("latin-1"))["document"] == page


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_closed_streams_are_no_error(tmp_path):
    page = page_of_pictures(tmp_path)
    line = f"'{sys.executable}' -m xlan alt --check {page} <&- >&- || '{sys.executable}' -m xlan caption - <&-"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr.splitlines()[-1] == "-: is empty (0 bytes)"
    assert "Traceback" not in done.stderr


def test_wrong_usage_is_status_2():
    assert run("no-such-command").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "shapes", "-o", "out", "--seed", "-1"),
        ("data", "split", "captions.csv", "-o", "out.jsonl", "--seed", "-1"),
        ("adapt", "captions.csv", "-o", "out", "--seed", "-1"),
        ("adapt", "captions.csv", "-o", "out", "--epochs", "inf"),
        ("adapt", "captions.csv", "-o", "out", "--box-weight", "2"),
        ("features", "extract", "photos", "-o", "out", "--max-megapixels", "inf"),
        ("features", "extract", "photos", "-o", "out", "--max-megabytes", "inf"),
        ("batch", "caption", "photos", "-o", "out", "--max-megabytes", "inf"),
    ],
    ids=" ".join,
)
def test_numbers_that_cannot_work_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert arguments[-2] in result.stderr


def test_a_command_that_needs_torch_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['xlan', 'import-detector', 'none.bin', '-o', 'none']; "
        "from xlan.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        'error: this command needs packages that are not installed; type: pip install "xlan[train]"\n'
    )


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, part in getattr(command, "commands", {}).items():
        yield from commands(part, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"),
    [pytest.param(*found, id=" ".join(found[0])) for found in commands(typer.main.get_command(app))],
)
def test_help_at_80_columns_has_whole_names_and_no_python_types(path: tuple[str, ...], command: Any) -> None:
    shown = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, [*path, "--help"]).output
    assert max(map(len, shown.splitlines())) <= 80
    assert not re.search(r"<(bool|str|int|float|path|list|[a-z0-9]+\|)|\{[A-Za-z_]+\}", shown)
    names = {name for option in command.params for name in (*option.opts, *option.secondary_opts) if name[0] == "-"}
    assert names <= set(re.split(r"[\s,]+", shown))
    assert not re.search(r"^  [a-z-]+ .*\.\.\.$", shown, re.MULTILINE), "the sentence of a command is cut"
