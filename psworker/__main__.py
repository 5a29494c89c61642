from psworker.cli import main

main(prog_name="ps-worker")
