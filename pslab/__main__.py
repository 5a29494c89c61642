"""``python -m pslab``"""

from pslab.cli import main

main()
