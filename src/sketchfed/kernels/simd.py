"""Butterflies on explicit vector registers, as numba intrinsics.

Left to itself the compiler vectorises Hadamard butterflies badly or not at all. Here eight registers of 32 bytes (eight
float32 or four float64 lanes) are loaded, transformed and stored by hand-written LLVM, for whichever of the two types the
array has. Offsets and strides count elements of the flattened array; nothing is bounds-checked.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

REGISTER_BYTES = 32
REGISTERS = 8

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


class _Lanes:
    """The register type for an array's element type, and the handful of operations that butterflies need."""

    def __init__(self, builder: Any, element: Any) -> None:
        self.builder = builder
        self.bits = element.bitwidth
        self.count = REGISTER_BYTES * 8 // self.bits
        self.float = ir.FloatType() if self.bits == 32 else ir.DoubleType()
        self.int = ir.IntType(self.bits)
        self.floats, self.ints = ir.VectorType(self.float, self.count), ir.VectorType(self.int, self.count)
        self.positions = ir.VectorType(_INT32, self.count)

    def _at(self, pointer: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(pointer, [offset]), self.floats.as_pointer())

    def load(self, pointer: Any, offset: Any, stride: Any, number: int) -> list[Any]:
        step = self.builder
        return [
            step.load(self._at(pointer, step.add(offset, step.mul(stride, _INT64(j)))), align=self.bits // 8)
            for j in range(number)
        ]

    def store(self, registers: list[Any], pointer: Any, offset: Any, stride: Any) -> None:
        step = self.builder
        for j, register in enumerate(registers):
            step.store(register, self._at(pointer, step.add(offset, step.mul(stride, _INT64(j)))), align=self.bits // 8)

    def spread(self, value: Any) -> Any:
        """A register with the same value in all lanes."""
        kind = ir.VectorType(value.type, self.count)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, _INT32(0))
        everywhere = ir.Constant(self.positions, [0] * self.count)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), everywhere)

    def sum(self, register: Any) -> Any:
        """Of all lanes: one half added to the other, until one is left."""
        count = self.count
        while count > 1:
            count //= 2
            low, high = (ir.Constant(ir.VectorType(_INT32, count), list(range(f, f + count))) for f in (0, count))
            halves = [self.builder.shuffle_vector(register, register, half) for half in (low, high)]
            register = self.builder.fadd(*halves)
        return self.builder.extract_element(register, _INT32(0))

    def across(self, registers: list[Any]) -> list[Any]:
        """Hadamard transform over the registers, lane by lane."""
        half = 1
        while half < len(registers):
            for i in range(0, len(registers), 2 * half):
                for j in range(i, i + half):
                    a, b = registers[j], registers[j + half]
                    registers[j], registers[j + half] = self.builder.fadd(a, b), self.builder.fsub(a, b)
            half *= 2
        return registers

    def within(self, registers: list[Any]) -> list[Any]:
        """Hadamard transform over the lanes of each register. x·(±1) is exact, so contracting it to an FMA changes no bit."""
        undefined = ir.Constant(self.floats, ir.Undefined)
        half = 1
        while half < self.count:
            partner = ir.Constant(self.positions, [lane ^ half for lane in range(self.count)])
            sign = ir.Constant(self.floats, [-1.0 if lane & half else 1.0 for lane in range(self.count)])
            for i, register in enumerate(registers):
                swapped = self.builder.shuffle_vector(register, undefined, partner)
                signed = self.builder.fmul(register, sign, flags=("contract",))
                registers[i] = self.builder.fadd(swapped, signed, flags=("contract",))
            half *= 2
        return registers

    def negate(self, registers: list[Any], word: Any) -> list[Any]:
        """Flip the sign of lane l of register j where bit `count·j + l` of the 64-bit word is set."""
        step = self.builder
        top = ir.Constant(self.ints, [1 << (self.bits - 1)] * self.count)
        per_part = self.bits // self.count  # registers whose bits one lane holds
        parts: list[Any] = []
        for j, register in enumerate(registers):
            if j % per_part == 0:
                shifted = step.lshr(word, _INT64(self.count * j))
                parts.append(self.spread(step.trunc(shifted, self.int) if self.bits < 64 else shifted))
            to_top = [self.bits - 1 - self.count * (j % per_part) - lane for lane in range(self.count)]
            mask = step.and_(step.shl(parts[-1], ir.Constant(self.ints, to_top)), top)
            registers[j] = step.bitcast(step.xor(step.bitcast(register, self.ints), mask), self.floats)
        return registers


