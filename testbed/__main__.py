import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib would be looked for there
    del sys.path[0]  # put there by `python -m`: a file in it would be taken for the module of its name

from testbed.cli import main

sys.exit(main())
