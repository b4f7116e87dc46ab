"""What RayPlace asks for, and refuses; needs no Ray."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest
from stratagem_places import PlaceRequest
from stratagem_ray import RayPlace

from stratagem.errors import ConfigError, UsageError


def spec(place: RayPlace, *words: str, **keywords: Any) -> dict[str, Any]:
    keywords = {"devices": 8, "accelerator": "cuda", **keywords}
    request = PlaceRequest(
        stage="fit",
        words=("net.py:Net", *words),
        run_dir="/runs/a",
        code_dir="/runs/a/place/code",
        **keywords,
    )
    return json.loads(place.render(request))


def test_a_node_asks_for_its_devices() -> None:
    assert spec(RayPlace())["resources"] == {"CPU": 8, "GPU": 8}
    assert spec(RayPlace(), accelerator="cpu")["resources"] == {"CPU": 8}
    place = RayPlace(cpus=64, gpus=4, resources=["a100=1"])
    assert spec(place, devices=None)["resources"] == {"CPU": 64, "GPU": 4, "a100": 1}
    with pytest.raises(UsageError, match="give --devices N, or --on-set cpus=N"):
        spec(RayPlace(), devices=None)


def test_several_nodes_meet_at_the_driver() -> None:
    assert "--rdzv-conf" not in spec(RayPlace())["arguments"]
    for words, settings in (
        ((), "is_host=false,join_timeout=1800"),
        (("--rdzv-conf", "last_call_timeout=2"), "is_host=false,join_timeout=1800,last_call_timeout=2"),
    ):
        arguments = spec(RayPlace(), *words, min_nodes=2, max_nodes=2)["arguments"]
        assert [arguments[at + 1] for at, word in enumerate(arguments) if word == "--rdzv-conf"] == [settings]
    arguments = spec(RayPlace(), "--rdzv-conf=a=1", min_nodes=2, max_nodes=2)["arguments"]
    assert "--rdzv-conf=is_host=false,join_timeout=1800,a=1" in arguments
    with pytest.raises(UsageError, match="nodes meet at the driver"):
        spec(RayPlace(), "--rdzv-endpoint", "h:1", min_nodes=2, max_nodes=2)


def test_a_fit_goes_on_unless_it_says_from_where() -> None:
    assert spec(RayPlace())["arguments"].count("auto") == 1
    assert "auto" not in spec(RayPlace(), "--ckpt-path=last")["arguments"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address": "ray://head:10001"}, "ray job submit"),
        ({"cpus": -1.0}, "cpus=-1.0 is negative"),
        ({"resources": ["a100"]}, "resources has 'a100': give each as NAME=AMOUNT"),
    ],
)
def test_what_can_not_be_right_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RayPlace(**options)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_how_to_install_it() -> None:
    assert RayPlace().why_not() == "Ray isn't installed: pip install 'stratagem-ray[engine]'"
