"""Several command lines of ps-server in one process, as long as none of them starts a server.

Argument: JSON, a list of command lines. "TF_CONFIG", TEXT stands for that environment and no options.
"""

import contextlib
import io
import json
import os
import sys

from pswire.command.process import quiet_grpc

quiet_grpc()

from psserver.cli import main  # noqa: E402

for arguments in json.loads(sys.argv[1]):
    if arguments[:1] == ["TF_CONFIG"]:
        os.environ["TF_CONFIG"] = arguments[1]
        arguments = []
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments, prog_name="ps-server")
        except SystemExit as exit:
            code = exit.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
