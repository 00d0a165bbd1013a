"""The launcher, on the real jar with stand-ins for CoreNLP, and on a stand-in jar that misbehaves."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from xlan.errors import MetricError, MissingExtraError
from xlan.metrics import spice
from xlan.metrics.spice import Spice
from xlan.metrics.spice_corenlp import CODE_JAR, MODELS_JAR
from xlan.metrics.spice_process import Outcome

FIXTURES = Path(__file__).parent.parent / "fixtures" / "metrics" / "spice"
needs_jdk = pytest.mark.skipif(
    shutil.which("javac") is None or shutil.which("java") is None, reason="needs a JDK (java and javac) on the PATH"
)
pytest.importorskip("pycocoevalcap", reason="needs the extra `metrics`")


def compile_to_jar(sources: Path, jar: Path, scratch: Path) -> Path:
    files = [str(path) for path in sorted(sources.rglob("*.java"))]
    subprocess.run(["javac", "-nowarn", "-d", str(scratch), *files], check=True, timeout=120, capture_output=True)
    with zipfile.ZipFile(jar, "w") as box:
        for path in sorted(scratch.rglob("*.class")):
            box.write(path, path.relative_to(scratch).as_posix())
    return jar


@pytest.fixture(scope="session")
def corenlp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two jars of the right names and just enough classes for the real scorer to run."""
    folder = tmp_path_factory.mktemp("corenlp")
    compile_to_jar(FIXTURES / "corenlp", folder / CODE_JAR, tmp_path_factory.mktemp("classes"))
    with zipfile.ZipFile(folder / MODELS_JAR, "w"):
        pass
    return folder


@pytest.fixture(scope="session")
def fake_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fake")
    return compile_to_jar(FIXTURES / "fake", folder / "spice-1.0.jar", tmp_path_factory.mktemp("fake-classes"))


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLAN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XLAN_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def fake(fake_jar: Path, corenlp: Path, monkeypatch: pytest.MonkeyPatch) -> Spice:
    monkeypatch.setattr(spice, "_package_jars", lambda: [fake_jar])
    monkeypatch.setattr(spice, "tokenize", str)  # the first caption is an order to the stand-in
    return Spice(corenlp, timeout=60, max_heap="128m")


def tell(scorer: Spice, order: str, images: int = 1) -> tuple[float, list[float]]:
    hypotheses = {f"image {n}": order if n == 0 else "a dog" for n in range(images)}
    return scorer.score({key: ["a dog runs"] for key in hypotheses}, hypotheses)


def package_files() -> set[str]:
    return {str(path) for path in spice.package_dir().rglob("*") if "__pycache__" not in path.parts}


def wait_until_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rsplit(")", 1)[-1].split()[0] == "Z":
            return True  # dead, waiting for whoever adopted it
        time.sleep(0.05)
    return False


# --- the real jar -----------------------------------------------------------------------------------------------------


@needs_jdk
def test_the_real_jar_runs_to_the_end_on_stand_ins_for_corenlp(corenlp: Path, tmp_path: Path) -> None:
    before = package_files()
    scorer = Spice(corenlp, timeout=120, max_heap="512m")
    references = {7: ["a dog runs", "ein Hund läuft 🐕"], "x.jpg": ["a\nlong caption " * 60]}
    mean, each = scorer.score(references, {"x.jpg": "", 7: "a dog \x00 \ud800"})
    assert (mean, each) == (0.0, [0.0, 0.0])  # the stand-ins find no tuple in any caption
    assert package_files() == before
    if platform.machine().lower() in ("x86_64", "amd64"):
        assert list((tmp_path / "cache").rglob("data.mdb"))


@needs_jdk
def test_corenlp_without_its_classes_is_named_as_the_reason(tmp_path: Path) -> None:
    for name in (CODE_JAR, MODELS_JAR):
        with zipfile.ZipFile(tmp_path / name, "w"):
            pass
    scorer = Spice(tmp_path, timeout=120, max_heap="512m")
    with pytest.raises(MetricError, match=r"CoreNLP 3\.6\.0 is incomplete .*SemgrexPattern.*xlan metrics setup-spice"):
        scorer.score({1: ["a dog"]}, {1: "a dog"})


@needs_jdk
def test_parses_of_another_corenlp_are_not_used(corenlp: Path, tmp_path: Path) -> None:
    other = shutil.copytree(corenlp, tmp_path / "other")
    with zipfile.ZipFile(other / CODE_JAR, "a") as box:
        box.writestr("another", "file")
    assert Spice(corenlp)._cache != Spice(other)._cache


def test_the_committed_script_engine_was_compiled_from_its_source_for_java_8() -> None:
    folder = Path(spice.__file__).parent / "spice_java"
    with zipfile.ZipFile(folder / "script-engine.jar") as jar:
        inside = {name: jar.read(name) for name in jar.namelist()}
    assert inside.pop("META-INF/services/javax.script.ScriptEngineFactory").split() == [b"JsonIndent"]
    assert inside.pop("JsonIndent.java") == (folder / "JsonIndent.java").read_bytes(), "rebuild: see JsonIndent.java"
    assert set(inside) == {"JsonIndent.class", "JsonIndent$Engine.class"}
    assert {int.from_bytes(code[6:8], "big") for code in inside.values()} == {52}


# --- the stand-in jar -------------------------------------------------------------------------------------------------


