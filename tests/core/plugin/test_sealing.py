from types import ModuleType

import pytest

from stratagem.errors import (
    DoubleAnswerError,
    HookArgumentError,
    LostMarkerError,
    NoneAnswerError,
    UnknownHookError,
    WrongAnswerError,
)
from stratagem.plugin.hookspecs import RUN_HOOKS, hookimpl
from stratagem.plugin.sealing import Hooks, has_hooks


class Answers:
    """Answers each hook with its own name."""

    @hookimpl(trylast=True)
    def launch(self, request):
        return "default launch"

    @hookimpl(trylast=True)
    def reduce(self, request):
        return "default reduce"

    @hookimpl(trylast=True)
    def precision(self, request):
        return "default precision"

    @hookimpl(trylast=True)
    def setup(self, request):
        return "default setup"

    @hookimpl(trylast=True)
    def checkpoint(self, request):
        return "default checkpoint"


class Reduces:
    def __init__(self, answer="mine"):
        self.answer = answer
        self.asked_with = None

    @hookimpl
    def reduce(self, request):
        self.asked_with = request
        return self.answer


def hooks(*plugins):
    return Hooks(Answers(), [(type(plugin).__name__, plugin) for plugin in plugins])


@pytest.mark.parametrize("hook", RUN_HOOKS)
def test_the_defaults_answer_what_no_plugin_answers(hook):
    sealed = hooks()
    assert getattr(sealed, hook)(object()) == f"default {hook}"
    assert sealed.answered_by[hook] == "defaults"


def test_a_plugin_answers_in_place_of_the_default_and_sees_the_request():
    plugin, request = Reduces(), object()
    sealed = hooks(plugin)
    assert sealed.reduce(request) == "mine"
    assert plugin.asked_with is request
    assert sealed.answered_by["reduce"] == "Reduces"
    assert sealed.answered_by["setup"] == "defaults"


def test_two_answers_are_refused_by_name():
    class AlsoReduces(Reduces):
        pass

    with pytest.raises(DoubleAnswerError, match=r"'reduce' is answered by .*'AlsoReduces'.*wrapper=True"):
        hooks(Reduces(), AlsoReduces())


def test_wrappers_decorate_an_answer_and_are_not_second_answers():
    class Inner:
        @hookimpl(wrapper=True)
        def reduce(self, request):
            return [(yield)]

    class Outer:
        @hookimpl(wrapper=True)
        def reduce(self, request):
            return ((yield),)

    assert hooks(Reduces(), Inner(), Outer()).reduce(None) == (["mine"],)
    assert hooks(Inner(), Outer()).reduce(None) == (["default reduce"],)


def test_two_objects_of_one_class_and_name_are_two_plugins():
    class Adds:
        @hookimpl(wrapper=True)
        def reduce(self, request):
            return (yield) + "+"

    assert Hooks(Answers(), [("adds", Adds()), ("adds", Adds())]).reduce("x").endswith("++")


def test_wrappers_wrap_in_the_order_in_which_plugins_were_given():
    class Wraps:
        def __init__(self, mark):
            self.mark = mark

        @hookimpl(wrapper=True)
        def reduce(self, request):
            return (yield) + self.mark

    named = [("a", Wraps("a")), ("b", Wraps("b"))]
    assert Hooks(Answers(), [("first", Reduces("-")), *named]).reduce(None) == "-ab"


def test_a_wrapper_may_take_an_exception_up():
    class Fails:
        @hookimpl
        def reduce(self, request):
            raise ConnectionError("no network")

    class Rescues:
        @hookimpl(wrapper=True)
        def reduce(self, request):
            try:
                return (yield)
            except ConnectionError:
                return "rescued"

    assert hooks(Fails(), Rescues()).reduce(None) == "rescued"
    with pytest.raises(ConnectionError, match="no network"):
        hooks(Fails()).reduce(None)


@pytest.mark.parametrize("misspelt", ["reduse", "reduces"])
def test_an_unknown_hook_is_refused_with_the_nearest(misspelt):
    plugin = type("Misspelt", (), {misspelt: hookimpl(lambda self, request: 1)})()
    with pytest.raises(UnknownHookError, match=rf"Misspelt implements .*{misspelt}.*did you mean.*'reduce'"):
        hooks(plugin)


def test_a_plugin_without_a_hook_is_refused():
    class Nothing:
        pass

    class Unmarked:
        def reduce(self, request):
            return 1

    with pytest.raises(LostMarkerError, match=r"'Nothing' implements no hook.*callbacks="):
        hooks(Nothing())
    with pytest.raises(LostMarkerError, match="mark its method 'reduce' with @hookimpl"):
        hooks(Unmarked())


