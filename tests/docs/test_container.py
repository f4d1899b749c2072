"""The Dockerfile copies files that exist and are enough for the wheel, and its commands are commands of drl-cli."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGE = (ROOT / "docs" / "container.md").read_text()
LINES = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text()).splitlines()
INSTRUCTIONS = [line.partition(" ")[::2] for line in LINES if line and not line.startswith("#")]


def arguments(name):
    """Return the arguments of each instruction with this name."""
    return [rest.split() for instruction, rest in INSTRUCTIONS if instruction == name]


def test_every_copied_file_exists():
    for *sources, _ in (words for words in arguments("COPY") if not words[0].startswith("--from=")):
        for source in sources:
            assert (ROOT / source).exists(), source
    stages = {words[2] for words in arguments("FROM") if words[1:2] == ["AS"]}
    assert {words[0].removeprefix("--from=") for words in arguments("COPY") if words[0].startswith("--from=")} == stages


def test_the_copied_files_are_enough_for_the_wheel():
    copied = {source for words in arguments("COPY") if words[0][0] != "-" for source in words[:-1]}
    project, wheel = PYPROJECT["project"], PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {project["readme"], *project["license-files"], *wheel["packages"], *wheel["force-include"]}
    assert copied == {"pyproject.toml", *needed}
    assert PYPROJECT["tool"]["hatch"]["version"]["path"].partition("/")[0] in copied


def test_its_commands_are_commands_of_drl_cli():
    (command,) = [json.loads(rest) for instruction, rest in INSTRUCTIONS if instruction == "CMD"]
    typed = re.findall(r"^docker run .* drl-cli (drl-\w+) ", PAGE, re.MULTILINE)
    assert len(typed) == 3
    assert {command[0], *typed} <= PYPROJECT["project"]["scripts"].keys()


def test_the_page_names_arguments_and_folders_of_the_dockerfile():
    declared = {words[0].partition("=")[0] for words in arguments("ARG")}
    assert set(re.findall(r"--build-arg\s+(\w+)=", PAGE)) == declared
    ((home,),) = arguments("WORKDIR")[1:]
    assert set(re.findall(r"/outputs:(\S+)/outputs", PAGE)) == {home}
    assert arguments("USER") == [["$UID"]]
    assert ["UID=1000"] in arguments("ARG")  # not root


@pytest.mark.parametrize("line", [rest for instruction, rest in INSTRUCTIONS if instruction == "RUN"])
def test_its_shell_commands_are_well_formed(line):
    assert subprocess.run(["bash", "-n", "-c", line]).returncode == 0


def test_the_python_is_one_that_is_named():
    versions = {re.search(r"python:(\d+\.\d+)", words[0])[1] for words in arguments("FROM")}
    named = [line for line in PYPROJECT["project"]["classifiers"] if line.startswith("Programming Language")]
    assert versions <= {line.rpartition(" ")[2] for line in named}
