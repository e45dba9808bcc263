"""`python -m agentops.demo.bound_child PARENT PROGRAM ARGUMENT…`: become PROGRAM, and die with process PARENT.

The kernel keeps the wish over exec(2), so that `kill -9` of the demo leaves none of its programs behind.
"""

import os
import sys

from agentops.cluster.processes import die_with_parent


def main(parent: str, program: str, *arguments: str) -> None:
    die_with_parent(int(parent), may_start_thread=False)
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
