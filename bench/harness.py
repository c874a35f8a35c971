"""What the benchmarks share: jobs and compnodes as objects, runs of fusionctl, and what a run left behind."""
import dataclasses
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

import yaml

API = "fusion.dev/v1alpha1"
EMULATION_SHARE = 0.6  # of the machine's cores x FLOP/s that emulated compnodes may take together


def quantile(values, share):
    """The value at `share` of the sorted list, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def emulated_flops_limit(machine_flops):
    """What all emulated compnodes together may have."""
    return EMULATION_SHARE * os.cpu_count() * machine_flops


def load():
    """Runnable processes over the last minute, to be printed beside measurements."""
    return os.getloadavg()[0]


def compnode(name, cluster, flops=None, links=(), memory="4Gi", slots=1, peak_flops=None):
    device = {"name": "cpu", "kind": "CPU", "memory": memory}
    if slots > 1:
        device["count"] = slots
    if peak_flops:
        device["peakFlops"] = {"fp32": peak_flops}
    spec = {"cluster": cluster, "devices": [device]}
    if flops or links:
        spec["emulation"] = {"links": bool(links)}
        if flops:
            spec["emulation"]["flops"] = flops
    if links:
        spec["links"] = [{"peer": peer, "bandwidth": f"{bits:.0f}bps", "latency": f"{latency_us}us"} for peer, bits, latency_us in links]
    return {"apiVersion": API, "kind": "Compnode", "metadata": {"name": name}, "spec": spec}


def job(name, model, data, training, compression=None, placement=None):
    spec = {"model": model, "data": data, "training": training, "communication": {"compression": compression or {"type": "None"}}}
    if placement:
        spec["placement"] = placement
    return {"apiVersion": API, "kind": "FusionJob", "metadata": {"name": name}, "spec": spec}


@dataclasses.dataclass
class Run:
    """A finished run: its plan with the predictions, and its steps after the warm-up."""

    plan: dict
    steps: list

    @property
    def step_seconds(self):
        return statistics.median(line["stepSeconds"] for line in self.steps)

    @property
    def step_error(self):
        return self.plan["stepSeconds"] / self.step_seconds - 1

    @property
    def step_spread(self):
        """Half the distance of the quartiles, as a share of the median."""
        seconds = [line["stepSeconds"] for line in self.steps]
        return (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / 2 / statistics.median(seconds)

    @property
    def overrun_share(self):
        tasks = sum(stage.get("tasks", 0) for line in self.steps for stage in line["stages"])
        overrun = sum(stage.get("overrunTasks", 0) for line in self.steps for stage in line["stages"])
        return overrun / tasks if tasks else 0.0

    def stage(self, index, field):
        """Median over the steps of a stage's field in metrics.jsonl."""
        return statistics.median(next(s for s in line["stages"] if s["index"] == index)[field] for line in self.steps)

    def peak_memory(self, index):
        return max(next(s for s in line["stages"] if s["index"] == index).get("peakMemoryBytes", 0) for line in self.steps)


class Bench:
    """A scratch folder with data, and fusionctl of a build folder. All runs share the machine's profile."""

    def __init__(self, build, prefix, keep=None):
        self.fusionctl = pathlib.Path(build).resolve() / "bin" / "fusionctl"
        self.keep = keep is not None
        self.folder = pathlib.Path(keep or tempfile.mkdtemp(prefix=prefix)).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.work = self.folder / "work"
        self.write_data()

    def close(self):
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def write_data(self):
        generator = random.Random(7)
        text = "".join(generator.choices("etaoinshrdlu \n", k=1 << 18))
        (self.folder / "text.txt").write_text(text)
        lines = [",".join([f"x{i}" for i in range(64)] + ["y"])]
        for _ in range(2048):
            row = [generator.gauss(0, 1) for _ in range(64)]
            lines.append(",".join(f"{value:.4f}" for value in row + [sum(row[:8])]))
        (self.folder / "table.csv").write_text("\n".join(lines) + "\n")

    def call(self, *words):
        run = subprocess.run([str(self.fusionctl), *map(str, words)], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(f"fusionctl {' '.join(map(str, words))}: exit {run.returncode}\n{run.stderr[-2000:]}")
        return run.stdout

    def write(self, job_object, compnodes):
        path = self.folder / f"{job_object['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump_all([job_object] + list(compnodes), sort_keys=False))
        return path

    def machine_flops(self, job_object):
        """S: FLOP/s of one thread, as the job's profile has it."""
        return json.loads(self.call("profile", "-f", self.write(job_object, []), "-o", "json", "--workdir", self.work))["flops"]

    def plan(self, job_object, compnodes):
        return json.loads(self.call("plan", "-f", self.write(job_object, compnodes), "-o", "json", "--workdir", self.work))

    def run(self, job_object, compnodes, warm_up, plan=None, trace=None):
        name = job_object["metadata"]["name"]
        words = ["run", "-f", self.write(job_object, compnodes), "--workdir", self.work, "--overwrite", "--fit-emulation"]
        if plan is not None:
            path = self.folder / f"{name}.plan.json"
            path.write_text(json.dumps(plan))
            words += ["--plan", path]
        if trace is not None:
            words += ["--trace", trace]
        self.call(*words)
        folder = self.work / name
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return Run(json.loads((folder / "plan.json").read_text()), steps[warm_up:])
