"""Registered tensors on devices, and the checksums of their first rounds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from processes import Process, Start
from tensorbus.kvstore import StoreServer

RANK = Path(__file__).resolve().parent / "round_rank.py"


def start_ranks(
    start: Start, server: StoreServer, space: str, env: Mapping[str, str], verify: str = ""
) -> list[Process]:
    """Two senders whose values are added, and a receiver."""
    ranks = [
        start(
            sys.executable, "-u", str(RANK), server.url, f"rounds-{space}", str(rank), verify,
            env=dict(env),
        )
        for rank in range(3)
    ]  # fmt: skip
    for rank in ranks:
        assert rank.line(60) == "ready"
    return ranks


def round_of(ranks: list[Process], number: int, command: str = "send") -> list[str]:
    for rank in ranks[:2]:
        rank.tell(f"{command} {number}")
    ranks[2].tell(f"recv {number}")
    return [rank.line(60) for rank in ranks]


@pytest.mark.proves("V3.2", "V4.2")
def test_rounds_from_devices_to_a_device_bit_for_bit(
    start_program: Start, store_server: StoreServer, unique: str, standin: Mapping[str, str]
):
    ranks = start_ranks(start_program, store_server, unique, standin)
    for number in (1, 2, 3):
        assert round_of(ranks, number) == ["done", "done", "right"]


@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
@pytest.mark.parametrize("verify", ["sample", "full"])
def test_rounds_of_devices_that_are_checked(
    start_program: Start,
    store_server: StoreServer,
    unique: str,
    standin: Mapping[str, str],
    verify: str,
):
    ranks = start_ranks(start_program, store_server, unique, standin, verify)
    for number in (1, 2):
        assert round_of(ranks, number) == ["done", "done", "right"]


@pytest.mark.proves("V4.4")
@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_a_first_round_that_is_changed_after_its_offer_is_an_error(
    start_program: Start, store_server: StoreServer, unique: str, standin: Mapping[str, str]
):
    ranks = start_ranks(start_program, store_server, unique, standin)
    for number in (1, 2):
        ranks[0].tell(f"change {number}")
        ranks[1].tell(f"send {number}")
        assert ranks[0].line(60) == "offered"
        ranks[2].tell(f"recv {number}")
        assert "is not what was offered" in ranks[2].line(60)
        for rank in ranks[:2]:
            rank.line(60)
    assert round_of(ranks, 3) == ["done", "done", "right"]


@pytest.mark.parametrize("standin", ["lazy"], indirect=True)
def test_without_checks_it_is_believed(
    start_program: Start, store_server: StoreServer, unique: str, standin: Mapping[str, str]
):
    ranks = start_ranks(start_program, store_server, unique, standin, "off")
    ranks[0].tell("change 1")
    ranks[1].tell("send 1")
    assert ranks[0].line(60) == "offered"
    ranks[2].tell("recv 1")
    assert ranks[2].line(60) == "wrong"
