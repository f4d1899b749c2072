"""Every file that the documentation names exists, and every training command is valid."""

import re
import shlex
import shutil
import sys
from itertools import chain
from pathlib import Path

import pytest
from pages import blocks

from drl_cli.errors import MISSING, UsageError
from drl_cli.runs.auto import with_auto
from drl_cli.settings.check import check_command
from drl_cli.settings.command_line import read_command
from drl_cli.settings.compose import compose
from drl_cli.settings.space import corners
from drl_cli.settings.space import space as space_of

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
REPLAYED = "first-ten-minutes.md"  # docs/test_first_ten_minutes.py runs its commands


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page):
    named = re.findall(r"([\w/]*\btest_\w+\.py)(?:::(\w+))?", (ROOT / "docs" / page).read_text())
    for path, test in named:
        (file,) = (ROOT / "tests").rglob(path) if "/" not in path else [ROOT / "tests" / path]
        assert file.is_file(), path
        assert f"def {test}" in file.read_text(), test


def prose(path):
    """Return the text of a page without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def headings(path):
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "path", [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.name
)
def test_every_link_leads_to_a_file_and_a_heading(path):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", prose(path)):
        page = path.parent / target if target else path
        assert page.exists(), target
        assert not anchor or anchor in headings(page), f"{target}#{anchor}"


def test_readme_is_short_and_leads_to_every_page():
    readme = (ROOT / "README.md").read_text()
    linked = {ROOT / target for target in re.findall(r"\]\(([\w/.-]+\.md)", readme)}
    assert len(readme.splitlines()) <= 120
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page not in linked] == ["index.md"]  # of the site


def test_every_module_of_the_architecture_exists():
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert not re.search(r"\.\w+` \(\d+\)|about \d+ lines", page), "numbers of lines become wrong"
    names = [name for name in re.findall(r"`([\w/.]+\.py|[\w/]+/)`", page) if not name.startswith("<")]
    assert len(names) > 20
    package = ROOT / "drl_cli"
    for name in names:
        folders = (ROOT, package, package / "runtime", package / "replay", package / "runtime" / "orchestrator")
        assert any((folder / name).exists() for folder in folders), name


def commands():
    """Every drl-train command line of README and docs, as (page, arguments); continued lines joined."""
    found = []
    for path in (ROOT / "README.md", *(ROOT / "docs" / page for page in PAGES if page != REPLAYED)):
        text = re.sub(r"\\\n\s*", " ", path.read_text())
        for line in re.findall(r"^(?:    |\$ )?drl-train ((?:-m |[\w.]+=|'[\w.]+=).*)$", text, re.MULTILINE):
            words = shlex.split(line.split("  #")[0].split(" | ")[0], comments=True)
            found.append((path.name, [word for word in words if word != "&"]))
    return found


MODULES = {
    "own-environment.md": ["my_mod"],
    "reward-modules.md": ["my_rnd"],
    "add-an-algorithm.md": ["my_td3", "my_a2c"],
    "more-algorithms.md": ["my_sac", "my_windows", "my_muzero"],
}
"""The names of the first blocks of code of pages."""


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """Modules of the user that the pages name."""
    tmp_path = tmp_path_factory.mktemp("users")
    package = tmp_path / "my_pkg"
    package.mkdir()
    (package / "my_mod.py").write_text("import my_mod, gymnasium\ngymnasium.register('MyEnv-v0', my_mod.My)\n")
    (package / "my_algo.py").write_text("from drl_cli.algos.off_policy.sac import ACTIONS, Algorithm, Config, Policy\n")
    shutil.copy(ROOT / "conf" / "algo" / "sac.yaml", package / "my_algo.yaml")
    for page, names in MODULES.items():
        for name, code in zip(names, blocks(page), strict=False):
            (tmp_path / f"{name}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.syspath_prepend(str(tmp_path))
        yield tmp_path
    for name in (*chain(*MODULES.values()), "my_pkg", "my_pkg.my_mod", "my_pkg.my_algo"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("page", "args"), commands(), ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_every_training_command_of_the_docs_is_valid(page, args, users):
    command, _ = with_auto(read_command(args))
    try:
        check_command(command)
    except UsageError as error:
        if error.exit_code != MISSING:
            raise
        pytest.skip(f"not installed: {error}")
    named = {arg.partition("=")[0] for arg in command.overrides}
    if named & {"resume", "from_config", "load_weights"}:  # these need a run; tests/cli tests them
        return
    if command.is_sweep:
        overrides = [arg for arg in command.overrides if not arg.startswith(("hpo", "sweep"))]
        fixed, space = space_of(overrides)
        assert space
        compose([*fixed, *corners(space)[0]])
    else:
        compose(command.overrides)
