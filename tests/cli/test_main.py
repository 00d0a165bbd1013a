"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xlan", *arguments], capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_help_explains_and_needs_no_heavy_import():
    code = "import sys; import xlan.cli.main; print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    assert "import-checkpoint" in run("--help").stdout


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


def test_wrong_usage_is_status_2():
    assert run("no-such-command").returncode == 2


def test_a_command_that_needs_torch_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['xlan', 'detect', 'photo.png', '--detector', 'none']; "
        "from xlan.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        'error: this command needs packages that are not installed; type: pip install "xlan[train]"\n'
    )
