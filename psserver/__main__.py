"""Entry point of the command ps-server, and of ``python -m psserver``."""

from pswire.command.process import one_blas_thread, only_newest_tls, quiet_grpc, quietly_interrupted


def run() -> None:
    quiet_grpc()
    one_blas_thread()
    only_newest_tls()
    with quietly_interrupted():
        from psserver.cli import main
    main(prog_name="ps-server")


if __name__ == "__main__":
    run()
