"""Which deployment is chosen, and when its breaker opens and closes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, cast

from api.backends import choice
from api.backends.choice import Backend, Breaker, Deployment, Fleet
from portal.catalog.selectors import DeploymentInfo


def info(id: int, weight: int = 100, model: str = "m") -> DeploymentInfo:
    return DeploymentInfo(id, model, "engine", f"127.0.0.1:{id}", model, "", True, weight)


class FakeBackend:
    """A backend that is never called."""

    embeds = False

    def __init__(self, closed: list[int], info: DeploymentInfo) -> None:
        self._closed, self._id = closed, info.id

    async def close(self) -> None:
        self._closed.append(self._id)


def fleet_of(*infos: DeploymentInfo) -> Fleet:
    fleet = Fleet()
    for item in infos:
        fleet._by_model.setdefault(item.model, []).append(Deployment(item, cast(Backend, FakeBackend([], item))))
    return fleet


def test_the_least_loaded_by_weight_is_chosen() -> None:
    fleet = fleet_of(info(1, weight=100), info(2, weight=300))
    taken: Counter[int] = Counter()
    for _ in range(400):
        deployment = fleet.choose("m", set())
        assert deployment is not None
        deployment.in_flight += 1
        taken[deployment.info.id] += 1
    assert abs(taken[2] - 3 * taken[1]) <= 8


def test_what_was_tried_is_not_chosen_again() -> None:
    fleet = fleet_of(info(1), info(2))
    first = fleet.choose("m", {1})
    assert first is not None
    assert first.info.id == 2
    assert fleet.choose("m", {1, 2}) is None
    assert fleet.choose("other", set()) is None


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through() -> None:
    breaker = Breaker()
    for _ in range(choice.FAILURES_TO_OPEN - 1):
        breaker.fail(now=0)
    breaker.succeed()
    for _ in range(choice.FAILURES_TO_OPEN):
        assert breaker.allows(now=0)
        breaker.fail(now=0)
    first_pause = choice.OPEN_S[0]
    assert not breaker.allows(now=first_pause - 0.01)
    assert breaker.allows(now=first_pause)
    breaker.enter()
    assert not breaker.allows(now=first_pause)
    breaker.fail(now=first_pause)
    assert not breaker.allows(now=first_pause + first_pause)
    assert breaker.allows(now=first_pause + 2 * first_pause)
    breaker.enter()
    breaker.succeed()
    assert breaker.allows(now=0)


def test_a_probe_that_tells_nothing_leaves_the_way_free_for_the_next() -> None:
    breaker = Breaker()
    for _ in range(choice.FAILURES_TO_OPEN):
        breaker.fail(now=0)
    breaker.enter()
    breaker.leave()
    assert breaker.allows(now=choice.OPEN_S[1])


async def test_a_removed_deployment_serves_its_calls_to_their_end(monkeypatch: Any) -> None:
    closed: list[int] = []
    monkeypatch.setattr(choice, "make_backend", partial(FakeBackend, closed))
    fleet = Fleet()
    await fleet.refresh([info(1), info(2)])
    busy = next(deployment for deployment in fleet.all if deployment.info.id == 1)
    kept = next(deployment for deployment in fleet.all if deployment.info.id == 2)
    busy.in_flight = 1
    await fleet.refresh([info(2)])
    assert closed == []
    assert fleet.all == [kept]
    busy.in_flight = 0
    await fleet.refresh([info(2)])
    assert closed == [1]
