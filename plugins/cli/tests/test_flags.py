"""The selection flags, in `stratagem` and in a user's own command."""

import click
import pytest
from click.testing import CliRunner
from stratagem_cli.flags import FIELDS, given, selection_flags
from stratagem_cli.main import main
from stratagem_facade.former_settings import RENAMED

import stratagem
from stratagem.config import RunConfig
from stratagem.errors import ConfigError


def parsed(*args):
    found = []

    @click.command()
    @selection_flags
    def command(**keywords):
        found.append(given(keywords))

    command.main(list(args), standalone_mode=False)
    return found[0]


def test_only_what_was_given():
    assert parsed() == {}
    assert parsed("--strategy", "ddp", "--devices", "0,", "--seed", "0") == {
        "strategy": "ddp",
        "devices": "0,",
        "seed": 0,
    }


def test_every_flag_is_a_field_of_the_configuration():
    assert set(FIELDS) <= set(RunConfig.__dataclass_fields__)


def test_lists_are_repeated():
    flags = parsed(
        "--plugin", "a", "--plugin", "b", "--disable-plugin", "c", "--use", "trace", "--use", "m:C"
    )
    assert flags == {"only_plugins": ("a", "b"), "without_plugins": ("c",), "extensions": ("trace", "m:C")}


@pytest.mark.parametrize(
    "name", [name for name in RENAMED if name not in ("accelerator", "plugins", "strategy")]
)
@pytest.mark.parametrize("dash", ["-", "_"])
def test_old_spellings_are_answered_with_todays(name, dash):
    with pytest.raises(ConfigError, match=f"^{name}='2' is "):
        parsed(f"--{name.replace('_', dash)}", "2")


def test_an_old_switch_needs_no_value():
    with pytest.raises(ConfigError, match="name the devices"):
        parsed("--auto-select-gpus")


def test_an_old_value_is_answered_too():
    with pytest.raises(ConfigError, match="plugins='ddp_sharded' is now called strategy='ddp_sharded'"):
        parsed("--plugins", "ddp_sharded")
    with pytest.raises(ConfigError, match="--plugins trace is now called --use, for extensions"):
        parsed("--plugins", "trace")
    with pytest.raises(ConfigError, match="accelerator='ddp' is now called strategy='ddp'"):
        parsed("--accelerator", "ddp")


@click.command()
@click.option("--epochs", default=3)
@stratagem.options
def own(runtime, epochs):
    """A user's own command."""
    print(runtime.config.strategy, runtime.config.devices, runtime.config.extensions, epochs)
    if epochs == 0:
        runtime.launch(print)


def test_a_own_command_gets_a_runtime():
    result = CliRunner().invoke(
        own, ["--strategy", "single", "--devices", "1", "--use", "m:C", "--epochs", "5"]
    )
    assert result.exit_code == 0, result.output
    assert result.output == "single 1 ('m:C',) 5\n"


def test_its_help_shows_its_own_and_our_flags():
    output = CliRunner().invoke(own, ["--help"]).output
    assert "A user's own command." in output
    assert "--epochs" in output
    assert "--strategy" in output
    assert "--gpus" not in output


def test_what_it_cant_have_is_refused_as_by_stratagem():
    result = CliRunner().invoke(own, ["--strategy", "sngle", "--epochs", "0"])
    assert result.exit_code == 2
    assert "Error: no strategy is called 'sngle'; nearest: single" in result.output


def test_its_own_exit_code_is_kept():
    @click.command()
    @stratagem.options
    @click.pass_context
    def leaving(ctx, runtime):
        ctx.exit(7)

    assert CliRunner().invoke(leaving, []).exit_code == 7


def test_help_shows_flags_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--help"]) == 0
    text = capsys.readouterr().out
    assert {"--max-epochs", "--strategy", "--config"} <= set(text.split())
    assert "--output" not in text, "of another command with the same groups"
    heads = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert heads == [
        "Training and evaluating:",
        "Stopping and hangs:",
        "The run:",
        "Machines and processes:",
        "Output:",
        "Plugins:",
        "Where it runs:",
        "Settings:",
        "Other options:",
        "Examples:",
    ]
