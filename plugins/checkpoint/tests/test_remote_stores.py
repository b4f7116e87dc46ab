"""Stores that fsspec reaches: memory, a local one by its URL, and S3 as moto's server speaks it over HTTP."""

import secrets

import fsspec
import pytest
import torch
from stratagem_checkpoint import DirectoryCheckpointer
from stratagem_checkpoint.filesystem import RemoteFilesystem
from stratagem_checkpoint.publication import MANIFEST

from stratagem import Checkpoint, LocalCollectives
from stratagem.errors import CheckpointError

LOCAL = LocalCollectives(torch.device("cpu"))


@pytest.fixture(scope="module")
def bucket():
    """A bucket of a server in this process, which others reach, too, by the variables that every client reads."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        name = f"runs-{secrets.token_hex(4)}"
        fsspec.filesystem("s3").mkdir(name)
        yield f"s3://{name}"
    server.stop()


@pytest.fixture
def store(request, tmp_path):
    """The URL of an empty folder."""
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{secrets.token_hex(4)}"
    if request.param == "memory":
        return f"memory://{secrets.token_hex(4)}"
    return f"file://{tmp_path}/store"


def checkpoint_of(step, size=1000):
    tensors = {"w": torch.full((size,), float(step)), f"only{step}": torch.ones(2)}
    return Checkpoint(tensors, {"step": step, "t": torch.tensor(step)}, {"step": step})


def whole_step(path):
    reader = DirectoryCheckpointer(LOCAL).open(path)
    step = reader.state["step"]
    reader.read({"w": (w := torch.zeros(reader.tensors["w"].shape)), f"only{step}": torch.zeros(2)})
    assert bool((w == step).all())
    assert reader.rank_state(0) == {"step": step}
    return step


def names(url):
    backend, path = fsspec.core.url_to_fs(url)
    backend.invalidate_cache()
    return sorted(found.rstrip("/").rpartition("/")[2] for found in backend.ls(path, detail=False))


@pytest.mark.parametrize(
    ("store", "in_background"),
    [("memory", False), ("file", True), pytest.param("s3", True, marks=pytest.mark.long)],
    indirect=["store"],
)
def test_saved_replaced_and_removed(store, in_background):
    checkpointer = DirectoryCheckpointer(LOCAL, async_=in_background)
    try:
        for step in (1, 2, 3):
            checkpointer.save(f"{store}/c", checkpoint_of(step))
        checkpointer.wait()
        assert whole_step(f"{store}/c") == 3
        assert names(store) == ["c"]
        checkpointer.save(f"{store}/d", checkpoint_of(4))
        checkpointer.remove(f"{store}/c")
        assert checkpointer.open(f"{store}/d").state["step"] == 4
        with pytest.raises(CheckpointError, match="there is no checkpoint at"):
            checkpointer.open(f"{store}/c")
        assert names(store) == ["d"]
    finally:
        checkpointer.close()


def test_a_file_in_several_parts(bucket):
    """Above 50 MiB, s3fs uploads in parts; the object is there when all are."""
    path = f"{bucket}/large/c"
    checkpointer = DirectoryCheckpointer(LOCAL, async_=True)
    try:
        checkpointer.save(path, checkpoint_of(5, size=15 * 2**20))
        checkpointer.wait()
    finally:
        checkpointer.close()
    assert whole_step(path) == 5


class Died(BaseException):
    """The process is gone: nothing is done after it."""


class Dying:
    """A store's client that dies before its `kill_at`-th change."""

    CHANGES = ("copy", "rm", "makedirs")

    def __init__(self, backend, kill_at):
        self.backend, self.kill_at, self.changes = backend, kill_at, 0

    def __getattr__(self, name):
        found = getattr(self.backend, name)
        return (lambda *a, **k: self.change(found, *a, **k)) if name in self.CHANGES else found

    def open(self, path, mode="rb", **keywords):
        if mode == "wb":
            return self.change(self.backend.open, path, mode, **keywords)
        return self.backend.open(path, mode, **keywords)

    def change(self, function, *arguments, **keywords):
        self.changes += 1
        if self.kill_at is not None and self.changes >= self.kill_at:
            raise Died
        return function(*arguments, **keywords)


def save_until(url, step, kill_at):
    backend, _ = fsspec.core.url_to_fs(url)
    dying = Dying(backend, kill_at)

    class Checkpointer(DirectoryCheckpointer):
        def filesystem(self, path):
            return RemoteFilesystem(dying, MANIFEST), backend._strip_protocol(path)

    try:
        Checkpointer(LOCAL).save(url, checkpoint_of(step))
    except Died:
        return dying.changes, True
    return dying.changes, False


@pytest.mark.parametrize("store", ["memory", pytest.param("s3", marks=pytest.mark.long)], indirect=True)
def test_a_death_before_any_change_leaves_the_old_or_the_new(store):
    found, kill_at, died = [], 1, True
    step_by = 1 if store.startswith("memory") else 8
    while died:
        path = f"{store}/{kill_at}/c"
        DirectoryCheckpointer(LOCAL).save(path, checkpoint_of(1))
        _, died = save_until(path, 2, kill_at)
        found.append(whole_step(path))
        DirectoryCheckpointer(LOCAL).save(path, checkpoint_of(3))
        assert whole_step(path) == 3
        kill_at += step_by
    assert found == sorted(found)
    assert set(found) == {1, 2}
    assert kill_at >= 20
