"""Find the ranks that cause a hang, and give the reason in one sentence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from stratagem_launch.hangs.evidence import Collective, Evidence


@dataclass(frozen=True)
class Verdict:
    """The diagnosis of a hang."""

    ranks: tuple[int, ...]
    """The ranks that cause it."""
    sentence: str


def judge(evidence: Sequence[Evidence], timeout_s: float) -> Verdict:
    """Return the ranks that cause a hang.

    The first kind found counts, in this order: ranks that a signal has stopped; ranks that called another collective
    than most; ranks missing from a collective in which others wait; ranks that don't wait for others; ranks that have
    called fewer collectives.

    Args:
        evidence: evidence about each rank, at least one.
        timeout_s: the heartbeat timeout.
    """
    since = f"no step for {timeout_s:g} s"
    stopped = [each for each in evidence if each.is_stopped]
    if stopped:
        who = _ranks(stopped)
        return Verdict(
            _numbers(stopped),
            f"{since}: {who} stood still, stopped by a signal such as SIGSTOP, at {stopped[0].place}",
        )
    for found in (different_calls(evidence), _missing(evidence)):
        if found is not None:
            culprits, why = found
            return Verdict(_numbers(culprits), f"{since}: {why}")
    busy = [each for each in evidence if not each.waits_for_others and not each.waiting]
    culprits = busy if 0 < len(busy) < len(evidence) else list(evidence)
    least = min(each.beats for each in culprits)
    culprits = [each for each in culprits if each.beats == least]
    rest = [each for each in evidence if each not in culprits]
    what = f"; {_ranks(rest)} wait{'s' * (len(rest) == 1)} at {rest[0].place}" if rest else ""
    return Verdict(_numbers(culprits), f"{since}: {_ranks(culprits)} stood at {culprits[0].place}{what}")


def _missing(evidence: Sequence[Evidence]) -> tuple[list[Evidence], str] | None:
    """Return the ranks that haven't started the oldest collective in which others wait."""
    waiting = {each.rank: each.waiting for each in evidence if each.waiting}
    candidates: list[tuple[Collective, list[Evidence]]] = []
    for calls in waiting.values():
        for call in calls:
            behind = [each for each in evidence if _newest(each, call.group) < call.number]
            if behind and len(behind) < len(evidence):
                candidates.append((call, behind))
    if not candidates:
        return None
    # A missing rank that waits in another group is itself held up, by a rank of that group.
    call, behind = min(candidates, key=lambda pair: (all(each.waiting for each in pair[1]), pair[0].number))
    culprits = [each for each in behind if not each.waiting] or behind
    others = [each for each in evidence if call in each.waiting and each not in culprits]
    at = f" at {others[0].place}" if others else ""
    why = (
        f"{_ranks(culprits)} stood at {culprits[0].place}, missing from {call}, in which {_ranks(others)} "
        f"wait{'s' * (len(others) == 1)}{at}"
    )
    return culprits, why


def different_calls(evidence: Sequence[Evidence]) -> tuple[list[Evidence], str] | None:
    """Return the ranks whose collective differs from most ranks', at the first sequence number with a difference."""
    calls: dict[tuple[str, int], dict[int, Collective]] = defaultdict(dict)
    for each in evidence:
        for call in each.collectives:
            calls[call.group, call.number][each.rank] = call
    for _, of_ranks in sorted(calls.items(), key=lambda item: item[0][1]):
        kinds = Counter(call.what for call in of_ranks.values())
        if len(kinds) < 2:
            continue
        usual, count = kinds.most_common(1)[0]
        is_tie = list(kinds.values()).count(count) > 1
        there = [each for each in evidence if each.rank in of_ranks]
        odd = [each for each in there if is_tie or of_ranks[each.rank].what != usual]
        listed = "; ".join(
            f"rank {each.rank} on {each.host} called {of_ranks[each.rank]}{_stood(each)}" for each in odd
        )
        if not is_tie:
            one = next(each for each in there if of_ranks[each.rank].what == usual)
            listed += f"; the others called {of_ranks[one.rank]}{_stood(one)}"
        return odd, f"ranks called different collectives: {listed}"
    return None


def _stood(evidence: Evidence) -> str:
    return f", and rank {evidence.rank} stood at {evidence.place}" if evidence.stack else ""


def _newest(evidence: Evidence, group: str) -> int:
    return max((call.number for call in evidence.collectives if call.group == group), default=0)


def _numbers(evidence: Sequence[Evidence]) -> tuple[int, ...]:
    return tuple(each.rank for each in evidence)


def _ranks(evidence: Sequence[Evidence]) -> str:
    if len(evidence) == 1:
        return f"rank {evidence[0].rank} on {evidence[0].host}"
    return f"ranks {', '.join(str(each.rank) for each in evidence)}"
