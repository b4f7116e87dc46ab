"""What the package takes from torch's private names still is what it takes it for."""

import io
import pickle
import warnings
from pathlib import Path

import torch
from stratagem_convert.torch_private import DCP_METADATA, checkpoint_offset, storage_info


def test_a_tensor_on_the_meta_device_knows_where_it_lies_in_its_file() -> None:
    tensor = torch.arange(7.0)
    file = io.BytesIO()
    torch.save({"w": tensor}, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), map_location="meta", weights_only=True)["w"]
    start = checkpoint_offset(loaded)
    assert start is not None
    assert file.getvalue()[start : start + 28] == tensor.numpy().tobytes()
    assert checkpoint_offset(tensor) is None


def test_what_dcp_pickles_is_what_is_allowed(tmp_path: Path) -> None:
    from torch.distributed.checkpoint import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({"w": torch.ones(2), "n": 3}, checkpoint_id=tmp_path / "x", no_dist=True)
    named = set()

    class Recorder(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            named.add(f"{module}.{name}")
            return super().find_class(module, name)

    Recorder(io.BytesIO((tmp_path / "x/.metadata").read_bytes())).load()
    dcp = {name for name in named if name.startswith("torch.distributed.")}
    assert len(dcp) >= 6
    assert dcp <= DCP_METADATA


def test_a_record_of_where_a_chunk_lies() -> None:
    info = storage_info("x", 3, 5)
    assert (info.relative_path, info.offset, info.length) == ("x", 3, 5)
