"""What a release is made of: versions that agree, words that exist, a safe image, and checks that find faults."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import check_dist
import xlan
from xlan.cli.main import app

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# Versions and words.


def test_version_changelog_and_citation_agree() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    newest = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", read("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == citation["version"] == xlan.__version__
    released = citation.get("date-released")
    assert (str(released) if released else "unreleased") == newest[2]


def test_every_heading_of_the_changelog_has_a_version_and_a_date() -> None:
    for heading in re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE):
        assert re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", heading), heading


def test_the_citation_has_the_software_and_the_paper() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors", "license"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    (paper,) = citation["references"]
    assert paper["title"] == "X-Linear Attention Networks for Image Captioning"
    assert [author["family-names"] for author in paper["authors"]] == ["Pan", "Yao", "Li", "Mei"]


def words() -> list[str]:
    """The words of the Makefile, as `make` sees them."""
    return re.search(r"^\.PHONY: (.*)$", read("Makefile"), re.MULTILINE)[1].split()  # type: ignore[index]


def test_the_makefile_says_its_words_and_has_a_rule_for_each() -> None:
    text = read("Makefile")
    count, listed = re.match(r"# (\w+) words: ([\w ·]+)\.", text).groups()  # type: ignore[union-attr]
    assert listed.split(" · ") == words()
    assert count == {7: "Seven", 8: "Eight", 9: "Nine", 10: "Ten"}[len(words())]
    for word in words():
        assert re.search(rf"^{word}:", text, re.MULTILINE), word


def test_contributing_lists_the_same_words() -> None:
    assert sorted(re.findall(r"^\| `make (\w+)` \|", read("CONTRIBUTING.md"), re.MULTILINE)) == sorted(words())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_words_of_the_makefile_and_nothing_else(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    ran = []
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            if "run" in step:
                program, *called = step["run"].split()
                assert program == "make"
                assert set(called) <= set(words())
                ran += called
            else:
                assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]), step
    assert ran


def test_continuous_integration_runs_what_a_change_can_break() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    assert {"check", "test", "docs", "dist"} <= set(re.findall(r"\w+", " ".join(re.findall(r"run: make (.*)", text))))


def test_workflows_test_the_versions_of_python_that_we_promise() -> None:
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    promised = re.findall(r"Python :: (3\.\d+)", read("pyproject.toml"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == promised


# The image.


def stages() -> list[list[tuple[str, str]]]:
    """Instructions of the Containerfile by stage: (NAME, arguments)."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", read("Containerfile"), flags=re.MULTILINE))
    found: list[list[tuple[str, str]]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        assert name in {
            *("FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"),
            "CMD",
        }, line
        if name == "FROM":
            found.append([])
        found[-1].append((name, rest.strip()))
    return found


def last(name: str) -> str:
    """The value of an instruction in the stage that is shipped."""
    (value,) = [rest for instruction, rest in stages()[-1] if instruction == name]
    return value


def test_the_image_is_slim_and_pinned() -> None:
    for stage in stages():
        image = stage[0][1].split()[0]
        assert re.fullmatch(r"python:3\.\d+-slim", image), image
        assert image.removeprefix("python:").removesuffix("-slim") in read("pyproject.toml")


def test_the_image_runs_as_a_user_without_rights() -> None:
    user, group = last("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    order = [name for name, _ in stages()[-1]]
    assert "RUN" not in order[order.index("USER") :]
    assert not any("--chown" in rest for _, rest in stages()[-1])  # it cannot change what it runs


def test_the_image_copies_files_that_exist_and_are_not_ignored() -> None:
    ignored = read(".dockerignore").splitlines()
    for name, rest in stages()[0]:
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source
    assert "--from=build" in last("COPY")


def test_the_image_serves_and_says_whether_it_is_healthy() -> None:
    (program,) = json.loads(last("ENTRYPOINT"))
    command, *arguments = json.loads(last("CMD"))
    group: Any = typer.main.get_command(app)
    assert program == "xlan"
    parsed = group.commands[command].make_context(command, arguments)
    assert parsed.params["host"] == "0.0.0.0"
    assert str(parsed.params["port"]) == last("EXPOSE")
    check = last("HEALTHCHECK")
    python, flag, code = json.loads(check[check.index("[") :])
    assert (python, flag) == ("python", "-c")
    compile(code, "HEALTHCHECK", "exec")
    assert f"http://127.0.0.1:{last('EXPOSE')}/v1/health" in code
    assert "serve" in stages()[0][-1][1]  # the extra that it needs


def test_the_health_check_asks_a_path_that_exists() -> None:
    pytest.importorskip("fastapi")
    from xlan.serving.app import PAGES

    assert "/v1/health" in PAGES


# Shell completion.


def test_completion_can_be_shown_for_the_shell_that_asks() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    typed = ["bash", "-c", f"{sys.executable} -m xlan --show-completion; exit $?"]
    done = subprocess.run(typed, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("complete -o default -F _xlan_completion xlan")


@pytest.mark.parametrize(("typed", "expected"), [("xlan capt", "caption"), ("xlan caption --mod", "--model")])
def test_completion_knows_commands_and_options(typed: str, expected: str) -> None:
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_XLAN_COMPLETE": "complete_bash"}
    environment = {**os.environ, **asked, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "xlan"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert expected in done.stdout.split()


# The checks of `make dist`.

VERSION = xlan.__version__
ABOUT = f"Version: {VERSION}\nLicense-Expression: Apache-2.0\nRequires-Python: >=3.11\n".encode()


def wheel(folder: Path, changes: dict[str, bytes | None]) -> list[str]:
    """Faults of a wheel that would be right, but for some changes."""
    config = json.dumps({"files": {"model.safetensors": {"sha256": check_dist.hashlib.sha256(b"weights").hexdigest()}}})
    files: dict[str, bytes | None] = dict.fromkeys(check_dist.NEEDED, b"")
    files[check_dist.MODEL + "config.json"] = config.encode()
    files[check_dist.MODEL + "model.safetensors"] = b"weights"
    files[f"xlan-{VERSION}.dist-info/METADATA"] = ABOUT
    with zipfile.ZipFile(folder / "xlan.whl", "w") as archive:
        for name, content in {**files, **changes}.items():
            if content is not None:
                archive.writestr(name, content)
    return list(check_dist.wheel_faults(folder / "xlan.whl", expected=VERSION, max_bytes=5000))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"tests/test_x.py": b""}, "tests/test_x.py does not belong in it"),
        ({"xlan/cache.pyc": b""}, "xlan/cache.pyc does not belong in it"),
        ({check_dist.MODEL + "model.safetensors": None}, "model.safetensors is missing"),
        ({check_dist.MODEL + "model.safetensors": b"other"}, "model.safetensors is damaged"),
        ({"xlan/py.typed": None}, "xlan/py.typed is missing"),
        ({"xlan/big": bytes(9000)}, "expected at most 5,000"),
        ({f"xlan-{VERSION}.dist-info/METADATA": ABOUT.replace(b"Version: ", b"Version: 9")}, "does not say 'Version"),
    ],
)
def test_faults_of_a_wheel_are_found(changes: dict[str, bytes | None], fault: str, tmp_path: Path) -> None:
    assert wheel(tmp_path, {}) == []
    assert any(fault in line for line in wheel(tmp_path, changes))


def test_faults_of_a_source_archive_are_found(tmp_path: Path) -> None:
    def faults(names: list[str], top: str = f"xlan-{VERSION}") -> list[str]:
        with tarfile.open(tmp_path / "xlan.tar.gz", "w:gz") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(f"{top}/{name}"), io.BytesIO())
        return list(check_dist.sdist_faults(tmp_path / "xlan.tar.gz", expected=VERSION))

    whole = list(check_dist.NEEDED_SOURCES)
    assert faults(whole) == []
    assert "LICENSE is missing" in faults([name for name in whole if name != "LICENSE"])[0]
    assert "out/best.pt does not belong" in faults([*whole, "out/best.pt"])[0]
    assert "expected everything in the folder" in faults(whole, top="xlan-0")[0]


def test_every_file_that_the_archive_must_have_is_in_the_list_of_the_build() -> None:
    import tomllib

    built = tomllib.loads(read("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in check_dist.NEEDED_SOURCES:
        assert name == "pyproject.toml" or name in built or name.split("/")[0] in built, name
        assert (ROOT / name).is_file(), name


def test_a_folder_with_nothing_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_dist.main(tmp_path) == 1
    assert "expected one wheel and one source archive, got 0 and 0" in capsys.readouterr().err
