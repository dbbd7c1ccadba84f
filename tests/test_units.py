from __future__ import annotations

import re

import pytest
from tests.errors import raises

from forescale.errors import SpecError
from forescale.units import (
    counted,
    format_bytes,
    format_count,
    format_seconds,
    in_thousands,
    length_of,
    parse,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("989 TFLOP/s", "FLOP/s", 989e12),
        ("133.8 TFLOP/s", "FLOP/s", 133.8e12),
        ("450 GB/s", "byte/s", 450e9),
        ("400 Gb/s", "byte/s", 50e9),
        ("80 GiB", "byte", 80 * 2**30),
        ("3 KiB", "byte", 3072.0),
        ("3 MiB", "byte", 3 * 2**20),
        ("2 TiB", "byte", 2 * 2**40),
        ("5 kB", "byte", 5e3),
        ("5 KB", "byte", 5e3),
        ("5 PB", "byte", 5e15),
        ("5 EB", "byte", 5e18),
        ("3 GiB/s", "byte/s", 3 * 2**30),
        ("3 TiB/s", "byte/s", 3 * 2**40),
        ("3 TB/s", "byte/s", 3e12),
        ("8 Mbit/s", "byte/s", 1e6),
        ("2 PFLOP", "FLOP", 2e15),
        ("2 min", "second", 120.0),
        ("2 h", "second", 7200.0),
        ("2 d", "second", 172800.0),
        ("2 ms", "second", 2e-3),
        ("2 µs", "second", 2e-6),
        ("2 ns", "second", 2e-9),
        ("1.98 GHz", "hertz", 1.98e9),
        ("700 W", "watt", 700.0),
        ("1.4 kW", "watt", 1400.0),
        ("2K", "token", 2e3),
        ("2M", "token", 2e6),
        ("2B", "token", 2e9),
        ("8k", "length", 8192.0),
        ("8K", "length", 8192.0),
        ("2M", "length", 2 * 2**20),
        ("2.5B", "money", 2.5e9),
        ("2.5M", "money", 2.5e6),
        ("2.5K", "money", 2.5e3),
        ("$2.5M", "money", 2.5e6),
        ("10M USD", "money", 1e7),
        ("USD 1,234.5", "money", 1234.5),
        ("$2.50", "money/h", 2.5),
        ("2.50 USD", "money/h", 2.5),
        ("$2.50/hr", "money/h", 2.5),
        ("US$2.50/GPU-hour", "money/h", 2.5),
        ("2.50 $ per hour", "money/h", 2.5),
        ("$80/MWh", "money/kWh", 0.08),
        ("0.08 USD/kWh", "money/kWh", 0.08),
        ("2.5 us", "second", 2.5e-6),
        ("100Gbps", "byte/s", 12.5e9),
        ("100gbps", "byte/s", 12.5e9),
        ("800 Mbps", "byte/s", 1e8),
        ("1.6 Tbps", "byte/s", 2e11),
        ("50GBps", "byte/s", 5e10),
        ("900 MBps", "byte/s", 9e8),
        ("15T", "token", 15e12),
        ("1_000", "token", 1000.0),
        ("15,000,000.5", "token", 15_000_000.5),
        (7, "byte", 7.0),
    ],
)
def test_parse(text, dimension, value):
    assert parse(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("80 GiBs", "byte"),
        ("fast", "byte/s"),
        ("3 W", "second"),
        ("", "byte"),
        ("€2.50", "money/h"),
        ("$60/day", "money/h"),
        ("$2.50/kWh", "money/h"),
        ("$2/h", "money"),
        ("$", "money"),
        ("$$2", "money"),
        (".50", "money/h"),
    ],
)
def test_what_is_no_quantity_is_refused_with_the_units_allowed(text, dimension):
    with raises(SpecError, "not_a_quantity"):
        parse(text, dimension)


def test_an_error_lists_one_spelling_of_each_rate():
    with raises(SpecError, "not_a_quantity") as refused:
        parse("fast", "byte/s")
    assert "Gb/s" in refused.value.fix
    assert "ps" not in refused.value.fix


@pytest.mark.parametrize(
    ("text", "dimension", "instead"),
    [
        ("80,5 GB", "byte", "; write '80.5 GB'"),
        ("1,5T", "token", "; write '1.5 T'"),
        ("1,00,000", "token", "1,024 or 1024$"),
        ("1,5.2", "token", "1,024 or 1024$"),
    ],
)
def test_a_comma_is_not_taken_for_none(text, dimension, instead):
    with raises(SpecError, f"not_a_quantity {dimension}", value=text) as refused:
        parse(text, dimension)
    assert re.search(instead, f"; {refused.value.fix}")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10 * 2**40, "10.00 TiB"),
        (9 * 2**40, "9216.00 GiB"),
        (2**30, "1.00 GiB"),
        (2**30 - 2**20, "1023.00 MiB"),
        (2**20, "1.00 MiB"),
        (2**10, "1.00 KiB"),
        (1023, "1023 B"),
        (-(2**31), "-2.00 GiB"),
    ],
)
def test_bytes_change_their_unit_at_powers_of_1024(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.000 s"),
        (999.0, "999.000 s"),
        (1000.0, "1,000 s"),
        (0.999, "999.000 ms"),
        (1e-3, "1.000 ms"),
        (1e-6, "1.000 µs"),
        (5e-9, "5.0 ns"),
        (0.0, "0 s"),
    ],
)
def test_seconds_change_their_unit_at_thousands(value, text):
    assert format_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1e3, "1 K"), (999.0, "999"), (1e6, "1 M"), (2.5e12, "2.5 T"), (3e15, "3 P")]
)
def test_counts_change_their_unit_at_thousands(value, text):
    assert format_count(value) == text


def test_the_longest_quantity_has_60_characters():
    assert parse("1" + " " * 57 + "GB", "byte") == 1e9
    with pytest.raises(SpecError):
        parse("1" + " " * 58 + "GB", "byte")


def test_formats():
    assert format_bytes(80 * 2**30) == "80.00 GiB"
    assert format_seconds(12.34) == "12.340 s"
    assert format_seconds(2.5e-6) == "2.500 µs"
    assert format_count(70.55e9) == "70.55 B"


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "layer", "1 layer"),
        (0, "layer", "0 layers"),
        (1200, "micro-batch", "1,200 micro-batches"),
        (1, "search", "1 search"),
        (2, "pass", "2 passes"),
        (1.0, "micro-batch", "1 micro-batch"),
        (2.5, "micro-batch", "2.5 micro-batches"),
    ],
)
def test_one_thing_is_not_several(count, noun, said):
    assert counted(count, noun) == said


def test_lengths_of_sequences_count_in_1024():
    names = ("8192", "8_192", "128k", "4K", "1M")
    assert [length_of(text) for text in names] == [8192, 8192, 131072, 4096, 2**20]
    assert [length_of(text) for text in ("", "k", "8x", "1.5k", "-8", "٨k", "9" * 9999)] == [None] * 7


def test_devices_and_batches_may_be_in_thousands_of_1024():
    assert in_thousands("--devices", "16k") == in_thousands("--vary devices", "16K") == 16384
    assert in_thousands("--global-batch-size", "2k") == 2048
    assert in_thousands("--tp", "2k") is None
    assert in_thousands("--devices", "16") is None
