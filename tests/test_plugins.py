"""A name in an experiment file may stand for something that a stranger's file, folder or package brings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from own_parts import forget_after
from small_runs import plain, toml

from testbed import plugins
from testbed.cli import main
from testbed.errors import InputError
from testbed.experiment.load import from_dict, load
from testbed.plugins import Registry

pytestmark = pytest.mark.slow

SYSTEM = """
import testbed
from testbed.codecs import Half

class {class_name}(testbed.CodecSystem):
    name = "{name}"
    def codec(self, sender):
        return Half(self.task.layout)
"""


ADDS = """
from testbed.plugins import Registry
Registry("thing").add("{name}", 1, __name__)
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests after one do not see its plug-ins."""
    forget_after(monkeypatch)


def system(folder: Path, name: str, file: str = "") -> Path:
    """A file with a system called `name`."""
    path = folder / (file or f"{name.replace('-', '_')}.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SYSTEM.format(class_name="Mine", name=name))
    return path


def experiment(folder: Path, name: str, listed: list[str]) -> Path:
    """An experiment in `folder` that runs the system `name` and lists plug-ins."""
    path = folder / "mine.toml"
    path.write_text(f"plugins = {listed!r}\n" + toml(plain(systems={name: {}})))
    return path


def test_a_file_is_found_from_the_experiments_folder_not_from_the_working_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    path = system(tmp_path, "by-file")
    [point] = load(experiment(tmp_path, "by-file", ["./by_file.py"]))
    assert point.experiment.plugins == [str(path)]
    assert from_dict(point.experiment.as_dict(), "again") == point.experiment


def test_a_folder_is_a_plugin_whose_modules_import_each_other(tmp_path: Path) -> None:
    system(tmp_path, "by-folder", "lab/coding.py")
    (tmp_path / "lab" / "__init__.py").write_text("from . import coding\n")
    [point] = load(experiment(tmp_path, "by-folder", ["./lab"]))
    assert list(point.experiment.systems) == ["by-folder"]


def test_the_hash_of_a_folder_is_of_all_its_modules(tmp_path: Path) -> None:
    part = system(tmp_path, "by-parts", "parts/coding.py")
    (tmp_path / "parts" / "__init__.py").write_text("from . import coding\n")
    plugins.load(["./parts"], tmp_path)
    [found] = [each for each in plugins.loaded() if each.file == str(tmp_path / "parts" / "__init__.py")]
    assert plugins._sha256(Path(found.file)) == found.sha256
    part.write_text(part.read_text() + "\n# changed\n")
    assert plugins._sha256(Path(found.file)) != found.sha256


def test_a_module_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    system(tmp_path, "by-module", "a_lab_of_ones_own/sign.py")
    (tmp_path / "a_lab_of_ones_own" / "__init__.py").touch()
    [point] = load(experiment(tmp_path, "by-module", ["a_lab_of_ones_own.sign"]))
    assert point.experiment.plugins == ["a_lab_of_ones_own.sign"]


def test_an_installed_package_needs_no_word(tmp_path: Path) -> None:
    """Its entry point is enough; in a process of its own, since entry points are read from the path."""
    system(tmp_path, "by-package", "installed_lab.py")
    info = tmp_path / "installed_lab-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-lab\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[testbed.plugins]\nlab = installed_lab\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from testbed import plugins\nfrom testbed.systems import SYSTEMS\n"
        "plugins.load([])\nassert 'by-package' in SYSTEMS\n"
        "[found] = plugins.loaded()\nassert found.name == 'installed_lab' and len(found.sha256) == 64"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_what_is_loaded_is_told_with_its_files_hash(tmp_path: Path) -> None:
    path = system(tmp_path, "hashed")
    assert plugins.load(["./hashed.py"], tmp_path) == plugins.load([str(path)]) == (str(path),)
    [found] = [each for each in plugins.loaded() if each.name == str(path)]
    assert found.file == str(path)
    assert len(found.sha256) == 64


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("raise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def f(:", "cannot be imported: SyntaxError: "),
        (SYSTEM.format(class_name="Other", name="dgc"), "there is a system 'dgc' already"),
        (SYSTEM.format(class_name="Other", name="../../../esc"), "system 'Other': name: '/' in a name that records"),
        (SYSTEM.format(class_name="Other", name=".."), "system 'Other': name: the name '..' is no plain name"),
        (SYSTEM.format(class_name="Other", name="x" * 300), "is a name of 300 bytes; 255 are possible"),
        (SYSTEM.replace('"{name}"', "7").format(class_name="Other"), "system 'Other': name: 7 is no name; a system's"),
        (
            "from testbed.workloads import model\nmodel(7)(lambda outputs: None)",
            "a model is called 7; a name is a",
        ),
    ],
)
def test_what_is_wrong_with_one_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    (tmp_path / "wrong.py").write_text(text)
    assert main(["run", str(experiment(tmp_path, "baseline", ["./wrong.py"]))]) == 2
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith(f"testbed: error: {tmp_path / 'mine.toml'}: plugins: plug-in {tmp_path / 'wrong.py'}")
    assert line in said[0]


def test_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"plugins: plug-in .*/gone\.py: no such file"):
        load(experiment(tmp_path, "baseline", ["./gone.py"]))


@pytest.mark.parametrize("name", ["./small.toml", "small.toml"])
def test_a_file_of_another_kind_is_no_plugin(tmp_path: Path, name: str) -> None:
    (tmp_path / "small.toml").touch()
    with pytest.raises(InputError, match=rf"^plug-in {tmp_path}/small\.toml: a plug-in is a \.py file, a folder with"):
        plugins.load([name], tmp_path)


def test_an_unknown_name_says_where_it_was_looked_for(tmp_path: Path) -> None:
    path = system(tmp_path, "looked-at")
    with pytest.raises(InputError, match=rf"unknown system 'lokked-at'; did you mean 'looked-at'.*{path}"):
        load(experiment(tmp_path, "lokked-at", ["./looked_at.py"]))


def test_a_scripts_own_is_what_it_and_its_imports_register_and_not_what_a_plugin_does(tmp_path: Path) -> None:
    """Where there is none, other processes need not import it."""
    (tmp_path / "plug.py").write_text(ADDS.format(name="plugged"))
    (tmp_path / "helper.py").write_text(ADDS.format(name="helped"))
    (tmp_path / "script.py").write_text(
        'from testbed import plugins\nplugins.load(["./plug.py"])\nprint(*plugins.interactive().names)\n'
        f"import helper\nprint(*plugins.interactive().names)\n{ADDS.format(name='mine')}"
        "print(*plugins.interactive().names)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "thing 'helped'", "thing 'helped' thing 'mine'"]


def test_the_same_file_may_register_again_and_another_may_not() -> None:
    things: Registry[int] = Registry("thing")
    things.add("one", 1, "testbed.errors")
    things.add("one", 2, "testbed.errors")
    assert things.find("one") == 2
    with pytest.raises(InputError, match="there is a thing 'one' already"):
        things.add("one", 3, "testbed.layout")


@pytest.mark.full
def test_jobs_of_their_own_know_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes, each of which imports the plug-in."""
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path / "data"))
    system(tmp_path, "in-jobs")
    path = experiment(tmp_path, "in-jobs", ["./in_jobs.py"])
    arguments = ["--systems", "baseline,in-jobs", "--fabric", "virtual", "--jobs", "2", "--out", str(tmp_path / "out")]
    assert main(["run", str(path), *arguments]) == 0


def test_a_changed_plugin_is_not_resumed(tmp_path: Path, small_data: None, capfd: pytest.CaptureFixture[str]) -> None:
    plugin = system(tmp_path, "changing")
    path = experiment(tmp_path, "changing", ["./changing.py"])
    assert main(["run", str(path), "--fabric", "virtual", "--jobs", "1", "--out", str(tmp_path / "out")]) == 0
    [folder] = (tmp_path / "out" / "mine").iterdir()
    [facts] = folder.glob("run.json")
    [loaded] = [each for each in plugins.loaded() if each.name == str(plugin)]
    changed = facts.read_text().replace(loaded.sha256, "0" * 64)
    facts.write_text(re.sub(r',\s*"crc": "[0-9a-f]{8}"', "", changed))  # as who changes it on purpose leaves it out
    assert main(["run", "--resume", str(folder)]) == 2
    assert "is not what the run began with; start a new run" in capfd.readouterr().err