def _data(context: Any, builder: Any, array_type: types.Array, array: Any) -> Any:
    return context.make_array(array_type)(context, builder, array).data


def _butterfly(radix: int) -> Callable[..., Any]:
    @intrinsic
    def butterfly(_typing: Any, array: types.Array, offset: types.Type, stride: types.Type) -> Any:
        """In place: the Hadamard transform of `radix` registers that lie `stride` elements apart, from `offset` on."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = _Lanes(builder, signature.args[0].dtype)
            data = _data(context, builder, signature.args[0], arguments[0])
            registers = lanes.across(lanes.load(data, arguments[1], arguments[2], radix))
            lanes.store(registers, data, arguments[1], arguments[2])
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), generate

    return butterfly


butterfly2, butterfly4, butterfly8 = _butterfly(2), _butterfly(4), _butterfly(8)


@intrinsic
def butterfly8_of_pieces(
    _typing: Any,
    low: types.Array,
    start: types.Type,
    high: types.Array,
    whole: types.Type,
    piece: types.Type,
    offset: types.Type,
    out: types.Array,
    place: types.Type,
    stride: types.Type,
) -> Any:
    """The Hadamard transform of one register from each of eight pieces, written `stride` elements apart from out[place] on.

    Register j begins at low[start + j·piece + offset], and at high[(j − whole)·piece + offset] if j ≥ whole, which is 4 to 8.
    All pieces are read in step, which a processor foresees: a stretch of one piece and then of the next takes three times as
    long.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, start, _, whole, piece, offset, _, place, stride = arguments
        lanes = _Lanes(builder, signature.args[0].dtype)
        low, high, out = (_data(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 6))
        first, beyond = builder.add(start, offset), builder.sub(offset, builder.mul(whole, piece))
        registers = lanes.load(low, first, piece, 4)
        for j in range(4, 8):
            away = builder.mul(piece, _INT64(j))
            inside = builder.gep(low, [builder.add(first, away)])
            outside = builder.gep(high, [builder.add(beyond, away)])
            source = builder.select(builder.icmp_signed("<", _INT64(j), whole), inside, outside)
            registers += lanes.load(source, _INT64(0), _INT64(0), 1)
        lanes.store(lanes.across(registers), out, place, stride)
        return context.get_dummy_value()

    places = (types.int64, types.int64, types.int64)
    return types.void(low, types.int64, high, *places, out, types.int64, types.int64), generate


