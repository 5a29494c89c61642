"""The command ps-lab, and ``python -m pslab``."""

from pswire.process import quietly_interrupted


def run() -> None:
    with quietly_interrupted():
        from pslab.cli import main
    main()


if __name__ == "__main__":
    run()
