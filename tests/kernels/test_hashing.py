import numpy as np
import pytest
import torch

from odds import uniformity
from sketchfed import PublicSeed
from sketchfed.kernels import field, hashing, philox

SEED = PublicSeed(3)


def exact_code(buckets, signs, i: int, *, origin: int, size: int) -> int:
    """The definition in whole numbers of any length."""
    h = sum(int(c) * i**k for k, c in enumerate(buckets)) % hashing.PRIME
    s = sum(int(c) * i**k for k, c in enumerate(signs)) % hashing.PRIME
    return 2 * (origin + (h * size >> 61)) + (s & 1)


@pytest.mark.parametrize(("first", "size"), [(0, 1), (0, 7), (12_345, 1000), (2**31 - 500, 2**31 - 1)])
def test_codes_equal_the_definition(first, size):
    buckets, signs = hashing.coefficients(SEED.child("b"), degree=1), hashing.coefficients(SEED.child("s"), degree=3)
    origin = 0 if size > 2**30 else 5
    expected = [exact_code(buckets, signs, i, origin=origin, size=size) for i in range(first, first + 300)]
    codes = np.empty(300, np.uint32)
    hashing.hash_codes(buckets, signs, first, origin, size, codes)
    assert codes.tolist() == expected


def test_coefficients_are_uniform_below_the_prime():
    """χ² over 64 ranges of 20,000 coefficients; false alarm below 1e-6."""
    drawn = np.concatenate([hashing.coefficients(SEED.child("c", t), degree=3) for t in range(5_000)])
    assert drawn.max() < hashing.PRIME
    assert uniformity(np.bincount(drawn.astype(np.int64) >> 55, minlength=64)) > 1e-6


def test_buckets_are_pairwise_and_signs_four_wise_independent():
    """χ² over the joint values of two buckets, and of four signs, across independent hashes; false alarm below 2e-6."""
    pairs, quads = np.zeros((8, 8)), np.zeros(16)
    codes = np.empty(1000, np.uint32)
    for trial in range(20_000):
        seed = SEED.child("trial", trial)
        buckets, signs = hashing.coefficients(seed.child("b"), degree=1), hashing.coefficients(seed.child("s"), degree=3)
        hashing.hash_codes(buckets, signs, 0, 0, 8, codes)
        pairs[codes[0] >> 1, codes[999] >> 1] += 1
        quads[sum((int(codes[i]) & 1) << k for k, i in enumerate((0, 1, 2, 777)))] += 1
    assert uniformity(pairs) > 1e-6
    assert uniformity(quads) > 1e-6


def product(a: int, b: int) -> int:
    return int(field.multiply(np.uint64(a), np.uint64(b)))


def carryless_remainder(a: int, modulus: int) -> int:
    while a.bit_length() >= modulus.bit_length():
        a ^= modulus << (a.bit_length() - modulus.bit_length())
    return a


def test_the_field_polynomial_is_irreducible():
    """Rabin's test: x^(2^32) = x, and x^(2^16) − x shares no factor with the polynomial."""
    modulus = 1 << 32 | field.MODULUS
    powers = [2]
    for _ in range(32):
        powers.append(product(powers[-1], powers[-1]))
    assert powers[32] == 2
    a, b = modulus, powers[16] ^ 2
    while b:
        a, b = b, carryless_remainder(a, b)
    assert a == 1


def test_any_five_field_signs_are_linearly_independent():
    """The vectors (1, i, i³) of five different columns have rank five, so the signs are exactly 5-wise independent."""
    generator = np.random.default_rng(4)
    for _ in range(300):
        columns = generator.choice(2**20, 5, replace=False)
        cubes = [product(product(int(i), int(i)), int(i)) for i in columns]
        basis: list[int] = []
        for vector in (1 << 64 | int(i) << 32 | cube for i, cube in zip(columns, cubes, strict=True)):
            for other in basis:
                vector = min(vector, vector ^ other)
            if vector:
                basis.append(vector)
                basis.sort(reverse=True)
        assert len(basis) == 5


def test_field_signs_of_a_block_equal_their_definition():
    rows = philox.words(SEED.stream, 3 * 20)[:60].reshape(20, 3)
    low, planes, tables = np.empty(64, np.uint64), np.empty(32, np.uint64), np.empty((4, 256), np.uint64)
    field.low_patterns(low)
    field.cube_planes(planes)
    expected = field.sign_bits_twin(torch.from_numpy(rows.astype(np.int64)), torch.arange(6400, 6464))
    field.cube_tables(6400, low, planes, tables)
    for row, bits in zip(rows, expected, strict=True):
        word = int(np.uint64(field.sign_word(row, 6400, low, tables)))
        assert [word >> j & 1 for j in range(64)] == bits.tolist()
