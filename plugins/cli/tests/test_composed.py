"""`--config` with what Hydra composes, whose values refer to others."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from stratagem_cli.settings import merged

from stratagem.errors import ConfigError


def written(tmp_path, text, folder=".hydra"):
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "config.yaml"
    path.write_text(text)
    return str(path)


def test_values_refer_to_others(tmp_path):
    pytest.importorskip("omegaconf", reason="make test-libraries")
    text = "seed: 7\nmodel: {width: 8, inner: '${model.width}', layers: ['${seed}', '${model.width}']}\n"
    settings = merged([written(tmp_path, text)])
    assert settings.model == {"width": 8, "inner": 8, "layers": [7, 8]}
    # What --set gives isn't seen by them: Hydra's own overrides come before it has composed the file.
    assert merged([str(tmp_path / ".hydra/config.yaml")], sets=["model.width=9"]).model["inner"] == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: {width: '${model.size}'}", "can't be resolved: Interpolation key 'model.size' not found"),
        ("model:\n  width: ???", "model.width of configuration "),
        ("model: {width: '${model.'}", "can't be resolved: "),
    ],
)
def test_values_that_refer_to_nothing(tmp_path, text, words):
    pytest.importorskip("omegaconf", reason="make test-libraries")
    with pytest.raises(ConfigError) as caught:
        merged([written(tmp_path, text)])
    assert words in str(caught.value)


def test_other_files_are_read_as_they_are(tmp_path):
    path = written(tmp_path, "model: {template: '${name}'}", folder="mine")
    assert merged([path]).model == {"template": "${name}"}


@pytest.mark.skipif(find_spec("omegaconf") is not None, reason="omegaconf is installed")
def test_without_omegaconf_it_says_how_to_install_it(tmp_path):
    path = written(tmp_path, "seed: 1\nmodel: {width: '${seed}'}")
    with pytest.raises(ConfigError, match=r"which omegaconf resolves: pip install omegaconf"):
        merged([path])
    (tmp_path / ".hydra/config.yaml").write_text("model: {width: 8}")
    assert merged([path]).model == {"width": 8}
