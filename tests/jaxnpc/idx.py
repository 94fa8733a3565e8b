"""The idx format, as the tests write it."""

import numpy as np

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
    """The idx encoding, written from the format's description."""
    array = np.asarray(array)
    head = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim])
    shape = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return head + shape + array.astype(array.dtype.newbyteorder(">")).tobytes()


def images():
    """Five images of 4 x 4 pixels and their labels."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (5, 4, 4), dtype=np.uint8), np.array([3, 1, 0, 9, 3], np.uint8)
