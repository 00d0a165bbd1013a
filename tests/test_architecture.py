"""The imports between our folders point one way; every arrow that exists is listed here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "xlan"

EVERYWHERE = {
    "errors",
    "types",
    "files",
    "folders",
    "lengths",
    "ahead",
    "threads",
    "memory",
    "children",
    "weights",
    "mapped",
    "karpathy",
    "caption_json",
    "looking",
    "options",
}
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "types": set(),
    "files": set(),
    "folders": set(),
    "lengths": set(),
    "ahead": set(),
    "threads": set(),
    "memory": set(),
    "children": set(),
    "weights": set(),
    "mapped": set(),
    "karpathy": set(),
    "caption_json": set(),
    "looking": set(),
    "config": set(),
    "vision": set(),
    "text": set(),
    "model": set(),
    "decoding": {"required"},
    "required": set(),
    "metrics": {"text"},
    "data": {"vision", "text"},
    "hub": set(),
    "pretrained": {"hub", "model", "text"},
    "publishing": {"hub", "pretrained"},
    "packing": {"confidence", "data", "model", "pretrained", "text", "vision"},
    "export": {"model", "text", "vision"},
    "exporting": {"engines", "export", "pretrained", "vision", "wording"},
    "training": {"data", "model", "decoding", "metrics", "text", "vision", "pretrained", "config"},
    "adapt": {"training", "vision", "text"},
    "detector_training": {"adapt", "training", "vision", "config"},
    "confidence": {"text", "vision"},
    "pages": {"metrics"},
    "studies": {"config", "data", "metrics", "model", "pages"},
    "options": set(),
    "engines": {"confidence", "vision", "text", "model", "decoding", "pretrained", "required", "export"},
    "wording": {"engines", "text", "required"},
    "pipeline": {"confidence", "vision", "text", "engines", "wording"},
    "web": {"confidence", "export", "pages", "text", "vision"},
    "batch": {"engines", "export", "pipeline", "pretrained", "vision"},
    "search": {"engines", "pipeline", "text", "vision", "wording"},
    "serving": {"pipeline", "pages", "search", "vision"},
    "alt": {"pipeline", "pages", "vision"},
    "photos": {"vision"},
}
# `config` is read by the files that turn it into objects, and by nobody else.
CONFIG_READERS = {
    "detector_training/build.py",
    "training/build.py",
    "training/run.py",
    "studies/schema.py",
    "studies/runs.py",
}
NO_TORCH = {
    "hub",
    "publishing",
    "export",
    "required",
    "errors",
    "types",
    "files",
    "folders",
    "ahead",
    "weights",
    "mapped",
    "karpathy",
    "caption_json",
    "looking",
    "text",
    "metrics",
    "config",
    "options",
    "wording",
    "pipeline",
    "pages",
    "alt",
    "photos",
    "search",
}


def folder_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> list[tuple[str, bool]]:
    """Modules imported by a file, and whether only type checkers see the import."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, typing_only: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, True)
            for child in node.orelse:
                visit(child, typing_only)
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute in this project"
            found.append((node.module or "", typing_only))
            if node.module == "xlan":
                found.extend((f"xlan.{alias.name}", typing_only) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, typing_only)

    visit(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in ("__init__.py", "__main__.py")
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    here = path.relative_to(SOURCE)
    home = here.parts[0].removesuffix(".py")
    for module, _ in imports(path):
        if module.split(".")[0] != "xlan":
            continue
        there = folder_of(module)
        if there in ("", "__version__", home) or there in EVERYWHERE - {home}:
            continue
        assert there != "cli", f"{here} imports {module}: nobody imports cli"
        if home == "cli":
            continue
        if there == "config":
            assert str(here) in CONFIG_READERS, f"{here} imports {module}: config stops at {sorted(CONFIG_READERS)}"
        assert home in ARROWS, f"{here}: folder {home} has no arrows listed in {__file__}"
        assert there in ARROWS[home], f"{here} imports {module}: the arrow {home} → {there} is not allowed"


def test_every_arrow_exists() -> None:
    drawn = {
        (path.relative_to(SOURCE).parts[0].removesuffix(".py"), folder_of(module))
        for path in FILES
        for module, _ in imports(path)
        if module.split(".")[0] == "xlan"
    }
    listed = {(home, there) for home, arrows in ARROWS.items() for there in arrows}
    assert listed <= drawn, f"listed, but no file imports this way: {sorted(listed - drawn)}"
    assert not {there for _, there in listed} & EVERYWHERE, "what all may import needs no arrow"
    assert ARROWS.keys() >= EVERYWHERE | NO_TORCH
    assert {there for _, there in drawn} >= EVERYWHERE
    assert all((SOURCE / f"{home}.py").is_file() or (SOURCE / home).is_dir() for home in ARROWS)
    assert all("xlan.config" in {m for m, _ in imports(SOURCE / reader)} for reader in CONFIG_READERS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_parts_that_promise_it_do_not_import_torch(path: Path) -> None:
    here = path.relative_to(SOURCE)
    if here.parts[0].removesuffix(".py") not in NO_TORCH:
        return
    for module, typing_only in imports(path):
        assert typing_only or module.split(".")[0] != "torch", f"{here} imports torch"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_imports_torchvision(path: Path) -> None:
    for module, _ in imports(path):
        assert module.split(".")[0] != "torchvision", f"{path.relative_to(SOURCE)} imports torchvision"
