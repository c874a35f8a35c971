"""fusion-jax-worker: runs one stage of a job, as `fusion-worker stage` does, by JAX."""

import argparse
import os
import sys


def prepare_jax():
    """One thread, like the other engine's workers; 64-bit types exist, and are used only where a graph says so."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()
    import jax

    jax.config.update("jax_enable_x64", True)


def _non_negative(text):
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is below 0")
    return number


def main(arguments=None):
    parser = argparse.ArgumentParser("fusion-jax-worker", description="Runs one stage of a Fusion job by JAX.")
    commands = parser.add_subparsers(dest="command", required=True)
    stage = commands.add_parser("stage", help="run one stage of a job until the broker stops it")
    stage.add_argument("--broker", required=True, help="HOST:PORT of the operator's broker")
    stage.add_argument("--job", required=True, help="NAMESPACE/NAME of the job")
    stage.add_argument("--stage", required=True, type=_non_negative, help="index of the stage in the plan")
    stage.add_argument("--compnode", required=True, help="the compnode that this machine is")
    stage.add_argument("--incarnation", required=True, type=int, help="of the job; fences earlier attempts")
    stage.add_argument("--listen", default="127.0.0.1:0", help="HOST:PORT where tensors come in; port 0 takes a free one")
    commands.add_parser("operators", help="list the operators that this engine has")
    commands.add_parser("version", help="print the version")
    options = parser.parse_args(arguments)

    prepare_jax()
    if options.command == "version":
        import jax

        from . import __version__

        print(f"fusion-jax-worker {__version__}, JAX {jax.__version__}")
        return 0
    if options.command == "operators":
        from . import operators_image  # noqa: F401: enters its operators
        from .operators import REGISTRY

        print("\n".join(sorted(REGISTRY)))
        return 0
    from . import session

    return session.run(session.Options(options.broker, options.job, options.stage, options.compnode, options.incarnation,
                                       options.listen))


def console():
    """Entry point. Threads of gRPC and JAX are not waited for."""
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    console()
