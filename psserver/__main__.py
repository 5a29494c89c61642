from psserver.cli import main

main(prog_name="ps-server")
