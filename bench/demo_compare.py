#!/usr/bin/python3
"""Measures Fusion's plan against the baselines on the same emulated compnodes: `make demo-compare`.

Every configuration is run for `--steps` steps after 2 of warm-up; the median step time counts. Baselines are measured with the
compnodes in file order; with --orders also sorted by site and in 5 seeded shuffles, whose mean is printed.

For each speed-up over a baseline: rho = (dense seconds a step on the slowest link, busier direction, under the baseline's plan) /
(FLOPs a step / sum of speeds), and the bound 0.85 x min(rho, baseline's measured step / our plan's simulated step over free
links). Exit status 1 when a speed-up is below its bound.
"""
import argparse
import copy
import dataclasses
import pathlib
import random
import statistics
import sys

import harness
import yaml

WARM_UP = 2
SHUFFLES = 5
OURS = [("OpFence + Need", "OpFence", {"type": "Need"}), ("OpFence + AdaTopK(100)", "OpFence", {"type": "AdaTopK", "ratio": 100})]
BASELINES = [("EqualNumber + dense", "EqualNumber", {"type": "None"}), ("EqualCompute + dense", "EqualCompute", {"type": "None"})]


@dataclasses.dataclass
class Row:
    """What was measured of one configuration; the means over its runs where these are several orders of compnodes."""

    name: str
    stages: float
    measured: float
    predicted: float
    free_links: float
    rho: float
    overruns: float


class Comparison:
    def __init__(self, bench, example, steps):
        self.bench = bench
        self.folder = example.parent
        self.steps = steps
        documents = list(yaml.safe_load_all(example.read_text()))
        self.job = next(d for d in documents if d["kind"] == "FusionJob")
        self.compnodes = [d for d in documents if d["kind"] == "Compnode"]

    def make_job(self, policy, compression):
        job = copy.deepcopy(self.job)
        spec = job["spec"]
        spec["data"]["uri"] = str((self.folder / spec["data"]["uri"]).resolve())
        spec["training"]["steps"] = WARM_UP + self.steps
        spec["training"].pop("validation", None)
        spec["training"].pop("learningRateSchedule", None)  # of more steps than these
        spec.pop("checkpoint", None)
        spec.setdefault("placement", {})["policy"] = policy
        spec.setdefault("communication", {})["compression"] = compression
        return job

    def measure(self, name, policy, compression, orders):
        print(f"running {name} …", file=sys.stderr, flush=True)
        runs = [self.bench.run(self.make_job(policy, compression), order, WARM_UP) for order in orders]

        def mean(value):
            return statistics.mean(value(run) for run in runs)

        return Row(
            name,
            mean(lambda run: len(run.plan["stages"])),
            mean(lambda run: run.step_seconds),
            mean(lambda run: run.plan["stepSeconds"]),
            mean(lambda run: run.plan["freeLinksStepSeconds"]),
            mean(lambda run: run.plan["rho"]),
            max(run.overrun_share for run in runs),
        )

    def baselines(self, name, policy, compression, all_orders):
        rows = [self.measure(name, policy, compression, [self.compnodes])]
        if all_orders:
            by_site = sorted(self.compnodes, key=lambda c: (c["spec"]["cluster"], c["metadata"]["name"]))
            rows.append(self.measure(f"{name}, site-sorted", policy, compression, [by_site]))
            shuffles = [random.Random(seed).sample(self.compnodes, len(self.compnodes)) for seed in range(SHUFFLES)]
            rows.append(self.measure(f"{name}, mean of {SHUFFLES} shuffles", policy, compression, shuffles))
        return rows

    def ours(self, name, policy, compression):
        return self.measure(name, policy, compression, [self.compnodes])


def print_speed_ups(ours, baselines):
    """Returns how many are below their bounds."""
    print(f"{'speed-up':<66} {'measured':>8} {'rho':>6} {'bound':>6}")
    below = 0
    for row in ours:
        for base in baselines:
            speed_up = base.measured / row.measured
            bound = 0.85 * min(base.rho, base.measured / row.free_links)
            below += speed_up < bound
            verdict = "" if speed_up >= bound else "  below its bound"
            print(f"{row.name + ' over ' + base.name:<66} {speed_up:>7.2f}x {base.rho:>6.2f} {bound:>5.2f}x{verdict}")
    return below


def compare(bench, arguments):
    comparison = Comparison(bench, pathlib.Path(arguments.job).resolve(), arguments.steps)
    baselines = [row for name, policy, compression in BASELINES for row in comparison.baselines(name, policy, compression, arguments.orders)]
    ours = [comparison.ours(*configuration) for configuration in OURS]
    print(f"{'plan':<40} {'stages':>6} {'measured':>10} {'predicted':>10} {'error':>7} {'overruns':>8}")
    for row in baselines + ours:
        error = row.predicted / row.measured - 1
        print(f"{row.name:<40} {row.stages:>6.3g} {row.measured:>8.3f} s {row.predicted:>8.3f} s {error:>+7.1%} {row.overruns:>8.1%}")
    print()
    return print_speed_ups(ours, baselines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--job", default="examples/gpt2-two-sites.yaml")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--orders", action="store_true", help="baselines also site-sorted and shuffled")
    parser.add_argument("--keep", help="folder that is used and kept, in place of a scratch folder")
    arguments = parser.parse_args()
    bench = harness.Bench(arguments.build, "fusion-demo-compare-", arguments.keep)
    try:
        below = compare(bench, arguments)
    finally:
        bench.close()
    sys.exit(1 if below else 0)


if __name__ == "__main__":
    main()
