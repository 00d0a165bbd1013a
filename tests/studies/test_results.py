"""The results of our own studies in runs/studies: whole, of rows that the studies have, as the documentation says."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from xlan.studies.schema import load_study

ROOT = Path(__file__).parents[2]
ARCHIVES = sorted((ROOT / "runs" / "studies").glob("*.tar.xz"))
FILES = {"config.yaml", "log.jsonl", "test.json"}


def test_there_are_results() -> None:
    assert ARCHIVES


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
class TestResults:
    def contents(self, archive: Path) -> dict[str, bytes]:
        with tarfile.open(archive) as file:
            members = [member for member in file if member.isfile()]
            return {member.name: file.extractfile(member).read() for member in members}  # type: ignore[union-attr]

    def test_every_run_belongs_to_a_row_and_is_whole(self, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(ROOT)
        name = archive.name.removesuffix(".tar.xz")
        study = load_study(ROOT / "configs" / "studies" / f"{name}.yaml")
        known = {f"{row}-{seed}" for row in study.rows for seed in study.rows[row].seeds or study.seeds}
        known |= {f"{row}+-{seed}" for row in study.rows for seed in study.rows[row].seeds or study.seeds}
        runs: dict[str, set[str]] = {}
        for path in self.contents(archive):
            folder, *rest = path.split("/")
            assert folder == name
            if len(rest) == 2:
                runs.setdefault(rest[0], set()).add(rest[1])
        assert runs
        assert set(runs) <= known
        assert all(files == FILES for files in runs.values())

    def test_the_documentation_has_its_table(self, archive: Path) -> None:
        name = archive.name.removesuffix(".tar.xz")
        contents = self.contents(archive)
        rows = [line for line in contents[f"{name}/table.md"].decode().splitlines() if line.startswith("|")]
        page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8").splitlines()
        assert [line for line in rows if line not in page] == []
        table = json.loads(contents[f"{name}/table.json"])
        assert [row["name"] for row in table["rows"]] == [line.split(" ")[1] for line in rows[2:]]
