"""The files that a contributor meets agree with the code: CONTRIBUTING, CITATION, templates, workflow, hooks."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import drl_cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHECK = (ROOT / "scripts" / "check").read_text()
FORMS = [ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "idea")]


def read(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_the_version_has_one_source_and_the_citation_agrees():
    citation = read("CITATION.cff")
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert (citation["version"], citation["license"]) == (drl_cli.__version__, PROJECT["license"])
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_commands_of_contributing_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    modes = re.findall(r"^ {2}(\w+)\)", CHECK, re.MULTILINE) + re.findall(r'\[ "\$\{1:-\}" = (\w+) \]', CHECK)
    assert set(re.findall(r"`scripts/check (\w+)", page)) == {*modes}
    for path in re.findall(r"`(?:python )?((?:scripts|tests|docs|conf|drl_cli)/[\w./]+)[ `]", page):
        assert (ROOT / path).exists(), path
    for command in re.findall(r"`(drl-\w+)", page):
        assert command in PROJECT["scripts"]


def test_the_hooks_are_the_static_checks():
    (static,) = re.findall(r"^static\(\) \{\n(.*?)\n\}", CHECK, re.MULTILINE | re.DOTALL)
    hooks = read(".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == static.strip().replace("nice ", "").split(" && ")
    assert all(hook["pass_filenames"] is False for hook in hooks)


def test_the_workflow_calls_the_script_of_continuous_integration_with_a_python_that_is_named():
    (job,) = read(".github/workflows/check.yml")["jobs"].values()
    assert job["steps"][-1]["run"] == "bash .ci/run"
    assert (ROOT / ".ci" / "run").is_file()
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    (python,) = (step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", ()))
    assert python in named
    assert PROJECT["requires-python"] == f">={min(named)}"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_have_what_github_needs(form):
    content = read(form)
    assert {"name", "description", "body"} <= content.keys()
    for field in content["body"]:
        assert field["type"] == "textarea"
        assert field["id"]
        assert field["attributes"]["label"]
    commands = set(re.findall(r"drl-\w+", form.read_text())) - {"drl-cli"}
    assert commands <= PROJECT["scripts"].keys()
