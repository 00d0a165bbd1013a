"""onnxruntime for browsers: three files of the npm package `onnxruntime-web`, not shipped with xlan, but checked."""

from __future__ import annotations

import builtins
import gzip
import hashlib
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from xlan.errors import ModelError

VERSION = "1.30.0"
PACKED = f"onnxruntime-web-{VERSION}.tgz"
COMMAND = f"npm pack onnxruntime-web@{VERSION}"
HOW = f"type: {COMMAND}, then give the file it writes with --runtime {PACKED}"
MAX_PACKED_BYTES = 256 << 20


@dataclass(frozen=True)
class RuntimeFile:
    """What a file of the package must be."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, content: builtins.bytes) -> RuntimeFile:
        """What a file with this content is."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


# The plain build for processors (WASM with SIMD): those for graphics cards are twice as large.
FILES = {
    "ort.wasm.min.mjs": RuntimeFile(50126, "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b"),
    "ort-wasm-simd-threaded.mjs": RuntimeFile(
        24381, "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b"
    ),
    "ort-wasm-simd-threaded.wasm": RuntimeFile(
        14239897, "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2"
    ),
}


def read_runtime(place: str | os.PathLike[str] | None = None) -> dict[str, bytes]:
    """The files of the runtime by name, each compared with its known SHA-256.

    Args:
        place: what `npm pack` wrote, or the folder of the installed or unpacked package; by default the file of that
            name in the current folder, or `node_modules/onnxruntime-web`.

    Raises:
        ModelError: it is not there, damaged, or of another version.
    """
    source = _default_place() if place is None else Path(place)
    if source is None:
        raise ModelError(f"the page needs onnxruntime-web {VERSION}; {HOW}")
    if not source.exists():
        raise ModelError(f"{source}: no such file or folder; {HOW}")
    found = _from_folder(source) if source.is_dir() else _from_archive(source)
    for name, content in found.items():
        if hashlib.sha256(content).hexdigest() != FILES[name].sha256:
            raise ModelError(f"{source}: its {name} is not that of onnxruntime-web {VERSION}; {HOW}")
    return found


def packed_runtime(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files as the page fetches them: WebAssembly packed with gzip, a quarter of its size.

    Plain file servers send files as they are, so the page unpacks it. The name does not end in `.gz`: some servers
    would then let the browser unpack it, and the page would find another size and SHA-256.
    """
    packed = {}
    for name, content in files.items():
        if name.endswith(".wasm"):
            packed[f"{name}.bin"] = gzip.compress(content, 9, mtime=0)
        else:
            packed[name] = content
    return packed


def _default_place() -> Path | None:
    places = (Path(PACKED), Path("node_modules") / "onnxruntime-web")
    return next((place for place in places if place.exists()), None)


def _from_folder(source: Path) -> dict[str, bytes]:
    found = {}
    for name, said in FILES.items():
        places = (source / "package" / "dist" / name, source / "dist" / name, source / name)
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise ModelError(f"{source}: has no {name}, is not the package onnxruntime-web {VERSION}; {HOW}")
        size = file.stat().st_size
        if size != said.bytes:
            raise ModelError(f"{file}: {size:,} bytes, that of onnxruntime-web {VERSION} has {said.bytes:,}; {HOW}")
        found[name] = file.read_bytes()
    return found


def _from_archive(source: Path) -> dict[str, bytes]:
    if source.stat().st_size > MAX_PACKED_BYTES:
        raise ModelError(f"{source}: too large for the package onnxruntime-web; {HOW}")
    found = {}
    try:
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("package/dist/")
                if name in FILES and member.isfile() and member.size == FILES[name].bytes:
                    file = archive.extractfile(member)
                    found[name] = b"" if file is None else file.read(member.size)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ModelError(f"{source}: cannot be read as a package of npm: {error}; {HOW}") from None
    missing = [name for name in FILES if name not in found]
    if missing:
        raise ModelError(f"{source}: is not the package onnxruntime-web {VERSION} (no {missing[0]}); {HOW}")
    return found
