"""From what torch.export records to a graph of graph.proto, as a dictionary in its JSON form."""
import operator

import torch

from fusion_export.arguments import Arguments, ExportError, batch_symbol, specs_of
from fusion_export.mutation import Mutations

_PREFIX = "module."  # of the traced module inside _Step
_ASSERTIONS = {"_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range",
               "sym_constrain_range_for_size"}
_SYMBOLIC = {"sym_size", "sym_numel", "sym_stride"}
# Rows of Fusion's registry that hold for floating tensors however torch.export calls the operator; every other use keeps the
# shapes recorded here (Operator.recorded).
_REGISTERED = {"aten.linear", "aten.addmm", "aten.layer_norm", "aten.gelu", "aten.relu", "aten.tanh", "aten.embedding",
               "aten.cross_entropy_loss", "aten.mse_loss", "aten.scaled_dot_product_attention", "aten.softmax.int",
               "aten.mul.Tensor", "aten.mul.Scalar", "aten.add.Tensor", "aten.transpose.int", "aten.view", "aten.reshape",
               "aten.contiguous", "aten.clone", "aten.conv2d", "aten.batch_norm", "aten.max_pool2d", "aten.flatten.using_ints"}
_INDEXED = {"aten.embedding": 1, "aten.cross_entropy_loss": 1}  # the argument that may be whole numbers


class _Step(torch.nn.Module):
    """The module and its loss as one."""

    def __init__(self, module, loss):
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, input, label):  # pylint: disable=redefined-builtin
        return self.module(input, label) if self.loss is None else self.loss(self.module(input), label)


class _StepWithoutLabel(_Step):
    def forward(self, input):  # pylint: disable=redefined-builtin,arguments-differ
        return self.module(input) if self.loss is None else self.loss(self.module(input))


def to_graph(module, example_inputs, *, loss=None, name="model"):
    """Returns (graph, values): the graph in graph.proto's JSON form, and {tensor name: tensor} of its variables.

    The arguments are those of `export`.
    """
    if len(example_inputs) not in (1, 2) or not all(isinstance(t, torch.Tensor) for t in example_inputs):
        raise ExportError("example_inputs must be the tensors (input, label), or (input,)")
    if any(t.dim() == 0 or t.shape[0] < 2 or t.shape[0] != example_inputs[0].shape[0] for t in example_inputs):
        raise ExportError("the first dimension of every example must be the same batch of 2 or more samples")
    step = (_Step if len(example_inputs) == 2 else _StepWithoutLabel)(module, loss)
    batch = torch.export.Dim("batch")
    names = ["input", "label"][: len(example_inputs)]
    try:
        exported = torch.export.export(step, tuple(example_inputs), strict=False,
                                       dynamic_shapes={n: {0: batch} for n in names})
    except Exception as error:  # of many kinds
        raise ExportError(f"torch.export cannot trace the module for every batch size: {error}") from error
    return _Converter(exported, name).run()


