"""The command ps-worker, and ``python -m psworker``."""

from pswire.command.process import quiet_grpc, quietly_interrupted


def run() -> None:
    quiet_grpc()
    with quietly_interrupted():
        from psworker.cli import main
    main(prog_name="ps-worker")


if __name__ == "__main__":
    run()
