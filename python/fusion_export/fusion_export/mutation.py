"""In-place operators: graphs hold functional ones only."""
import operator

import torch

from fusion_export.arguments import ExportError


def _is_operator(node):
    return node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def _is_view(node):
    """Whether the result may share the memory of the first argument."""
    return _is_operator(node) and any(a.alias_info is not None and not a.alias_info.is_write
                                      for a in node.target._schema.arguments)


class Mutations:
    """Which node holds a value after in-place operators, and what cannot be made functional.

    x.relu_() becomes y = relu(x), and what reads x afterwards reads y. That is the same only if nothing reads x's memory
    through another view afterwards.
    """

    def __init__(self, nodes, buffers):
        self.order = {node: i for i, node in enumerate(nodes)}
        self.buffers = buffers  # placeholder -> path
        self.root = {}
        self.writers = {}  # target -> in-place nodes on it, in order
        self.counters = {}  # in-place node -> counted buffer
        for node in nodes:
            shares = _is_view(node) or node.target is operator.getitem
            self.root[node] = self.root[node.args[0]] if shares and isinstance(node.args[0], torch.fx.Node) else node
            if _is_operator(node) and node.target._schema.is_mutable:
                target = node.args[0]
                if self._counts(node, target):
                    self.counters[node] = target
                    continue
                self.root[node] = self.root[target]
                self.writers.setdefault(target, []).append(node)
        self.now = {}

    def _counts(self, node, target):
        """BatchNorm's num_batches_tracked += 1."""
        return (target in self.buffers and str(node.target) == "aten.add_.Tensor" and node.args[1] == 1
                and target.meta["val"].dtype == torch.int64 and target.meta["val"].dim() == 0)

    def is_counter(self, node):
        return node in self.counters

    def counter_of(self, path, module_of):
        """The buffer that counts the passes of the module at `path`."""
        return next((target for node, target in self.counters.items() if module_of(node) == path), None)

    def writers_before(self, node):
        """In-place operators whose effect `node` may read through its arguments."""
        roots = {self.root[source] for source in node.all_input_nodes}
        return [w for target, writers in self.writers.items() if self.root[target] in roots
                for w in writers if self.order[w] < self.order[node]]

    def latest(self, node):
        """The node that holds the value of `node` at this point of the walk."""
        while node in self.now:
            node = self.now[node]
        return node

    def functional(self, node, where):
        """The functional operator in place of an in-place one."""
        target = node.args[0]
        schema = node.target._schema
        if target.op == "placeholder":
            what = self.buffers.get(target, target.name)
            raise ExportError(f"{where}: {node.target} changes '{what}'; only BatchNorm's statistics may change by themselves")
        base = schema.name.split("::")[1]
        packet = getattr(torch.ops.aten, base.rstrip("_"), None) if base.endswith("_") and schema.name.startswith("aten::") else None
        overload = schema.overload_name or "default"
        if packet is None or overload not in packet.overloads():
            raise ExportError(f"{where}: {node.target} writes to its arguments and has no functional form")
        for other, root in self.root.items():
            if root is not self.root[target] or other in (target, node) or other in self.writers.get(target, []):
                continue
            late = [u for u in other.users if self.order[u] > self.order[node]]
            if self.order[other] > self.order[node] and other.args and self.latest(other.args[0]) in (target, node):
                continue  # a view made afterwards of what is new
            if late and self.order[other] < self.order[node]:
                raise ExportError(f"{where}: {node.target} changes what '{late[0].name}' reads through the view '{other.name}'; "
                                  "write it without the in-place operator")
        return getattr(packet, overload)

    def commit(self, node):
        """From here on, the result of an in-place operator stands for what it wrote to."""
        if _is_operator(node) and node.target._schema.is_mutable:
            self.now[node.args[0]] = node
