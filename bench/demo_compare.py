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
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import yaml

OURS = [("OpFence + Need", "OpFence", {"type": "Need"}), ("OpFence + AdaTopK(100)", "OpFence", {"type": "AdaTopK", "ratio": 100})]
BASELINES = [("EqualNumber + dense", "EqualNumber", {"type": "None"}), ("EqualCompute + dense", "EqualCompute", {"type": "None"})]


class Bench:
    def __init__(self, arguments):
        self.fusionctl = pathlib.Path(arguments.build).resolve() / "bin" / "fusionctl"
        self.example = pathlib.Path(arguments.job).resolve()
        self.steps = arguments.steps
        self.warm_up = 2
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fusion-demo-compare-"))
        self.runs = 0
        documents = list(yaml.safe_load_all(self.example.read_text()))
        self.job = next(d for d in documents if d["kind"] == "FusionJob")
        self.compnodes = [d for d in documents if d["kind"] == "Compnode"]

    def write(self, policy, compression, compnodes):
        job = copy.deepcopy(self.job)
        spec = job["spec"]
        spec["data"]["uri"] = str((self.example.parent / spec["data"]["uri"]).resolve())
        spec["training"]["steps"] = self.warm_up + self.steps
        spec["training"].pop("validation", None)
        spec.pop("checkpoint", None)
        spec.setdefault("placement", {})["policy"] = policy
        spec.setdefault("communication", {})["compression"] = compression
        self.runs += 1
        path = self.folder / f"job-{self.runs}.yaml"
        path.write_text(yaml.safe_dump_all([job] + compnodes, sort_keys=False))
        return path

    def call(self, *words):
        run = subprocess.run([str(self.fusionctl), *map(str, words)], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(f"fusionctl {' '.join(map(str, words))}: exit {run.returncode}\n{run.stderr[-2000:]}")
        return run.stdout

    def measure(self, policy, compression, compnodes):
        """(plan, median measured step seconds, overrun share)"""
        path = self.write(policy, compression, compnodes)
        workdir = self.folder / f"work-{self.runs}"
        self.call("run", "-f", path, "--workdir", workdir)
        job = workdir / self.job["metadata"]["name"]
        plan = json.loads((job / "plan.json").read_text())
        lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
        return plan, statistics.median(line["stepSeconds"] for line in lines[self.warm_up:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--job", default="examples/gpt2-two-sites.yaml")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--orders", action="store_true", help="baselines also site-sorted and shuffled")
    arguments = parser.parse_args()
    bench = Bench(arguments)

    baselines = []
    for name, policy, compression in BASELINES:
        print(f"running {name} …", file=sys.stderr, flush=True)
        plan, seconds = bench.measure(policy, compression, bench.compnodes)
        baselines.append((name, plan, seconds))
        if arguments.orders:
            by_site = sorted(bench.compnodes, key=lambda c: (c["spec"]["cluster"], c["metadata"]["name"]))
            baselines.append((name + ", site-sorted", *bench.measure(policy, compression, by_site)))
            shuffled = []
            for seed in range(5):
                order = bench.compnodes[:]
                random.Random(seed).shuffle(order)
                shuffled.append(bench.measure(policy, compression, order))
            mean = statistics.mean(seconds for _, seconds in shuffled)
            baselines.append((name + ", mean of 5 shuffles", shuffled[0][0], mean))
    ours = []
    for name, policy, compression in OURS:
        print(f"running {name} …", file=sys.stderr, flush=True)
        ours.append((name, *bench.measure(policy, compression, bench.compnodes)))

    print(f"{'plan':<40} {'stages':>6} {'measured':>10} {'predicted':>10} {'error':>7}")
    for name, plan, seconds in baselines + ours:
        error = plan["stepSeconds"] / seconds - 1
        print(f"{name:<40} {len(plan['stages']):>6} {seconds:>8.3f} s {plan['stepSeconds']:>8.3f} s {error:>+7.1%}")
    print()
    print(f"{'speed-up':<66} {'measured':>8} {'rho':>6} {'bound':>6}")
    below = 0
    for name, plan, seconds in ours:
        for base_name, base_plan, base_seconds in baselines:
            speed_up = base_seconds / seconds
            bound = 0.85 * min(base_plan["rho"], base_seconds / plan["freeLinksStepSeconds"])
            verdict = "" if speed_up >= bound else "  below its bound"
            below += speed_up < bound
            print(f"{name + ' over ' + base_name:<66} {speed_up:>7.2f}x {base_plan['rho']:>6.2f} {bound:>5.2f}x{verdict}")
    sys.exit(1 if below else 0)


if __name__ == "__main__":
    main()
