import dataclasses
import io

import numpy as np
import pytest
from PIL import Image
from test_panel import BARS, STATUS, row

from drl_cli.metrics.advice import bottleneck, has_free_cores
from drl_cli.metrics.film import Film, size_of
from drl_cli.metrics.status import Status


def test_a_run_of_one_step_is_complete_after_this_step():
    assert Status(env_steps=1, total_env_steps=1).share == 1.0


@pytest.mark.parametrize(("done", "left"), [(40, 120), (100, 0), (130, 0)])
def test_no_time_is_left_once_everything_awaited_is_there(done, left):
    status = Status(awaits="warm-up", done=done, needed=100, done_per_s=0.5)
    assert status.awaited == f"warm-up {done}/100, 0.5 steps/s, about {left} s left"


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


def test_a_step_of_a_slow_film_has_its_exact_duration():
    film = Film(0.1)
    for number in range(2):
        film.step(lambda number=number: np.full((9, 9, 3), number, np.uint8))
    with Image.open(io.BytesIO(film.gif())) as image:
        assert image.info["duration"] == 10_000


@pytest.mark.parametrize(("cores", "is_slowed"), [(6.9, True), (7.0, False)])
def test_a_run_with_seven_of_ten_busy_processors_is_not_slowed_by_other_programs(cores, is_slowed):
    status = Status(
        state="running", cpus=10, cpu_percent=99.0, roles={"worker": {"cores": cores}},
        worker_time={"waiting": 0.0}, trainer_time={"waiting": 0.0},
    )  # fmt: skip
    assert bottleneck(status).startswith("other programs") == is_slowed


@pytest.mark.parametrize(("batch", "waits"), [(0.5, False), (0.51, True)])
def test_a_trainer_waits_for_batches_if_they_take_longer_than_updates(batch, waits):
    trainer = {"batch": batch, "update": 0.5, "waiting": 0.0}
    status = Status(state="running", worker_time={"waiting": 0.9}, trainer_time=trainer)
    assert ("It waits for its batches" in bottleneck(status)) == waits


@pytest.mark.parametrize(
    ("cpus", "load", "cores", "has_free"),
    [
        *[(20, 84.9, 16.9, True), (20, 85.0, 16.9, False), (20, 84.9, 17.0, False), (1, 10.0, 0.1, False)],
        (2, None, 0.1, False),
    ],
)
def test_processors_are_free_below_85_percent(cpus, load, cores, has_free):
    status = Status(state="running", cpus=cpus, cpu_percent=load, roles={"worker": {"cores": cores}})
    assert has_free_cores(status) == has_free


def test_a_status_without_a_number_of_processors_has_none_free():
    assert not has_free_cores(Status.of({"state": "running", "cpu_percent": 10.0}))
