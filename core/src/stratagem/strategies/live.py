"""Which live session a strategy answers from."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

if TYPE_CHECKING:
    from stratagem.runtime.session import Session
    from stratagem.strategies.base import Strategy


class LiveSessions(list["Session"]):
    """The live runs of one strategy object in this process, the innermost last; empty in a pickle and a deep copy.

    A strategy is pickled to workers as configuration. Its own `__getstate__` needn't know of this.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[LiveSessions], tuple[()]]:
        return LiveSessions, ()


def bind_session(strategy: Strategy, session: Session) -> None:
    """Have `strategy` answer from `session`, until `unbind_session`."""
    if strategy._sessions is None:
        strategy._sessions = LiveSessions()
    strategy._sessions.append(session)


def unbind_session(strategy: Strategy, session: Session) -> None:
    """Have `strategy` answer from the run around `session` again, where there is one."""
    sessions = strategy._sessions
    if sessions is not None and session in sessions:
        sessions.remove(session)  # in place: a shallow copy has the same list, and its run is over, too
    if not sessions:
        vars(strategy).pop("_sessions", None)
