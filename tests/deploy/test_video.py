import numpy as np
import pytest
from PIL import Image

from drl_cli.deploy import play
from drl_cli.deploy.play import Video, captioned, find_ffmpeg


def frames(num, height=300, width=400):
    return [np.full((height, width, 3), 5 * i % 256, np.uint8) for i in range(num)]


def write(path, fps, pictures):
    with Video(path, fps) as one:
        for frame in pictures:
            one.write(frame, [])


def test_a_gif_has_its_frames_at_most_25_a_second_and_320_wide(tmp_path):
    path = tmp_path / "new" / "a.gif"
    write(path, 50.0, frames(20))
    with Image.open(path) as image:
        assert (image.n_frames, image.size) == (10, (320, 240))
        image.seek(9)
        image.load()
        assert image.info["duration"] == 40
        assert abs(np.asarray(image.convert("RGB")).mean() - 90) < 3
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_long_gif_keeps_all_frames(tmp_path):
    write(tmp_path / "a.gif", 20.0, frames(150, 30, 40))
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 150


def test_mp4_by_ffmpeg_with_odd_sides(tmp_path):
    imageio, path = pytest.importorskip("imageio_ffmpeg"), tmp_path / "a.mp4"
    write(path, 20.0, [*frames(9, 301, 251), *frames(1, 100, 100)])  # the last frame has another size
    reader = imageio.read_frames(str(path))
    meta = next(reader)
    assert ((meta["size"], meta["fps"], meta["codec"]), len(list(reader))) == (((252, 302), 20.0, "h264"), 10)


def test_an_error_of_ffmpeg_is_raised_and_leaves_no_file(tmp_path):
    if find_ffmpeg() is None:
        pytest.skip("no ffmpeg here")
    with pytest.raises(OSError, match="ffmpeg"):
        write(tmp_path / "a.mp4", 0.0, frames(200))
    assert list(tmp_path.iterdir()) == []


def test_an_ffmpeg_that_does_not_end_is_killed(tmp_path, monkeypatch):
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text("#!/bin/sh\nexec sleep 600\n")
    ffmpeg.chmod(0o755)
    monkeypatch.setattr(play, "find_ffmpeg", lambda: str(ffmpeg))
    monkeypatch.setattr(play, "END_S", 0.1)
    monkeypatch.setattr(play, "LEAST_HEIGHT", 10)  # the frame fits into the pipe
    with pytest.raises(OSError, match=r"ffmpeg does not end within 0\.1 s"):
        write(tmp_path / "a.mp4", 20.0, frames(1, 10, 10))
    assert list(tmp_path.iterdir()) == [ffmpeg]


def test_an_exception_leaves_no_file(tmp_path):
    with pytest.raises(AttributeError):
        write(tmp_path / "a.gif", 20.0, [*frames(1), None])
    assert list(tmp_path.iterdir()) == []


def test_captions_cover_the_upper_left_corner_and_nothing_else():
    frame = np.full((400, 600, 3), 200, np.uint8)
    picture = captioned(frame, ["sac", "return 12.5"])
    changed = (picture != frame).any(-1)
    assert changed[:30, :50].any()
    assert not changed[80:].any()
    assert not changed[:, 300:].any()
    assert picture.max() > 250  # white text
    other = captioned(frame, ["sac", "return 13.5"])
    assert (other != picture).any()
    assert (frame == 200).all()
    assert np.array_equal(captioned(frame, []), frame)


def test_small_frames_are_enlarged_by_a_whole_number():
    frame = np.arange(84 * 60 * 3, dtype=np.uint32).astype(np.uint8).reshape(84, 60, 3)
    picture = captioned(frame, [])
    assert picture.shape == (252, 180, 3)
    assert np.array_equal(picture[::3, ::3], frame)
