"""Values at the boundaries of statuses, films and panels."""

import dataclasses

import numpy as np
import pytest
from test_panel import BARS, STATUS, row

from drl_cli.metrics.film import Film, size_of
from drl_cli.metrics.status import Status


def test_a_run_of_one_step_is_complete_after_this_step():
    assert Status(env_steps=1, total_env_steps=1).share == 1.0


@pytest.mark.parametrize(("done", "left"), [(40, 6), (100, 0), (130, 0)])
def test_no_time_is_left_once_everything_awaited_is_there(done, left):
    status = Status(awaits="warm-up", done=done, needed=100, done_per_s=10.0)
    assert status.awaited == f"warm-up {done}/100, 10 steps/s, about {left} s left"


def test_a_film_is_240_pixels_wide_at_most():
    film = Film(50.0)
    film.step(lambda: np.zeros((300, 480, 3), np.uint8))
    assert size_of(film.gif()) == (240, 150)


def test_the_newest_24_evaluations_are_bars():
    many = dataclasses.replace(STATUS, scores=tuple((i, float(i == 25)) for i in range(50)))
    assert [letter for letter in row(many, "evaluation") if letter in BARS] == [BARS[0]] * 24


@pytest.mark.parametrize("num", [8, 9])
def test_eight_losses_are_shown(num):
    losses = dataclasses.replace(STATUS, losses={f"loss{i}": 1.0 for i in range(num)})
    assert row(losses, "losses").endswith("loss7 1" if num == 8 else "loss7 1   and 1 more")