def _on_block(transform: bool, signed: bool) -> Callable[..., Any]:
    """What can be done to eight neighbouring registers (64 float32 or 32 float64) on their way from source to target."""

    @intrinsic
    def block(
        _typing: Any, source: types.Array, start: types.Type, target: types.Array, end: types.Type, word: types.Type
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = _Lanes(builder, signature.args[0].dtype)
            here = _data(context, builder, signature.args[0], arguments[0])
            there = _data(context, builder, signature.args[2], arguments[2])
            stride = _INT64(lanes.count)
            registers = lanes.load(here, arguments[1], stride, REGISTERS)
            if signed:
                registers = lanes.negate(registers, arguments[4])
            if transform:
                registers = lanes.across(lanes.within(registers))
            lanes.store(registers, there, arguments[3], stride)
            return context.get_dummy_value()

        return types.void(source, types.int64, target, types.int64, types.uint64), generate

    return block


transform_block = _on_block(transform=True, signed=False)
signed_transform_block = _on_block(transform=True, signed=True)
signed_block = _on_block(transform=False, signed=True)


@intrinsic
def add_signed_block(_typing: Any, source: Any, start: Any, sums: Any, slot: Any, word: Any) -> Any:
    """Add the signed sum of a block's eight registers to the register of `sums` at `slot`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = _Lanes(builder, signature.args[0].dtype)
        here = _data(context, builder, signature.args[0], arguments[0])
        there = _data(context, builder, signature.args[2], arguments[2])
        registers = lanes.negate(lanes.load(here, arguments[1], _INT64(lanes.count), REGISTERS), arguments[4])
        while len(registers) > 1:
            registers = [builder.fadd(a, b) for a, b in zip(registers[::2], registers[1::2], strict=True)]
        so_far = lanes.load(there, arguments[3], _INT64(0), 1)
        lanes.store([builder.fadd(so_far[0], registers[0])], there, arguments[3], _INT64(0))
        return context.get_dummy_value()

    return types.void(source, types.int64, sums, types.int64, types.uint64), generate


@intrinsic
def add_signed_value(_typing: Any, value: Any, sums: Any, start: Any, word: Any) -> Any:
    """Add ±value, signed by the word's bits, to the eight registers of `sums` from `start` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = _Lanes(builder, signature.args[1].dtype)
        data = _data(context, builder, signature.args[1], arguments[1])
        stride = _INT64(lanes.count)
        signed = lanes.negate([lanes.spread(arguments[0])] * REGISTERS, arguments[3])
        so_far = lanes.load(data, arguments[2], stride, REGISTERS)
        lanes.store([builder.fadd(a, b) for a, b in zip(so_far, signed, strict=True)], data, arguments[2], stride)
        return context.get_dummy_value()

    return types.void(value, sums, types.int64, types.uint64), generate


@intrinsic
def negate_if(_typing: Any, value: types.Type, bit: types.Type) -> Any:
    """`-value` where the lowest bit of a 64-bit word is set, without a branch."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(signature.args[0].bitwidth)
        bit = arguments[1] if integer.width == 64 else builder.trunc(arguments[1], integer)
        mask = builder.shl(bit, integer(integer.width - 1))
        return builder.bitcast(builder.xor(builder.bitcast(arguments[0], integer), mask), arguments[0].type)

    return value(value, types.uint64), generate


def _add_inner(height: int, width: int) -> Callable[..., Any]:
    """Inner products of some rows with some vectors at once, so that what is loaded is used several times."""

    @intrinsic
    def add_inner(
        _typing: Any,
        rows: Any,
        start: Any,
        stride: Any,
        vectors: Any,
        begin: Any,
        step: Any,
        registers: Any,
        out: Any,
        place: Any,
        pitch: Any,
    ) -> Any:
        """Add ⟨row i, vector j⟩ to the float64 out[place + i + j·pitch], i < height and j < width, of as many `registers` each.

        Each is summed lane by lane in one register, and then over halves of its lanes: whatever comes beside it.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = _Lanes(builder, signature.args[0].dtype)
            here, there, sums = (_data(context, builder, signature.args[i], arguments[i]) for i in (0, 3, 7))
            zero, pairs = ir.Constant(lanes.floats, [0.0] * lanes.count), [(i, j) for j in range(width) for i in range(height)]

            def one(index: Any, totals: list[Any]) -> list[Any]:
                done = builder.mul(index, _INT64(lanes.count))
                left = lanes.load(here, builder.add(arguments[1], done), arguments[2], height)
                right = lanes.load(there, builder.add(arguments[4], done), arguments[5], width)
                return [builder.fadd(t, builder.fmul(left[i], right[j])) for t, (i, j) in zip(totals, pairs, strict=True)]

            found = _repeated(builder, arguments[6], [zero] * len(pairs), one)
            for (i, j), total in zip(pairs, found, strict=True):
                offset = builder.add(builder.add(arguments[8], _INT64(i)), builder.mul(arguments[9], _INT64(j)))
                target = builder.gep(sums, [offset])
                value = lanes.sum(total)
                value = builder.fpext(value, ir.DoubleType()) if lanes.bits == 32 else value
                builder.store(builder.fadd(builder.load(target), value), target)
            return context.get_dummy_value()

        places = (types.int64, types.int64)
        return types.void(rows, *places, vectors, *places, types.int64, out, *places), generate

    return add_inner


add_inner, add_inner_rows, add_inner_vectors, add_inner_one = (
    _add_inner(height, width) for height, width in ((4, 2), (4, 1), (1, 2), (1, 1))
)


@intrinsic
def add_rows(
    _typing: Any, target: Any, end: Any, rows: Any, start: Any, stride: Any, factors: Any, origin: Any, step: Any, count: Any
) -> Any:
    """Add Σ factors[origin + k·step]·(eight registers of rows from start + k·stride on), k < count, to eight of target."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = _Lanes(builder, signature.args[0].dtype)
        there, here, scales = (_data(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 5))
        neighbour = _INT64(lanes.count)

        def one(index: Any, sums: list[Any]) -> list[Any]:
            place = builder.add(arguments[6], builder.mul(index, arguments[7]))
            factor = lanes.spread(builder.load(builder.gep(scales, [place])))
            row = lanes.load(here, builder.add(arguments[3], builder.mul(index, arguments[4])), neighbour, REGISTERS)
            return [builder.fadd(s, builder.fmul(factor, r)) for s, r in zip(sums, row, strict=True)]

        sums = _repeated(builder, arguments[8], lanes.load(there, arguments[1], neighbour, REGISTERS), one)
        lanes.store(sums, there, arguments[1], neighbour)
        return context.get_dummy_value()

    places = (types.int64, types.int64)
    return types.void(target, types.int64, rows, *places, factors, *places, types.int64), generate


def _add_outer(height: int, width: int) -> Callable[..., Any]:
    """Combinations of the same rows added to several targets at once, so that what is loaded is used several times."""

    @intrinsic
    def add_outer(
        _typing: Any,
        targets: Any,
        end: Any,
        pitch: Any,
        rows: Any,
        start: Any,
        stride: Any,
        factors: Any,
        origin: Any,
        apart: Any,
        step: Any,
        count: Any,
    ) -> Any:
        """Add Σ factors[origin + i·apart + k·step]·(registers of rows from start + k·stride on), k < count, to those of targets
        from end + i·pitch on, i < height, `width` registers of each.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            lanes = _Lanes(builder, signature.args[0].dtype)
            there, here, scales = (_data(context, builder, signature.args[i], arguments[i]) for i in (0, 3, 6))
            end, pitch, start, stride, origin, apart, step = (arguments[i] for i in (1, 2, 4, 5, 7, 8, 9))
            neighbour = _INT64(lanes.count)

            def one(index: Any, sums: list[Any]) -> list[Any]:
                row = lanes.load(here, builder.add(start, builder.mul(index, stride)), neighbour, width)
                first, made = builder.add(origin, builder.mul(index, step)), []
                for i in range(height):
                    place = builder.add(first, builder.mul(apart, _INT64(i)))
                    factor = lanes.spread(builder.load(builder.gep(scales, [place])))
                    made += [builder.fadd(sums[i * width + j], builder.fmul(factor, row[j])) for j in range(width)]
                return made

            offsets = [builder.add(end, builder.mul(pitch, _INT64(i))) for i in range(height)]
            held = [register for offset in offsets for register in lanes.load(there, offset, neighbour, width)]
            sums = _repeated(builder, arguments[10], held, one)
            for i, offset in enumerate(offsets):
                lanes.store(sums[i * width : (i + 1) * width], there, offset, neighbour)
            return context.get_dummy_value()

        return types.void(
            *(targets, types.int64, types.int64), *(rows, types.int64, types.int64), factors, *[types.int64] * 4
        ), generate

    return add_outer


add_outer, add_outer_narrow, add_outer_row, add_outer_one = (
    _add_outer(height, width) for height, width in ((2, 4), (2, 1), (1, 4), (1, 1))
)


def _repeated(builder: Any, times: Any, registers: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """A loop that carries registers through `times` steps."""
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(_INT64)
    carried = [builder.phi(register.type) for register in registers]
    builder.cbranch(builder.icmp_signed("<", index, times), body, after)
    builder.position_at_end(body)
    results = step(index, list(carried))
    following = builder.add(index, _INT64(1))
    for phi, first, later in zip([index, *carried], [_INT64(0), *registers], [following, *results], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried
