import click
import pytest

from stratagem.errors import ApiVersionError, BrokenPluginError, ConflictError, UnknownNameError
from stratagem.installed.catalogue import load_catalogue
from stratagem.installed.plugins import command_plugins
from stratagem.names.index import Index
from stratagem.plugin.component import API_VERSION

THIRD = '"strategy", "third", "third_strategy:Third", "a third one"'


def find(name, kind="strategy", **lists):
    return load_catalogue(**lists).find(kind, name)


# Found ------------------------------------------------------------------------------------------------


def test_an_installed_component_is_found_with_its_origin(site):
    site.offer("third-party", THIRD, version="2.5")
    selection = find("third")
    assert selection.summary == "a third one"
    assert str(selection.origin) == "third-party 2.5"
    assert load_catalogue().distributions["third-party"] == "2.5"


def test_it_is_gone_after_it_was_uninstalled(site):
    site.offer("third-party", THIRD)
    find("third")
    site.uninstall("third-party")
    with pytest.raises(UnknownNameError):
        find("third")


def test_its_target_is_imported_when_it_is_loaded_and_not_before(site):
    site.offer("third-party", THIRD)
    selection = find("third")
    site.write("third_strategy", "class Third: pass")
    assert selection.load().__name__ == "Third"


def test_aliases_and_presets_stand_for_it(site):
    site.offer("third-party", THIRD + ', aliases=("tertium",), presets={"third_fast": {"speed": 3}}')
    assert find("tertium") is find("third")
    assert find("tertium").options == {}
    assert find("third_fast") == find("third")
    assert find("third_fast").options == {"speed": 3}


def test_kinds_have_names_of_their_own(site):
    site.offer("third-party", THIRD, '"accelerator", "third", "third_acc:Acc", "a device"')
    assert find("third").kind == "strategy"
    assert find("third", kind="accelerator").kind == "accelerator"


def test_offers_come_by_priority_then_by_name(site):
    records = [
        f'"extension", "{name}", "m:C", "", priority={p}'
        for name, p in [("b", 0), ("a", 0), ("y", 5), ("z", 9)]
    ]
    site.offer("third-party", *records)
    offers = load_catalogue().of_kind("extension")
    assert [each.name for each in offers if each.origin.distribution == "third-party"] == ["z", "y", "a", "b"]


# Conflicts --------------------------------------------------------------------------------------------


def test_two_distributions_with_one_name_are_an_error_that_names_both(site):
    site.offer("left-party", THIRD, version="1.1")
    site.offer("right-party", THIRD, version="1.2")
    with pytest.raises(ConflictError) as raised:
        find("third")
    message = str(raised.value)
    assert "left-party 1.1 and right-party 1.2" in message
    assert "left-party:third or right-party:third" in message


@pytest.mark.parametrize("spelling", ["right-party", "Right_Party", "right.party"])
def test_the_distribution_settles_a_conflict(site, spelling):
    site.offer("left-party", THIRD)
    site.offer("right-party", THIRD)
    assert find(f"{spelling}:third").origin.distribution == "right-party"


def test_an_alias_conflicts_with_a_name(site):
    site.offer("left-party", THIRD)
    site.offer("right-party", '"strategy", "fourth", "m:C", "", aliases=("third",)')
    with pytest.raises(ConflictError):
        find("third")
    assert find("fourth").origin.distribution == "right-party"


def test_a_distribution_that_does_not_offer_the_name_is_unknown(site):
    site.offer("left-party", THIRD)
    with pytest.raises(UnknownNameError, match="nowhere:third"):
        find("nowhere:third")


def test_uninstalling_one_settles_a_conflict(site):
    site.offer("left-party", THIRD)
    site.offer("right-party", THIRD)
    site.uninstall("right-party")
    assert find("third").origin.distribution == "left-party"


# Broken plugins ---------------------------------------------------------------------------------------

BROKEN = {
    "import": "import a_vendor_library_that_is_not_there",
    "syntax": "def f(:",
    "exit": "raise SystemExit(3)",
    "hook": """
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_component(): return []
    """,
    "raises": """
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_components(): raise ZeroDivisionError("oh")
    """,
    "record": """
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_components(): return ["ddp"]
    """,
    "none": """
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_components(): return None
    """,
    "kind": """
        from stratagem.plugin.component import Component
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_components(): return [Component("stratgy", "x", "m:C", "")]
    """,
}


@pytest.mark.parametrize("how", [how for how in BROKEN if how != "none"])
def test_a_broken_plugin_stands_beside_the_others_with_its_error(site, how):
    site.install("broken-party", BROKEN[how])
    site.offer("third-party", THIRD)
    catalogue = load_catalogue()
    assert [plugin.origin.distribution for plugin in catalogue.broken] == ["broken-party"]
    assert isinstance(catalogue.broken[0].error, BaseException)
    assert catalogue.find("strategy", "third")


def test_a_plugin_that_offers_none_offers_nothing(site):
    site.install("silent-party", BROKEN["none"])
    assert load_catalogue().broken == ()


def test_selecting_what_a_broken_plugin_would_offer_raises_its_error(site):
    site.install("broken-party", BROKEN["import"])
    for name in ("broken_party", "broken-party", "broken-party:anything"):
        with pytest.raises(BrokenPluginError, match="a_vendor_library_that_is_not_there") as raised:
            find(name)
        assert isinstance(raised.value.__cause__, ModuleNotFoundError)
        assert raised.value.__cause__.__traceback__ is not None


def test_a_target_that_cannot_be_imported_says_what_to_install(site):
    site.offer("third-party", THIRD + ', install_hint="pip install vendor"')
    site.write("third_strategy", "import a_vendor_library_that_is_not_there")
    with pytest.raises(BrokenPluginError, match=r"third-party 1.0 can't be loaded: .*pip install vendor"):
        find("third").load()


def test_a_target_without_the_class_is_broken(site):
    site.offer("third-party", THIRD)
    site.write("third_strategy", "")
    with pytest.raises(BrokenPluginError, match="AttributeError"):
        find("third").load()


def test_a_newer_plugin_api_is_refused_when_it_is_selected(site):
    site.offer("third-party", THIRD + f", api_version={API_VERSION + 1}")
    assert "third" in load_catalogue().names("strategy")
    with pytest.raises(
        ApiVersionError, match=rf"API {API_VERSION + 1}.*has {API_VERSION}.*upgrade stratagem-core"
    ):
        find("third")


# Lists ------------------------------------------------------------------------------------------------


@pytest.fixture
def two(site):
    site.offer("left-party", '"strategy", "left", "m:C", ""')
    site.offer("right-party", '"strategy", "right", "m:C", ""')


@pytest.mark.parametrize("name", ["left-party", "Left_Party", "left_party"])
def test_the_deny_list_leaves_a_plugin_out(two, monkeypatch, name):
    assert "left" not in load_catalogue(without=[name]).names("strategy")
    assert "right" in load_catalogue(without=[name]).names("strategy")
    monkeypatch.setenv("STRATAGEM_DISABLE_PLUGINS", f"other, {name}")
    assert "left" not in load_catalogue().names("strategy")


def test_the_allow_list_leaves_out_all_others_but_the_core(two, monkeypatch):
    assert load_catalogue(only=["left-party"]).names("strategy") == ["left"]
    assert load_catalogue(only=["left-party"]).names("precision")
    monkeypatch.setenv("STRATAGEM_PLUGINS", "right-party")
    assert load_catalogue().names("strategy") == ["right"]
    assert load_catalogue(only=["left-party"]).names("strategy") == ["left", "right"]


def test_the_allow_list_takes_no_plugin_for_a_library_that_is_called_as_its_entry_point(site):
    """Core requires torch, which isn't the plugin `torch` of stratagem-torch."""
    site.offer("left-party", '"strategy", "left", "m:C", ""', requires="torch, stratagem-core")
    assert "torch" not in load_catalogue(only=["left-party"]).names("accelerator")


def test_the_deny_list_wins_over_the_allow_list(two):
    catalogue = load_catalogue(only=["left-party", "right-party"], without=["left-party"])
    assert catalogue.names("strategy") == ["right"]


def test_the_core_cannot_be_left_out():
    assert load_catalogue(without=["stratagem-core"]).names("environment")


def test_asking_for_what_is_left_out_says_so(two):
    with pytest.raises(UnknownNameError, match=r"left-party 1.0, which is installed but left out"):
        find("left_party", without=["left-party"])


def test_a_broken_plugin_that_is_left_out_is_not_reported(site):
    site.install("broken-party", BROKEN["import"])
    assert load_catalogue(without=["broken-party"]).broken == ()


# Unknown names ----------------------------------------------------------------------------------------


def test_an_unknown_name_is_answered_with_the_nearest(site):
    site.offer("third-party", THIRD)
    with pytest.raises(UnknownNameError, match=r"no strategy is called 'thrid'; nearest: third"):
        find("thrid")


def test_a_name_near_to_none_is_answered_with_where_they_are_listed(site):
    site.offer("third-party", THIRD)
    with pytest.raises(UnknownNameError, match=r"called 'qqqqqqqq'; `stratagem strategies` lists them$"):
        find("qqqqqqqq")


def test_an_unknown_name_may_be_of_a_broken_plugin(site):
    site.install("broken-party", BROKEN["import"])
    with pytest.raises(UnknownNameError, match=r"not loaded, since broken: broken-party 1.0; `stratagem"):
        find("qqqqqqqq")


@pytest.mark.parametrize(("flag", "field"), [("--plugin", "only"), ("--disable-plugin", "without")])
def test_a_plugin_that_is_not_installed_is_neither_chosen_nor_left_out(flag, field):
    with pytest.raises(UnknownNameError, match=f"^{flag} stratagem-mpss: no plugin .*nearest: stratagem-mps"):
        load_catalogue(**{field: ["stratagem-mpss"]})
    with pytest.raises(UnknownNameError, match="`stratagem plugins` lists"):
        load_catalogue(**{field: ["qqqqqqqq"]})


def test_a_name_that_the_project_offers_is_answered_with_what_to_install(monkeypatch):
    index = Index({"strategy": {"warp": "stratagem-warp"}})
    monkeypatch.setattr("stratagem.installed.catalogue.known_plugins", lambda: index)
    with pytest.raises(UnknownNameError, match=r"'warp' isn't installed: pip install stratagem-warp"):
        find("warp")
    with pytest.raises(UnknownNameError, match=r"nearest: warp; to get it: pip install stratagem-warp"):
        find("wrap")


def test_what_the_project_offers_and_a_list_leaves_out_says_so():
    with pytest.raises(UnknownNameError, match=r"'ddp_spawn' comes with stratagem-ddp .* left out"):
        find("ddp_spawn", without=["stratagem-ddp"])


# Commands ---------------------------------------------------------------------------------------------


def test_plugins_add_commands_each_by_itself(site):
    site.install(
        "command-party",
        """
        import click
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_commands(cli):
            cli.add_command(click.Command("greet"))
        """,
    )
    site.install(
        "failing-party",
        """
        from stratagem.plugin.hookspecs import hookimpl
        @hookimpl
        def stratagem_commands(cli):
            raise RuntimeError("no terminal")
        """,
    )
    group = click.Group()
    adding = {origin.distribution: add for origin, add in command_plugins()}
    adding["command-party"](group)
    assert list(group.commands) == ["greet"]
    with pytest.raises(RuntimeError, match="no terminal"):
        adding["failing-party"](group)


# Expressions of axes ----------------------------------------------------------------------------------

COMPOSING = '"strategy", "joined", "joined_strategy:Joined", "", composes_axes=True, priority=99'
ROWS = '"axis", "rows", "rows_axis:Rows", "", aliases=("lines",)'


def test_an_expression_stands_for_the_strategy_that_composes_its_axes(site):
    site.offer("joined-strategy", COMPOSING)
    site.offer("rows-axis", ROWS)
    selection = find("rows=2")
    assert selection.name == "joined"
    (choice,) = selection.options["axes"]
    assert (choice.component.name, choice.size) == ("rows", 2)
    assert [(each.component.name, each.size) for each in find("lines+rows=3").options["axes"]] == [
        ("rows", "auto"),
        ("rows", 3),
    ]


def test_an_axis_that_two_distributions_offer_is_an_error_that_names_both(site):
    site.offer("joined-strategy", COMPOSING)
    site.offer("rows-axis", ROWS)
    site.offer("other-rows", ROWS)
    with pytest.raises(
        ConflictError, match=r"axis 'rows' is offered by other-rows .* and rows-axis .*: choose"
    ):
        find("rows=2")
    (choice,) = find("other-rows:rows=2").options["axes"]
    assert choice.component.origin.distribution == "other-rows"


def test_an_unknown_axis_is_an_error_with_the_nearest(site):
    site.offer("joined-strategy", COMPOSING)
    site.offer("rows-axis", ROWS)
    with pytest.raises(UnknownNameError, match="no axis is called 'row'; nearest: rows"):
        find("row=2")


def test_an_expression_needs_a_strategy_that_composes(site, monkeypatch):
    site.offer("rows-axis", ROWS)
    with pytest.raises(
        UnknownNameError, match="'rows=2' is an expression of axes, and no installed strategy"
    ):
        find("rows=2", only=["rows-axis"])
