#!/usr/bin/python3
"""Measures how well plans are predicted: step time over emulated compnodes, stage times without emulation, peak memory.

Random plans (seeded): a gpt2 or mlp job is cut at random into sub-DAGs on 1 to 6 compnodes of random speeds in 1 to 3 sites of
random links, with random codecs, depths and schedules, and replayed by `fusionctl run --plan`. The simulator's step time is
compared with the median measured one. Exit status 1 when a bound is broken:

  step time      median error at most 10 %, worst 25 %; runs with more than 2 % of overrun tasks are invalid
  stage time     forward + backward of a stage at full speed within 25 %
  peak memory    of each stage within 10 % + 32 MiB
"""
import argparse
import copy
import random
import statistics
import sys

import harness

WARM_UP = 2
MICRO_BATCHES = 8
MEDIAN_BOUND, WORST_BOUND, STAGE_BOUND = 0.10, 0.25, 0.25
OVERRUN_BOUND = 0.02
FASTEST_SHARE = 0.4  # of the machine's speed that one compnode may have, so that its tasks can be imitated
CODECS = ["fp32", "fp32", "int8", "int4", "topk-0.2-fp32", "topk-0.1-int4", "topk-0.03-int8"]


def gpt2_job(name, layers, steps, width=128, micro=4):
    return harness.job(
        name,
        {"family": "gpt2", "config": {"layers": layers, "heads": 4, "width": width, "context": 64, "vocabulary": 256}},
        {"kind": "text", "uri": "text.txt"},
        {"steps": steps, "batch": {"global": micro * MICRO_BATCHES, "micro": micro}, "seed": 1, "optimizer": {"type": "AdamW", "learningRate": 1e-3}},
    )


def mlp_job(name, layers, steps, width=512, micro=128):
    return harness.job(
        name,
        {"family": "mlp", "config": {"inputs": 64, "hidden": [width] * layers, "outputs": 1}},
        {"kind": "table", "uri": "table.csv"},
        {"steps": steps, "batch": {"global": micro * MICRO_BATCHES, "micro": micro}, "seed": 1, "optimizer": {"type": "SGD", "learningRate": 1e-3}},
    )


# (job, layers, sizes, compnodes) at full speed; the last ones are large, for memory.
FULL_SPEED = [
    (gpt2_job, 4, {}, 1),
    (gpt2_job, 4, {}, 2),
    (mlp_job, 4, {}, 1),
    (mlp_job, 4, {}, 2),
    (gpt2_job, 8, {"width": 256, "micro": 16}, 2),
    (mlp_job, 3, {"width": 2048, "micro": 32}, 2),
]


def random_compnodes(generator, count, flops_sum, flops_most):
    """Compnodes of unequal speeds, none above `flops_most`, in 1 to 3 sites; links between sites are slower than inside."""
    sites = [f"site-{i}" for i in range(generator.randint(1, min(3, count)))]
    inside = (10 ** generator.uniform(8, 9.5), generator.randint(100, 2000))
    between = {}
    for a in sites:
        for b in sites:
            if a < b:
                link = (10 ** generator.uniform(7.5, 8.5), generator.randint(2000, 50000))
                between[a, b] = between[b, a] = link
    weights = [generator.uniform(1, 4) for _ in range(count)]
    scale = min(flops_sum / sum(weights), flops_most / max(weights))
    compnodes = []
    for i, weight in enumerate(weights):
        site = sites[i % len(sites)]
        links = [(site, *inside)] + [(other, *between[site, other]) for other in sites if other != site]
        compnodes.append(harness.compnode(f"n{i}", site, flops=weight * scale, links=links))
    return compnodes


def cut(plan, generator, stages, segments, gpipe):
    """The one stage of `plan` cut into `segments` runs of operators; segment i goes to stage i % stages."""
    whole = plan["stages"][0]
    operators = whole["operators"]
    bounds = [0] + sorted(generator.sample(range(1, len(operators)), segments - 1)) + [len(operators)]
    result = copy.deepcopy(plan)
    result["links"] = []
    result["stages"] = []
    for stage in range(stages):
        entry = copy.deepcopy(whole)
        entry.update(index=stage, compnode=f"n{stage}", operators=[], subDags=[])
        for segment in range(stage, segments, stages):
            part = operators[bounds[segment] : bounds[segment + 1]]
            depth = MICRO_BATCHES if gpipe else min(MICRO_BATCHES, segments - segment + generator.randint(0, 3))
            entry["subDags"].append({"operators": part, "depth": depth})
            entry["operators"] += part
        result["stages"].append(entry)
    for i in range(stages):
        for j in range(stages):
            codec = generator.choice(CODECS)
            if i != j and codec != "fp32":
                result["links"].append({"from": i, "to": j, "direction": "Forward", "codec": codec})
    return result


def whole_plan(bench, job):
    """The plan of a job on one compnode."""
    return bench.plan(job, [harness.compnode("n0", "home", peak_flops=1e10)])


def memory_errors(run):
    """(measured, predicted, within the bound) of each stage."""
    result = []
    for stage in run.plan["stages"]:
        measured, predicted = run.peak_memory(stage["index"]), stage["memoryBytes"]
        result.append((measured, predicted, abs(predicted - measured) <= 0.10 * measured + (32 << 20)))
    return result


