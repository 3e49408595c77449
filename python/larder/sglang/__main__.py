# SPDX-License-Identifier: Apache-2.0
import sys

from larder.sglang.check import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
