import sys

import pytest

from drl_cli.utils.headless import headless


@pytest.mark.skipif(sys.platform != "linux", reason="MUJOCO_GL is set on Linux only")
def test_variables_that_are_set_stay_and_a_display_is_used(monkeypatch):
    for name in ("DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert (headless()["MUJOCO_GL"], headless()["SDL_VIDEODRIVER"]) == ("egl", "dummy")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    assert "SDL_VIDEODRIVER" not in headless()
    monkeypatch.setenv("DISPLAY", ":0")
    assert "MUJOCO_GL" not in headless()
