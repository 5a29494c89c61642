"""A secret number of this process, for hash tables whose keys others choose.

It decides where something lies and nothing else: results, files and orders do not depend on it. The one place where
chance enters the arrays of a server.
"""

import secrets
from typing import Final

SALT: Final = secrets.randbits(64)