def test_an_unknown_hook_far_from_any_is_refused_with_the_list():
    class Odd:
        @hookimpl
        def zzz(self, request):
            return 1

    with pytest.raises(UnknownHookError, match=r"the hooks are \['launch', 'reduce'") as raised:
        hooks(Odd())
    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize(
    ("implementation", "taken"),
    [
        (lambda self, requests: 1, "requests"),
        (lambda self, asked: 1, "asked"),
        (lambda self, request=None: 1, "request=None"),
        (lambda self, request, more=1: 1, "request, more=1"),
    ],
)
def test_arguments_that_the_hook_would_not_pass_are_refused(implementation, taken):
    plugin = type("Takes", (), {"reduce": hookimpl(implementation)})()
    with pytest.raises(HookArgumentError, match=rf"Takes\.reduce of 'Takes' takes \({taken}\).*`request`"):
        hooks(plugin)


def test_an_implementation_need_not_take_the_request():
    class Careless:
        @hookimpl
        def reduce(self):
            return "careless"

    assert hooks(Careless()).reduce(None) == "careless"


def test_a_module_may_be_a_plugin():
    module = ModuleType("extension")
    module.reduce = hookimpl(lambda request: "module")
    assert Hooks(Answers(), [("extension", module)]).reduce(None) == "module"


def test_an_override_without_the_marker_is_refused():
    class Forgetful(Reduces):
        def reduce(self, request):
            return "never called"

    with pytest.raises(LostMarkerError, match=r"Forgetful\.reduce.*without @hookimpl.*mark it$"):
        hooks(Forgetful())


def test_an_override_with_the_marker_answers():
    class Marked(Reduces):
        @hookimpl
        def reduce(self, request):
            return "overridden"

    assert hooks(Marked()).reduce(None) == "overridden"


def test_a_marker_lost_in_the_middle_of_a_hierarchy_and_found_again_is_fine():
    class Lost(Reduces):
        def reduce(self, request):
            return "lost"

    class Found(Lost):
        @hookimpl
        def reduce(self, request):
            return "found"

    assert hooks(Found()).reduce(None) == "found"


def test_a_method_that_happens_to_be_called_like_a_hook_is_no_implementation():
    class Unrelated(Reduces):
        def setup(self):
            raise AssertionError("called")

    assert hooks(Unrelated()).setup(None) == "default setup"


def test_none_is_refused_instead_of_falling_through_to_the_default():
    acted = []

    class Watches(Answers):
        @hookimpl(trylast=True)
        def reduce(self, request):
            acted.append("default")
            return "default"

    sealed = Hooks(Watches(), [("mine", Reduces(None))])
    with pytest.raises(NoneAnswerError, match="'reduce' was answered with None by 'mine'"):
        sealed.reduce(None)
    assert acted == []


def test_a_wrapper_that_forgets_to_return_is_refused_by_name():
    class Forgets:
        @hookimpl(wrapper=True)
        def reduce(self, request):
            yield

    with pytest.raises(NoneAnswerError, match=r"by 'Reduces', or by what wraps it \('Forgets'\): return"):
        hooks(Reduces(), Forgets()).reduce(None)


def test_an_answer_of_another_kind_is_refused():
    sealed = Hooks(Answers(), [("mine", Reduces(7))], {"reduce": "builtins:str"})
    with pytest.raises(
        WrongAnswerError, match="'reduce' was answered with an object of int by 'mine': return one of"
    ):
        sealed.reduce(None)
    assert Hooks(Answers(), [("mine", Reduces("fine"))], {"reduce": "builtins:str"}).reduce(None) == "fine"


def test_properties_of_a_plugin_are_not_evaluated():
    class WithProperty(Reduces):
        @property
        def world_size(self):
            raise AssertionError("evaluated")

    assert hooks(WithProperty()).reduce(None) == "mine"


def test_two_objects_of_one_class_are_two_plugins():
    with pytest.raises(DoubleAnswerError):
        Hooks(Answers(), [("one", Reduces()), ("two", Reduces())])


def test_who_has_hooks_is_seen_without_running_anything():
    class Unmarked:
        def setup(self, request):
            raise AssertionError("called")

    class Misspelt:
        @hookimpl
        def setups(self, request):
            raise AssertionError("called")

    class Neither:
        launch = 3

        @property
        def reduce(self):
            raise AssertionError("evaluated")

        def other(self):
            raise AssertionError("called")

    for plugin in (Unmarked, Misspelt, Reduces):
        assert has_hooks(plugin)
        assert has_hooks(plugin())
    assert not has_hooks(Neither)
    assert not has_hooks(Neither())


def test_a_hook_written_as_other_trainers_call_it_gets_the_form_of_today():
    class Elsewhere(Answers):
        def setup(self, trainer):
            return "never called"

    class ByItsModule(Answers):
        def setup(self, module):
            return "never called"

    for plugin in (Elsewhere(), ByItsModule()):
        with pytest.raises(
            LostMarkerError, match=r"\.setup.*mark it, and write it as setup\(self, request\)"
        ):
            hooks(plugin)