def step_times(bench, arguments, failures):
    print(f"Step time over emulated compnodes ({arguments.steps} steps after {WARM_UP} of warm-up)")
    print(f"{'plan':<22} {'stages':>6} {'sub-DAGs':>8} {'speeds':>9} {'predicted':>11} {'measured':>11} {'+-':>6} {'error':>7} {'overruns':>8} {'load':>5}")
    errors, worst_memory = [], []
    for index in range(arguments.plans):
        generator = random.Random(1000 * arguments.seed + index)
        layers = generator.randint(2, 4)
        make, family = (gpt2_job, "gpt2") if index % 3 else (mlp_job, "mlp")
        job = make(f"{family}-{index}", layers, WARM_UP + arguments.steps)
        gpipe = generator.random() < 0.3
        if gpipe:
            job["spec"]["training"]["pipeline"] = {"schedule": "GPipe"}
        plan = whole_plan(bench, job)
        operators = len(plan["stages"][0]["operators"])
        stages = generator.randint(1, 6)
        segments = min(operators, stages * generator.choice([1, 1, 2]) if stages > 1 else 1)
        machine = bench.machine_flops(job)
        limit = harness.emulated_flops_limit(machine)
        compnodes = random_compnodes(generator, stages, limit * generator.uniform(0.5, 0.98), FASTEST_SHARE * machine)
        if arguments.only is not None and index not in arguments.only:
            continue
        run = bench.run(job, compnodes, WARM_UP, plan=cut(plan, generator, stages, segments, gpipe), trace=arguments.trace)
        errors.append(run.step_error)
        worst_memory += memory_errors(run)
        speeds = sum(c["spec"]["emulation"]["flops"] for c in compnodes) / limit * harness.EMULATION_SHARE
        name = f"{index} {family}, {'GPipe' if gpipe else '1F1B'}"
        print(
            f"{name:<22} {stages:>6} {segments:>8} {speeds:>8.2f}x {run.plan['stepSeconds'] * 1e3:>8.1f} ms {run.step_seconds * 1e3:>8.1f} ms"
            f" {run.step_spread:>6.1%} {run.step_error:>+7.1%} {run.overrun_share:>8.1%} {harness.load():>5.1f}",
            flush=True,
        )
        if run.overrun_share > OVERRUN_BOUND:
            failures.append(f"plan {index}: {run.overrun_share:.1%} of the tasks overran: the machine is too busy to imitate its compnodes")
    sizes = [abs(error) for error in errors]
    print(f"median error {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")
    if statistics.median(sizes) > MEDIAN_BOUND or max(sizes) > WORST_BOUND:
        failures.append(f"step time: median error {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")
    print_memory("Peak memory of the stages above", worst_memory, failures)


def print_memory(title, entries, failures):
    worst = max(entries, key=lambda e: abs(e[0] - e[1]))
    print(f"{title}: {len(entries)} stages, largest difference: predicted {worst[1] / 2**20:.1f} MiB, measured {worst[0] / 2**20:.1f} MiB\n")
    broken = sum(not within for _, _, within in entries)
    if broken:
        failures.append(f"peak memory: {broken} of {len(entries)} stages beyond 10 % + 32 MiB")


def stage_times(bench, arguments, failures):
    """At full speed, on one and two compnodes: more would wait for each other's cores."""
    print("Stage time at full speed (a step's forward + backward) and peak memory, plans of EqualCompute")
    print(f"{'job':<30} {'stage':>6} {'predicted':>11} {'measured':>11} {'error':>7} {'predicted memory':>17} {'measured':>11}")
    memory = []
    for index, (make, layers, sizes, stages) in enumerate(FULL_SPEED):
        name = f"full-speed-{index}"
        job = make(name, layers, WARM_UP + arguments.steps, **sizes)
        job["spec"]["placement"] = {"policy": "EqualCompute"}
        flops = bench.machine_flops(job)
        run = bench.run(job, [harness.compnode(f"n{i}", "home", peak_flops=flops) for i in range(stages)], WARM_UP)
        title = f"{make.__name__.removesuffix('_job')}, {layers} layers" + "".join(f", {k} {v}" for k, v in sizes.items())
        for stage, (measured_bytes, predicted_bytes, within) in zip(run.plan["stages"], memory_errors(run)):
            predicted = MICRO_BATCHES * (stage["forwardSeconds"] + stage["backwardSeconds"])
            measured = run.stage(stage["index"], "forwardSeconds") + run.stage(stage["index"], "backwardSeconds")
            error = predicted / measured - 1
            print(
                f"{title:<30} {stage['index']:>6} {predicted * 1e3:>8.1f} ms {measured * 1e3:>8.1f} ms {error:>+7.1%}"
                f" {predicted_bytes / 2**20:>13.1f} MiB {measured_bytes / 2**20:>7.1f} MiB",
                flush=True,
            )
            memory.append((measured_bytes, predicted_bytes, within))
            if abs(error) > STAGE_BOUND:
                failures.append(f"{title}: stage {stage['index']} predicted {error:+.1%}")
    print_memory("Peak memory", memory, failures)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the plans to run")
    parser.add_argument("--trace", type=int, help="write a Chrome trace of this step of every run")
    parser.add_argument("--keep", help="folder that is used and kept, in place of a scratch folder")
    arguments = parser.parse_args()
    bench = harness.Bench(arguments.build, "fusion-prediction-", arguments.keep)
    failures = []
    try:
        stage_times(bench, arguments, failures)
        step_times(bench, arguments, failures)
    finally:
        bench.close()
    for failure in failures:
        print(f"above the bound: {failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
