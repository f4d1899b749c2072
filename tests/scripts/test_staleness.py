import importlib.util
import json
import sys
from pathlib import Path

import pytest

from drl_cli.settings.compose import compose

spec = importlib.util.spec_from_file_location("staleness", Path(__file__).parents[2] / "scripts/bench/staleness.py")
staleness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(staleness)


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call the script with options, and return the runs that it makes. No run is made twice."""
    monkeypatch.setattr(staleness, "OUTPUTS", tmp_path)
    monkeypatch.setattr(staleness, "RESULTS", tmp_path / "page.json")
    monkeypatch.setattr(staleness, "BOUNDS", (0, 8))
    monkeypatch.setattr(staleness, "plot", lambda results, picture: None)

    def run(*options):
        made = []
        monkeypatch.setattr(staleness, "run", lambda *args: (made.append(args), {"return": args[-1]})[1])
        monkeypatch.setattr(sys, "argv", ["staleness.py", "--seeds", "0", *options])
        staleness.main()
        return len(made)

    return run


@pytest.mark.slow
def test_runs_with_other_options_are_kept_apart_from_those_of_the_page(call, tmp_path):
    assert (call(), call(), call("--steps", "300"), call("--pause", "0"), call("--steps", "300")) == (6, 0, 6, 6, 0)
    page, short = (json.loads((tmp_path / name).read_text()) for name in ("page.json", "300-steps-0.1-s.json"))
    assert {each["return"] for each in page.values()} == {20_000}
    assert {each["return"] for each in short.values()} == {300}


def test_the_words_of_a_run_are_right():
    config = compose([*staleness.SAME, "algo=ppo", "mode=sync", "total_env_steps=20000"])
    assert (config.trainer.batch_size, config.env.normalize_obs, config.env.normalize_reward) == (256, False, False)
