#!/usr/bin/python3
"""Measures whether communication hides behind computation: a step of a pipeline over slow links against one over free links.

A gpt2 of six layers, one a compnode, each in a site of its own, 40 ms from every other; 32 micro-batches, no compression. Speeds
are chosen so that all stages compute equally long; links so that a micro-batch's value and gradient together take 0.1 x and 1 x
a stage's compute (forward + backward). The planner chooses how many micro-batches are in flight. Exit status 1 when the measured
step is more than 1.1 x (0.1) or 1.2 x (1) the simulated step over free links, whose latency is kept.
"""
import argparse
import sys

import harness

STAGES = 6
MICRO_BATCHES = 32
LATENCY_US = 40_000
WARM_UP = 2
WIDTH, CONTEXT, SAMPLES = 128, 64, 4
MESSAGE_BYTES = SAMPLES * CONTEXT * WIDTH * 4
BOUNDS = [(0.1, 1.1), (1.0, 1.2)]  # (link seconds / compute seconds, measured / simulated over free links)
SPEED_SHARE = 0.4  # of what the machine may imitate: stages long enough that the tasks of six processes on two cores fit


def make_job(name, steps):
    pins = [f"transformer.h.{layer}.*" for layer in range(STAGES)]
    pins[0] += "|input|transformer.w*|transformer.drop*"
    pins[-1] += "|transformer.ln_f*|lm_head*|label|loss*"
    return harness.job(
        name,
        {"family": "gpt2", "config": {"layers": STAGES, "heads": 4, "width": WIDTH, "context": CONTEXT, "vocabulary": 256}},
        {"kind": "text", "uri": "text.txt"},
        {"steps": steps, "batch": {"global": SAMPLES * MICRO_BATCHES, "micro": SAMPLES}, "seed": 1, "optimizer": {"type": "AdamW", "learningRate": 1e-3}},
        placement={"pins": [{"operators": glob, "compnode": f"n{i}"} for i, glob in enumerate(pins)]},
    )


def make_compnodes(speeds, bits_per_second):
    sites = [f"site-{i}" for i in range(STAGES)]
    return [
        harness.compnode(f"n{i}", sites[i], flops=speed, links=[(peer, bits_per_second, LATENCY_US) for peer in sites if peer != sites[i]])
        for i, speed in enumerate(speeds)
    ]


def equal_stages(bench, job):
    """Speeds with which every stage computes equally long, and how long a micro-batch."""
    total = harness.emulated_flops_limit(bench.machine_flops(job)) * SPEED_SHARE
    speeds = [total / STAGES] * STAGES
    stages = bench.plan(job, make_compnodes(speeds, 1e9))["stages"]
    work = {s["compnode"]: (s["forwardSeconds"] + s["backwardSeconds"]) * speeds[0] for s in stages}
    seconds = sum(work.values()) / total
    return [work[f"n{i}"] / seconds for i in range(STAGES)], seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--trace", type=int, help="write a Chrome trace of this step of every run")
    parser.add_argument("--keep", help="folder that is used and kept, in place of a scratch folder")
    arguments = parser.parse_args()
    bench = harness.Bench(arguments.build, "fusion-overlap-", arguments.keep)
    failures = 0
    try:
        speeds, compute = equal_stages(bench, make_job("overlap", WARM_UP + arguments.steps))
        print(f"Overlap: {STAGES} stages of {compute * 1e3:.1f} ms a micro-batch, {MICRO_BATCHES} micro-batches, {LATENCY_US / 1000:.0f} ms between stages")
        print(f"{'link / compute':>14} {'link':>10} {'depths':<18} {'free links':>11} {'predicted':>11} {'measured':>11} {'+-':>6} {'ratio':>6} {'bound':>6} {'overruns':>8} {'load':>5}")
        for share, bound in BOUNDS:
            rate = 2 * MESSAGE_BYTES / (share * compute) * 8
            job = make_job(f"overlap-{share * 100:.0f}", WARM_UP + arguments.steps)
            run = bench.run(job, make_compnodes(speeds, rate), WARM_UP, trace=arguments.trace)
            free = run.plan["freeLinksStepSeconds"]
            ratio = run.step_seconds / free
            failures += ratio > bound
            depths = ",".join(str(stage["depth"]) for stage in run.plan["stages"])
            print(
                f"{share:>14} {rate / 1e6:>5.1f} Mbps {depths:<18} {free * 1e3:>8.1f} ms {run.plan['stepSeconds'] * 1e3:>8.1f} ms {run.step_seconds * 1e3:>8.1f} ms"
                f" {run.step_spread:>6.1%} {ratio:>6.3f} {bound:>6} {run.overrun_share:>8.1%} {harness.load():>5.1f}{'' if ratio <= bound else '  above the bound'}",
                flush=True,
            )
    finally:
        bench.close()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
