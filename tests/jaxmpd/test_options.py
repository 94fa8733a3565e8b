"""Options are read within their bounds, and refused in words."""

import argparse

import pytest

from jaxmpd.options import Parser, real, whole


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole(1), "1", 1),
        (whole(0, 3), "3", 3),
        (real(positive=False), "0", 0.0),
        (real(positive=True), "1e-300", 1e-300),
        (real(positive=False, infinite=True), "inf", float("inf")),
    ],
)
def test_within_bounds(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (whole(1), "0", "a whole number of at least 1, got '0'"),
        (whole(0, 3), "4", "a whole number of at least 0 and at most 3, got '4'"),
        (whole(0), "1.5", "a whole number of at least 0, got '1.5'"),
        (whole(0), "", "a whole number of at least 0, got ''"),
        (real(positive=True), "0", "a number above 0, got '0'"),
        (real(positive=False), "-1e-9", "a number of at least 0, got '-1e-9'"),
        (real(positive=False), "inf", "a number of at least 0, got 'inf'"),
        (real(positive=False, infinite=True), "-inf", "a number of at least 0, got '-inf'"),
        (real(positive=True, infinite=True), "nan", "a number above 0, got 'nan'"),
        (real(positive=False), "two", "a number of at least 0, got 'two'"),
    ],
)
def test_beyond_bounds(read, text, words):
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        read(text)
    assert str(refusal.value) == f"must be {words}"


def test_the_parser_raises_with_the_options_name():
    parser = Parser(prog="tool")
    parser.add_argument("--size", type=whole(1))
    parser.add_argument("--box", nargs=2, type=float)
    assert parser.parse_args(["--box", "-1e3", "-inf"]).box == [-1000.0, -float("inf")]
    with pytest.raises(ValueError, match=r"argument --size: .* got '0' \(see tool --help\)"):
        parser.parse_args(["--size", "0"])
    with pytest.raises(ValueError, match="unrecognized arguments: --other"):
        parser.parse_args(["--other"])
