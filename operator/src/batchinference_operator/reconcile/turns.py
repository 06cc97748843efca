"""Whose turn it is, where only so many jobs may run at a time.

Namespaces share what may run: the next job is one of the namespace of which the fewest run, and of
two alike the one whose job has waited longest. Within a namespace jobs come in the order of their
priority, then of their age, so nobody gains from a high priority but against themselves. Nothing is
counted again at a reconcile: what changes of one job changes its place alone. All of it follows
from what stands in the API server, so nothing is lost with the operator.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from math import inf

Key = tuple[str, str]
"""Namespace and name of a BatchInference."""
Place = tuple[int, str, str, str]
"""Sorts waiting jobs: priority downwards, creation, namespace, name."""

MANY = 10
"""From so many jobs on, the number of those ahead is told roughly."""


@dataclass(frozen=True)
class Concurrency:
    """How many jobs may run at a time; None for as many as come."""

    in_all: int | None = None
    per_namespace: int | None = None

    @property
    def limited(self) -> bool:
        return self.in_all is not None or self.per_namespace is not None


@dataclass(frozen=True)
class Turn:
    """What a job may do that wants to begin: begin, or wait until those ahead have had theirs."""

    ahead: int
    begins: bool
    why: str = ""
    """What keeps it, for people."""

    @property
    def words(self) -> str:
        """Its place, told the less exactly the longer the queue: it is written at each change."""
        if self.ahead == 0:
            return f"it is the next to begin: {self.why}"
        if self.ahead == 1:
            return f"1 job is ahead: {self.why}"
        if self.ahead < MANY:
            return f"{self.ahead} jobs are ahead: {self.why}"
        unit = 10 ** (len(str(self.ahead)) - 1)
        return f"at least {self.ahead // unit * unit} jobs are ahead: {self.why}"


@dataclass(frozen=True)
class Stand:
    """What turns go by of a job. One that neither waits nor holds has ended, is suspended or is
    another's to queue."""

    version: str
    """The resourceVersion that it was seen at."""
    priority: int = 0
    created_at: str = ""
    holds: bool = False
    """Whether it has pods, or may have."""
    waits: bool = False


