"""The live sessions that a strategy's attributes describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

if TYPE_CHECKING:
    from stratagem.runtime.session import Session
    from stratagem.strategies.base import Strategy


class LiveSessions(list["Session"]):
    """The live runs of one strategy object in this process, the innermost last. Pickles and deep copies are empty.

    A strategy is pickled to workers as configuration, without live runs. This class takes care of that, so that a
    subclass with its own `__getstate__` needn't.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[LiveSessions], tuple[()]]:
        return LiveSessions, ()


def bind_session(strategy: Strategy, session: Session) -> None:
    """Make the attributes of `strategy` describe `session`, until `unbind_session`."""
    if strategy._sessions is None:
        strategy._sessions = LiveSessions()
    strategy._sessions.append(session)


def unbind_session(strategy: Strategy, session: Session) -> None:
    """Remove `session`. The attributes of `strategy` then describe the enclosing run, if there is one."""
    sessions = strategy._sessions
    if sessions is not None and session in sessions:
        # In place: shallow copies of the strategy share the list, and the run is over for them, too.
        sessions.remove(session)
    if not sessions:
        vars(strategy).pop("_sessions", None)
