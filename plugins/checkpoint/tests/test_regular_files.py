"""What isn't a regular file is refused before it is read, which might never end."""

import os
import socket

import pytest
from stratagem_checkpoint.regular_files import open_regular, require_regular

from stratagem.errors import CheckpointError


def test_a_regular_file_is_opened_and_a_folder_or_nothing_is_left_to_what_opens_it(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    with open_regular(str(tmp_path / "file")) as file:
        assert file.read() == b"abc"
    require_regular(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        open_regular(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="null"):
        open_regular("a\0b")


def test_a_pipe_a_device_and_a_socket_are_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        for path, kind in (
            (str(tmp_path / "pipe"), "a FIFO"),
            ("/dev/null", "a device"),
            (str(tmp_path / "socket"), "a socket"),
        ):
            with pytest.raises(
                CheckpointError, match=f"^{path} is {kind}, and a checkpoint has only regular files"
            ):
                open_regular(path)