@needs_jdk
def test_scores_come_back_under_their_own_images(fake: Spice) -> None:
    mean, each = tell(fake, "well", images=4)
    assert each == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert mean == pytest.approx(sum(each) / 4)


@needs_jdk
@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
def test_at_the_time_limit_java_and_its_children_are_killed(fake: Spice, tmp_path: Path) -> None:
    for limit in (2, 10, 60):  # a busy machine may need more time to start Java at all
        fake._timeout = limit
        with pytest.raises(MetricError, match=f"took more than the time limit of {limit} s"):
            tell(fake, f"hang {tmp_path / 'pid'}")
        if (tmp_path / "pid").exists():
            break
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
@needs_jdk
@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
def test_children_that_java_leaves_behind_do_not_hold_us_up(fake: Spice, tmp_path: Path) -> None:
    start = time.monotonic()
    assert tell(fake, f"stray {tmp_path / 'pid'}")[0] == 1.0
    assert time.monotonic() - start < 30
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
@needs_jdk
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_ctrl_c_kills_java_and_its_children(fake_jar: Path, corenlp: Path, tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\nfrom xlan.metrics import spice\n"
        f"spice._package_jars = lambda: [Path({str(fake_jar)!r})]\nspice.tokenize = str\n"
        f"spice.Spice(Path({str(corenlp)!r}), max_heap='128m').score({{1: ['a']}}, {{1: 'hang {tmp_path / 'pid'}'}})\n"
    )
    python = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    try:
        for _ in range(1200):
            if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
                break
            time.sleep(0.05)
        python.send_signal(2)
        assert b"KeyboardInterrupt" in python.communicate(timeout=30)[1]
    finally:
        python.kill()
        python.wait()
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
@needs_jdk
def test_a_flood_of_messages_does_not_block(fake: Spice) -> None:
    assert tell(fake, "flood")[0] == 1.0


@pytest.mark.slow
@needs_jdk
def test_without_the_native_library_it_runs_without_the_cache(fake: Spice) -> None:
    assert tell(fake, "link")[0] == 1.0


@needs_jdk
@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("throw", r"SPICE stopped: exit status 1, .*IllegalStateException: on purpose"),
        ("memory", r"too little memory with -Xmx128m \(.*Java heap space"),
        ("silent", r"no valid output \(.*no such file"),
        ("answer not json", r"no valid output \(.*not valid JSON"),
    ],
)
def test_failures_are_one_line_and_never_a_score(fake: Spice, order: str, message: str) -> None:
    with pytest.raises(MetricError, match=message) as caught:
        tell(fake, order)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("{}", r"expected a list of 1, got dict"),
        ("[]", r"expected a list of 1, got 0 entries"),
        ("[7]", r"unexpected entry 7"),
        ('[{"image_id": 0}]', r"unexpected entry \{"),
        ('[{"image_id": 5, "scores": {"All": {"f": 0.5}}}]', r"unexpected entry \{"),
        ('[{"image_id": 0, "scores": {"All": {"f": null}}}]', r"unexpected entry \{"),
        ('[{"image_id": 0, "scores": {"All": {"f": NaN}}}]', r"unexpected entry \{"),
        ('[{"image_id": 0, "scores": {"All": {"f": 1.5}}}]', r"unexpected entry \{"),
        ('[{"image_id": true, "scores": {"All": {"f": 0.5}}}]', r"unexpected entry \{"),
    ],
)
def test_answers_that_are_not_scores_are_refused(tmp_path: Path, answer: str, message: str) -> None:
    (tmp_path / "out.json").write_text(answer)
    with pytest.raises(MetricError, match=message):
        spice._read_answer(tmp_path / "out.json", 1, Outcome(0, ""))


@needs_jdk
def test_captions_are_tokenised_as_coco_caption_does(
    corenlp: Path, fake_jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spice, "_package_jars", lambda: [fake_jar])
    sent: list[dict[str, object]] = []
    monkeypatch.setattr(Spice, "_run", lambda self, items: sent.extend(items) or [0.5])
    assert Spice(corenlp).score({"x": ["A man's dog, running."]}, {"x": "A dog (brown) runs!"}) == (0.5, [0.5])
    assert sent == [{"image_id": 0, "test": "a dog -lrb- brown -rrb- runs", "refs": ["a man 's dog running"]}]


# --- what is missing --------------------------------------------------------------------------------------------------


def test_missing_corenlp_says_what_to_type() -> None:
    with pytest.raises(MetricError, match=r"CoreNLP 3\.6\.0, which is not set up; type: xlan metrics setup-spice"):
        Spice()


def test_a_missing_package_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spice.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'SPICE needs .* pip install "xlan\[metrics\]"'):
        Spice()


@pytest.mark.parametrize(
    ("references", "hypotheses", "message"),
    [
        ({}, {}, "at least one caption"),
        ({1: ["a"]}, {1: "a", 2: "b"}, "image 2 has no reference"),
        ({1: ["a"], 2: ["b"]}, {1: "a"}, "image 2 has no hypothesis"),
        ({1: []}, {1: "a"}, "image 1 has none"),
        ({1: "a dog"}, {1: "a"}, "image 1 has none"),
    ],
)
def test_captions_that_cannot_be_scored(
    references: dict[int, list[str]], hypotheses: dict[int, str], message: str
) -> None:
    with pytest.raises(MetricError, match=message):
        spice.check_captions(references, hypotheses)
