"""The command ps-lab, and ``python -m pslab``."""

from pswire.command.process import quiet_grpc, quietly_interrupted


def run() -> None:
    quiet_grpc()
    with quietly_interrupted():
        from pslab.cli import main
    main()


if __name__ == "__main__":
    run()
