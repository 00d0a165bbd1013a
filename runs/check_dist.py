"""Check what `make dist` built: contents, size, version, and that the wheel works where it is installed.

    python runs/check_dist.py dist

Every fault is a line on standard error; the exit status is 1 if there is one.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from PIL import Image

ROOT = Path(__file__).parent.parent
MAX_WHEEL_BYTES = 60_000_000
MODEL = "xlan/models/default/"
NEEDED = (
    "xlan/py.typed",
    "xlan/serving/static/index.html",
    *(MODEL + name for name in ("config.json", "model.safetensors", "vocab.json", "vision.safetensors", "README.md")),
)
NEEDED_SOURCES = (
    *("pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
    *("CITATION.cff", "Containerfile", "mkdocs.yml", "src/xlan/__init__.py", "tests/conftest.py", "docs/index.md"),
    *("runs/check_dist.py", "examples/caption_folder.py"),
)
FOREIGN = (".pyc", ".pt", ".pth", ".bin", ".pkl", ".onnx", ".npz")


def version() -> str:
    """The version that the sources say."""
    found = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "src/xlan/__init__.py").read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def wheel_faults(path: Path, *, expected: str, max_bytes: int = MAX_WHEEL_BYTES) -> Iterator[str]:
    """What is wrong with a wheel."""
    if path.stat().st_size > max_bytes:
        yield f"{path.name}: {path.stat().st_size:,} bytes, expected at most {max_bytes:,}"
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        yield from (f"{path.name}: {name} is missing" for name in NEEDED if name not in names)
        top = f"xlan-{expected}.dist-info"
        yield from (f"{path.name}: {n} does not belong in it" for n in names if n.split("/")[0] not in ("xlan", top))
        yield from (f"{path.name}: {n} does not belong in it" for n in names if n.endswith(FOREIGN))
        if f"{top}/METADATA" not in names:
            yield f"{path.name}: expected version {expected}"
            return
        about = archive.read(f"{top}/METADATA").decode()
        for line in (f"Version: {expected}", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
            if line not in about.splitlines():
                yield f"{path.name}: its METADATA does not say {line!r}"
        if MODEL + "config.json" in names:
            for name, said in json.loads(archive.read(MODEL + "config.json"))["files"].items():
                if MODEL + name in names:
                    if hashlib.sha256(archive.read(MODEL + name)).hexdigest() != said["sha256"]:
                        yield f"{path.name}: {MODEL}{name} is damaged"
                else:
                    yield f"{path.name}: {MODEL}{name} is missing"


def sdist_faults(path: Path, *, expected: str) -> Iterator[str]:
    """What is wrong with a source archive."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    top = f"xlan-{expected}"
    names = {str(PurePosixPath(*PurePosixPath(member.name).parts[1:])) for member in members}
    if {PurePosixPath(member.name).parts[0] for member in members} != {top}:
        yield f"{path.name}: expected everything in the folder {top}"
    yield from (f"{path.name}: {name} is missing" for name in NEEDED_SOURCES if name not in names)
    yield from (f"{path.name}: {n} does not belong in it" for n in sorted(names) if n.endswith((".pyc", ".pt", ".pth")))
    yield from (f"{path.name}: {m.name} is a link" for m in members if m.issym() or m.islnk())


def installation_faults(wheel: Path) -> Iterator[str]:
    """Install the wheel into a fresh environment without a network, and let it caption a picture.

    Dependencies are those of the environment that runs this; a path file lends them, without what is editable there.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "env", with_pip=False)
        python = folder / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
        done = subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", str(wheel)], capture_output=True, text=True)
        if done.returncode:
            yield f"{wheel.name}: pip install failed: {done.stderr.strip()}"
            return
        where = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
        ).stdout.strip()
        (Path(where) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        Image.linear_gradient("L").convert("RGB").save(folder / "photo.png")
        xlan = python.with_name("xlan")
        for arguments, says in ((["--version"], f"xlan {version()}"), (["caption", "photo.png"], " ")):
            command = [str(xlan), *arguments]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, env={"PATH": ""})
            if done.returncode or says not in done.stdout:
                yield f"{wheel.name}: xlan {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}"


def main(folder: Path) -> int:
    """Check a folder with one wheel and one source archive."""
    wheels, sources = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if (len(wheels), len(sources)) != (1, 1):
        print(
            f"{folder}: expected one wheel and one source archive, got {len(wheels)} and {len(sources)}",
            file=sys.stderr,
        )
        return 1
    expected = version()
    faults = [*wheel_faults(wheels[0], expected=expected), *sdist_faults(sources[0], expected=expected)]
    faults = faults or list(installation_faults(wheels[0]))
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        sizes = ", ".join(f"{path} ({path.stat().st_size / 1e6:.1f} MB)" for path in (*wheels, *sources))
        print(f"checked and installed: {sizes}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
