"""Vectors of WIDTH numbers as values in Numba's functions, held in the vector registers of the processor.

Numba vectorises loops, but it keeps what a loop sums up in memory and does not reorder sums. A row of a few columns,
which is summed over the neighbours of a node, needs both: a vector as a variable, and a sum of its elements in a fixed
order. Products and sums may be contracted to one operation (fused multiply-add), as the processor allows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

WIDTH = 8
_INT = ir.IntType(32)


class Vector(types.Type):
    """The type of a vector of floats."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype}, {WIDTH})")


def _ir_type(vector: Any) -> ir.VectorType:
    return ir.VectorType(ir.FloatType() if vector.dtype == types.float32 else ir.DoubleType(), WIDTH)


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, _ir_type(vector))


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), _ir_type(array_type).as_pointer())


@intrinsic
def load(typing, array, offset):
    """The vector array[offset : offset + WIDTH]; the array is one-dimensional and contiguous."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(_pointer(context, builder, signature.args[0], *args))
        value.align = array.dtype.bitwidth // 8
        return value

    return Vector(array.dtype)(array, types.intp), code


@intrinsic
def store(typing, array, offset, vector):
    """array[offset : offset + WIDTH] = vector."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.store(args[2], _pointer(context, builder, signature.args[0], args[0], args[1]))
        value.align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.none(array, types.intp, vector), code


@intrinsic
def prefetch(typing, array, offset):
    """Ask for array[offset] to be in the cache soon; the offset need not be inside the array."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        pointer = builder.bitcast(_pointer(context, builder, signature.args[0], *args), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
        function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        # for reading, to be kept, data and not instructions
        builder.call(function, [pointer, ir.Constant(_INT, 0), ir.Constant(_INT, 3), ir.Constant(_INT, 1)])
        return context.get_dummy_value()

    return types.none(array, types.intp), code


def _operation(name: str) -> Any:
    @intrinsic
    def operation(typing, a, b):
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, name)(*args, flags=("contract",))

        return a(a, b), code

    return operation


add, sub, mul = _operation("fadd"), _operation("fsub"), _operation("fmul")


@intrinsic
def fill(typing, number):
    """The vector whose elements all are ``number``."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        undefined = ir.Constant(_ir_type(signature.return_type), ir.Undefined)
        first = builder.insert_element(undefined, args[0], ir.Constant(_INT, 0))
        return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT, WIDTH), [0] * WIDTH))

    return Vector(number)(number), code


@intrinsic
def total(typing, vector):
    """The sum of the elements: the upper half is added to the lower one until one element is left."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,), size = args, WIDTH
        while size > 1:
            size //= 2
            undefined = ir.Constant(value.type, ir.Undefined)
            lower, upper = (
                builder.shuffle_vector(
                    value, undefined, ir.Constant(ir.VectorType(_INT, size), [*range(begin, begin + size)])
                )
                for begin in (0, size)
            )
            value = builder.fadd(lower, upper)
        return builder.extract_element(value, ir.Constant(_INT, 0))

    return vector.dtype(vector), code
