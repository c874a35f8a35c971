"""Runs a graph with PyTorch, knowing nothing of how it was made: the tests' oracle."""
import torch

DTYPES = {"FLOAT32": torch.float32, "FLOAT64": torch.float64, "INT64": torch.int64, "INT32": torch.int32, "BOOL": torch.bool,
          "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "UINT8": torch.uint8}


def run(graph, values, feeds, training=True, masks=None):
    """The loss, and the leaves {tensor name: tensor} whose gradients backward() fills.

    masks: {operator: tensor} of the dropout masks drawn; where a mask is missing it is drawn and added.
    """
    samples = feeds["input"].shape[0]
    leaves, results = {}, {}

    def size(number):
        return number["int"] + number.get("timesBatch", 0) * samples

    def argument(item):
        if "value" in item:
            return results[item["value"]][item.get("index", 0)]
        if "values" in item:
            return [argument(v) for v in item["values"]]
        if "int" in item:
            return size(item)
        if "ints" in item:
            return [size(n) for n in item["ints"]]
        if "dtype" in item:
            return DTYPES[item["dtype"]]
        if "double" in item:
            return float(item["double"])
        if item.get("none"):
            return None
        if item.get("training"):
            return training
        return item.get("bool", item.get("string"))

    for op in graph["operators"]:
        if op["kind"] == "PLACEHOLDER":
            result = feeds[op["name"]]
        elif op["kind"] == "VARIABLE":
            variable = op["variable"]
            leaf = values[variable["tensorName"]].clone().requires_grad_(variable["trainable"])
            leaves[variable["tensorName"]] = result = leaf
        elif op["type"] == "fusion.dropout_mask":
            shape, p = argument(op["args"][0]), argument(op["args"][1])
            masks = {} if masks is None else masks
            if training and op["name"] not in masks:
                masks[op["name"]] = (torch.rand(shape) >= p).float() / (1 - p)
            result = masks[op["name"]] if training else torch.ones(shape)
        else:
            namespace, name = op["type"].split(".")
            function = getattr(getattr(getattr(torch.ops, namespace), name), op.get("overload") or "default")
            result = function(*map(argument, op["args"]), **{k["name"]: argument(k["argument"]) for k in op.get("kwargs", ())})
            for counter in op.get("counters", ()):
                if training:
                    leaves[counter["value"]].add_(1)
        result = list(result) if isinstance(result, (list, tuple)) else [result]
        for tensor, spec in zip(result, op["outputs"], strict=True):
            shape = [d if d >= 0 else -d * samples for d in spec["shape"]]
            assert list(tensor.shape) == shape and tensor.dtype == DTYPES[spec["dtype"]], (op, tensor.shape, tensor.dtype)
        # As an engine hands values on.
        results[op["name"]] = [t.contiguous() for t in result]
    return results[graph["loss"]["value"]][graph["loss"].get("index", 0)], leaves
