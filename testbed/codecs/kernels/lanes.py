"""Operators on 32-bit lanes, which numba lacks.

Numba widens uint32 arithmetic to 64 bits, which halves the elements per vector register and adds conversions
(measured: 3.2 to 3.5 times slower). These keep the width of what they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from testbed.codecs.kernels.compiled import F32, U8, U32

_ABS = np.uint32(0x7FFFFFFF)
_intrinsic: Any = intrinsic  # mypy would check calls against the typing function, which has an argument more


def _binary(operation: str) -> Any:
    @_intrinsic
    def operator(typing_context: Any, a: Any, b: Any) -> Any:
        return a(a, a), lambda context, builder, signature, args: getattr(builder, operation)(*args)

    return operator


add, sub, mul, and_, or_, xor = (_binary(name) for name in ("add", "sub", "mul", "and_", "or_", "xor"))
shl, shr = _binary("shl"), _binary("lshr")


def unary(result: types.Type, build: Callable[[Any, Any], Any]) -> Any:
    @_intrinsic
    def operator(typing_context: Any, a: Any) -> Any:
        return result(a), lambda context, builder, signature, args: build(builder, args[0])

    return operator


bits_of = unary(U32, lambda builder, x: builder.bitcast(x, ir.IntType(32)))  # a float32's bits
float_of = unary(F32, lambda builder, x: builder.bitcast(x, ir.FloatType()))  # the float32 with these bits
to_float = unary(F32, lambda builder, x: builder.sitofp(x, ir.FloatType()))  # 31-bit integer, rounded
low_byte = unary(U8, lambda builder, x: builder.trunc(x, ir.IntType(8)))


@njit(inline="always")
def abs_bits(x: Any) -> Any:
    """The bits of |x|: they order magnitudes as numbers do, infinity and NaN above all others."""
    return and_(bits_of(x), _ABS)


@_intrinsic
def larger(typing_context: Any, a: Any, b: Any) -> Any:
    """Maximum of two unsigned integers."""
    return a(a, a), lambda context, builder, signature, args: builder.select(builder.icmp_unsigned(">", *args), *args)


@_intrinsic
def smaller(typing_context: Any, a: Any, b: Any) -> Any:
    """Minimum of two float32."""
    return a(a, a), lambda context, builder, signature, args: builder.select(builder.fcmp_ordered("<", *args), *args)


@_intrinsic
def where_less(typing_context: Any, a: Any, b: Any, value: Any) -> Any:
    """`value` where a < b, else 0; b is NaN: 0."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[2].type(0))

    return value(a, b, value), build


@_intrinsic
def where_equal(typing_context: Any, a: Any, b: Any, value: Any, other: Any) -> Any:
    """`value` where a == b, else `other`."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(builder.icmp_unsigned("==", args[0], args[1]), args[2], args[3])

    return value(a, b, value, other), build


def _resize(builder: Any, value: Any, width: int) -> Any:
    """An unsigned integer cut or widened to `width` bits."""
    if value.type.width == width:
        return value
    change = builder.trunc if value.type.width > width else builder.zext
    return change(value, ir.IntType(width))


@_intrinsic
def like(typing_context: Any, model: Any, value: Any) -> Any:
    """`value` in the unsigned type of `model`."""
    return model(model, value), lambda context, builder, signature, args: _resize(builder, args[1], args[0].type.width)


@_intrinsic
def bit_at(typing_context: Any, value: Any, source: Any, target: Any) -> Any:
    """A byte with bit `source` of `value` as its bit `target`, all other bits zero."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        width = args[0].type.width
        bit = builder.and_(builder.lshr(args[0], _resize(builder, args[1], width)), args[0].type(1))
        return builder.shl(_resize(builder, bit, 8), _resize(builder, args[2], 8))

    return U8(value, source, target), build


@_intrinsic
def bit_to(typing_context: Any, byte: Any, source: Any, target: Any, model: Any) -> Any:
    """Bit `source` of a byte as bit `target` of a number of the type of `model`, all other bits zero."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bit = builder.and_(builder.lshr(args[0], _resize(builder, args[1], 8)), args[0].type(1))
        width = args[3].type.width
        return builder.shl(_resize(builder, bit, width), _resize(builder, args[2], width))

    return model(byte, source, target, model), build
