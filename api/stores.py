"""Blocking look-ups of the gateway, off its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import redis
from django.db import Error, close_old_connections

P = ParamSpec("P")
T = TypeVar("T")

# What a look-up raises when PostgreSQL or Valkey cannot be used right now.
STORE_ERRORS = (Error, redis.RedisError)

# Look-ups are rare: each answer is cached. The hot path's writes have threads of their own (api/metering.py).
_THREADS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="gateway-lookup")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    def call() -> T:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
