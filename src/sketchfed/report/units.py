"""Numbers as people read them."""

import math


def shown_bytes(count: float) -> str:
    """Bytes in decimal units, three digits: 1 kB is 1,000 bytes.

    >>> shown_bytes(999), shown_bytes(10_940), shown_bytes(999_999)
    ('999 B', '10.9 kB', '1.00 MB')
    """
    value, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB", "EB"]
    while round(value) >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{_three_digits(value)} {units[0]}"


def shown_seconds(seconds: float) -> str:
    """A duration in the two units that matter.

    >>> shown_seconds(4.218), shown_seconds(245), shown_seconds(7_380)
    ('4.2 s', '4 min 5 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def shown_loss(value: float) -> str:
    """A loss in three significant digits.

    >>> shown_loss(0.3141), shown_loss(1234.5), shown_loss(2.5e-07)
    ('0.314', '1230', '2.50e-07')
    """
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 <= magnitude <= 5:
        return f"{value:.2e}"
    return f"{round(value, 2 - magnitude):.{max(2 - magnitude, 0)}f}"


def shown_accuracy(value: float) -> str:
    return f"{value:.3f}"


def shown_share(value: float) -> str:
    """A share in per cent, three significant digits.

    >>> shown_share(0.5037), shown_share(0.00042), shown_share(1.0)
    ('50.4%', '0.0420%', '100%')
    """
    return f"{shown_loss(100 * value)}%"


def shown_epsilon(value: float) -> str:
    """ε rounded up: a privacy claim is never made to look stronger than it is.

    >>> shown_epsilon(2.0), shown_epsilon(2.991), shown_epsilon(0.0004)
    ('2.00', '3.00', '0.01')
    """
    return f"{math.ceil(round(value * 100, 6)) / 100:.2f}"


def _three_digits(value: float) -> str:
    """Three digits of a number from 1 to 999, or all digits above.

    >>> _three_digits(1.0), _three_digits(9.996), _three_digits(99.96), _three_digits(123456.0)
    ('1.00', '10.0', '100', '123456')
    """
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
