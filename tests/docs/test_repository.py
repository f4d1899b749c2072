"""The files that a contributor meets agree with the code: CONTRIBUTING, CITATION, templates, workflow, hooks."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import drl_cli
from drl_cli.settings.conf import options

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


VERSIONS = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("text", VERSIONS, ids=lambda text: text.split()[0])
def test_the_changelog_is_short_with_fixed_headings(text):
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == ["New", "Breaking", "Fixed"]
    assert len(text.splitlines()) <= 60


def test_the_changelog_begins_with_this_version_and_names_what_exists():
    text = VERSIONS[0]
    version, _, rest = text.partition("\n")[0].partition(" ")
    assert version == re.sub(r"\.dev\d+$", "", drl_cli.__version__)
    assert (rest == "(not released yet)") == (".dev" in drl_cli.__version__)
    named = set(re.findall(r"`(drl-\w+)", text))
    assert named == PROJECT["scripts"].keys()
    for group, option in re.findall(r"`(\w+)=([a-z]\w*)`", text):
        assert option in {*options(group), "auto", "true"}, f"{group}={option}"


def test_the_changelog_names_every_algorithm():
    text = re.sub(r"[^a-z0-9]", "", "".join(VERSIONS).lower())
    variants = {"munchausen_dqn": "munchausen", "munchausen_iqn": "munchausen", "sqn": "soft", "rainbow_iqn": "rainbow"}
    names = {name: variants.get(name, name) for name in options("algo")} | {"sac_discrete": "discrete sac"}
    names["cql_discrete"] = "cql"
    assert [name for name, word in names.items() if re.sub(r"[^a-z0-9]", "", word) not in text] == []