@dataclass
class Turns:
    """Who runs and who waits. A turn that was taken counts until a later version of the job is
    seen, which says whether it began: a write whose answer was lost may have been made."""

    limits: Concurrency = field(default_factory=Concurrency)
    wake: Callable[[Key], None] = lambda _: None
    """Is told of each job whose turn may have come."""
    _stands: dict[Key, Stand] = field(default_factory=dict)
    _pods: set[Key] = field(default_factory=set)
    _taken: dict[Key, str] = field(default_factory=dict)
    _running: set[Key] = field(default_factory=set)
    _running_in: Counter[str] = field(default_factory=Counter)
    _places: dict[Key, Place] = field(default_factory=dict)
    _waiting: dict[str, list[Place]] = field(default_factory=dict)

    # --- what is seen -------------------------------------------------------------------

    def see(self, key: Key, stand: Stand | None) -> None:
        """A job as it stands now; None when it is gone."""
        if not self.limits.limited:
            return
        if stand is None or stand.version != self._taken.get(key):
            self._taken.pop(key, None)
        if stand is None or not (stand.holds or stand.waits):
            self._stands.pop(key, None)
        else:
            self._stands[key] = stand
        self._settle(key)

    def see_pods(self, key: Key, held: bool) -> None:
        """Whether RayJobs of a job are there that have not ended, whatever has become of it."""
        if self.limits.limited:
            (self._pods.add if held else self._pods.discard)(key)
            self._settle(key)

    # --- what is asked ------------------------------------------------------------------

    def turn_of(self, key: Key) -> Turn | None:
        """The turn of a job that wants to begin; None for one that need not ask."""
        stand = self._stands.get(key)
        if stand is None or not stand.waits or stand.holds:
            return None
        if key in self._taken:
            return Turn(0, begins=True)
        self._enter(key, stand)
        return self._turn(key)

    def take(self, key: Key) -> None:
        """A job begins."""
        if stand := self._stands.get(key):
            self._taken[key] = stand.version
            self._settle(key)

    def pass_over(self, key: Key) -> None:
        """A job whose turn it was could not begin, so that the next may. It comes back to its place
        when it is looked at again."""
        if key in self._places and self._turn(key).begins:
            self._leave(key)
            self._wake()

    # --- the order ----------------------------------------------------------------------

    def _settle(self, key: Key) -> None:
        """Put a job where it belongs. What it makes room for is told."""
        place, ran = self._places.get(key), key in self._running
        stand = self._stands.get(key)
        holds = key in self._taken or key in self._pods or (stand is not None and stand.holds)
        self._leave(key)
        if holds != ran:
            (self._running.add if holds else self._running.discard)(key)
            self._running_in[key[0]] += 1 if holds else -1
        if stand is not None and stand.waits and not holds:
            self._enter(key, stand)
        if (ran or place) and not holds and place != self._places.get(key, ()):
            self._wake()

    def _enter(self, key: Key, stand: Stand) -> None:
        if key in self._places or key in self._running:
            return
        place = (-stand.priority, stand.created_at, *key)
        self._places[key] = place
        insort(self._waiting.setdefault(key[0], []), place)

    def _leave(self, key: Key) -> None:
        place = self._places.pop(key, None)
        if place is None:
            return
        waiting = self._waiting[key[0]]
        del waiting[bisect_left(waiting, place)]
        if not waiting:
            del self._waiting[key[0]]

    def _turn(self, key: Key) -> Turn:
        room, own = self._room(), self._room_in(key[0])
        if key not in self._places:  # pods of its last attempt are still there
            return Turn(0, begins=False, why="what is left of its last attempt is being removed")
        place = self._places[key]
        before = self._before(key[0], place)
        if before[key[0]] >= own:
            limit = self.limits.per_namespace
            words = f"in namespace {key[0]} only {limit} may run at a time"
            return Turn(before[key[0]], begins=False, why=words)
        ahead = sum(min(count, self._room_in(name)) for name, count in before.items())
        words = f"only {self.limits.in_all} may run at a time"
        return Turn(sum(before.values()), begins=ahead < room, why=words)

    def _before(self, namespace: str, place: Place) -> dict[str, int]:
        """How many jobs of each namespace come before one that waits in another. Each runs one more
        there than the one before it."""
        own = bisect_left(self._waiting[namespace], place)
        share, found = self._running_in[namespace] + own, {}
        for name, places in self._waiting.items():
            count = share - self._running_in[name]
            if 0 <= count < len(places) and places[count][1:] < place[1:]:
                count += 1
            found[name] = min(max(0, count), len(places))
        return {**found, namespace: own}

    def _room(self) -> float:
        limit = self.limits.in_all
        return inf if limit is None else limit - len(self._running)

    def _room_in(self, namespace: str) -> float:
        limit = self.limits.per_namespace
        return inf if limit is None else max(0, limit - self._running_in[namespace])

    def _wake(self) -> None:
        """Tell those whose turn has come."""
        room = self._room()
        for *_, namespace, name in islice(self._next(), int(min(room, 2**31)) if room > 0 else 0):
            self.wake((namespace, name))

    def _next(self) -> Iterator[Place]:
        """Those who wait, in their order, as many of each namespace as have room there."""
        return merge(*map(self._next_of, self._waiting))

    def _next_of(self, namespace: str) -> Iterator[Place]:
        """Those of a namespace, each with the number that runs there before it."""
        room = self._room_in(namespace)
        places = islice(self._waiting[namespace], None if room == inf else int(room))
        for share, place in enumerate(places, self._running_in[namespace]):
            yield share, *place[1:]
