"""Arguments and shapes in graph.proto's JSON form."""
import math

import sympy
import torch


class ExportError(ValueError):
    """The module does something that a graph cannot say."""


DTYPES = {torch.float32: "FLOAT32", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.float64: "FLOAT64",
          torch.int64: "INT64", torch.int32: "INT32", torch.bool: "BOOL", torch.uint8: "UINT8"}
# A number where the schema wants a tensor: the variant that takes numbers.
_SCALAR_VARIANTS = {"aten.mul.Tensor", "aten.add.Tensor", "aten.sub.Tensor", "aten.div.Tensor"}


def batch_symbol(nodes):
    """The symbol that stands for the samples of the micro-batch."""
    for node in nodes:
        if node.op == "placeholder" and node.name == "input":
            size = node.meta["val"].shape[0]
            if isinstance(size, torch.SymInt):
                return size.node.expr
    raise ExportError("the module fixes the batch size; its first dimension must stay free")


def affine(number, symbol, where):
    """(constant, multiple of the batch) of an int or SymInt."""
    if isinstance(number, int):
        return number, 0
    expression = sympy.expand(number.node.expr)
    times = expression.coeff(symbol, 1)
    constant = sympy.expand(expression - times * symbol)
    if not (times.is_Integer and constant.is_Integer):
        raise ExportError(f"{where}: the size {expression} is not a constant plus a multiple of the batch {symbol}")
    return int(constant), int(times)


def specs_of(value, symbol, where):
    """[(dtype, shape)] of a tensor or of several; a dimension of k samples is -k."""
    specs = []
    for tensor in value if isinstance(value, (list, tuple)) else [value]:
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in DTYPES:
            raise ExportError(f"{where}: results of type {getattr(tensor, 'dtype', type(tensor).__name__)} cannot be exported")
        shape = []
        for size in tensor.shape:
            constant, times = affine(size, symbol, where)
            if times < 0 or constant and times or constant == times == 0:
                raise ExportError(f"{where}: a dimension of {size} is neither a constant from 1 nor a multiple of the batch")
            shape.append(-times if times else constant)
        specs.append((DTYPES[tensor.dtype], shape))
    return specs


class Arguments:
    """Makes arguments of what a node was called with."""

    def __init__(self, reference):
        self.reference = reference  # of a node that stands for a tensor
        self.symbol = None

    def of(self, target, args, kwargs, where):
        """(type with overload, args, kwargs) for graph.proto."""
        name = target._schema.name.replace("::", ".")
        overload = target._schema.overload_name
        full = f"{name}.{overload}" if overload else name
        args = list(args)
        if full in _SCALAR_VARIANTS and len(args) > 1 and self.is_number(args[1]):
            full = f"{name}.Scalar"
        if full == "aten.index.Tensor":
            return self.index(args, where)
        schema = list(target._schema.arguments)
        if full == "aten.to.device":  # of the one device that there is
            full = "aten.to.dtype"
            del args[1:2], schema[1:2]
        converted = [self.one(value, schema[i].type, f"{where}, argument {schema[i].name}") for i, value in enumerate(args)]
        by_name = {a.name: a for a in schema}
        named = []
        for key, value in kwargs.items():
            argument = self.one(value, by_name[key].type, f"{where}, argument {key}")
            if argument != {"none": True}:
                named.append({"name": key, "argument": argument})
        return full, converted, named

    @staticmethod
    def is_number(value):
        return isinstance(value, (int, float, torch.SymInt)) or (
            isinstance(value, torch.fx.Node) and not isinstance(value.meta.get("val"), torch.Tensor))

    def index(self, args, where):
        """x[rows, columns] as it is; x[:, ids] with one list of ids is aten.index_select."""
        given = [(axis, node) for axis, node in enumerate(args[1]) if node is not None]
        whole = all(node.meta["val"].dtype in (torch.int64, torch.int32) for _, node in given)
        if whole and [axis for axis, _ in given] == list(range(len(given))):
            return "aten.index.Tensor", [self.reference(args[0]), {"values": [self.reference(n) for _, n in given]}], []
        axis, node = given[0]
        if len(given) != 1 or not whole or node.meta["val"].dim() != 1:
            raise ExportError(f"{where}: indexing is exported by ids of the first dimensions or one list of ids of another; "
                              "use index_select or gather")
        return "aten.index_select", [self.reference(args[0]), {"int": axis}, self.reference(node)], []

    def one(self, value, wanted, where):
        if isinstance(value, torch.fx.Node):
            inner = value.meta.get("val")
            if isinstance(inner, torch.Tensor):
                return self.reference(value)
            value = inner
        if value is None or isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return {"none": True}  # the engine decides
        if isinstance(value, torch.dtype):
            if value not in DTYPES:
                raise ExportError(f"{where}: {value} cannot be exported")
            return {"dtype": DTYPES[value]}
        if isinstance(value, bool):
            return {"bool": value}
        if isinstance(value, (int, torch.SymInt)):
            number = self.integer(value, where)
            return {"ints": [number]} if "List" in str(wanted) else number
        if isinstance(value, float):
            return {"double": value if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")}
        if isinstance(value, str):
            return {"string": value}
        if isinstance(value, (list, tuple)):
            return self.several(list(value), where)
        raise ExportError(f"{where}: {type(value).__name__} {value} cannot be exported")

    def integer(self, value, where):
        constant, times = affine(value, self.symbol, where)
        return {"int": constant, "timesBatch": times} if times else {"int": constant}

    def several(self, values, where):
        inner = [v.meta.get("val") if isinstance(v, torch.fx.Node) else v for v in values]
        if values and all(isinstance(v, torch.Tensor) for v in inner):
            return {"values": [self.reference(v) for v in values]}
        if all(isinstance(v, (int, torch.SymInt)) and not isinstance(v, bool) for v in inner):
            return {"ints": [self.integer(v, where) for v in inner]}
        raise ExportError(f"{where}: the list {values} cannot be exported; lists hold tensors or whole numbers")
