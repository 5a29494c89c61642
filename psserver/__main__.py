"""The command ps-server, and ``python -m psserver``."""

from pswire.command.process import only_newest_tls, quiet_grpc, quietly_interrupted


def run() -> None:
    quiet_grpc()
    only_newest_tls()
    with quietly_interrupted():
        from psserver.cli import main
    main(prog_name="ps-server")


if __name__ == "__main__":
    run()