class _Converter:
    """Walks the recorded nodes once, in order, and emits operators."""

    def __init__(self, exported, name):
        self.exported = exported
        self.nodes = list(exported.graph.nodes)
        self.name = name
        self.operators = []
        self.specs = {}  # (operator, index) -> (dtype, shape)
        self.variable_names = set()
        self.values = {}
        self.taken = {"input", "label", "loss"}
        self.env = {}  # node -> (operator, index)
        self.lists = {}  # node -> [value] where no operator is needed
        self.variables = {}  # node -> entry not emitted yet, or its operator's name
        self.arguments = Arguments(self.reference)

    def run(self):
        self.read_signature()
        final = self.final_node()
        self.mutations = Mutations(self.nodes, self.buffers)
        self.live = self.reachable(final)
        self.symbol = self.arguments.symbol = batch_symbol(self.nodes)
        self.count_per_module()
        self.final = final
        for node in self.nodes:
            if node.op == "call_function" and node in self.live:
                self.convert(node)
        loss = self.reference(final)
        return {"name": self.name, "operators": self.operators, "loss": loss}, self.values

    # ------------------------------------------------------------------------------------------------ what is given

    def read_signature(self):
        kinds = torch.export.graph_signature.InputKind
        state = {**self.exported.state_dict, **self.exported.constants}
        placeholders = {node.name: node for node in self.nodes if node.op == "placeholder"}
        self.buffers, owners = {}, {}
        for spec in self.exported.graph_signature.input_specs:
            node = placeholders.get(getattr(spec.arg, "name", None))
            if spec.kind == kinds.USER_INPUT:
                self.variables[node] = {"placeholder": node.name}
                continue
            if spec.kind not in (kinds.PARAMETER, kinds.BUFFER, kinds.CONSTANT_TENSOR):
                raise ExportError(f"{spec.target}: inputs of kind {spec.kind} cannot be exported")
            tensor = state[spec.target]
            path = spec.target.removeprefix(_PREFIX)
            # Tied parameters are one variable, under the first name.
            same = (tensor.untyped_storage().data_ptr() if tensor.numel() else path, tensor.storage_offset(),
                    tuple(tensor.shape), tensor.stride())
            first = owners.setdefault(same, node)
            trainable = spec.kind == kinds.PARAMETER and tensor.requires_grad
            self.variables[node] = self.variables[first] if first is not node else {
                "variable": path, "tensor": tensor, "trainable": trainable}
            if spec.kind != kinds.PARAMETER:
                self.buffers[node] = path

    def final_node(self):
        outputs = [node for node in self.nodes if node.op == "output"][0].args[0]
        tensors = [n for n in outputs if isinstance(n, torch.fx.Node)]
        value = tensors[0].meta.get("val") if len(tensors) == 1 else None
        if len(outputs) != 1 or not isinstance(value, torch.Tensor) or value.dim() != 0 or not value.is_floating_point():
            shape = "nothing" if not tensors else [tuple(n.meta["val"].shape) for n in tensors]
            raise ExportError(f"the loss must be one floating scalar; the module and its loss return {shape}")
        if tensors[0].op == "placeholder":
            raise ExportError("the loss is not computed")
        return tensors[0]

    def reachable(self, final):
        """Nodes that the loss depends on, an in-place operator on behalf of what it writes to."""
        live, stack = set(), [final]
        while stack:
            node = stack.pop()
            if node in live:
                continue
            live.add(node)
            stack.extend(node.all_input_nodes)
            stack.extend(self.mutations.writers_before(node))
        return live

    # ------------------------------------------------------------------------------------------------ names

    def module_of(self, node):
        stack = node.meta.get("nn_module_stack")
        path = list(stack.values())[-1][0] if stack else ""
        return "" if path + "." == _PREFIX or path.startswith("_empty") else path.removeprefix(_PREFIX)

    def count_per_module(self):
        self.per_module = {}
        for node in self.nodes:
            if node.op == "call_function" and node in self.live and self.emits(node):
                path = self.module_of(node)
                self.per_module[path] = self.per_module.get(path, 0) + 1

    def emits(self, node):
        target = node.target
        return isinstance(target, torch._ops.OpOverload) and target._schema.name.split("::")[1] not in _ASSERTIONS | _SYMBOLIC \
            and not self.mutations.is_counter(node)

    def unique(self, name):
        candidate, number = name, 0
        while candidate in self.taken:
            number += 1
            candidate = f"{name}_{number}"
        self.taken.add(candidate)
        return candidate

    def name_of(self, node):
        if node is self.final:
            return "loss"
        path = self.module_of(node)
        kind = node.target._schema.name.split("::")[1].rstrip("_")
        if path and self.per_module[path] == 1:
            return self.unique(path)
        return self.unique(f"{path}.{kind}" if path else kind)

    # ------------------------------------------------------------------------------------------------ operators

    def reference(self, node):
        """The value that a node stands for; emits a placeholder or variable at its first use."""
        if node not in self.variables:
            operator_name, index = self.env[self.mutations.latest(node)]
            return {"value": operator_name, "index": index}
        entry = self.variables[node]
        if "emitted" not in entry:
            dtype, shape = specs_of([node.meta["val"]], self.symbol, node.name)[0]
            outputs = [{"dtype": dtype, "shape": shape}]
            if "placeholder" in entry:
                entry["emitted"] = entry["placeholder"]
                self.operators.append({"name": entry["emitted"], "kind": "PLACEHOLDER", "outputs": outputs})
                self.taken.add(entry["emitted"])
            else:
                entry["emitted"] = self.unique(entry["variable"])
                self.variable_names.add(entry["emitted"])
                self.values[entry["variable"]] = entry["tensor"].detach().clone()
                self.operators.append({
                    "name": entry["emitted"], "kind": "VARIABLE", "outputs": outputs,
                    "variable": {"tensorName": entry["variable"], "trainable": entry["trainable"], "init": {"kind": "STORED"}}})
            self.specs[entry["emitted"], 0] = (dtype, shape)
        return {"value": entry["emitted"], "index": 0}

    def emit(self, name, type_name, args, outputs, kwargs=(), counters=()):
        base, _, overload = type_name.partition(".")[2].partition(".")
        space = type_name.partition(".")[0]
        given = [*args, *[k["argument"] for k in kwargs], *counters]
        reads = [a["value"] for a in given if "value" in a] + [r["value"] for a in given for r in a.get("values", ())]
        entry = {"name": name, "kind": "PARAMETRIC" if self.variable_names.intersection(reads) else "NON_PARAMETRIC",
                 "type": f"{space}.{base}"}
        if overload and overload != "default":
            entry["overload"] = overload
        entry["args"] = args
        if kwargs:
            entry["kwargs"] = list(kwargs)
        entry["outputs"] = [{"dtype": dtype, "shape": shape} for dtype, shape in outputs]
        if counters:
            entry["counters"] = list(counters)
        if not self.registered(type_name.removesuffix(".default"), args, outputs):
            entry["recorded"] = True
        self.operators.append(entry)
        self.specs.update({(name, i): spec for i, spec in enumerate(outputs)})
        return {"value": name, "index": 0}

    def registered(self, type_name, args, outputs):
        if type_name.startswith("fusion."):
            return True
        specs = {i: self.specs[a["value"], a["index"]] for i, a in enumerate(args) if "value" in a}
        if type_name == "aten.matmul":  # of equal batches
            if [*specs] != [0, 1] or len(specs[0][1]) < 2 or specs[0][1][:-2] != specs[1][1][:-2]:
                return False
        elif type_name not in _REGISTERED or type_name == "aten.softmax.int" and len(args) > 2:
            return False
        whole = {i for i, (dtype, _) in specs.items() if "FLOAT" not in dtype}
        wanted = {_INDEXED[type_name]} if type_name in _INDEXED else set()
        return whole == wanted and all("FLOAT" in dtype for dtype, _ in outputs)

    def convert(self, node):
        target = node.target
        if target is operator.getitem:
            if node.args[0] in self.lists:
                value = self.lists[node.args[0]][node.args[1]]
                self.env[node] = (value["value"], value["index"])
            else:
                source, index = self.env[node.args[0]]
                self.env[node] = (source, index + node.args[1])
            return
        if not isinstance(target, torch._ops.OpOverload):
            if isinstance(node.meta.get("val"), (torch.SymInt, int)):
                return  # arithmetic on sizes; whoever uses it takes the result
            raise ExportError(f"{self.where(node)}: {target} is no operator that a graph can hold")
        if not self.emits(node):
            return
        name = target._schema.name.split("::")[1]
        if name in ("alias", "lift_fresh_copy", "lift_fresh", "detach_") or self.is_identity(node, name):
            reference = self.reference(node.args[0])
            self.env[node] = (reference["value"], reference["index"])
            return
        if name == "broadcast_tensors":
            given, result = node.args[0], node.meta["val"]
            if specs_of([g.meta["val"] for g in given], self.symbol, name) == specs_of(result, self.symbol, name):
                self.lists[node] = [self.reference(g) for g in given]
                return
        special = {"dropout": self.dropout, "batch_norm": self.batch_norm,
                   "scaled_dot_product_attention": self.attention}.get(name.rstrip("_"))
        if special is not None and special(node):
            return
        if torch.Tag.nondeterministic_seeded in target.tags and not self.draws_nothing(node):
            raise ExportError(f"{self.where(node)}: {target} draws random numbers, which would differ from cut to cut; "
                              "only torch.nn.Dropout can be exported, as a mask of (seed, step, micro-batch, operator)")
        target = self.mutations.functional(node, self.where(node)) if target._schema.is_mutable else target
        type_name, args, kwargs = self.arguments.of(target, node.args, node.kwargs, self.where(node))
        outputs = specs_of(node.meta["val"], self.symbol, self.where(node))
        operator_name = self.name_of(node)
        self.emit(operator_name, type_name, args, outputs, kwargs)
        self.env[node] = (operator_name, 0)
        self.mutations.commit(node)

    def draws_nothing(self, node):
        """An operator that may draw random numbers is told not to: attention, or aten.lstm, with dropout 0."""
        arguments = self.bound(node)
        return arguments.get("dropout", arguments.get("dropout_p", 1)) == 0

    def where(self, node):
        path = self.module_of(node)
        return f"module '{path}', {node.name}" if path else node.name

    def is_identity(self, node, name):
        """A slice that takes everything, as x[:] and x[:, 1] begin with."""
        if name != "slice" or len(node.args) < 4 or (len(node.args) > 4 and node.args[4] != 1):
            return False
        return node.args[2] in (0, None) and node.args[3] == 9223372036854775807

    # ------------------------------------------------------------------------------------------------ special ones

    def bound(self, node):
        """Arguments by the schema's names, defaults included."""
        schema = node.target._schema
        values = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        values.update(zip((a.name for a in schema.arguments), node.args))
        values.update(node.kwargs)
        return values

    def mask(self, name, shape, p, node):
        """Adds a dropout mask; every mask has a key of its own, its operator's name."""
        if not 0 <= p < 1:
            raise ExportError(f"{self.where(node)}: the probability of dropping must be below 1, not {p}")
        sizes = [{"int": d} if d >= 0 else {"int": 0, "timesBatch": -d} for d in shape]
        return self.emit(self.unique(name), "fusion.dropout_mask",
                         [{"ints": sizes}, {"double": float(p)}, {"randomKey": True}, {"training": True}], [("FLOAT32", shape)])

    def dropout(self, node):
        arguments = self.bound(node)
        source = self.reference(arguments["input"] if "input" in arguments else arguments["self"])
        if not arguments["train"] or arguments["p"] == 0:
            self.env[node] = (source["value"], source["index"])
            self.mutations.commit(node)
            return True
        if node.target._schema.is_mutable:
            self.mutations.functional(node, self.where(node))  # refuses what other views would see
        (dtype, shape), = specs_of(node.meta["val"], self.symbol, self.where(node))
        if dtype != "FLOAT32":
            raise ExportError(f"{self.where(node)}: dropout of {dtype}; masks are FLOAT32")
        name = self.name_of(node)
        mask = self.mask(f"{name}.mask", shape, arguments["p"], node)
        self.emit(name, "aten.mul.Tensor", [source, mask], [(dtype, shape)])
        self.env[node] = (name, 0)
        self.mutations.commit(node)
        return True

    def batch_norm(self, node):
        arguments = self.bound(node)
        if arguments["momentum"] is None or arguments["training"] and arguments["running_mean"] is None:
            raise ExportError(f"{self.where(node)}: BatchNorm needs running statistics and a momentum")
        type_name, args, kwargs = self.arguments.of(node.target, node.args, node.kwargs, self.where(node))
        if arguments["training"]:
            position = [a.name for a in node.target._schema.arguments].index("training")
            args[position] = {"training": True}
        counter = self.mutations.counter_of(self.module_of(node), self.module_of)
        counters = [self.reference(counter)] if counter is not None and arguments["training"] else []
        name = self.name_of(node)
        outputs = specs_of(node.meta["val"], self.symbol, self.where(node))
        self.emit(name, type_name, args, outputs, kwargs, counters)
        self.env[node] = (name, 0)
        return True

    def attention(self, node):
        """Attention with dropout is spelt out: the fused operator would draw its own random numbers."""
        arguments = self.bound(node)
        p = arguments["dropout_p"]
        if p == 0:
            return False
        if arguments["enable_gqa"]:
            raise ExportError(f"{self.where(node)}: grouped-query attention with dropout cannot be exported")
        query, key, value = (arguments[n] for n in ("query", "key", "value"))
        symbol, where = self.symbol, self.where(node)
        (dtype, shape), = specs_of(node.meta["val"], symbol, where)
        (_, key_shape), = specs_of(key.meta["val"], symbol, where)
        if dtype != "FLOAT32" or key_shape[-1] < 0 or key_shape[-2] < 0:
            raise ExportError(f"{where}: attention with dropout needs FLOAT32 and a constant number of keys")
        length = key_shape[-2]
        scores_shape = [*shape[:-1], length]
        name = self.name_of(node)

        def add(part, type_name, args, out, out_dtype=dtype):
            return self.emit(self.unique(f"{name}.{part}"), type_name, args, [(out_dtype, out)])

        turned = add("keys", "aten.transpose.int", [self.reference(key), {"int": -2}, {"int": -1}],
                     [*key_shape[:-2], key_shape[-1], length])
        scores = add("scores", "aten.matmul", [self.reference(query), turned], scores_shape)
        scale = arguments["scale"] if arguments["scale"] is not None else key_shape[-1] ** -0.5
        scores = add("scaled", "aten.mul.Scalar", [scores, {"double": float(scale)}], scores_shape)
        if arguments["is_causal"]:
            square = [scores_shape[-2], length]
            if square[0] < 0:
                raise ExportError(f"{where}: causal attention needs a constant number of queries")
            ones = add("ones", "aten.ones", [{"ints": [{"int": d} for d in square]}, ], square)
            future = add("future", "aten.triu", [ones, {"int": 1}], square)
            future = add("is_future", "aten.to.dtype", [future, {"dtype": "BOOL"}], square, "BOOL")
            scores = add("causal", "aten.masked_fill.Scalar", [scores, future, {"double": "-inf"}], scores_shape)
        if arguments["attn_mask"] is not None:
            given = self.reference(arguments["attn_mask"])
            (mask_dtype, mask_shape), = specs_of(arguments["attn_mask"].meta["val"], symbol, where)
            if mask_dtype == "BOOL":
                given = add("hidden", "aten.logical_not", [given], mask_shape, "BOOL")
                scores = add("masked", "aten.masked_fill.Scalar", [scores, given, {"double": "-inf"}], scores_shape)
            else:
                scores = add("masked", "aten.add.Tensor", [scores, given], scores_shape)
        weights = add("softmax", "aten.softmax.int", [scores, {"int": -1}], scores_shape)
        mask = self.mask(f"{name}.mask", scores_shape, p, node)
        weights = add("dropped", "aten.mul.Tensor", [weights, mask], scores_shape)
        self.emit(name, "aten.matmul", [weights, self.reference(value)], [(dtype, shape)])
        self.env[node] = (name, 0)
        return True
