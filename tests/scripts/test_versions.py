import runpy
from pathlib import Path

VERSIONS = Path(__file__).parents[2] / "scripts" / "versions"


def test_each_package_is_held_at_the_lowest_version_that_pyproject_names():
    lines = runpy.run_path(str(VERSIONS))["lowest"]()
    named = dict(line.split("==") for line in lines)
    assert (named["ray"], named["torch"], named["pytest"]) == ("2.52", "2.6", "8.2")
    assert len(lines) > 20
